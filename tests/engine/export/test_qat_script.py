"""Quantised runs written as plain scripts do the same again, bit for bit, and convert to the same integers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from precgui import config
from precgui.engine.export.script import write_script
from precgui.engine.train import train
from precgui.events import Evaluated, Event, Facts, RunStarted, StepDone
from tests.engine.export.script_output import printed_by

_QAT = ("qat.start_epoch=2", "qat.observers_off_after_epoch=2", "qat.freeze_bn_after_epoch=2")
RUNS: dict[str, tuple[str, ...]] = {
    "int8": ("precision=int8-qat", *_QAT, "model.name=resnet"),
    "int8 kept": ("precision=int8-qat", "precision_options.keep_fp32=head", "train.accumulation=2"),
    "int4": (
        "precision=int4-qat",
        "qat.learned_scales=true",
        "qat.learned_ranges=true",
        "qat.per_channel=false",
        "train.clip_norm=1",
    ),
    "int2": ("precision=int2-qat", "qat.ends=fp32", "qat.activations=int4", "train.ema_decay=0.9"),
    "int1": ("precision=int1-qat", "qat.activations=fp32", "qat.ends=same", "train.checkpointing=true"),
    "unmeasured": ("precision=int8-qat", "qat.measure=false", "task=text", "data.sequence_length=16"),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[Event], str]]:
    """Every run with what its script printed; the scripts run in one process, because importing torch takes seconds."""
    folder = tmp_path_factory.mktemp("scripts")
    runs: dict[str, list[Event]] = {}
    paths: list[Path] = []
    short = ["device=cpu", "threads=1", "record.tensors=false", "train.epochs=3", "data.epoch_steps=2"]
    for place, (name, settings) in enumerate(RUNS.items()):
        runs[name] = []
        wanted = config.load("digits-quick", [*short, "data.batch_size=16", *settings])
        train(wanted, runs[name].append, lambda: False)
        paths.append(folder / f"script_{place}.py")
        write_script(wanted, next(e for e in runs[name] if isinstance(e, RunStarted)).engine, paths[-1])
    return {name: (runs[name], text) for name, text in zip(RUNS, printed_by(paths), strict=True)}


@pytest.mark.parametrize("name", RUNS)
def test_that_a_script_repeats_the_run_bit_for_bit(outputs: dict[str, tuple[list[Event], str]], name: str) -> None:
    events, printed = outputs[name]
    losses = [float(text) for text in re.findall(r"^step \d+: loss (\S+)$", printed, re.MULTILINE)]
    assert losses == [e.loss for e in events if isinstance(e, StepDone)]
    validation = [float(text) for text in re.findall(r"^epoch .*validation loss (\S+),", printed, re.MULTILINE)]
    assert validation == [e.loss for e in events if isinstance(e, Evaluated)]
    integers = [float(text) for text in re.findall(r"^on integers: validation loss (\S+)$", printed, re.MULTILINE)]
    measured = [e.values["quantised"] for e in events if isinstance(e, Facts) and "quantised" in e.values]
    assert integers == [facts["evaluation"]["integer"]["loss"] for facts in measured]
    assert bool(integers) == (name != "unmeasured")
