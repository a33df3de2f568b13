"""What a histogram foretells of gradients of a GPT, against casts of the very numbers by NumPy and ml_dtypes.

    python benchmarks/whatif_casts.py [--steps 60]

Of all parameters at four moments of a short training: the largest safe scale (a cast at it is finite, one at twice it
is not), the signal-to-noise ratio at six scales, and shares of samples (one of 2, 8 and 16 blocks) against the whole.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precgui.events import EXPONENT_BINS, TENSOR_STATS
from precgui.runs.tensors.confidence import BLOCK, spread
from precgui.runs.tensors.what_if import WhatIf

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import gpt

FORMATS = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3fn": ml_dtypes.float8_e4m3fn,
           "e5m2": ml_dtypes.float8_e5m2, "e2m1": ml_dtypes.float4_e2m1fn}  # fmt: skip
SATURATING = ("e2m1",)
SCALES = (0, 4, 8, 12, 16, 20)
EDGES = (-33, -25, -17)  # what is below these powers of two makes the share that samples estimate

Tensor = NDArray[np.float32]


def gradients(steps: int) -> list[Tensor]:
    """Those of a small GPT that reads its own source, at four moments."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = gpt.GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.frombuffer(bytearray(Path(gpt.__file__).read_bytes()), dtype=torch.uint8).long()
    found: list[Tensor] = []
    for step in range(steps):
        starts = torch.randint(len(text) - gpt.LENGTH - 1, (8,))
        pieces = torch.stack([text[start : start + gpt.LENGTH + 1] for start in starts])
        loss = nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if step in (0, steps // 12, steps // 3, steps - 1):
            found += [p.grad.numpy().ravel().copy() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    return found


def recorded(tensors: list[Tensor]) -> WhatIf:
    """Histograms by NumPy."""
    exponents = [np.bincount((t.view(np.uint32) >> 23) & 255, minlength=EXPONENT_BINS) for t in tensors]
    stats = np.zeros((len(tensors), len(TENSOR_STATS)))
    stats[:, TENSOR_STATS.index("amax")] = [np.abs(t).max() for t in tensors]
    stats[:, TENSOR_STATS.index("zeros")] = [np.count_nonzero(t == 0) for t in tensors]
    return WhatIf(np.array(exponents), stats)


@np.errstate(all="ignore")
def cast(tensor: Tensor, name: str, log2_scale: int) -> NDArray[np.float64]:
    return np.ldexp(tensor, log2_scale).astype(FORMATS[name]).astype(np.float64)


def safe_scales(tensors: list[Tensor], what_if: WhatIf, name: str) -> tuple[int, int]:
    """How many of the largest safe scales are right, and of how many."""
    known = [(t, int(k)) for t, k in zip(tensors, what_if.predict(name).safe_scale, strict=True) if np.isfinite(k)]
    right = sum(np.isfinite(cast(t, name, k)).all() and not np.isfinite(cast(t, name, k + 1)).all() for t, k in known)
    return int(right), len(known)


def noise_errors(tensors: list[Tensor], what_if: WhatIf, name: str) -> list[float]:
    """Foretold less real signal-to-noise ratio in dB, wherever nothing overflows and something is left."""
    errors = []
    for scale in SCALES:
        told = what_if.predict(name, scale)
        for place, tensor in enumerate(tensors):
            exact, stored = np.ldexp(tensor.astype(np.float64), scale), cast(tensor, name, scale)
            noise = np.square(exact - stored).sum()
            if told.overflow[place] == 0 and noise and stored.any():
                errors.append(float(told.snr_db[place] - 10 * np.log10(np.square(exact).sum() / noise)))
    return errors


def sample_errors(tensors: list[Tensor]) -> list[float]:
    """By how much shares of samples are off, in units of the spread that is told."""
    rng, off = np.random.default_rng(0), []
    for tensor in tensors:
        blocks = tensor[: tensor.size // BLOCK * BLOCK].reshape(-1, BLOCK)
        for stride in (2, 8, 16) if len(blocks) >= BLOCK else ():
            seen = blocks[int(rng.integers(stride)) :: stride]
            for edge in EDGES:
                whole, part = (np.mean((np.abs(t) < 2.0**edge) & (t != 0), keepdims=True) for t in (blocks, seen))
                told = spread(part.ravel(), np.array([[seen.size, blocks.size]], float), np.array([float(blocks.size)]))
                off.append(float(abs(part - whole).item() / told.item()))
    return off


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    tensors = gradients(parser.parse_args().steps)
    what_if, well = recorded(tensors), True
    for name in FORMATS:
        low, median, high = np.percentile(errors := noise_errors(tensors, what_if, name), [2.5, 50, 97.5])
        print(f"{name}: SNR of {len(errors)} casts off by {median:+.2f} dB in the median, 95 % within {low:+.2f} .. "
              f"{high:+.2f}, all within {np.abs(errors).max():.2f}")  # fmt: skip
        if name not in SATURATING:
            right, known = safe_scales(tensors, what_if, name)
            well = well and right == known
            print(f"{name}: the largest safe scale is right in {right} of {known}")
    off = sample_errors(tensors)
    print(f"samples: {sum(o > 1 for o in off)} of {len(off)} shares off by more than their spread")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
