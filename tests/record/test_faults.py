"""No fault of the recorder ends the loop that it records, wherever it happens, nor changes a number of the loop."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn

import precgui
from precgui.config import RecordConfig
from precgui.engine.census import Census
from precgui.engine.telemetry import guard, hook
from precgui.record import Recorder, arguments, ending, later_steps, recorder
from precgui.runs.file.writer import RunWriter

PACKAGE = str(Path(precgui.__file__).parent)
EVERYTHING = RecordConfig(
    budget=100, weights_every=1, optimizer_every=1, activations_every=1, activation_gradients_every=1
)
# Called by the loop or by torch, with no line that can fail, or there to tell the user of a wrong argument.
DOORS = {
    *(function.__code__ for function in (Recorder.step, Recorder.evaluated, Recorder.note, Recorder.close)),
    *(function.__code__ for function in (Recorder.fail, Recorder.__enter__, Recorder.__exit__, Recorder._is_open)),
    *(function.__code__ for function in (Recorder._incident, ending.OpenRecord.now_s, ending.EventSink.now_s)),
    ending.OpenRecord.release.__code__, ending.OpenRecord.is_open.fget.__code__,  # type: ignore[attr-defined]
    arguments.number.__code__, arguments.unread_number.__code__, arguments.count.__code__,
    inspect.unwrap(Census.__torch_dispatch__).__code__,
    inspect.unwrap(later_steps._Mode.__torch_dispatch__).__code__,
}  # fmt: skip
Loop = tuple[list[float], list[float], list[torch.Tensor]]


class Injected(Exception):
    """A fault that no code expects."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def loop(path: Path | None, begin: Callable[[], None] = lambda: None, end: Callable[[], None] = lambda: None) -> Loop:
    """Losses, scales and final weights of five steps in FP16 with a bad one; `begin` is called after the recorder."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    recorder = Recorder(path, model, optimizer, scaler, record=EVERYTHING, ema=network()) if path else None
    losses, scales = [], []
    kept: dict[str, Any] = {}
    begin()
    try:
        for step in range(5):
            inputs, targets = torch.randn(8, 4), torch.randint(2, (8,))
            if step == 2:
                inputs = inputs * torch.inf
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(inputs).float(), targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            scales.append(float(scaler.get_scale()))
            if recorder is not None:
                recorder.step(loss, samples=8)
            kept = kept or model.state_dict()
        model.load_state_dict(kept)  # which changes nothing, since it is no copy
        if recorder is not None:
            recorder.evaluated(1.0, 0.5)
            recorder.note("a note")
            recorder.close()
    finally:
        end()
    return losses, scales, [parameter.detach().clone() for parameter in model.parameters()]


def same(one: Loop, other: Loop) -> bool:
    return repr(one[:2]) == repr(other[:2]) and all(
        torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(one[2], other[2], strict=True)
    )


def called(path: Path) -> list[CodeType]:
    """The functions of precgui that the recorder calls after its construction, in this thread, the first call first."""
    codes: dict[CodeType, None] = {}

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            codes.setdefault(frame.f_code)

    loop(path, lambda: sys.setprofile(profile), lambda: sys.setprofile(None))
    puts_back = {"__exit__"}  # what was before, and has nothing after it
    own = [code for code in codes if code.co_name not in puts_back and code.co_filename != guard.__file__]
    return [code for code in own if code not in DOORS and not code.co_name.startswith("<")]


def chosen(codes: Sequence[CodeType]) -> list[CodeType]:
    """The recorder's own package, all hooks and the end of the file; of the others, which these call, each fortieth."""
    own = [code for code in codes if "/record/" in code.co_filename or code.co_name == "__call__"]
    near = [*own, *(code for code in codes if code.co_name in ("_write_end", "write_text", "write_status"))]
    return [*near, *[code for code in codes if code not in near][::40]]


def loop_with_fault(path: Path, code: CodeType) -> Loop:
    """The loop in which the first call of this function raises."""

    def trace(frame: FrameType, event: str, _argument: Any) -> None:
        if frame.f_code is code:
            sys.settrace(None)
            raise Injected(f"in {code.co_qualname}")

    return loop(path, lambda: sys.settrace(trace), lambda: sys.settrace(None))


def test_that_a_fault_at_any_call_inside_the_recorder_leaves_the_loop_as_it_is(tmp_path: Path) -> None:
    plain = loop(None)
    codes = called(tmp_path / "called.h5")
    assert len(codes) > 200
    files = {Path(code.co_filename).name for code in codes}
    assert {"hooks.py", "recorder.py", "writer.py", "event_store.py", "module_hooks.py", "census.py"} <= files
    told, silent = 0, 0
    for number, code in enumerate(chosen(codes)):
        path = tmp_path / f"{number}.h5"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with_fault = loop_with_fault(path, code)
        assert same(with_fault, plain), code.co_qualname
        ours = [each for each in caught if "precgui has stopped recording" in str(each.message)]
        assert len(ours) <= 1, code.co_qualname
        told, silent = told + len(ours), silent + 1 - len(ours)
        run = precgui.open_run(path)
        if ours:
            stopped = [event for event in run.events() if event.kind == "recording_stopped"]
            ended = run.status != "running" and not stopped  # the fault came after the end was written
            assert ended or len(stopped) == 1, code.co_qualname
        path.unlink()
    assert told > 4 * silent  # others are called where a fault is expected


HOOKS = sorted(hook.Hook.__subclasses__(), key=lambda each: each.__qualname__)


def test_that_each_hook_is_guarded() -> None:
    assert len(HOOKS) >= 9
    for kind in HOOKS:
        assert hasattr(kind.__call__, "__wrapped__"), kind


def test_that_public_methods_of_the_recorder_are_doors() -> None:
    public = {name for name, value in vars(Recorder).items() if callable(value) and not name.startswith("_")}
    assert public == {"step", "evaluated", "note", "close", "fail", "abandon", "expect_close"}


def test_that_a_fault_is_one_sentence_in_the_file_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr("precgui.record.hooks.LoopWatch._measure_gradients", broken)
    path = tmp_path / "run.h5"
    with pytest.warns(RuntimeWarning, match="stopped recording because of a fault inside precgui") as caught:
        recorded = loop(path)
    assert len(caught) == 1
    assert same(recorded, loop(None))
    run = precgui.open_run(path)
    (stopped,) = [event for event in run.events() if event.kind == "recording_stopped"]
    assert "Recording stopped after step 0: a fault inside precgui (ZeroDivisionError: float" in stopped.message
    assert "the training went on" in stopped.message
    assert run.status == "stopped"


def test_that_a_fault_is_no_error_where_warnings_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("precgui.record.hooks.LoopWatch.begin", lambda *_: 1 / 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded = loop(tmp_path / "run.h5")
    assert same(recorded, loop(None))
    assert "warning: precgui has stopped recording" in capsys.readouterr().err


def test_that_hooks_are_gone_after_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rec = Recorder(tmp_path / "run.h5", model, optimizer, record=EVERYTHING)
    monkeypatch.setattr("precgui.engine.telemetry.recorder.Telemetry.before_update", lambda *_: 1 / 0)
    with pytest.warns(RuntimeWarning, match="stopped recording"):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    rec.step(1.0)
    hooks = [each for module in model.modules() for each in (*module._forward_hooks, *module._forward_pre_hooks)]
    assert not hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_that_a_fault_of_the_thread_that_writes_ends_the_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, failed = RunWriter.flush, threading.Event()

    def flush(self: RunWriter) -> None:
        if threading.current_thread() is not threading.main_thread() and not failed.is_set():
            failed.set()
            raise Injected("in the thread")
        own(self)

    monkeypatch.setattr(RunWriter, "flush", flush)
    path = tmp_path / "run.h5"
    with pytest.warns(RuntimeWarning, match="Injected: in the thread"):
        recorded = loop(path, lambda: failed.wait(20) and None)
    assert same(recorded, loop(None))
    assert precgui.open_run(path).status == "stopped"


@pytest.mark.parametrize("reader", [recorder.Recorder.step, recorder.Recorder.evaluated])
def test_that_a_wrong_argument_is_still_told(tmp_path: Path, reader: Callable[..., None]) -> None:
    model = network()
    rec = Recorder(tmp_path / "run.h5", model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="loss must be"):
        reader(rec, "no number")
    rec.close()
