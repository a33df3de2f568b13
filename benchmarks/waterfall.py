"""The account of the speed-up of BF16 on four planted causes, and on the medium GPT and ResNet as they are.

    python benchmarks/waterfall.py [--cases tiny_batch,vocabulary] [--threads 1] [--keep DIR]
                                   [--rounds N] [--seconds S] [--precision fp32] [--set data.batch_size=1]

Target: the planted cause comes first, and the factors multiply to the observed speed-up within 5 %.
A planted cause may lose nothing on a given device (a vocabulary of 50257 on most CPUs); then the account says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from precgui.config import RunConfig, load
from precgui.engine.profile.document import profile_config
from precgui.engine.profile.paired import LEAST_ROUNDS
from precgui.runs.speedup.profile_file import PAIRS_S, write_profile
from precgui.runs.speedup.waterfall import verdict, waterfall

HERE = Path(__file__).parent
PLANTED = {"tiny_batch": "gaps", "vocabulary": "alignment", "slow_loader": "data", "casts_in_a_loop": "casts"}
# Written after the estimator was chosen, and run once.
HELD_OUT = {
    "one_small_image": "gaps", "decoding_loader": "data", "float_islands": "casts", "elementwise_tower": "amdahl",
}  # fmt: skip
AS_THEY_ARE = {
    "gpt": ("gpt-quick", ("model.size=medium", "data.batch_size=8")),
    "resnet": ("digits-quick", ("model.name=resnet", "model.size=medium")),
}


def config_of(case: str, threads: int, precision: str = "bf16-amp", changes: Sequence[str] = ()) -> RunConfig:
    settings = [f"precision={precision}", f"threads={threads}", "record.tensors=false"]
    if case in PLANTED | HELD_OUT:
        return load("digits-quick", [*settings, *changes, f"task={HERE / 'planted_causes.py'}:{case}"])
    recipe, own = AS_THEY_ARE[case]
    return load(recipe, [*settings, *own, *changes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join([*PLANTED, *HELD_OUT, *AS_THEY_ARE]))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="fewer than the default: exactly so many")
    parser.add_argument("--seconds", type=float, default=PAIRS_S, help="for pairs of plain and profiled steps")
    parser.add_argument("--precision", default="bf16-amp")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    for case in args.cases.split(","):
        config = config_of(case, args.threads, args.precision, args.set)
        document = profile_config(config, rounds=args.rounds, seconds=args.seconds)
        account = waterfall(document)
        factors = "  ".join(f"{factor.key} {factor.value:.3f}" for factor in account.factors)
        first = next((factor.key for factor in account.causes()), "none")
        expected = (PLANTED | HELD_OUT).get(case)
        judged = f"expected {expected}, first is {first}" if expected else f"first is {first}"
        print(f"{case}: {judged}; spread {account.spread:.0%}. {account.closing}\n  {factors}")
        print(f"  {verdict(account, args.precision)}")
        for row in document["padding"]:
            print(f"  padded {row['module']} {row['phase']} {row['sizes']} to {row['padded']}: {row['gain']:+.1%}")
        for note in document["notes"]:
            print(f"  {note}", flush=True)
        if args.keep is not None:
            args.keep.mkdir(parents=True, exist_ok=True)
            write_profile(args.keep / f"{case}.profile.json", document)


if __name__ == "__main__":
    main()
