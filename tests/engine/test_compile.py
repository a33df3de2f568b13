"""torch.compile from end to end: the code that it makes, and the parts that it must leave alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from precgui.engine import execution, tasks
from precgui.engine.errors import EngineError
from precgui.engine.tasks import Digits
from precgui.events import Evaluated, Event, Facts, StepDone
from tests.compiled_code import needs_compiler
from tests.engine.conftest import Record

SETTINGS = ("train.max_steps=3", "data.epoch_steps=3", "record.tensors=false")


class _Small(Digits):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


class _Attending(nn.Module):
    """Products in layers and outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.first(images.flatten(1, 2))
        mixed = nn.functional.scaled_dot_product_attention(x, x, x)
        logits: torch.Tensor = self.last((mixed @ mixed.mT).flatten(1))
        return logits


class _SmallAttention(Digits):
    def model(self) -> nn.Module:
        return _Attending()


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> Iterator[None]:
    yield
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()


def _only_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile with a back end that makes no code and so needs no compiler."""
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled(module, backend="aot_eager"))
    monkeypatch.setattr(execution, "missing_for_compilation", lambda: "")


def losses(events: list[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, StepDone | Evaluated)]


@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_that_a_compiled_run_is_the_plain_one_to_rounding(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _Small)
    plain = losses(record(*SETTINGS))
    events = record(*SETTINGS, "train.compile=true")
    assert losses(events) == pytest.approx(plain, rel=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1, "nothing was compiled"
    facts = {name: value for event in events if isinstance(event, Facts) for name, value in event.values.items()}
    assert facts["census"]["formats"] == {"fp32": 1.0}
    assert facts["memory"]["step"] == 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["bf16-amp", "fp16-amp", "tf32", "mxfp4"])
def test_that_each_kind_of_precision_can_be_traced(
    record: Record, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _SmallAttention)
    _only_trace(monkeypatch)
    plain = losses(record(*SETTINGS, f"precision={precision}"))
    assert losses(record(*SETTINGS, f"precision={precision}", "train.compile=true")) == pytest.approx(plain, rel=1e-3)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0, "nothing was traced"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["fp32", "bf16-amp", "bf16-pure"])
@pytest.mark.parametrize("model", ["cnn", "vit"])
def test_that_checkpoints_are_compiled_with_the_model(
    record: Record, monkeypatch: pytest.MonkeyPatch, model: str, precision: str
) -> None:
    _only_trace(monkeypatch)
    settings = (*SETTINGS, f"precision={precision}", f"model.name={model}", "data.batch_size=16")
    plain = losses(record(*settings))
    again = losses(record(*settings, "train.compile=true", "train.checkpointing=true"))
    assert again == pytest.approx(plain, rel=1e-3)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0, "nothing was traced"


@pytest.mark.parametrize("precision", ["fp16-amp", "fp16-pure", "emulated:int8", "mxfp4", "int8-qat"])
def test_that_checkpoints_of_compiled_rounding_are_refused_before_the_run(record: Record, precision: str) -> None:
    with pytest.raises(EngineError, match=rf"in {precision} precgui rounds .* set one of the two to false"):
        record(*SETTINGS, f"precision={precision}", "train.compile=true", "train.checkpointing=true")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [("precision=int8-qat",), ("precision=int4-qat", "qat.learned_ranges=true")])
def test_that_quantised_training_is_compiled_once(
    record: Record, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    """Not anew for every batch, as it would be if what a layer asks were different each time."""
    monkeypatch.setitem(tasks.TASKS, "digits", _Small)
    _only_trace(monkeypatch)
    wanted = ("record.tensors=false", "qat.measure=false", "train.max_steps=8", "data.epoch_steps=8", *settings)
    plain = losses(record(*wanted))
    assert losses(record(*wanted, "train.compile=true")) == pytest.approx(plain, rel=0.02), "integers may differ by one"
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3, "one to train, one to validate"
