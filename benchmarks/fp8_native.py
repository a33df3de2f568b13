"""FP8 on tensor cores against the same precision emulated: time of a linear layer, and how far the results differ.

    python benchmarks/fp8_native.py [--sizes 1024,4096] [--rounds 20]

One step (forward, both products of backward) of a linear layer in the precision fp8, native and emulated in turns, and
in BF16 autocast; medians with quartiles. The difference is the relative L2 distance of the outputs and of the weight
gradients: both forms round the same operands in the same way, so only the order of sums may differ. Prints a JSON
line for each size. Exit code 1 where they differ by more, 2 where there is no GPU with FP8.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from precgui import config
from precgui.engine import precisions
from precgui.engine.emulation import native_fp8

DEVICE = torch.device("cuda")
SAME_BELOW = 1e-5  # FP32 sums in another order


class Layer:
    """A linear layer of `size` x `size` in a precision, with a batch of `size` rows."""

    def __init__(self, size: int, precision: str, *, native: bool = True) -> None:
        run = config.load("digits-quick", [f"precision={precision}", "device=cuda"])
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


def measure(size: int, rounds: int) -> dict[str, Any]:
    layers = {
        "native": Layer(size, "fp8"),
        "emulated": Layer(size, "fp8", native=False),
        "bf16-amp": Layer(size, "bf16-amp"),
    }
    (native, native_grad), (emulated, emulated_grad) = layers["native"].step(), layers["emulated"].step()
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
        "difference_output": distance(native, emulated),
        "difference_weight_gradient": distance(native_grad, emulated_grad),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1024,4096")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available() or not native_fp8.available(DEVICE):
        print("There is no GPU with FP8 tensor cores (compute capability 8.9 or newer).", file=sys.stderr)
        return 2
    worst = 0.0
    for size in options.sizes.split(","):
        row = measure(int(size), options.rounds)
        print(json.dumps(row), flush=True)
        worst = max(worst, row["difference_output"], row["difference_weight_gradient"])
    if worst < SAME_BELOW:
        return 0
    print(f"native and emulated results differ by {worst:.1e}, more than {SAME_BELOW:.0e}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
