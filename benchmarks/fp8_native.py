"""FP8 on tensor cores against the same precision emulated: time of a linear layer, and how far the results differ.

    python benchmarks/fp8_native.py [--sizes 1024,4096] [--rounds 20]

One step (forward, both products of backward) of a linear layer in the precision fp8, native and emulated in turns, and
in BF16 autocast; medians with quartiles. All round the same operands in the same way; their sums differ. So native
results are compared twice, by the relative L2 distance of outputs and weight gradients:

- `difference`: from sums in FP32, as the emulation makes them.
- `beside_measured_sums`: from sums with the bits, the terms and the promotion that the device was just measured to
  have (engine/accumulation.py), emulated (engine/emulation/tensor_core.py) for the first rows. On an H100 these are the
  same to the last bit but for the scales. This is what is judged. None where a device adds in FP32; then `difference`
  is, as FP32 sums in another order.

Prints a JSON line for each size. Exit code 1 where they differ by more, 2 where there is no GPU with FP8.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from precgui import config
from precgui.engine import accumulation, precisions
from precgui.engine.accumulation import SumArithmetic
from precgui.engine.emulation import native_fp8
from precgui.engine.emulation.tensor_core import TensorCore

DEVICE = torch.device("cuda")
SAME_BELOW = 1e-5  # FP32 sums in another order
SAME_SUMS_BELOW = 2.0**-22  # two scales are multiplied onto a sum in another order: three roundings to FP32
ROWS = 64  # of each product, where its sums are emulated


class Layer:
    """A linear layer of `size` x `size` in a precision, with a batch of `size` rows."""

    def __init__(self, size: int, precision: str, *, native: bool = True) -> None:
        run = config.load("digits-quick", [f"precision={precision}", f"device={DEVICE}"])
        torch.manual_seed(0)
        self._inputs = torch.randn(size, size, device=DEVICE)
        self._weights_of_sum = torch.randn(size, size, device=DEVICE)
        has_fp8 = native_fp8.available
        try:
            if not native:
                native_fp8.available = lambda device: False
            self._precision = precisions.make(run, DEVICE)
            self._model = self._precision.convert(nn.Sequential(nn.Linear(size, size, bias=False)))
        finally:
            native_fp8.available = has_fp8

    def add_as(self, unit: TensorCore) -> None:
        """Emulate the first rows of each product of a native layer; the others are 0."""

        def first_rows(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, fast: bool) -> Tensor:
            result = a.new_zeros(len(a), b.shape[1], dtype=torch.float32)
            result[:ROWS] = unit.scaled_mm(a[:ROWS], b, scale_a, scale_b, fast=fast)
            return result

        layer = self._model[0]  # type: ignore[index]
        assert isinstance(layer, native_fp8.NativeLinear)
        layer.multiply = first_rows

    def step(self) -> tuple[Tensor, Tensor]:
        """Output and weight gradient."""
        self._model.zero_grad(set_to_none=True)
        with self._precision.forward_context():
            outputs = self._model(self._inputs)
        outputs.backward(self._weights_of_sum.to(outputs.dtype))
        gradient = next(self._model.parameters()).grad
        assert gradient is not None
        return outputs.detach(), gradient


def milliseconds(run: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def measured_sums(fmt: str, *, fast: bool) -> SumArithmetic:
    operands = accumulation.OPERANDS[fmt]
    return accumulation.measure(accumulation.multiply_on(DEVICE, operands, fast=fast), operands)


def as_unit(forward: SumArithmetic, backward: SumArithmetic) -> TensorCore | None:
    """A tensor core with these sums; None where they are made in FP32, or unlike forward and backward."""
    if forward.bits is None or forward.bits >= accumulation.FP32_BITS or forward.terms is None:
        return None
    if (forward.bits, forward.terms) != (backward.bits, backward.terms) or backward.promoted_every is None:
        return None
    return TensorCore(forward.bits, forward.terms, backward.promoted_every, "")


def measure(size: int, rounds: int, unit: TensorCore | None) -> dict[str, Any]:
    layers = {
        "native": Layer(size, "fp8"),
        "emulated": Layer(size, "fp8", native=False),
        "bf16-amp": Layer(size, "bf16-amp"),
    }
    native, emulated = layers["native"].step(), layers["emulated"].step()
    beside = None
    if unit is not None:
        as_measured = Layer(size, "fp8")
        as_measured.add_as(unit)
        pairs = zip(native, as_measured.step(), strict=True)
        beside = [distance(ours[:ROWS], theirs[:ROWS]) for ours, theirs in pairs]
    times: dict[str, list[float]] = {name: [] for name in layers}
    for turn in range(rounds + 3):
        for name, layer in layers.items():
            elapsed = milliseconds(layer.step)
            if turn >= 3:
                times[name].append(elapsed)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    return {
        "size": size,
        "step_ms": medians,
        "quartiles_ms": {name: np.quantile(values, (0.25, 0.75)).tolist() for name, values in times.items()},
        "emulated_over_native": medians["emulated"] / medians["native"],
        "bf16_over_native": medians["bf16-amp"] / medians["native"],
        "difference_output": distance(native[0], emulated[0]),
        "difference_weight_gradient": distance(native[1], emulated[1]),
        "beside_measured_sums": beside,
    }


def judge(rows: list[dict[str, Any]]) -> str:
    """A sentence where native and emulated results differ by more than their sums, or ''."""
    for row in rows:
        judged, most = row["beside_measured_sums"], SAME_SUMS_BELOW
        if judged is None:
            judged, most = [row["difference_output"], row["difference_weight_gradient"]], SAME_BELOW
        if max(judged) > most:
            return f"native and emulated results differ by {max(judged):.1e} at {row['size']}, more than {most:.1e}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1024,4096")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available() or not native_fp8.available(DEVICE):
        print("There is no GPU with FP8 tensor cores (compute capability 8.9 or newer).", file=sys.stderr)
        return 2
    forward, backward = measured_sums("e4m3fn", fast=True), measured_sums("e5m2", fast=False)
    rows: list[dict[str, Any]] = []
    for size in options.sizes.split(","):
        row = measure(int(size), options.rounds, as_unit(forward, backward))
        rows.append(row | {"sums_forward": asdict(forward), "sums_of_gradients": asdict(backward)})
        print(json.dumps(rows[-1]), flush=True)
    if problem := judge(rows):
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
