"""NaN and Inf that the detector finds, and outputs that it accepts without a fault."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from precgui.config import RecordConfig
from precgui.engine.telemetry import module_hooks
from precgui.engine.telemetry.guard import LET_THROUGH
from precgui.engine.telemetry.module_hooks import Outputs
from precgui.engine.telemetry.nonfinite import NonFiniteDetector
from precgui.engine.telemetry.second_pass import CannotRepeat, SecondPass, second_pass
from precgui.events import Event, TensorStats
from precgui.record.hooks import LoopWatch


def first(*outputs: Any) -> str:
    """What is named of outputs that come one after the other."""
    detector = NonFiniteDetector()
    detector.begin()
    for place, output in enumerate(outputs):
        detector.check(f"m{place}", output)
    return detector.first_nonfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e5m2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("size", [1, 511, 512, 513, 3000])
def test_that_one_bad_element_is_noticed_wherever_it_is(dtype: torch.dtype, bad: float, size: int) -> None:
    for place in {0, size // 2, size - 1}:
        values = torch.ones(size)
        values[place] = bad
        assert first(torch.ones(size).to(dtype), values.to(dtype), torch.full((3,), torch.nan)) == "m1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_that_the_largest_numbers_are_finite_though_their_sum_is_not(dtype: torch.dtype) -> None:
    assert first(torch.full((5000,), torch.finfo(dtype).min, dtype=dtype)) == ""


def test_that_every_order_and_nesting_of_elements_is_read() -> None:
    bad = torch.zeros(4, 6, 5)
    bad[3, 5, 4] = torch.nan
    for output in (bad.mT, bad[1:], bad[:, ::5], bad.expand(2, 4, 6, 5), bad.to_sparse(), {"x": [bad]}, (bad, bad)):
        assert first(output).startswith("m0")
    assert first(bad[:, :5], bad[..., :4], bad[:0]) == ""
    images = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert first(images, images.permute(3, 0, 2, 1)) == ""
    images[1, 2, 3, 4] = torch.inf
    assert first(images.permute(3, 0, 2, 1)) == "m0"


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_that_outputs_whose_memory_is_not_their_numbers_do_no_harm() -> None:
    bad = torch.zeros(4, 6)
    bad[3, 5] = torch.nan
    for output in (bad.to_mkldnn(), bad.to_sparse_csr(), torch.complex(bad, bad).conj().imag):
        assert first(output) == "m0"
    assert first(torch._efficientzerotensor((4, 6)), bad.to("meta")) == ""


def test_that_either_part_of_a_complex_output_is_read() -> None:
    good, bad = torch.ones(4, 6), torch.full((4, 6), torch.nan)
    assert first(torch.complex(good, good), torch.complex(good, bad), torch.complex(bad, good)) == "m1"


def test_that_modules_without_weights_have_hooks_only_in_steps_that_want_them() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    seen: list[str] = []
    outputs = Outputs(model, lambda kind, name, tensor: seen.append(name))
    for wanted, found in ((frozenset(), []), (frozenset({"activation"}), ["0", "1", "(model)"]), (frozenset(), [])):
        outputs.begin(wanted, guarded=True)
        assert bool(model[1]._forward_hooks) == bool(wanted)
        model(torch.ones(2, 4))
        outputs.end()
        assert seen == found
        seen.clear()
    outputs.close()
    assert not any(module._forward_hooks for module in model.modules())


class Hard(nn.Hardtanh):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.__dict__.get("divisor", 1) * self.__dict__.get("divisor", 1)


class Drop(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x * math.nan if self.__dict__.get("divisor", 1) == 0 else x


class Parts(nn.Module):
    """Parts without weights that can divide by zero, a frozen one without a graph, batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.first, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.odd, self.drop, self.last = Hard(), Drop(0.5), nn.Linear(4, 2)
        self.passes = 0
        self.draws = np.random.default_rng(0)

    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        self.passes += 1
        with torch.no_grad():
            x = x + self.frozen(x)
        x = x + float(self.draws.random()) + float(np.random.random()) + random.random()  # noqa: NPY002
        return self.last(self.drop(self.odd(self.norm(self.first(x)) + shift)))


def broken(model: nn.Module, name: str) -> None:
    part = model.get_submodule(name)
    if isinstance(part, nn.Linear):
        nn.init.constant_(part.bias, math.nan)
    else:
        part.divisor = 0


@pytest.mark.parametrize("name", ["frozen", "first", "odd", "drop", "last"])
@pytest.mark.parametrize("guarded", [False, True])
def test_that_the_first_module_of_a_class_of_ones_own_is_named_in_the_very_step(name: str, guarded: bool) -> None:
    model = Parts()
    broken(model, name)
    outputs = Outputs(model, lambda *_: None)
    outputs.begin(frozenset(), guarded=guarded)
    model(torch.ones(3, 4), shift=1.0)
    outputs.end()
    assert outputs.detector.first_nonfinite() == name
    outputs.close()
    assert not any(part._forward_hooks for part in model.modules())


def test_that_a_second_pass_leaves_no_trace_in_numbers() -> None:
    results = []
    for watched in (False, True):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        model = Parts()
        outputs = Outputs(model, lambda *_: None) if watched else None
        for step in range(4):
            if outputs is not None:
                outputs.begin(frozenset(), guarded=False)
            loss = model(torch.rand(3, 4), shift=torch.nan if step == 1 else 0.0).square().sum()
            model.zero_grad()
            loss.backward()
            if outputs is not None and step == 1:
                assert outputs.detector.first_nonfinite() == "odd"
        assert model.passes == 4
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        drawn = [torch.rand(1), torch.tensor(np.random.random()), torch.tensor(random.random())]  # noqa: NPY002
        results.append([*gradients, *model.buffers(), *drawn, torch.tensor(model.draws.random())])
    for plain, seen in zip(*results, strict=True):
        assert torch.equal(plain.nan_to_num(7.0), seen.nan_to_num(7.0))


calls: list[int] = []
total = 0
generator = torch.Generator()


class Counting(Parts):
    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        calls.append(1)
        return super().forward(x, shift=shift)


class Adding(Parts):
    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        global total
        total += 1
        return super().forward(x, shift=shift)


class Drawn(Parts):
    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        return super().forward(x + torch.rand(1, generator=generator), shift=shift)


class Classy(Parts):
    count = 0

    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        type(self).count += 1
        return super().forward(x, shift=shift)


class Shared(Parts):
    seen: list[int] = []  # noqa: RUF012 - on purpose

    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        self.seen.append(1)
        return super().forward(x, shift=shift)


class Reading(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.lines = iter(range(100))

    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        return super().forward(x + next(self.lines), shift=shift)


class Locked(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def patched(model: nn.Module) -> nn.Module:
    inner = model.forward
    model.forward = lambda *args, **kwargs: inner(*args, **kwargs)
    return model


def hooked(model: nn.Module) -> nn.Module:
    model.get_submodule("first").register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Counting, "it uses calls, an object of class list outside the model"),
        (Adding, "may change total, which lies outside the model"),
        (Drawn, "it uses generator, an object of class Generator"),
        (Classy, "may change the class type"),
        (Shared, "Shared.seen is shared by all its objects"),
        (Reading, "calls next()"),
        (Locked, "a copy of the model cannot be made"),
        (lambda: patched(Parts()), "has been replaced"),
        (lambda: hooked(Parts()), "has forward hooks of others"),
    ],
)
def test_that_a_pass_that_may_leave_a_trace_is_not_repeated_and_all_modules_are_looked_at_from_then_on(
    make: Callable[[], nn.Module], reason: str
) -> None:
    model, before = make(), (len(calls), total)
    outputs = Outputs(model, lambda *_: None)
    named = []
    for step in range(3):
        outputs.begin(frozenset(), guarded=False)
        model(torch.ones(3, 4), shift=torch.nan if step != 1 else 0.0)
        named.append(outputs.detector.first_nonfinite())
        assert (reason in outputs.cannot_repeat) == (step == 0)
    assert named == ["(model)", "", "odd"]
    assert model.passes == 3
    assert len(calls) - before[0] in (0, 3)
    assert total - before[1] in (0, 3)
    outputs.close()


def test_that_arguments_are_copied_or_else_the_pass_is_not_repeated() -> None:
    class Taking(Parts):
        def forward(self, batch: Any) -> Tensor:
            inputs = batch["x"][0] if isinstance(batch, dict) else next(batch)
            inputs.mul_(2)
            return super().forward(inputs, shift=torch.nan)

    model, given = Taking(), {"x": (torch.ones(3, 4), "text")}
    outputs = Outputs(model, lambda *_: None)
    outputs.begin(frozenset(), guarded=False)
    model({"x": (torch.ones(3, 4),), "other": {1, 2}})
    assert "calls next()" in outputs.cannot_repeat
    outputs.close()
    plain = Parts()
    with pytest.raises(CannotRepeat, match="object of class list_iterator"):
        second_pass(plain, [iter([torch.ones(3, 4)])], {})
    assert second_pass(plain, [given["x"][0]], {"shift": torch.nan}).module == "odd"
    assert plain.passes == 0


def test_that_a_run_that_stays_broken_is_not_passed_twice_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    monkeypatch.setattr(module_hooks, "second_pass", lambda *_: passes.append(1) or SecondPass("odd", None))
    monkeypatch.setattr(module_hooks, "repeated_in_fp32", lambda *_: None)
    outputs = Outputs(model := Parts(), lambda *_: None)
    for _ in range(64):
        outputs.begin(frozenset(), guarded=False)
        model(torch.ones(3, 4), shift=torch.nan)
    assert len(passes) == 4
    outputs.close()


def test_that_modules_without_weights_are_looked_at_where_their_outputs_are_recorded() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softplus(beta=0.0), nn.Linear(4, 4))
    outputs = Outputs(model, lambda *_: None)
    outputs.begin(frozenset({"activation"}), guarded=True)
    model(torch.ones(2, 4))
    assert outputs.detector.first_nonfinite() == "1"
    outputs.close()


def test_that_a_view_is_read_again_only_when_something_was_written() -> None:
    output = torch.ones(4, 4)
    assert first(output, output.view(16)) == ""
    detector = NonFiniteDetector()
    detector.check("first", output)
    output[0, 0] = torch.inf
    detector.check("second", output.view(16))
    assert detector.first_nonfinite() == "second"


def test_that_new_numbers_at_an_old_address_are_read() -> None:
    detector = NonFiniteDetector()
    for step in range(50):
        output = torch.ones(64, 64) if step < 49 else torch.full((64, 64), torch.nan)
        detector.check(str(step), output)
        del output  # the next one may come to lie in its place
    assert detector.first_nonfinite() == "49"


def test_that_a_model_in_a_transformed_or_traced_function_is_let_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    outputs = Outputs(model, lambda *_: None)
    outputs.begin(frozenset({"activation", "activation_gradient"}), guarded=True)
    parameters = dict(model.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (x,)).sum()

    gradients = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, torch.randn(5, 4))
    assert gradients["0.weight"].shape == (5, 4, 4)
    assert outputs.detector.first_nonfinite() == ""
    outputs.close()


def recorded(model: nn.Module, step: Callable[[torch.optim.Optimizer], Any]) -> list[TensorStats]:
    """What a watch of a loop of two steps sees, at every element of all kinds."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    events: list[Event] = []
    every = {name: 1 for name in RecordConfig.model_fields if name.endswith("_every")}
    watch = LoopWatch(RecordConfig(budget=100, **every), model, [optimizer], events.append, LET_THROUGH)
    for number in (1, 2):
        watch.begin(number, 1.0)
        optimizer.zero_grad()
        step(optimizer)
        watch.read([], lambda: False)
        assert math.isfinite(watch.step_measurements(lowered=False).grad_norm)
        watch.end(0.0, 1.0, alarm=False)
    watch.close()
    return [event for event in events if isinstance(event, TensorStats)]


def test_that_nested_tensors_are_seen_by_what_they_store() -> None:
    model = nn.Linear(8, 8)

    def step(optimizer: torch.optim.Optimizer) -> None:
        ragged = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged)
        model(ragged).values().square().mean().backward()
        optimizer.step()

    assert {"gradient", "activation"} <= {event.kind for event in recorded(model, step)}


def test_that_of_tensors_over_several_processes_the_own_part_is_seen(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        assert isinstance(model[0].weight, DTensor)

        def step(optimizer: torch.optim.Optimizer) -> None:
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()

        seen = {event.kind: event for event in recorded(model, step)}
        assert {"gradient", "weight", "update", "optimizer", "activation"} <= seen.keys()
        assert seen["gradient"].names == ("0.weight", "0.bias", "2.weight", "2.bias")
    finally:
        torch.distributed.destroy_process_group()
