"""What recording tensors costs a training step, in pairs with the same step without it, beside other tools.

`python benchmarks/telemetry_overhead.py [--pairs N] [--model gpt] [--batch N] [--way NAME]` prints for each way of
recording two figures. Fixed: how many seconds longer the first FIRST steps take than plain ones, in which operations
are watched, steps are made again in FP64, kernels are compiled and tensors are looked at most often. Steady: in the
steps after them the ratio of a step with it to a plain one beside it, in CPU time and by the clock: the median of the
pairs and where it lies with 95 % (bootstrap), and the ratio of the sums, in which the steps that look count by what
they take. CPU time is that of the training thread in the step, and what other threads took in the meantime beyond
their work for plain steps, the writer of the file first of all, is all put on the recorded steps. "nothing" is the
noise of the method. CPU time holds on a machine that does other things, too; the clock does not. `--elements` prints
nanoseconds an element of single looks instead.
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

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

from precgui.config import RecordConfig
from precgui.engine.telemetry.backends import CpuStats
from precgui.record import Recorder
from precgui.runs.file import writer
from precgui.runs.file.reader import open_run

WARM_UP = 8  # plain steps before all others
FIRST = 40  # steps of the fixed cost: they hold those that are watched, 1, 2, 8 and 32, and the first 20 looks
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

    def __init__(self, name: str, batch: int, device: str = "cpu") -> None:
        model, inputs, targets = make(name, batch)
        self.model, self.inputs, self.targets = model.to(device), inputs.to(device), targets.to(device)
        self.is_on_gpu = self.inputs.is_cuda
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
        if not settings.get("tensors", True):
            return
        with open_run(path) as run:
            record = run.tensors()["gradient"]
            told = f"gradients in {len(record)} of {run.steps} steps, largest stride {record.strides().max()}, "
            told += f"by its own account {run.environment['record']['cost_share']:.1%}"
        print(f"    {told}", flush=True)


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
    "a recorder without tensors": lambda loop: recorder(loop, tensors=False),
    "gradients, every element": lambda loop: recorder(loop, budget=100, **GRADIENTS_ONLY),
    "gradients, budget 3 %": lambda loop: recorder(loop, **GRADIENTS_ONLY),
    "all tensors, budget 3 %": lambda loop: recorder(loop),
    "naive statistics of gradients": naive,
    "TensorBoard histograms of gradients": tensorboard,
    "DebugUnderflowOverflow": debug_underflow_overflow,
}


class Pairs:
    """Steps of a plain and of a watched loop in turns, now the one first, now the other.

    `others_s` is CPU time of other threads in the meantime, without what they take for as many plain steps.
    """

    def __init__(self) -> None:
        self.cpu_s: list[tuple[float, float]] = []  # plain, watched
        self.clock_s: list[tuple[float, float]] = []
        self.others_s = 0.0
        self.first_s: tuple[float, float] = (0.0, 0.0)  # of the first steps: plain, watched
        self._of_plain_s = 0.0  # CPU time of other threads for a plain step

    def warm_up(self, plain: Loop) -> None:
        """Plain steps before there is a watched one."""
        for _ in range(WARM_UP):
            _timed(plain)
        begin = _others_s()
        for _ in range(WARM_UP):
            _timed(plain)
        self._of_plain_s = (_others_s() - begin) / WARM_UP

    def run(self, plain: Loop, watched: Loop, pairs: int) -> None:
        first = [self._pair(plain, watched, pair) for pair in range(FIRST)]
        self.first_s = sum(each[plain][1] for each in first), sum(each[watched][1] for each in first)
        begin = _others_s()
        for pair in range(pairs):
            times = self._pair(plain, watched, pair)
            self.cpu_s.append((times[plain][0], times[watched][0]))
            self.clock_s.append((times[plain][1], times[watched][1]))
        self.others_s = _others_s() - begin - 2 * pairs * self._of_plain_s

    @staticmethod
    def _pair(plain: Loop, watched: Loop, pair: int) -> dict[Loop, tuple[float, float]]:
        first, second = (plain, watched) if pair % 2 else (watched, plain)
        return {loop: _timed(loop) for loop in (first, second)}

    def told(self) -> str:
        others = self.others_s / sum(plain for plain, _ in self.cpu_s)
        cpu, clock = _ratio(self.cpu_s, others), _ratio(self.clock_s)
        sums = [sum(column) for column in zip(*self.clock_s, strict=True)]
        step_ms = 1e3 * statistics.median(plain for plain, _ in self.clock_s)
        fixed = f"the first {FIRST} steps {self.first_s[1] - self.first_s[0]:.2f} s longer"
        steady = f"CPU {cpu}, of it other threads {others:.3f}; clock {clock}, of the sums {sums[1] / sums[0]:.3f}"
        return f"{fixed}; then {steady}; {step_ms:.1f} ms a plain step"


def _others_s() -> float:
    """CPU seconds of all threads but this one."""
    return time.process_time() - time.thread_time()


def _timed(loop: Loop) -> tuple[float, float]:
    """CPU seconds of this thread for a step, and seconds."""
    begin, cpu = time.perf_counter(), time.thread_time()
    loop.step()
    if loop.is_on_gpu:
        torch.cuda.synchronize()
    return time.thread_time() - cpu, time.perf_counter() - begin


def _ratio(pairs: list[tuple[float, float]], more: float = 0.0) -> str:
    """Median of watched over plain, and what it is in 95 % of samples drawn from the pairs; `more` is added."""
    ratios = np.array([watched / plain for plain, watched in pairs]) + more
    drawn = np.median(np.random.default_rng(0).choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return f"{np.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def measured(name: str, batch: int, way: Callable[[Loop], Any], pairs: int, device: str) -> str:
    plain, watched, steps = Loop(name, batch, device), Loop(name, batch, device), Pairs()
    steps.warm_up(plain)
    with way(watched):
        steps.run(plain, watched, pairs)
    return steps.told()


def print_elements(size: int = 300_000, rounds: int = 200) -> None:
    """The best of many looks at tensors that fit into the second-level cache, beside a clone of them."""
    meter = CpuStats()
    for name, values in {"FP32": torch.randn(size), "BF16": torch.randn(size).bfloat16()}.items():
        looks: dict[str, Callable[[], object]] = {
            f"one of {stride}": partial(meter.measure, [values], [stride], 1) for stride in (1, 4, 16)
        }
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
    parser.add_argument("--device", default="cpu", help="cpu or cuda; on a GPU each step is waited for")
    options = parser.parse_args()
    torch.set_num_threads(1)
    writer.FLUSH_S *= 2  # half of the time is that of the plain loop
    if options.elements:
        print_elements()
        return
    for name in options.model or ("resnet", "gpt"):
        print(f"{name}, batch {options.batch}, one thread, {options.device}", flush=True)
        for way in options.way or WAYS:
            try:
                told = measured(name, options.batch, WAYS[way], options.pairs, options.device)
            except ImportError as error:
                print(f"  {way:38} not measured: {error}")
                continue
            print(f"  {way:38} {told}", flush=True)


if __name__ == "__main__":
    main()
