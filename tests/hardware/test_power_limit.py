"""Idle baseline and power limit of a run, on a card whose power is planted: every joule is known."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from precgui import config, job
from precgui.engine import device, torch_facts
from precgui.events import Event, RunStarted, StepDone
from precgui.hardware import energy, rapl, step_energy
from precgui.hardware.power_limit import power_limits
from precgui.hardware.readings import Missing
from precgui.runs import held_power_limit
from precgui.runs.file.process import this_process
from precgui.runs.file.reader import open_run
from precgui.runs.held_power_limit import PowerLimitError, restore_left_limits, why_no_power_limit
from precgui.runs.study.figures import figures_of
from tests.hardware import cards
from tests.hardware.fake_nvml import NO_PERMISSION, Card, Fails, install

IDLE_W, DEFAULT_W = 50.0, 400.0


class PlantedCard:
    """A card without an energy counter, that uses 50 W while idle and as much as its limit while busy."""

    def __init__(self, *, may_set: bool = True) -> None:
        self.busy = False
        self.limit_w = DEFAULT_W
        self.was_set: list[float] = []
        self.may_set = may_set
        self.card: Card = cards.a100(
            nvmlDeviceGetTotalEnergyConsumption=Fails(3),
            nvmlDeviceGetPowerManagementLimit=lambda: round(1e3 * self.limit_w),
            nvmlDeviceGetPowerManagementLimitConstraints=[100_000, 400_000],
            nvmlDeviceSetPowerManagementLimit=self.take,
            nvmlDeviceGetUUID="GPU-PLANTED",
        )
        self.card.fields[186] = lambda: 1e3 * (self.limit_w if self.busy else IDLE_W)

    def take(self, milliwatts: int) -> object:
        if not self.may_set:
            return Fails(NO_PERMISSION)
        self.limit_w = milliwatts / 1e3
        self.was_set.append(self.limit_w)
        return None


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlantedCard:
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "none")
    monkeypatch.setattr(torch_facts, "cuda_uuid", lambda _: "planted")
    made = PlantedCard()
    install(monkeypatch, made.card)
    return made


def run(path: Path, planted: PlantedCard, monkeypatch: pytest.MonkeyPatch, *settings: str) -> job.Job:
    """A run that is stopped after 1.2 s; the card is busy from the end of the idle baseline on."""
    read_idle = step_energy.idle_power

    def idle(seconds: float, wait: object) -> object:
        assert not planted.busy
        result = read_idle(seconds, wait)
        planted.busy = True
        return result

    def listen(event: Event) -> None:
        if isinstance(event, StepDone) and event.time_s > 1.2:
            one.stop()

    monkeypatch.setattr(job, "idle_power", idle)
    monkeypatch.setattr(step_energy, "LEAST_S", 0.05)
    monkeypatch.setattr(energy, "_LONGEST_GAP_S", 60.0)  # a busy machine
    monkeypatch.setattr(device, "choose", lambda _: torch.device("cpu"))  # in place of the GPU that `auto` may find
    wanted = ["threads=1", "record.tensors=false", "train.epochs=10000", "power.idle_s=0.2", *settings]
    one = job.Job(config.load("digits-quick", wanted), path, [listen])
    one.run()
    return one


def test_that_a_planted_power_curve_gives_its_exact_joules_at_each_limit(planted, monkeypatch, tmp_path):
    for watts in (300.0, 200.0):
        planted.busy = False
        run(tmp_path / f"{watts}.h5", planted, monkeypatch, f"power.limit_w={watts}")
        with open_run(tmp_path / f"{watts}.h5") as saved:
            found = figures_of(saved, "a")
            samples = saved.series("samples")[1].sum()
        assert found.settings["power.limit_w"] == watts
        assert found.idle_w == pytest.approx(IDLE_W)
        assert found.power_w == pytest.approx(watts)
        assert found.energy_j == pytest.approx(watts * found.time_s)
        assert found.joules_per_sample == pytest.approx(watts * found.time_s / samples)
        assert found.net_joules_per_sample == pytest.approx((watts - IDLE_W) * found.time_s / samples)
    assert planted.was_set == [300.0, DEFAULT_W, 200.0, DEFAULT_W]
    assert not list(held_power_limit.folder().glob("*"))


def test_that_a_refused_limit_ends_the_run_before_it_begins_with_one_sentence(planted, monkeypatch, tmp_path):
    planted.may_set = False
    one = run(tmp_path / "a.h5", planted, monkeypatch, "power.limit_w=200")
    assert one.was_refused
    assert one.ended.message == (
        "power.limit_w = 200 cannot be set on NVIDIA A100-SXM4-80GB: the driver lets an administrator alone set it "
        "(run as root, or ask for sudo nvidia-smi -pl 200); or leave it empty"
    )
    assert why_no_power_limit().startswith("power.limit_w cannot be set on NVIDIA A100-SXM4-80GB: the driver lets")
    planted.may_set = True
    assert why_no_power_limit() == ""
    assert planted.limit_w == DEFAULT_W


@pytest.mark.parametrize(("watts", "why"), [(50, "choose 100 to 400"), (900, "choose 100 to 400")])
def test_that_a_limit_outside_the_range_names_the_range(planted, monkeypatch, tmp_path, watts, why):
    with pytest.raises(config.ConfigError, match=why):
        run(tmp_path / "a.h5", planted, monkeypatch, f"power.limit_w={watts}")
    assert not (tmp_path / "a.h5").exists()
    with pytest.raises(PowerLimitError, match=why), held_power_limit.held_power_limit("planted", watts):
        pass
    assert planted.was_set == []


def test_that_a_device_without_a_limit_is_named(planted, monkeypatch, tmp_path):
    monkeypatch.setattr(torch_facts, "cuda_uuid", lambda _: "")
    one = run(tmp_path / "a.h5", planted, monkeypatch, "power.limit_w=200")
    assert one.ended.message == "power.limit_w = 200: CPU has no power limit that can be set; leave it empty"


def left(watts: float, process: dict[str, object]) -> Path:
    """The record of a run that is gone, or lives."""
    held_power_limit.folder().mkdir(parents=True)
    path = held_power_limit.folder() / "GPU-PLANTED.json"
    path.write_text(json.dumps({"uuid": "GPU-PLANTED", "name": "A100", "limit_w": watts, "process": process}))
    return path


def test_that_the_limit_of_a_killed_run_is_set_back_by_the_next_process(planted):
    planted.limit_w = 150.0
    path = left(DEFAULT_W, {**this_process(), "pid": os.getpid() + 1, "start_ticks": 1, "process_started": 1.0})
    (sentence,) = restore_left_limits()
    assert sentence == "The power limit of A100 is 400 W again, as it was before a run that was killed."
    assert planted.limit_w == DEFAULT_W
    assert not path.exists()
    assert restore_left_limits() == []


def test_that_the_limit_of_a_living_run_stays_and_a_second_run_waits_its_turn(planted):
    planted.limit_w = 150.0
    path = left(DEFAULT_W, this_process())
    assert restore_left_limits() == []
    with (
        pytest.raises(PowerLimitError, match="another run holds the power limit"),
        held_power_limit.held_power_limit("planted", 200.0),
    ):
        pass
    assert planted.limit_w == 150.0
    assert path.exists()


def test_that_a_limit_that_cannot_be_set_back_is_said_and_kept_for_the_next_time(planted):
    path = left(DEFAULT_W, {**this_process(), "pid": os.getpid() + 1, "start_ticks": 1, "process_started": 1.0})
    planted.may_set = False
    (sentence,) = restore_left_limits()
    assert "is not set back: the driver lets an administrator alone set it" in sentence
    assert path.exists()


def test_that_the_limit_is_set_back_after_an_error(planted):
    with pytest.raises(RuntimeError), held_power_limit.held_power_limit("planted", 200.0):
        raise RuntimeError
    assert planted.was_set == [200.0, DEFAULT_W]


def test_that_a_machine_without_a_card_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path))
    install(monkeypatch, init=12)
    assert isinstance(power_limits(), Missing)
    assert why_no_power_limit() == "power.limit_w cannot be set on this machine: no NVIDIA driver on this machine"
    refused = config.load("digits-quick", ["power.limit_w=200", "train.cuda_graph=true", "precision=fp8"])
    with pytest.raises(config.ConfigError, match="no NVIDIA driver on this machine") as raised:
        job.Job(refused, tmp_path / "a.h5")
    assert set(raised.value.faults) == {"power.limit_w", "train.cuda_graph"}
    assert not (tmp_path / "a.h5").exists()


def test_that_a_run_without_sensors_waits_for_no_idle_baseline(monkeypatch, tmp_path):
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "none")
    install(monkeypatch, init=12)
    events: list[Event] = []
    wanted = ["device=cpu", "threads=1", "record.tensors=false", "train.max_steps=2", "power.idle_s=600"]
    job.Job(config.load("digits-quick", wanted), tmp_path / "a.h5", [events.append]).run()
    assert any(isinstance(event, RunStarted) for event in events)
    with open_run(tmp_path / "a.h5") as saved:
        found = figures_of(saved, "a")
    assert "no NVIDIA driver on this machine" in found.why_no_energy
    assert found.energy_j is None
