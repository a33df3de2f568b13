"""Snapshots of steps, and steps made from them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from precgui import config
from precgui.engine.errors import EngineError
from precgui.engine.journal import Journal
from precgui.engine.setup import build_run
from precgui.engine.shadow.of_run import shadow_of_run, shadow_of_snapshot
from precgui.engine.snapshot.file import read_tensors, write_tensors
from precgui.engine.snapshot.hook import Snapshots, snapshot_path
from precgui.engine.snapshot.step import StepSnapshot, read_snapshot
from precgui.engine.train import train
from precgui.events import Event, StepDone

BASE = ["device=cpu", "threads=1", "data.batch_size=16", "train.max_steps=6", "record.tensors=false"]


def trained(place: Path, *settings: str) -> tuple[config.RunConfig, list[StepDone], list[str]]:
    """The config, its steps and the texts of its notes."""
    chosen = config.load("digits-quick", [*BASE, f"record.snapshot_to={place}", *settings])
    events: list[Event] = []
    train(chosen, events.append, lambda: False)
    notes = [getattr(event, "message", "") for event in events]
    return chosen, [event for event in events if isinstance(event, StepDone)], notes


@pytest.mark.parametrize("precision", ["bf16-amp", "fp16-amp", "mxfp8", "int8-qat", "bf16-pure"])
def test_that_a_step_from_its_snapshot_is_the_step_of_the_run_to_the_last_bit(tmp_path: Path, precision: str) -> None:
    place = tmp_path / "run.h5"
    chosen, steps, _ = trained(
        place,
        f"precision={precision}",
        "model.name=mlp",
        "record.snapshot_step=4",
        "precision_options.rounding=stochastic",
    )
    repeated = shadow_of_snapshot(chosen, snapshot_path(place, 4), 4)
    again = shadow_of_run(chosen, 4, lambda: False)
    assert repeated.shadow.loss == steps[3].loss
    assert repeated.shadow.gradient_error == again.shadow.gradient_error
    assert sorted(tmp_path.iterdir()) == [snapshot_path(place, 4)]


def test_that_the_first_step_that_is_not_finite_is_kept_with_the_weights_before_it(tmp_path: Path) -> None:
    place = tmp_path / "run.h5"
    chosen, steps, notes = trained(place, "precision=fp16-pure", "optimizer.lr=3e4", "scaling.mode=none")
    first = next(step.step for step in steps if not math.isfinite(step.loss + step.grad_norm))
    path = snapshot_path(place, first)
    assert sorted(tmp_path.iterdir()) == [path]
    weights = read_snapshot(path).weights
    assert all(bool(value.isfinite().all()) for name, value in weights.items() if "running" not in name)
    assert any(f"kept in {path.name}" in note for note in notes)
    repeated = shadow_of_snapshot(chosen, path, first)
    assert not repeated.shadow.is_finite and repeated.shadow.first_nonfinite is not None


def test_that_after_skipped_steps_the_first_loss_that_is_not_finite_is_kept_as_well(tmp_path: Path) -> None:
    place = tmp_path / "run.h5"
    callback = Snapshots(place, 0, Journal(lambda event: None), build_run(config.load("digits-quick", BASE), print))
    one, bad = torch.tensor(1.0), torch.tensor(math.inf)
    for step, (loss, norm) in enumerate([(one, one), (one, bad), (one, bad), (bad, bad), (bad, bad)], 1):
        callback.begin_step(step, 1.0, [(torch.zeros(2), torch.zeros(2))])
        callback.totals(loss, norm)
    assert sorted(tmp_path.iterdir()) == [snapshot_path(place, 2), snapshot_path(place, 4)]


def test_that_a_healthy_run_leaves_no_snapshot(tmp_path: Path) -> None:
    trained(tmp_path / "run.h5", "precision=bf16-amp")
    assert not list(tmp_path.iterdir())


def test_that_a_run_with_a_place_that_cannot_be_written_goes_on(tmp_path: Path) -> None:
    _, steps, notes = trained(tmp_path / "missing" / "run.h5", "precision=fp32", "record.snapshot_step=2")
    assert len(steps) == 6 and any("not kept: the file cannot be written" in note for note in notes)


def test_that_delayed_scales_are_not_kept(tmp_path: Path) -> None:
    _, _, notes = trained(
        tmp_path / "run.h5", "precision=fp8", "precision_options.fp8_amax=delayed", "record.snapshot_step=2"
    )
    assert any("not kept: FP8 scales of earlier batches" in note for note in notes) and not list(tmp_path.iterdir())


def test_that_batches_of_nested_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    batch = ({"a": [torch.arange(3), None], "b": (torch.ones(0, 2, dtype=torch.bfloat16), "text")}, torch.tensor(2.5))
    before = StepSnapshot(3, 2.0, 7, [batch], {"w": torch.randn(2, 3).t()}, torch.get_rng_state())
    before.write(tmp_path / "s")
    after = read_snapshot(tmp_path / "s")
    assert (after.step, after.scale, after.batch_count) == (3, 2.0, 7)
    torch.testing.assert_close(after.weights["w"], before.weights["w"], rtol=0, atol=0)
    inputs, targets = after.batches[0]
    assert inputs["a"][0].tolist() == [0, 1, 2] and inputs["a"][1] is None and float(targets) == 2.5
    assert inputs["b"][0].dtype is torch.bfloat16 and inputs["b"][1] == "text"


def test_that_a_batch_of_other_objects_is_refused(tmp_path: Path) -> None:
    snapshot = StepSnapshot(1, 1.0, 0, [(object(), torch.zeros(1))], {}, torch.get_rng_state())
    with pytest.raises(TypeError, match="its batches hold a object"):
        snapshot.write(tmp_path / "s")


NO_TEXT = {"__metadata__": {"precgui": "{}"}}
LONG = {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}
NEGATIVE = {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}


def _damaged(header: Any, data: bytes = b"") -> bytes:
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff" * 8, b"\x80\x04K\x01.", _damaged([]), _damaged({}), _damaged(NO_TEXT),
        _damaged({"__metadata__": {"precgui": "[1]"}}),
        _damaged(NO_TEXT | {"random": LONG}), _damaged(NO_TEXT | {"random": NEGATIVE}),
        _damaged({"__metadata__": {"precgui": '{"snapshot": 1, "batches": {"list": [{"x": 1}]}}'}}),
    ],
)  # fmt: skip
def test_that_files_of_others_are_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.h5.step-000001.safetensors"
    path.write_bytes(content)
    with pytest.raises(EngineError, match="is no snapshot of precgui, or is damaged"):
        read_snapshot(path)


def test_that_a_cut_file_is_refused_at_every_length(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    write_tensors(whole, {"a": torch.arange(6.0).view(2, 3)}, "text")
    content = whole.read_bytes()
    assert read_tensors(whole)[0]["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    for length in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(EngineError):
            read_tensors(tmp_path / "cut")


def test_that_a_snapshot_of_another_model_or_step_is_one_sentence(tmp_path: Path) -> None:
    place = tmp_path / "run.h5"
    trained(place, "precision=fp32", "record.snapshot_step=2", "model.name=mlp")
    other = config.load("digits-quick", BASE)
    with pytest.raises(EngineError, match="the snapshot is of another model"):
        shadow_of_snapshot(other, snapshot_path(place, 2), 2)
    with pytest.raises(EngineError, match="is of step 2, not of step 3"):
        shadow_of_snapshot(other, snapshot_path(place, 2), 3)
