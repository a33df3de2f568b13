"""Registers of a thread, spilled ones and warps of the fused kernels, as the driver tells. Prints a JSON line for each.

    python benchmarks/kernel_registers.py [--formats bf16,e4m3fn,...]

Rounds a tensor to each format and measures the telemetry of one on the current GPU. A format that cannot be rounded, or
of which no kernel was built, has a row with the reason.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
from precgui.engine.telemetry import triton_kernels
from precgui.formats.registry import blocks

FORMATS = ("mxfp8_e4m3", "mxfp4", "nvfp4", "bf16", "e4m3fn", "int8")
BUILT = "CompiledKernel"


def kernels() -> dict[int, Any]:
    """The kernels of Triton that are loaded, by their identity."""
    loaded = (each for each in gc.get_objects() if type(each).__name__ == BUILT)
    return {id(each): each for each in loaded if isinstance(getattr(each, "n_regs", None), int)}


def rows_of(what: str, launch: Callable[[], Any], known: dict[int, Any]) -> list[dict[str, Any]]:
    """A row for each kernel that `launch` loads and that is not among the `known` ones, which it joins."""
    empty = {"what": what, "kernel": None, "registers": None, "spilled": None, "warps": None}
    try:
        launch()
        torch.cuda.synchronize()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return [{**empty, "remark": f"{type(error).__name__}: {error}".splitlines()[0]}]
    new = {key: kernel for key, kernel in kernels().items() if key not in known}
    known |= new
    rows = [
        {
            "what": what, "kernel": getattr(kernel, "name", type(kernel).__name__), "registers": kernel.n_regs,
            "spilled": kernel.n_spills, "warps": _warps(kernel), "remark": "",
        }
        for kernel in new.values()
    ]  # fmt: skip
    return rows or [{**empty, "remark": "no kernel was built for it: it runs operation by operation, or shares one"}]


def _warps(kernel: Any) -> int | None:
    found = getattr(kernel, "num_warps", None) or getattr(getattr(kernel, "metadata", None), "num_warps", None)
    return int(found) if found is not None else None


def _measure_alone(tensor: torch.Tensor) -> None:
    rows = triton_kernels.empty_rows(1, tensor.device)
    triton_kernels.measure_alone(tensor, 1, 0, 1.0, rows, 0)


def _compare(tensor: torch.Tensor) -> None:
    triton_kernels.compare([tensor], [1], [0], triton_kernels.keep([tensor], [1], [0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no GPU here.", file=sys.stderr)
        return 2
    source = torch.randn(1 << 12, 64, device="cuda")
    known: dict[int, Any] = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor = source.to(dtype)
        title = f"telemetry of {str(dtype).removeprefix('torch.')}"
        _print(rows_of(title, partial(triton_kernels.measure, [tensor], [1], [0], 1.0), known))
        _print(rows_of(f"{title} alone", partial(_measure_alone, tensor), known))
        _print(rows_of(f"changes of {title.removeprefix('telemetry of ')}", partial(_compare, tensor), known))
    for name in options.formats.split(","):
        rounding = quantize_blocks if name in blocks() else quantize
        _print(rows_of(f"rounding to {name}", partial(rounding, source, name), known))
    return 0


def _print(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
