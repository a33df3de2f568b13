"""What recording tensors costs a training step, in pairs with the same step without it, beside other tools.

`python benchmarks/telemetry_overhead.py [--pairs N] [--model gpt] [--batch N]` prints, for each way of recording, the
ratio of CPU time (all threads of the process, the file included) to that of a plain step beside it, and what the record
itself says that looking cost. "nothing" is the noise of the method. `--elements` prints nanoseconds an element of
single looks instead.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from precgui.config import RecordConfig
from precgui.engine.telemetry_meters import HostMeter
from precgui.record import Recorder
from precgui.runs.reader import open_run

WARM_UP = 8
Step = Callable[[], None]


class Gpt(nn.Module):
    """3.7 million parameters: six blocks of width 192 on 256 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(2048, 192), nn.Parameter(torch.zeros(64, 192))
        layer = nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(192, 2048)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(words) + self.places)).flatten(0, 1)


def make(name: str, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    if name == "gpt":
        return Gpt(), torch.randint(2048, (batch, 64)), torch.randint(2048, (batch * 64,))
    return torchvision.models.resnet18(), torch.randn(batch, 3, 160, 160), torch.randint(1000, (batch,))


class Loop:
    """A training loop; `after` is called at the end of each step."""

    def __init__(self, name: str, batch: int) -> None:
        self.model, self.inputs, self.targets = make(name, batch)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self.after: Callable[[Tensor], None] = lambda loss: None

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.inputs), self.targets)
        loss.backward()
        self.optimizer.step()
        self.after(loss)


@contextlib.contextmanager
def recorder(loop: Loop, **settings: Any) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        with Recorder(path, loop.model, loop.optimizer, record=RecordConfig(**settings)) as made:
            loop.after = made.step
            yield
        with open_run(path) as run:
            record = run.tensors()["gradient"]
            told = f"gradients in {len(record)} of {run.steps} steps, largest stride {record.strides().max()}, "
            told += f"by its own account {run.environment['record']['cost_share']:.1%}"
        print(f"    {told}")


@contextlib.contextmanager
def naive(loop: Loop) -> Iterator[None]:
    def after(_: Tensor) -> None:
        for parameter in loop.model.parameters():
            g = parameter.grad
            if g is not None:
                [value.item() for value in (g.min(), g.max(), g.mean(), g.std(), g.isnan().sum())]

    loop.after = after
    yield


@contextlib.contextmanager
def tensorboard(loop: Loop) -> Iterator[None]:
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:

        def after(_: Tensor) -> None:
            for name, parameter in loop.model.named_parameters():
                if parameter.grad is not None:
                    writer.add_histogram(name, parameter.grad)

        loop.after = after
        yield


@contextlib.contextmanager
def debug_underflow_overflow(loop: Loop) -> Iterator[None]:
    from transformers.debug_utils import DebugUnderflowOverflow

    before = {module: set(module._forward_hooks) for module in loop.model.modules()}
    with contextlib.redirect_stdout(io.StringIO()):
        DebugUnderflowOverflow(loop.model)
        yield
    for module, known in before.items():
        for key in set(module._forward_hooks) - known:
            del module._forward_hooks[key]


GRADIENTS_ONLY = {
    "weights_every": 0, "optimizer_every": 0, "activations_every": 0, "activation_gradients_every": 0
}  # fmt: skip
WAYS: dict[str, Callable[[Loop], Any]] = {
    "nothing": lambda loop: contextlib.nullcontext(),
    "gradients, every element": lambda loop: recorder(loop, budget=100, **GRADIENTS_ONLY),
    "gradients, budget 3 %": lambda loop: recorder(loop, **GRADIENTS_ONLY),
    "all tensors, budget 3 %": lambda loop: recorder(loop),
    "naive statistics of gradients": naive,
    "TensorBoard histograms of gradients": tensorboard,
    "DebugUnderflowOverflow": debug_underflow_overflow,
}


def step_s(loop: Loop) -> float:
    """CPU seconds of the process for a step."""
    begin = time.process_time()
    loop.step()
    return time.process_time() - begin


def ratios(name: str, batch: int, way: Callable[[Loop], Any], pairs: int) -> str:
    """Watched over plain: median and interquartile range of the pairs, ratio of the sums; who is first changes."""
    plain, watched = Loop(name, batch), Loop(name, batch)
    times: dict[Loop, list[float]] = {plain: [], watched: []}
    with way(watched):
        for pair in range(WARM_UP + pairs):
            for loop in (plain, watched) if pair % 2 else (watched, plain):
                times[loop].append(step_s(loop))
    cost, base = times[watched][WARM_UP:], times[plain][WARM_UP:]
    low, middle, high = statistics.quantiles([c / b for c, b in zip(cost, base, strict=True)], n=4)
    return f"{middle:.3f}  (interquartile range {high - low:.3f}), sums {sum(cost) / sum(base):.3f}"


def print_elements(size: int = 300_000, rounds: int = 200) -> None:
    """The best of many looks at tensors that fit into the second-level cache, beside a clone of them."""
    meter = HostMeter()
    for name, values in {"FP32": torch.randn(size), "BF16": torch.randn(size).bfloat16()}.items():
        looks = {f"one of {stride}": partial(meter.measure, [values], [stride], 1) for stride in (1, 4, 16)}
        looks["update"] = partial(meter.compare, [values], [1], 0, meter.keep([values], [1], 0))
        looks["clone"] = values.clone
        told = [f"{what} {1e9 * best_s(look, rounds) / size:.2f}" for what, look in looks.items()]
        print(f"{name}, ns an element: {', '.join(told)}")


def best_s(look: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.thread_time()
        look()
        times.append(time.thread_time() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--model", choices=("resnet", "gpt"), action="append")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--elements", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.elements:
        print_elements()
        return
    for name in options.model or ("resnet", "gpt"):
        print(f"{name}, batch {options.batch}, one thread")
        for way in options.way or WAYS:
            try:
                told = ratios(name, options.batch, WAYS[way], options.pairs)
            except ImportError as error:
                print(f"  {way:38} not measured: {error}")
                continue
            print(f"  {way:38} {told}", flush=True)


if __name__ == "__main__":
    main()
