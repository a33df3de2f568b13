"""Train the pools that `benchmarks/verdicts.py` draws from: many seeds of a small network at once, as one batch.

    python benchmarks/verdict_pool.py digits 256 benchmarks/pool_digits.json
    python benchmarks/verdict_pool.py gpt 128 benchmarks/pool_gpt.json

An arm is a rounding of the operands of all matrix products, forward and backward. One seed decides the split of the
data (digits only), the initial weights and the order of the batches, the same in every arm.
"""

from __future__ import annotations

import json
import math
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

ROOT = Path(__file__).parent.parent
ARMS = {"digits": ("fp32", "fp32-twin", "bf16", "e4m3fn", "int4", "int3"), "gpt": ("fp32", "fp32-twin", "bf16", "int4")}
TOGETHER = {"digits": 256, "gpt": 16}  # models in a batch: more would leave the cache


def rounded(values: Tensor, arm: str) -> Tensor:
    """[model, ...] rounded to the format of an arm, with one scale for each model where the format needs one."""
    if arm.startswith("fp32"):
        return values
    if arm == "bf16":
        return values.bfloat16().float()
    largest = {"e4m3fn": 448.0, "int4": 7.0, "int3": 3.0}[arm]
    scale = values.abs().amax(tuple(range(1, values.dim())), keepdim=True).clamp_min(1e-20) / largest
    scaled = values / scale
    return (scaled.to(torch.float8_e4m3fn).float() if arm == "e4m3fn" else scaled.round()) * scale


class Product(torch.autograd.Function):
    """a @ b of rounded operands; integers round no gradients, as in quantisation-aware training."""

    @staticmethod
    def forward(context: Any, a: Tensor, b: Tensor, arm: str) -> Tensor:
        a, b = rounded(a, arm), rounded(b, arm)
        context.save_for_backward(a, b)
        context.arm = arm
        return a @ b

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = context.saved_tensors
        gradient = gradients[0] if context.arm.startswith("int") else rounded(gradients[0], context.arm)
        return gradient @ b.transpose(-1, -2), a.transpose(-1, -2) @ gradient, None


def moved_by_one_ulp(weights: list[Tensor]) -> list[Tensor]:
    """Each weight moved to one of its two neighbours or left alone, at random."""
    generator = torch.Generator().manual_seed(777)
    moved = []
    for weight in weights:
        way = torch.randint(0, 3, weight.shape, generator=generator) - 1
        to = torch.where(way > 0, math.inf, -math.inf).to(weight.dtype)
        moved.append(torch.where(way == 0, weight, torch.nextafter(weight, to)))
    return moved


@dataclass(frozen=True)
class Trained:
    """Of each model its validation loss and the samples it got right (None where there is no such count)."""

    loss: list[float]
    right: list[int] | None


def _cosine(step: int, steps: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / steps))


class Perceptrons:
    """64-64-10 perceptrons side by side: weights [model, in, out]."""

    def __init__(self, generators: list[torch.Generator], arm: str) -> None:
        self.arm = arm
        weights = [
            torch.stack([torch.randn(inputs, outputs, generator=each) / 8 for each in generators])
            for inputs, outputs in ((64, 64), (64, 10))
        ]
        weights = moved_by_one_ulp(weights) if arm == "fp32-twin" else weights
        biases = [torch.zeros(len(generators), 1, outputs) for outputs in (64, 10)]
        self.parameters = [tensor.clone().requires_grad_() for tensor in (*weights, *biases)]

    def logits(self, inputs: Tensor) -> Tensor:
        """Images [model, batch, 64] to logits [model, batch, 10]."""
        first, second, first_bias, second_bias = self.parameters
        hidden = torch.relu(Product.apply(inputs, first, self.arm) + first_bias)
        outputs: Tensor = Product.apply(hidden, second, self.arm) + second_bias
        return outputs


def digits(seeds: range, arm: str) -> Trained:
    """64-64-10 perceptrons on the bundled digits: 10 epochs of 64, SGD with momentum, 359 samples held out."""
    with np.load(ROOT / "resources/data/digits.npz", allow_pickle=False) as bundled:
        images = torch.from_numpy(bundled["images"]).float().flatten(1) / 16
        labels = torch.from_numpy(bundled["labels"]).long()
    images = (images - images.mean()) / images.std()
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    places = torch.stack([torch.randperm(len(images), generator=each) for each in generators])
    validation, training = places[:, :359], places[:, 359:]
    models = Perceptrons(generators, arm)
    optimizer = torch.optim.SGD(models.parameters, lr=0.1, momentum=0.9)
    chosen = _batches(training, generators, batch=64, epochs=10)
    for step, batch in enumerate(chosen):
        optimizer.param_groups[0]["lr"] = 0.1 * _cosine(step, len(chosen))
        optimizer.zero_grad()
        loss = functional.cross_entropy(
            models.logits(images[batch]).flatten(0, 1), labels[batch].flatten(), reduction="sum"
        )
        (loss / batch.shape[1]).backward()
        optimizer.step()
    with torch.no_grad():
        logits, targets = models.logits(images[validation]), labels[validation]
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return Trained(losses.view(len(seeds), -1).mean(1).tolist(), (logits.argmax(2) == targets).sum(1).tolist())


def _batches(training: Tensor, generators: list[torch.Generator], batch: int, epochs: int) -> list[Tensor]:
    """The samples [model, batch] of every step; each model has an order of its own."""
    chosen = []
    for _ in range(epochs):
        order = torch.stack([torch.randperm(training.shape[1], generator=each) for each in generators])
        shuffled = torch.gather(training, 1, order)
        chosen += [shuffled[:, first : first + batch] for first in range(0, training.shape[1] - batch + 1, batch)]
    return chosen


class Gpts:
    """Small GPTs side by side: width 32, 2 blocks, 2 heads, 32 bytes of context; weights [model, in, out]."""

    width, heads, blocks, context = 32, 2, 2, 32

    def __init__(self, generators: list[torch.Generator], arm: str) -> None:
        self.arm = arm
        width = self.width
        shapes = [(256, width), (self.context, width)]
        shapes += [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * self.blocks
        shapes += [(width, 256)]
        scale = [0.02, 0.02] + [shape[0] ** -0.5 for shape in shapes[2:]]
        weights = [
            torch.stack([torch.randn(*shape, generator=each) * size for each in generators])
            for shape, size in zip(shapes, scale, strict=True)
        ]
        weights = moved_by_one_ulp(weights) if arm == "fp32-twin" else weights
        self.parameters = [weight.clone().requires_grad_() for weight in weights]

    def logits(self, bytes_: Tensor) -> Tensor:
        """Bytes [model, batch, length] to logits of the next byte [model, batch * length, 256]."""
        token, position, *inner, head = self.parameters
        models, batch, length = bytes_.shape
        at = bytes_.flatten(1).unsqueeze(-1).expand(-1, -1, self.width)
        x = token.gather(1, at) + position.repeat(1, batch, 1)
        for block in range(self.blocks):
            qkv, out, up, down = inner[4 * block : 4 * block + 4]
            q, k, v = (
                part.view(models * batch, length, self.heads, -1).transpose(1, 2)
                for part in Product.apply(self._norm(x), qkv, self.arm).chunk(3, -1)
            )
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            x = x + Product.apply(mixed.reshape(models, batch * length, self.width), out, self.arm)
            hidden = functional.gelu(Product.apply(self._norm(x), up, self.arm))
            x = x + Product.apply(hidden, down, self.arm)
        return Product.apply(self._norm(x), head, self.arm)

    def _norm(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (self.width,))


def gpt(seeds: range, arm: str) -> Trained:
    """Small GPTs on the source of Python's library: 120 steps of AdamW, 16 pieces of 32 bytes, 256 held out."""
    library = Path(sysconfig.get_path("stdlib"))
    text = b"\n".join(file.read_bytes() for file in sorted(library.glob("*.py")))
    whole = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
    pieces = whole.unfold(0, Gpts.context + 1, 1)
    cut, steps, batch = int(len(pieces) * 0.9), 120, 16
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    models = Gpts(generators, arm)
    optimizer = torch.optim.AdamW(models.parameters, lr=4e-3, weight_decay=0.0)
    for step in range(steps):
        starts = torch.stack([torch.randint(cut, (batch,), generator=each) for each in generators])
        chosen = pieces[starts].long()
        logits = models.logits(chosen[..., :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), chosen[..., 1:].flatten(), reduction="sum")
        optimizer.param_groups[0]["lr"] = 4e-3 * _cosine(step, steps)
        optimizer.zero_grad()
        (loss / (batch * Gpts.context)).backward()
        optimizer.step()
    held_out = pieces[torch.linspace(cut, len(pieces) - 1, 256).long()].long().expand(len(seeds), -1, -1)
    with torch.no_grad():
        targets = held_out[..., 1:].reshape(len(seeds), -1)
        losses = functional.cross_entropy(
            models.logits(held_out[..., :-1]).flatten(0, 1), targets.flatten(), reduction="none"
        )
        return Trained(losses.view(len(seeds), -1).mean(1).tolist(), None)


TRAINERS: dict[str, Callable[[range, str], Trained]] = {"digits": digits, "gpt": gpt}


def _parts(count: int, size: int) -> Iterator[range]:
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


def main(task: str, seeds: int, path: Path) -> None:
    torch.set_num_threads(1)
    arms = {}
    for arm in ARMS[task]:
        begin = time.process_time()
        parts = [TRAINERS[task](part, arm) for part in _parts(seeds, TOGETHER[task])]
        loss = [float(f"{value:.6g}") for part in parts for value in part.loss]
        arms[arm] = {"loss": loss}
        if parts[0].right is not None:
            arms[arm]["right"] = [count for part in parts for count in part.right or ()]
        print(f"{task} {arm}: mean loss {np.mean(loss):.4f}, {time.process_time() - begin:.1f} CPU-s", flush=True)
    about = " ".join((TRAINERS[task].__doc__ or "").split())
    pool = {"task": task, "about": about, "torch": torch.__version__, "seeds": seeds}
    pool |= {"validation_samples": 359} if task == "digits" else {}
    path.write_text(json.dumps({**pool, "arms": arms}, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
