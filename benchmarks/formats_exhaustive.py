"""Every one of the 2^32 float32 inputs, rounded by precgui and by somebody else, compared bit for bit.

    python benchmarks/formats_exhaustive.py [FORMAT ...] [--step N]

The reference is ml_dtypes, NumPy for fp16 and gfloat for tf32. `--step 16` takes every 16th input. NaN counts as equal
to NaN; the sign of zero counts. Exit code 1 on any difference.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import gfloat
import ml_dtypes
import numpy as np
import torch
from gfloat import Domain, FormatInfo

from precgui.engine.quantize.elements import quantize

PIECE = 1 << 22
REFERENCES: dict[str, Any] = {
    "e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "bf16": ml_dtypes.bfloat16, "fp16": np.float16,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn, "e2m1": ml_dtypes.float4_e2m1fn, "e4m3_ieee": ml_dtypes.float8_e4m3,
    "e3m4_ieee": ml_dtypes.float8_e3m4, "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
}  # fmt: skip
TF32 = FormatInfo("tf32", 19, 11, bias=127, is_signed=True, domain=Domain.Extended, has_nz=True,
                  num_high_nans=2**10 - 1, has_subnormals=True, is_twos_complement=False)  # fmt: skip


def reference(name: str) -> Callable[[Any], Any]:
    if name == "tf32":
        return lambda values: gfloat.round_ndarray(TF32, values.astype(np.float64)).astype(np.float32)
    kind = REFERENCES[name]
    return lambda values: values.astype(kind).astype(np.float32)


def differences(ours: Any, theirs: Any) -> Any:
    """Where two float32 arrays differ: in bits, save that any NaN equals any other."""
    return (ours.view(np.uint32) != theirs.view(np.uint32)) & ~(np.isnan(ours) & np.isnan(theirs))


def walk(name: str, step: int) -> int:
    """Compare one format over all inputs; returns the number of differences."""
    theirs_of, wrong, seen, begin = reference(name), 0, 0, time.perf_counter()
    for start in range(0, 1 << 32, PIECE * step):
        words = np.arange(start, min(start + PIECE * step, 1 << 32), step, dtype=np.uint64).astype(np.uint32)
        values = words.view(np.float32)
        ours = quantize(torch.from_numpy(values), name, nan="negative_zero").numpy()
        with np.errstate(all="ignore"):
            bad = differences(ours, theirs_of(values))
        if bad.any() and not wrong:
            place = int(np.argmax(bad))
            print(f"  first difference: {words[place]:#010x} = {values[place]!r} gives {ours[place]!r}")
        wrong += int(bad.sum())
        seen += values.size
    seconds = time.perf_counter() - begin
    print(f"{name:12s} {seen} inputs, {wrong} differences, {seconds:.0f} s", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", default=["e4m3fn", "e5m2", "bf16", "fp16", "tf32"])
    parser.add_argument("--step", type=int, default=1)
    args = parser.parse_args()
    unknown = [name for name in args.formats if name not in (*REFERENCES, "tf32")]
    if unknown:
        parser.error(f"no reference for {', '.join(unknown)}; there are {', '.join((*REFERENCES, 'tf32'))}")
    torch.set_num_threads(1)
    return 1 if sum(walk(name, args.step) for name in args.formats) else 0


if __name__ == "__main__":
    sys.exit(main())
