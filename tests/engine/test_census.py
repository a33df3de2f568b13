"""The certificate and the census: what a run says about its arithmetic is what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from precgui import config, job
from precgui.engine import certificate as certificates
from precgui.engine.backend_flags import restored, set_fp32_arithmetic
from precgui.engine.census import Census, sentence
from precgui.engine.certificate import certificate, executed_fp32, gemm_error
from precgui.engine.errors import EngineError
from precgui.events import Event, Facts, Incident, RunStarted, StepDone
from precgui.runs.file.reader import open_run
from tests.engine.conftest import Record

CPU = torch.device("cpu")


def census(events: list[Event]) -> Any:
    return next(e.values["census"] for e in events if isinstance(e, Facts))


def test_that_the_certificate_tells_each_format_by_its_error() -> None:
    with restored():
        set_fp32_arithmetic(tf32=False)
        facts = certificate(CPU)
    errors = facts["gemm_error"]
    assert errors["fp64"] == 0 < errors["fp32"] < 1e-6 < errors["fp16"] < 1e-3 < errors["bf16"] < 5e-3
    assert facts["fp32_products"] == "fp32"
    assert facts["switches"]["backends.mkldnn.matmul.fp32_precision"] == "ieee"


def test_that_the_certificate_is_not_fooled_by_a_switch() -> None:
    """oneDNN may be told to multiply FP32 operands in BF16; the dtype of the tensors does not show it."""
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
    try:
        error = gemm_error(CPU)
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before  # type: ignore[attr-defined]
    if error < 1e-6:
        pytest.skip("this CPU has no BF16 products to be switched to")
    assert executed_fp32(error) == "bf16"


@pytest.mark.parametrize(
    ("precision", "formats"),
    [
        ("fp64", {"fp64"}),
        ("fp32", {"fp32"}),
        ("tf32", {"tf32 (emulated)"}),
        ("bf16-amp", {"bf16"}),
        ("fp16-amp", {"fp16 (emulated)"}),
        ("bf16-pure", {"bf16"}),
    ],
)
def test_that_the_census_finds_the_executed_format(record: Record, precision: str, formats: set[str]) -> None:
    facts = census(record("train.max_steps=1", f"precision={precision}"))
    assert set(facts["formats"]) == formats
    assert sum(facts["formats"].values()) == pytest.approx(1)
    assert set(facts["modules"]) == {"features.0", "features.3", "features.7", "head"}
    assert sum(module["share"] for module in facts["modules"].values()) == pytest.approx(1)


@pytest.mark.parametrize("checkpointing", ["false", "true"])
def test_that_the_census_shows_what_was_kept(record: Record, checkpointing: str) -> None:
    settings = ("precision=bf16-amp", "precision_options.keep_fp32=first,head", f"train.checkpointing={checkpointing}")
    modules = census(record("train.max_steps=1", *settings))["modules"]
    executed = {name: set(formats) - {"share"} for name, formats in modules.items()}
    assert executed == {"features.0": {"fp32"}, "features.3": {"bf16"}, "features.7": {"bf16"}, "head": {"fp32"}}


def test_that_the_census_counts_the_flops_that_torch_counts() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    images = torch.randn(2, 1, 8, 8)
    with FlopCounterMode(display=False) as reference:
        model(images).sum().backward()
    with Census(model, {}) as counted:
        model(images).sum().backward()
    facts = counted.facts()
    assert facts["flops"] == reference.get_total_flops()
    assert facts["operations"]["addmm"] == {"fp32": 1}
    assert sentence(facts).endswith("100.0% in fp32")


def test_that_attention_is_counted_in_the_format_of_its_operands() -> None:
    model = nn.MultiheadAttention(16, 2, batch_first=True).bfloat16()
    tokens = torch.randn(2, 8, 16, dtype=torch.bfloat16)
    with Census(model, {}) as counted:
        query = tokens.view(2, 2, 8, 8).requires_grad_()
        nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
    assert list(counted.facts()["formats"]) == ["bf16"]


def test_that_the_census_changes_no_bit(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    from precgui.engine.hooks.first_census import FirstStepCensus

    counted = [e.loss for e in record("train.max_steps=3", "precision=fp16-amp") if isinstance(e, StepDone)]
    monkeypatch.setattr(FirstStepCensus, "begin_step", lambda *_: None)
    monkeypatch.setattr(FirstStepCensus, "end_step", lambda *_: None)
    plain = [e.loss for e in record("train.max_steps=3", "precision=fp16-amp") if isinstance(e, StepDone)]
    assert counted == plain


def test_that_certificate_and_census_are_in_the_run_file(tmp_path: Path) -> None:
    events: list[Event] = []
    wanted = config.load("digits-quick", ["device=cpu", "threads=1", "train.max_steps=2", "precision=bf16-amp"])
    job.Job(wanted, tmp_path / "a.h5", [events.append]).run()
    started = next(e for e in events if isinstance(e, RunStarted))
    with open_run(tmp_path / "a.h5") as saved:
        assert saved.environment["census"] == census(events)
        assert saved.environment["certificate"] == started.engine["certificate"]
        told = [e.message for e in saved.events("note")]
    assert told == [e.message for e in events if isinstance(e, Incident) and e.kind == "note"]
    assert any("in bf16" in message for message in told)


@pytest.mark.parametrize("precision", ["fp32", "fp8", "emulated:bf16"])
def test_that_a_device_that_rounds_more_than_fp32_is_refused(
    record: Record, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(certificates, "gemm_error", lambda _: 3e-4)
    with pytest.raises(EngineError, match=r"does not multiply in true FP32 .* NVIDIA_TF32_OVERRIDE"):
        record(f"precision={precision}")


def test_that_patterns_without_effect_are_told(record: Record) -> None:
    events = record("precision=fp64", "precision_options.keep_fp32=head", "train.max_steps=1")
    assert "precision_options.keep_fp32 does nothing in fp64" in [e.message for e in events if isinstance(e, Incident)]
