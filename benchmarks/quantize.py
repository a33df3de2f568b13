"""How fast tensors are rounded, against a copy of the same array and against other libraries.

    python benchmarks/quantize.py [--elements N] [--rounds N] [--threads N]

Every round runs the copy and the candidate one after the other, so that a burst of other work hits both; the figure is
the best time of the copy over the best time of the candidate. What misses its target is measured again, up to three
times. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.cpu import round_into
from precgui.engine.quantize.elements import quantize
from precgui.formats.registry import formats, get
from precgui.formats.rounding import CastPolicy

TARGETS = {"nearest": 0.65, "stochastic": 0.45, "blocks": 0.30, "gpu": 0.80}
REPEATS = 3
CALLS = 8  # of a measurement on a GPU, so that the host is ahead of the kernels
CUSTOM = ("e5m7", "e8m3", "e9m4", "e4m3b11", "e6m9", "e5m23")
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
ML_DTYPES = {
    "bf16": ml_dtypes.bfloat16, "fp16": np.float16, "e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn, "e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
QTORCH = {"bf16": (8, 7), "fp16": (5, 10), "e4m3fn": (4, 3), "e5m2": (5, 2), "e3m2": (3, 2), "e2m1": (2, 1)}


def paired(copy: Callable[[], Any], run: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The best time of the copy over the best time of the run, and the latter in seconds."""
    run()
    copied, ran = zip(*((clock(copy), clock(run)) for _ in range(rounds)), strict=True)
    return min(copied) / min(ran), min(ran)


def clock(run: Callable[[], Any]) -> float:
    """Seconds of the CPU with one thread, so that other work on the machine does not count; of the clock with more."""
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = now()
    run()
    return now() - begin


class Bench:
    """Prints one line for each measurement and remembers the missed targets."""

    def __init__(self, elements: int, rounds: int) -> None:
        self.source = torch.randn(elements)
        self.out = torch.empty_like(self.source)
        self.rounds = rounds
        self.missed: list[str] = []

    def line(self, name: str, run: Callable[[], Any], copy: Callable[[], Any], target: float | None = None) -> None:
        ratio, seconds = paired(copy, run, self.rounds)
        for _ in range(REPEATS):
            if target is not None and ratio < target:  # other work can slow down the one or the other
                ratio, seconds = paired(copy, run, self.rounds)
        rate = self.source.numel() / seconds / 1e6
        verdict = "" if target is None else ("met" if ratio >= target else "MISSED")
        if verdict == "MISSED":
            self.missed.append(f"{name}: {ratio:.2f}, wanted {target}")
        print(f"{name:44s} {rate:8.0f} M/s {100 * ratio:6.0f} % of a copy  {verdict}", flush=True)

    def into(self, name: str, rounding: str, target: float | None) -> None:
        """Into memory that is there already, against copy_."""
        fmt, cast_policy = get(name), CastPolicy(rounding)  # type: ignore[arg-type]
        source, out = self.source.numpy(), self.out.numpy()
        threads = torch.get_num_threads()
        self.line(
            f"{rounding} {name}",
            lambda: round_into(source, out, fmt, cast_policy, 1, threads),
            lambda: self.out.copy_(self.source),
            target,
        )


def cpu(bench: Bench) -> None:
    names = (*(name for name in formats() if name not in ("fp64", "fp32")), *CUSTOM)
    for rounding, target in (("nearest_even", "nearest"), ("stochastic", "stochastic")):
        print(f"\n{rounding}, into existing memory, against copy_")
        for name in names:
            bench.into(name, rounding, TARGETS[target])
    print("\nother roundings (no target)")
    for rounding in ("toward_zero", "up", "nearest_away", "to_odd"):
        for name in ("bf16", "fp16", "e4m3fn", "int8", "nf4", "e8m0"):
            bench.into(name, rounding, None)
    last = torch.randn(bench.source.numel() >> 16, 64, 32, 32).contiguous(memory_format=torch.channels_last)
    bench.line("quantize bf16, channels last, against clone", lambda: quantize(last, "bf16"), last.clone)
    print("\nas called, result in new memory, against clone")
    for name in ("bf16", "fp16", "e4m3fn", "e2m1"):
        bench.line(f"quantize {name}", lambda n=name: quantize(bench.source, n), bench.source.clone, TARGETS["nearest"])
    for name in ("mxfp4", "mxfp8_e4m3", "mxint8", "nvfp4"):
        bench.line(
            f"quantize_blocks {name}",
            lambda n=name: quantize_blocks(bench.source, n),
            bench.source.clone,
            TARGETS["blocks"],
        )


def others(bench: Bench) -> None:
    """There and back, as a user must write it with each library; fewer elements, for they are slow."""
    few = Bench(min(bench.source.numel(), 1 << 21), max(bench.rounds // 2, 2))
    array = few.source.numpy()
    print(f"\nother libraries, {few.source.numel()} elements, there and back, against clone")
    for name, dtype in TORCH.items():
        few.line(f"torch .to() {name}", lambda d=dtype: few.source.to(d).float(), few.source.clone)
    for name, kind in ML_DTYPES.items():
        few.line(f"ml_dtypes {name}", lambda k=kind: array.astype(k).astype(np.float32), few.source.clone)
    gfloat_lines(few)
    try:  # it compiles itself when it is imported, with ninja and a C++ compiler
        quantizer = importlib.import_module("qtorch.quant").float_quantize
    except (ImportError, RuntimeError, OSError) as error:
        print(f"qtorch: not measured ({error})")
        return
    for name, (exponent, mantissa) in QTORCH.items():
        few.line(
            f"qtorch {name}", lambda e=exponent, m=mantissa: quantizer(few.source, e, m, "nearest"), few.source.clone
        )


def gfloat_lines(few: Bench) -> None:
    import gfloat
    from gfloat.formats import format_info_bfloat16, format_info_ocp_e4m3

    values = few.source.numpy()[: 1 << 18].astype(np.float64)
    share = few.source.numel() / values.size
    for name, info in (("bf16", format_info_bfloat16), ("e4m3fn", format_info_ocp_e4m3)):
        seconds = clock(lambda i=info: gfloat.round_ndarray(i, values)) * share
        print(f"{'gfloat ' + name:44s} {few.source.numel() / seconds / 1e6:8.0f} M/s")


def gpu(bench: Bench, elements: int) -> None:
    source = torch.randn(elements, device="cuda")
    out = torch.empty_like(source)
    print(f"\n{torch.cuda.get_device_name()}: {source.numel()} elements, against copy_", flush=True)

    def timed(run: Callable[[], Any]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    for rounding in ("nearest_even", "stochastic"):
        for name in ("tf32", "bf16", "fp16", "e4m3fn", "e5m2", "e2m1"):
            run: Callable[[], Any] = lambda n=name, r=rounding: quantize(source, n, rounding=r, seed=1)  # noqa: E731
            run()
            pairs = [(timed(lambda: out.copy_(source)), timed(run)) for _ in range(10)]
            ratio = statistics.median(copy / ran for copy, ran in pairs)
            verdict = "met" if ratio >= TARGETS["gpu"] else "MISSED"
            if verdict == "MISSED":
                bench.missed.append(f"GPU {rounding} {name}: {ratio:.2f}")
            print(f"{rounding + ' ' + name:44s} {100 * ratio:6.0f} % of a copy  {verdict}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 25)
    parser.add_argument("--gpu-elements", type=int, default=1 << 27)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gpu-only", action="store_true", help="leave the CPU and other tools out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{platform.processor() or platform.machine()}, {args.threads} thread(s), {args.elements} float32 elements, "
          f"{args.rounds} rounds, torch {torch.__version__}")  # fmt: skip
    bench = Bench(args.elements, args.rounds)
    if not args.gpu_only:
        cpu(bench)
        others(bench)
    if torch.cuda.is_available():
        gpu(bench, args.gpu_elements)
    if not bench.missed:
        print("\nall targets met")
        return 0
    print(f"missed: {'; '.join(bench.missed)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
