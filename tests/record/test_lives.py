"""What users do with a model while it is recorded: the training must not notice, and the file must not suffer."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import io
import itertools
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precgui
from precgui.engine import torch_private
from precgui.record import Recorder
from precgui.runs.recorded_facts import fact_rows
from tests import needs
from tests.record.test_recorder import ALL, batches, network
from tests.warm_children import python


class Loop:
    """A small training; `step` is one step of it."""

    def __init__(self, path: Path | None = None, model: nn.Module | None = None) -> None:
        self.model = network() if model is None else model
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.recorder = Recorder(path, self.model, self.optimizer, record=ALL) if path else None
        self.data: Iterator[tuple[Tensor, Tensor]] = itertools.cycle(batches(4))
        self.losses: list[float] = []

    def step(self, model: Callable[[Tensor], Tensor] | None = None) -> None:
        inputs, targets = next(self.data)
        loss = nn.functional.cross_entropy((model or self.model)(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        if self.recorder is not None:
            self.recorder.step(loss)


def deepcopied(loop: Loop) -> None:
    copied = copy.deepcopy(loop.model)
    copied(torch.full((2, 8), math.nan)).sum().backward()


def averaged(loop: Loop) -> None:
    mean = torch.optim.swa_utils.AveragedModel(loop.model)
    mean.update_parameters(loop.model)
    mean(torch.full((2, 8), math.nan))


def saved(loop: Loop) -> None:
    file = io.BytesIO()
    torch.save(loop.model, file)
    file.seek(0)
    torch.load(file, weights_only=False)(torch.full((2, 8), math.nan)).sum().backward()


def traced(loop: Loop) -> None:
    torch.jit.trace(loop.model, torch.ones(2, 8))


def faked(loop: Loop) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        loop.model(torch.ones(2, 8))


def transformed(loop: Loop) -> None:
    torch.func.jacrev(loop.model)(torch.full((8,), math.nan))
    torch.func.vmap(loop.model)(torch.full((2, 8), math.nan))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("use", [deepcopied, averaged, saved, traced, faked, transformed])
def test_that_a_model_can_be_used_otherwise_while_it_is_recorded(tmp_path: Path, use: Callable[[Loop], None]) -> None:
    plain, recorded = Loop(), Loop(tmp_path / "run.h5")
    for loop in (plain, recorded):
        for _ in range(3):
            use(loop)
            loop.step()
            use(loop)
    assert recorded.recorder is not None
    recorded.recorder.close()
    use(recorded)
    assert recorded.losses == plain.losses
    for one, other in zip(recorded.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps, list(run.events("nonfinite_activation"))) == ("completed", 3, [])
        weights = run.tensors()["weight"]
        assert {name for name in weights.names if name.endswith("weight")} == {"0.weight", "2.weight"}


LOADER = """
import sys, torch
known = [name for name in sys.modules if name.partition(".")[0] == "precgui"]
sys.modules.update(dict.fromkeys([*known, "precgui"]))  # no such thing here
model = torch.load(sys.argv[1], weights_only=False)
model(torch.ones(1, 8)).sum().backward()
"""


def test_that_a_saved_model_is_loaded_without_precgui(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run.h5")
    loop.step()
    torch.save(loop.model, tmp_path / "model.pt")
    python("-c", LOADER, tmp_path / "model.pt", cwd=tmp_path).check_returncode()
    assert loop.recorder is not None
    loop.recorder.close()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_that_scripted_models_are_recorded_from_outside(tmp_path: Path) -> None:
    scripted = torch.jit.script(nn.Linear(8, 4))
    for path, model in (("a.h5", scripted), ("b.h5", nn.Sequential(scripted, nn.Tanh()))):
        loop = Loop(tmp_path / path, model)
        loop.step()
        assert loop.recorder is not None
        loop.recorder.close()
        with precgui.open_run(tmp_path / path) as run:
            assert len(run.tensors()["gradient"]) == 1


def test_that_default_device_and_type_are_the_users(tmp_path: Path) -> None:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            model = nn.Linear(8, 4, device="cpu", dtype=torch.float32)
            loop = Loop(tmp_path / "run.h5", model)
            loop.optimizer.param_groups[0]["fused"] = True  # else torch 2.11 counts steps on `meta`, and raises
            loop.data = iter([(torch.ones(3, 8, device="cpu", dtype=torch.float32), torch.zeros(3, 4, device="cpu"))])
            loop.step()
    finally:
        torch.set_default_dtype(default)
    assert loop.recorder is not None
    loop.recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert "weight" in run.tensors()["gradient"].names


@dataclasses.dataclass
class Answer:
    logits: Tensor
    about: Any


class Drawing(collections.abc.Sequence[Tensor]):
    """Draws its elements when they are read."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: Any) -> Tensor:
        if place:
            raise IndexError
        return torch.rand(1)


class Answering(nn.Module):
    def __init__(self, about: Any) -> None:
        super().__init__()
        self.layer, self.about = nn.Linear(8, 4), about

    def forward(self, inputs: Tensor) -> Answer:
        return Answer(self.layer(inputs), self.about)


def endless() -> list[Any]:
    found: list[Any] = [torch.ones(1)]
    found.append(found)
    return found


@pytest.mark.parametrize("about", [None, Drawing(), endless(), {"a": ("text", 3)}, iter("abc")], ids=type)
def test_that_any_output_of_a_module_is_left_alone(tmp_path: Path, about: Any) -> None:
    loop = Loop(tmp_path / "run.h5", Answering(about))
    torch.manual_seed(0)
    loop.step(lambda inputs: loop.model(inputs).logits)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))
    assert loop.recorder is not None
    loop.recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert "(model).logits" in run.tensors()["activation"].names


def test_that_new_parameters_and_new_optimizers_are_recorded(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run.h5")
    other = torch.optim.SGD([nn.Parameter(torch.ones(1, requires_grad=True))], lr=0.1)
    loop.step()
    late = nn.Parameter(torch.ones(4))
    loop.model.register_parameter("late", late)
    loop.optimizer.add_param_group({"params": [late]})
    other.step()
    loop.step(lambda inputs: loop.model(inputs) * late)
    loop.step(lambda inputs: loop.model(inputs) * late)
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.5)
    for _ in range(2):
        loop.step(lambda inputs: loop.model(inputs) * late)
    assert loop.recorder is not None
    loop.recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert not run.series("skipped")[1].any()
        assert run.series("lr")[1].tolist() == [0.01] * 3 + [0.5] * 2
        gradients = run.tensors()["gradient"]
        assert gradients.stat("count")[-1, gradients.names.index("late")] == 4
        assert not [name for name in gradients.names if name.startswith("(parameter")]


def test_that_one_of_several_optimizers_that_is_skipped_is_seen(tmp_path: Path) -> None:
    model = network()
    optimizers = [torch.optim.SGD(model[place].parameters(), lr=0.1) for place in (0, 2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Recorder(tmp_path / "run.h5", model, optimizers, scaler) as recorder:
        loss = model(batches(1)[0][0]).sum()
        scaler.scale(loss).backward()
        model[0].weight.grad[0, 0] = math.inf
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert [event.module for event in run.events("nonfinite_gradient")] == ["0.weight"]
        (skipped,) = run.events("skipped_step")
        assert skipped.message.startswith("some weights were not updated")


# In a process of its own: torch refuses a backward pass after a fork once autograd has threads.
FORKING = """
import multiprocessing, sys
from pathlib import Path
from tests.record.test_lives import Loop

def in_child(loop):
    loop.step()
    loop.recorder.close()

loop = Loop(Path(sys.argv[1]))
loop.step()
child = multiprocessing.get_context("fork").Process(target=in_child, args=(loop,))
child.start()
child.join(200)
assert child.exitcode == 0
loop.step()
loop.recorder.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_that_a_forked_process_leaves_the_file_alone(tmp_path: Path) -> None:
    python("-c", FORKING, tmp_path / "run.h5").check_returncode()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps) == ("completed", 2)


def test_that_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    loop = Loop(Path("run.h5"))
    loop.step()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loop.step()
    assert loop.recorder is not None
    loop.recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps, run.events("recording_stopped")) == ("completed", 2, [])


def test_that_a_deleted_recorder_ends_its_run_and_frees_the_model(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run.h5")
    loop.step()
    model = weakref.ref(loop.model)
    loop.recorder = None
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "run-file-end":
            thread.join(60)
    assert not any(module._forward_hooks for module in loop.model.modules())
    loop.step()
    del loop
    gc.collect()
    assert model() is None
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps) == ("completed", 1)
        assert run.message.startswith("the recorder was deleted after step 1")


@pytest.mark.parametrize("failing", [1, 2, 8])
@pytest.mark.parametrize("kept", [True, False])
def test_that_a_loop_that_fails_in_a_watched_step_leaves_the_next_record_whole(
    tmp_path: Path, failing: int, kept: bool
) -> None:
    """As the cells of a notebook, which keeps the last traceback, and with it the recorder."""
    failed = Loop(tmp_path / "failed.h5")
    for _ in range(failing - 1):
        failed.step()
    failed.model(batches(1)[0][0])  # and here the loop raises
    if not kept:
        del failed
        gc.collect()
    loop = Loop(tmp_path / "next.h5")
    assert torch_private.dispatch_modes() == 0
    for _ in range(9):
        loop.step()
    assert loop.recorder is not None
    loop.recorder.close()
    with precgui.open_run(tmp_path / "next.h5") as run:
        assert "operations" in run.environment["census"]
        assert [row["step"] for row in fact_rows(run, "exact_steps")] == [1, 2, 8]
    if kept:
        failed.step()
        assert failed.recorder is not None
        failed.recorder.close()
        with precgui.open_run(tmp_path / "failed.h5") as run:
            assert (run.status, run.steps, run.events("recording_stopped")) == ("completed", failing, [])
            told = run.environment["census"] if failing == 1 else fact_rows(run, "exact_steps")[-1]
            assert told["unavailable"] == "another recorder began before the step was over"


@pytest.mark.parametrize("emptied", ["before the step", "within the step"])
def test_that_an_optimizer_may_be_without_parameters_for_a_moment(tmp_path: Path, emptied: str) -> None:
    loop = Loop(tmp_path / "run.h5")
    loop.step()
    groups = list(loop.optimizer.param_groups)
    assert loop.recorder is not None
    inputs, targets = batches(1)[0]
    if emptied == "before the step":
        loop.optimizer.param_groups.clear()
        loss = nn.functional.cross_entropy(loop.model(inputs), targets)
    else:
        loss = nn.functional.cross_entropy(loop.model(inputs), targets)
        loop.optimizer.param_groups.clear()
    loop.optimizer.step()
    loop.recorder.step(loss)
    loop.optimizer.param_groups.extend(groups)
    loop.step()
    loop.recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps) == ("completed", 3)
        assert run.series("lr")[1].tolist()[::2] == [0.01, 0.01]


class Rateless(torch.optim.Optimizer):
    """An optimizer of somebody's own whose groups have no learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        del closure


def test_that_an_optimizer_may_have_no_learning_rate(tmp_path: Path) -> None:
    model = network()
    with Recorder(tmp_path / "run.h5", model, Rateless(model.parameters())) as recorder:
        inputs, targets = batches(1)[0]
        loss = nn.functional.cross_entropy(model(inputs), targets)
        recorder._watch._optimizers[0].step()
        recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps) == ("completed", 1)


CLOSED = """
import os, sys
from pathlib import Path
from tests.record.test_lives import Loop
loop = Loop(Path(sys.argv[1]))
loop.step()
os.closerange(3, 1024)
loop.step()
loop.recorder.close()
print("closed", flush=True)
"""


@needs.open_descriptors
def test_that_a_loop_ends_well_after_all_files_were_closed_under_the_record(tmp_path: Path) -> None:
    """As when a process makes itself a daemon in the middle of its training."""
    path = tmp_path / "run.h5"
    done = python("-c", CLOSED, path)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
    with precgui.open_run(path) as run:
        assert run.status == "failed"
        assert "other code has closed the descriptor of its file" in run.message
