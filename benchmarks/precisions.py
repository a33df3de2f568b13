"""Every precision on the digits and on the small GPT, twice each, by what `precgui run` is made of. Prints Markdown.

    python benchmarks/precisions.py [--recipes digits-quick,gpt-quick] [--precisions fp32,bf16-amp,...] [--max-steps 40]

All precisions run one after the other in one process, then all again in another, so that both runs of one are far apart
and what one run leaves behind would show in the next. Twice equal: the loss and the gradient norm of every step, and
every validation, are the same bit for bit. Step: the lower quartile of the steps of a run, which work that comes and
goes lengthens less than their median; the shorter of both, its ratio to that of FP32, and by how much the other one
was longer. Memory: the peak of one step. The FP32 run is the twin of every emulated one: same weights, same batches,
same order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from precgui import config, open_run
from precgui.config import PRECISIONS

EMULATED = ("emulated:fp16", "emulated:e4m3fn", "emulated:e5m2", "emulated:mxfp8_e4m3", "emulated:int8", "emulated:nf4")
MEASURED = 4  # steps that do not count
COMPARED = ("loss", "grad_norm", "scale", "val_loss", "val_accuracy")
HEAD = (
    "| precision | validation loss, less FP32 | metric | twice equal | step, over FP32 | other run | memory, over FP32 "
    "| ran in |",
    "|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Done:
    """What one run left behind."""

    summary: dict[str, Any]
    series: dict[str, bytes]
    census: dict[str, float]
    step_s: float


def run_all(recipe: str, precisions: list[str], settings: list[str], folder: Path) -> None:
    """In a process of its own: one run after the other, each with its file."""
    from precgui.job import Job

    for place, precision in enumerate(precisions):
        wanted = config.load(recipe, [f"precision={precision}", "device=cpu", *settings])
        ended = Job(wanted, folder / f"{place}.h5").run()
        print(f"{recipe} {precision}: {ended.status} {ended.message}", file=sys.stderr, flush=True)


def read(path: Path) -> Done:
    with open_run(path) as saved:
        series = {name: np.asarray(saved.series(name)[1]).tobytes() for name in COMPARED}
        census = dict(saved.environment.get("census", {}).get("formats", {}))
        steps_s = saved.series("step_s")[1][MEASURED:]  # the census and the peak of memory slow the first ones
        return Done(dict(saved.summary), series, census, float(np.quantile(steps_s, 0.25)) if len(steps_s) else np.nan)


def row(precision: str, runs: list[Done], twins: list[Done]) -> str:
    """A line of the table; `twins` are the FP32 runs."""
    final, reference = runs[0].summary["final"], twins[0].summary["final"]
    different = sorted({name for other in runs[1:] for name in COMPARED if other.series[name] != runs[0].series[name]})
    (step, other), (step_fp32, _) = (sorted(one.step_s for one in ones) for ones in (runs, twins))
    memory, memory_fp32 = (ones[0].summary["memory_peak_bytes"] for ones in (runs, twins))
    census = ", ".join(f"{share:.0%} {name}" if share < 1 else name for name, share in runs[0].census.items())
    return " | ".join(
        (
            f"| `{precision}`",
            _loss(final["val_loss"], reference["val_loss"]),
            "" if final["val_accuracy"] is None else f"{final['val_accuracy']:.4f}",
            "yes" if not different else f"no: {', '.join(different)}",
            f"{step * 1e3:.2f} ms, {step / step_fp32:.2f}",
            f"{other / step - 1:+.0%}",
            "not measured" if memory is None else f"{memory / 2**20:.2f} MiB, {memory / memory_fp32:.2f}",
            f"{census} |",
        )
    )


def _loss(loss: float | None, reference: float | None) -> str:
    if loss is None:
        return "not finite"
    return f"{loss:.4f}" if reference is None else f"{loss:.4f}, {loss - reference:+.4f}"


def table(recipe: str, precisions: list[str], settings: list[str]) -> None:
    done: dict[str, list[Done]] = {precision: [] for precision in precisions}
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            child = get_context("spawn").Process(target=run_all, args=(recipe, precisions, settings, Path(name)))
            child.start()
            child.join()
            for place, precision in enumerate(precisions):
                done[precision].append(read(Path(name) / f"{place}.h5"))
    print(f"\n`{recipe}`{''.join(f' {setting}' for setting in settings)}\n\n" + "\n".join(HEAD))
    for precision, runs in done.items():
        print(row(precision, runs, done["fp32"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="digits-quick,gpt-quick")
    parser.add_argument("--precisions", default=",".join((*PRECISIONS, *EMULATED)), help="fp32 is always among them")
    parser.add_argument("--max-steps", type=int, help="of each run; all of the recipe by default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in `precgui run`")
    options = parser.parse_args()
    precisions = list(dict.fromkeys(["fp32", *options.precisions.split(",")]))
    settings = ["threads=1", "record.tensors=false", "qat.measure=false", *options.set]
    if options.max_steps:
        settings.append(f"train.max_steps={options.max_steps}")
    for recipe in options.recipes.split(","):
        table(recipe, precisions, settings)


if __name__ == "__main__":
    main()
