"""Lines of the check list, each on runs where it is met, where it is missed, and where nothing says it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from precgui.cli.main import main
from precgui.config import RunConfig, build, load
from precgui.config.names import OWN_LOOP
from precgui.events import DeviceRead, ModelDescribed, ParameterInfo, RunEnded, RunStarted, StepDone
from precgui.runs.check_list import CheckLine, check_list, lines_met
from precgui.runs.live import LiveRun
from precgui.sweeps.folder import SweepFolder
from tests.runs.synthetic import live_run, open_writer, synthetic_events
from tests.sweeps.sample_sweep import write_member

CENSUS = {"formats": {"fp16": 0.9, "fp32": 0.1}, "operations": {"_scaled_dot_product_flash_attention": {"fp16": 1}}}
AMP = RunConfig(precision="fp16-amp")
GIB = 1 << 30


def a_run(config: RunConfig = AMP, *, device: str = "cuda:0", shapes: Any = ((64, 128),), batch: int = 64,
          losses: tuple[float, ...] = (1.0,) * 10, skipped: int = 0, data_s: float = 0.0, tensor_use: float = math.nan,
          peak: float = math.nan, **environment: Any) -> LiveRun:  # fmt: skip
    steps = [
        StepDone(place, 0.1 * place, loss, 1024.0, place <= skipped, 0.1, 1.0, 0.09, data_s, batch, peak)
        for place, loss in enumerate(losses, 1)
    ]
    weights = tuple(
        ParameterInfo(f"layer{place}.weight", "parameter", "fp32", shape, True, True)
        for place, shape in enumerate(shapes)
    )
    facts = {"device": device, "census": CENSUS, **environment}
    run = live_run([RunStarted(0.0, len(steps), 5, device, facts), ModelDescribed(0.05, (), weights), *steps,
                    DeviceRead(device, 0.5, 0.9, tensor_use, 0.5, 0.1, 1700.0, 60.0, 1.0),
                    RunEnded(2.0, "completed")], config)  # fmt: skip
    run.machine = {"memory_bytes": 8 * GIB, "gpus": [{"memory_bytes": GIB}]}
    return run


def line(name: str, config: RunConfig = AMP, **changed: Any) -> CheckLine:
    return next(each for each in check_list(a_run(config, **changed)) if each.id == name)


def test_that_sizes_are_those_that_fill_the_rows_of_the_format() -> None:
    assert line("sizes").state == "met"
    odd = line("sizes", shapes=((64, 128), (10, 64), (64,), (64, 3, 5, 5)))
    assert odd.state == "missed" and "1 of 3 matrices have multiples of 8" in odd.measured
    assert "layer1.weight 10x64" in odd.measured and "layer3.weight 64x3" in odd.measured
    assert line("sizes", shapes=((12, 20),)).state == "missed"
    assert line("sizes", RunConfig(precision="fp32"), shapes=((12, 20),)).state == "met"  # 16 bytes are 4 numbers
    assert line("sizes", RunConfig(precision="fp8"), shapes=((24, 64),)).state == "missed"
    assert line("sizes", shapes=((64,),)).state == "not needed"


def test_that_the_batch_is_that_of_one_pass_and_the_next_multiple_is_tried() -> None:
    assert line("batch").state == "met"
    assert line("batch", batch=60).change == {"data.batch_size": 64}
    accumulating = build({"precision": "fp16-amp", "train": {"accumulation": 4}})
    assert line("batch", accumulating, batch=64).measured == "16 samples, a multiple of 8"
    assert line("batch", accumulating, batch=40).state == "missed"


def test_that_products_must_really_be_in_the_low_format() -> None:
    assert line("formats").state == "met"
    missed = line("formats", census={"formats": {"fp32": 0.8, "fp16": 0.2}})
    assert missed.state == "missed" and "80% of the multiplications in fp32" in missed.measured
    assert line("formats", RunConfig(precision="fp32"), census={"formats": {"fp32": 1.0}}).state == "not needed"
    assert line("formats", census={"unavailable": "no operation could be counted"}) == CheckLine(
        "formats", "Products in the low format", "not measured", "no operation could be counted"
    )


def test_that_tensor_cores_are_read_and_never_guessed() -> None:
    assert line("tensor_cores").state == "not measured"
    assert line("tensor_cores", device="cpu").measured == "the run was not on an NVIDIA GPU"
    assert (line("tensor_cores", tensor_use=0.5).state, line("tensor_cores", tensor_use=0.05).state) == (
        "met",
        "missed",
    )


def test_that_fused_attention_is_told_by_the_operations_that_ran() -> None:
    assert "_scaled_dot_product_flash_attention" in line("attention").measured
    apart = {"formats": {"fp16": 1.0}, "operations": {"bmm": {}, "_softmax": {}}}
    assert line("attention", build({"precision": "fp16-amp", "train": {"attention": "math"}}), census=apart).change == {
        "train.attention": "auto"
    }
    assert line("attention", census=apart).change == {}  # it is auto already
    assert line("attention", census={"formats": {"fp16": 1.0}, "operations": {"mm": {}}}).state == "not needed"


def test_that_memory_is_compared_with_that_of_the_device_of_the_run() -> None:
    assert line("checkpointing", peak=0.1 * GIB).state == "met"
    assert line("checkpointing", peak=0.9 * GIB).change == {"train.checkpointing": True}
    assert line("checkpointing", device="cpu", peak=0.9 * GIB).state == "met"
    checkpointed = build({"precision": "fp16-amp", "train": {"checkpointing": True}})
    assert line("checkpointing", checkpointed, peak=0.1 * GIB).change == {"train.checkpointing": False}
    assert line("checkpointing", checkpointed, peak=0.7 * GIB).state == "met"
    assert line("checkpointing").state == "not measured"
    assert line("checkpointing", memory={"peak_bytes": 0.9 * GIB}).state == "missed"


def test_that_losses_skipped_steps_and_waiting_are_counted() -> None:
    assert line("non_finite").state == "met"
    assert line("non_finite", losses=(1.0, math.nan)).measured == "1 of 2 losses are not finite"
    assert line("skipped").state == "met" and line("skipped", skipped=2).state == "missed"
    assert line("loader").state == "met"
    assert line("loader", data_s=0.09).change == {"data.workers": 2}
    four = build({"precision": "fp16-amp", "data": {"workers": 4}})
    assert line("loader", four, data_s=0.09).change == {"data.workers": 8}


def test_that_settings_that_a_recorder_does_not_see_are_not_claimed() -> None:
    own = RunConfig(task=OWN_LOOP, precision="fp16-amp")
    assert line("compile", own).state == "not measured"
    assert line("loader", own, data_s=0.09).change == {} and line("loader", own, data_s=0.09).state == "missed"
    assert line("checkpointing", own, peak=0.9 * GIB).change == {}
    assert line("compile").change == {"train.compile": True}


def test_that_lines_are_counted_without_those_that_do_not_apply() -> None:
    lines = check_list(a_run(losses=(1.0, math.nan)))
    assert lines_met(lines) == "6 of 8 met, 2 not measured"


def test_that_the_command_prints_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.h5"
    with open_writer(path) as writer:
        for event in synthetic_events(60):
            writer(event)
    assert main(["checklist", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in document["lines"]] == [each.id for each in check_list(a_run())]
    assert main(["checklist", str(path)]) == 1
    out = capsys.readouterr().out
    assert "--set train.compile=true" in out and "1 of 60 losses are not finite" in out
    assert main(["checklist", str(tmp_path / "none.h5")]) == 2


def test_that_a_proposed_change_is_measured_in_pairs_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.h5"
    writer = open_writer(path, config=load("regression-precise", ["device=cpu", "threads=1", "train.max_steps=5"]))
    for event in synthetic_events(steps=5):
        writer(event)
    writer.close()
    trained: list[str] = []

    def written(config: RunConfig, place: Path, emit: object, stopped: object, **_: object) -> RunEnded:
        folder = SweepFolder(place.parent.parent)
        trained.append(f"{folder.path.name} {place.stem}")
        write_member(folder, folder.plan.member(place.stem), step_s=0.005 if config.train.compile else 0.01)
        return RunEnded(0.7, "completed")

    monkeypatch.setattr("precgui.sweeps.runner.run_in_process", written)
    words = ["checklist", str(path), "--pairs", str(tmp_path / "pairs"), "--seeds", "3", "--json"]
    for _ in range(2):
        assert main(words) == 1
        lines = {each["id"]: each for each in json.loads(capsys.readouterr().out)["lines"]}
        assert lines["compile"]["effects"]["train.compile"]["speed-up in step time"].startswith("2.00x")
    assert len({*trained}) == len(trained)  # each once
    assert sum("twin" not in name and name.startswith("train.compile s0") for name in trained) == 6
    assert lines["non_finite"]["effects"] == {}
    assert main(["checklist", str(path), "--seeds", "3"]) == 2
    assert "--pairs DIR, which is missing" in capsys.readouterr().err
