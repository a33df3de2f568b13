"""What is asked of a run or of a machine, on the pretended device: the answers are those of the CPU."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from precgui import open_run
from tests.devices.commands import QUICK, check_resumed, differences, words_of
from tests.pretended.conftest import Script
from tests.pretended.test_training import CLOSE, rows_of

DEVICES = ("cuda:0", "cpu")
LONG = bool(os.environ.get("PRETENDED_LONG"))
REPLAYED = ("bf16-amp", "fp8", "nvfp4") if LONG else ("bf16-amp",)
RESUMED = ("fp16-amp", "bf16-sr", "int8-qat")
_BEGIN = "from tests.pretended.commands import *\n"
Rows = dict[str, list[dict[str, Any]]]  # on both devices


def _command(*words: str, settings: tuple[str, ...] = ()) -> str:
    return f"print_command(*{words_of(*words, settings=settings)!r})"


def _in_pairs(on_pretended_gpu: Script, calls: dict[str, list[str]], *, in_children: bool = False) -> Rows:
    """The rows of calls that each name has two of; none of them has launched a kernel that nothing has computed."""
    flat = [call for pair in calls.values() for call in pair]
    rows = rows_of(on_pretended_gpu, flat, begin=_BEGIN, in_children=in_children)
    assert {call: row["lost"] for call, row in zip(flat, rows, strict=True) if row["lost"]} == {}
    return {name: rows[2 * place : 2 * place + 2] for place, name in enumerate(calls)}


@pytest.fixture(scope="module")
def rows(on_pretended_gpu: Script, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The rows of all tests that are not long; of the long ones here, too, where they run."""
    folder = tmp_path_factory.mktemp("commands")
    calls: dict[str, list[str]] = {"shadow": [f"print_shadow({device!r})" for device in DEVICES]}
    for name in REPLAYED:
        files = [str(folder / f"{name}-{device[:3]}.h5") for device in DEVICES]
        common = (*QUICK, f"precision={name}", "train.max_steps=3", "record.snapshot_step=2")
        calls[f"run {name}"] = [
            _command("run", "digits-quick", "-o", file, settings=(*common, f"device={device}"))
            for file, device in zip(files, DEVICES, strict=True)
        ]
        for step in ("2", "3"):  # from its snapshot, and by training up to it
            calls[f"replay {name} {step}"] = [_command("replay", file, "--step", step, "--anatomy") for file in files]
    layers = ("--step", "2", "--layers", "bf16-amp,fp8")
    calls["layers"] = [_command("replay", str(folder / f"bf16-amp-{device[:3]}.h5"), *layers) for device in DEVICES]
    if LONG:
        calls |= _long_calls(folder)
    return {**_in_pairs(on_pretended_gpu, calls), "folder": [{"path": str(folder)}]}


def _long_calls(folder: Path) -> dict[str, list[str]]:
    calls = {}
    for name in RESUMED:
        (folder / name).mkdir()
        calls[f"resumed {name}"] = [
            f"print_resumed({str(folder / name)!r}, {device!r}, 'precision={name}')" for device in DEVICES
        ]
    qat = (*QUICK, "train.max_steps=4")
    calls["qat"] = [
        _command("run", "digits-int8", "-o", str(folder / f"qat-{device[:3]}.h5"),
                 settings=(*qat, f"device={device}"))
        for device in DEVICES
    ]  # fmt: skip
    return calls


@pytest.mark.parametrize("step", ["2", "3"])
@pytest.mark.parametrize("name", REPLAYED)
def test_that_a_step_of_a_gpu_is_replayed_with_the_figures_of_the_cpu(rows: Rows, name: str, step: str) -> None:
    own, other = rows[f"replay {name} {step}"]
    assert own["code"] == other["code"], own["told"]
    assert own["document"]["gradient_error"] > 0
    assert differences(own["document"], other["document"], 1e-6) == []
    notes = " ".join(own["document"]["notes"])
    assert "to the last bit" in notes or "made from its snapshot" in notes, notes
    assert own["document"]["anatomy"].keys() == other["document"]["anatomy"].keys()


def test_that_layers_are_compared_on_a_gpu_as_on_the_cpu(rows: Rows) -> None:
    own, other = rows["layers"]
    assert (own["code"], other["code"]) == (0, 0), own["told"]
    assert differences(own["document"], other["document"], 1e-6) == []
    assert own["document"]["layers"]


def test_that_the_shadow_of_a_step_on_a_gpu_is_that_of_the_cpu(rows: Rows) -> None:
    own, other = rows["shadow"]
    assert own["verdict"] == other["verdict"]
    assert own["error"] == pytest.approx(other["error"], rel=1e-6)
    assert [line for line, _ in own["lines"]] == [line for line, _ in other["lines"]]
    assert [share for _, share in own["lines"]] == pytest.approx([share for _, share in other["lines"]], abs=1e-9)
    assert own["left"] == pytest.approx(other["left"], rel=1e-6)


@pytest.mark.pretended_long
@pytest.mark.parametrize("name", RESUMED)
def test_that_a_run_on_a_gpu_goes_on_to_the_last_bit(rows: Rows, name: str) -> None:
    own, other = rows[f"resumed {name}"]
    check_resumed(own)
    on_cpu = [loss for _, loss in other["whole"]]
    assert [loss for _, loss in own["whole"]] == pytest.approx(on_cpu, rel=CLOSE.get(name, 1e-6))


@pytest.mark.pretended_long
def test_that_training_for_int8_ends_on_a_gpu_with_the_model_of_the_cpu(rows: Rows) -> None:
    own, other = rows["qat"]
    assert own["code"] == other["code"] == 0, own["told"]
    assert differences(own["document"], other["document"], 1e-6) == []
    folder = Path(rows["folder"][0]["path"])
    with open_run(folder / "qat-cud.h5") as of_gpu, open_run(folder / "qat-cpu.h5") as of_cpu:
        measured, on_cpu = (run.environment["quantised"] for run in (of_gpu, of_cpu))
    assert differences(measured, on_cpu, 1e-6) == []
    assert len(measured["layers"]) == 4
    assert (folder / "qat-cud.int8.pt").stat().st_size == (folder / "qat-cpu.int8.pt").stat().st_size


@pytest.mark.pretended_long
def test_that_twins_on_a_gpu_have_the_losses_of_the_cpu(on_pretended_gpu: Script) -> None:
    words = ("twin", "digits-quick", "--precision", "bf16-amp", "--branches", "10", "--steps", "2", "--warm-up", "2")
    own, other = _in_pairs(on_pretended_gpu, {"twin": [
        _command(*words, settings=("train.max_steps=24", *QUICK, f"device={device}")) for device in DEVICES
    ]})["twin"]  # fmt: skip
    assert own["code"] == other["code"] == 0, own["told"]
    assert differences(own["document"], other["document"], 1e-6) == []
    assert len(own["document"]["branches"]) == 10


@pytest.mark.pretended_long
def test_that_members_of_a_sweep_train_on_a_gpu_as_on_the_cpu(on_pretended_gpu: Script, tmp_path: Path) -> None:
    """Each member is a child process of its own, which computes there, too."""
    calls = [
        _command("sweep", "digits-quick", "--precisions", "fp32,bf16-amp", "--seeds", "1", "--timing-rounds", "0",
                 "-o", str(tmp_path / device[:3]), settings=(*QUICK, "train.max_steps=3", f"device={device}"))
        for device in DEVICES
    ]  # fmt: skip
    own, other = _in_pairs(on_pretended_gpu, {"sweep": calls}, in_children=True)["sweep"]
    assert own["code"] == other["code"] == 0, own["told"]
    losses: list[dict[str, list[float]]] = []
    for row, device in ((own, "cuda"), (other, "cpu")):
        members = row["document"]["members"]
        assert {member["status"] for member in members} == {"completed"}
        assert {member["precision"] for member in members} == {"fp32", "bf16-amp"}
        runs = {member["name"]: open_run(member["run"]) for member in members}
        assert all(run.device.startswith(device) for run in runs.values())
        losses.append({name: run.series("loss")[1].tolist() for name, run in runs.items()})
    assert losses[0].keys() == losses[1].keys()
    for name, own_losses in losses[0].items():
        assert own_losses == pytest.approx(losses[1][name], rel=CLOSE["bf16-amp"])


@pytest.mark.pretended_long
def test_that_a_profile_of_a_gpu_is_an_account_and_without_kernels_a_sentence(on_pretended_gpu: Script) -> None:
    printed = on_pretended_gpu(_PROFILE)
    without, profiled = [line for line in printed.splitlines() if line.startswith("ROW ")]
    assert '"code": 2' in without
    assert "recorded no kernel of the GPU" in without
    assert '"code": 0' in profiled


_PROFILE = f"""
from tests.pretended import host_math
host_math.install()
host_math.install_compiled()
{_BEGIN}
print_profile("cuda:0")
"""


@pytest.mark.pretended_long
def test_that_a_bench_measures_on_the_gpu_that_was_asked_for(on_pretended_gpu: Script) -> None:
    (result,) = rows_of(on_pretended_gpu, ["print_bench('cuda:1')"], gpus=2, begin=_BEGIN)
    assert result["device"]["id"] == "cuda:1"
    assert result["complete"]
    assert result["lost"] == 0
    named = {row["format"]: row["ran_as"] for row in result["certificate"]}
    assert named.keys() >= {"fp32", "bf16", "e4m3fn"}
    sums = {(row["format"], row["fast"]): row["bits"] for row in result["accumulation"]}
    assert dict.fromkeys(sums, 24) == sums
    assert sums.keys() == {("fp32", False), ("bf16", False), ("e4m3fn", True), ("e4m3fn", False), ("e5m2", False)}
    assert all(row["tops"] > 0 and math.isfinite(row["tops"]) for row in result["gemm"])
