"""Commands on the GPU: what they tell is what they tell on the CPU, within what the formats round."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("pydantic", reason="runs are configured with pydantic, which is not installed here")

from precgui import config, open_run
from precgui.engine.adapters.weights_file import tensors_of, write_weights
from precgui.engine.tasks import make
from tests.devices.commands import QUICK, check_resumed, command, differences, resumed, shadow, words_of
from tests.gpu.place import DEVICE, REHEARSED

pytestmark = pytest.mark.gpu
REPEATING = "train.deterministic=true"
Tell = Callable[[str], None]
PARTS = ("products_s", "casts_s", "others_s", "gaps_s")  # of a step in a profile


def done(*words: str, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    row = command(*words_of(*words, settings=settings))
    assert row["code"] == 0, (row["told"], row["document"])
    return row["document"]


def trained(path: Path, *settings: str, recipe: str = "digits-quick", device: str = DEVICE) -> dict[str, Any]:
    return done("run", recipe, "-o", str(path), settings=(f"device={device}", *settings))


@pytest.mark.parametrize("precision", ["bf16-amp", "fp8", "nvfp4"])
def test_that_a_step_is_replayed_with_anatomy_and_layers(precision: str, tmp_path: Path, tell: Tell) -> None:
    common = (*QUICK, f"precision={precision}", "train.max_steps=3", "record.snapshot_step=2", REPEATING)
    found = []
    for device in (DEVICE, "cpu"):
        file = tmp_path / f"{device[:3]}{len(found)}.h5"
        trained(file, *common, device=device)
        for step in ("2", "3"):
            row = command("replay", str(file), "--step", step, "--anatomy")
            assert row["code"] in (0, 1), row["told"]
            found.append(row["document"])
        layers = command("replay", str(file), "--step", "2", "--layers", "bf16-amp,fp8")
        assert layers["code"] == 0, layers["told"]
        assert layers["document"]["layers"]
    for own, other in zip(found[:2], found[2:], strict=True):
        notes = " ".join(own["notes"])
        tell(f"replay {precision}: gradient error {own['gradient_error']:.3e}, on the CPU "
             f"{other['gradient_error']:.3e}; {notes}")  # fmt: skip
        assert "to the last bit" in notes or "made from its snapshot" in notes, notes
        assert own["gradient_error"] == pytest.approx(other["gradient_error"], rel=0.3)
        assert own["anatomy"].keys() == other["anatomy"].keys()


def test_that_a_shadow_gives_the_verdict_of_the_cpu(tell: Tell) -> None:
    own, other = shadow(DEVICE), shadow("cpu")
    tell(f"shadow: gradient error {own['error']:.3e}, on the CPU {other['error']:.3e}; shares {own['lines'][:3]}, "
         f"there {other['lines'][:3]}")  # fmt: skip
    assert own["verdict"] == other["verdict"]
    assert own["error"] == pytest.approx(other["error"], rel=0.3)
    assert own["lines"][0][0] == other["lines"][0][0]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16-amp", "fp16-amp", "bf16-sr", "fp8", "nvfp4", "int8-qat"])
def test_that_a_run_goes_on_to_the_last_bit(precision: str, tmp_path: Path) -> None:
    check_resumed(resumed(tmp_path, DEVICE, f"precision={precision}", REPEATING))


@pytest.mark.skipif(REHEARSED, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16-amp"])
def test_that_a_run_in_a_graph_goes_on_to_the_last_bit(precision: str, tmp_path: Path) -> None:
    check_resumed(resumed(tmp_path, DEVICE, f"precision={precision}", REPEATING, "train.cuda_graph=true"))


@pytest.mark.parametrize("precision", ["fp32", "bf16-amp", "fp16-amp", "fp8"])
def test_that_a_compiled_run_has_the_losses_of_one_that_is_not(precision: str, tmp_path: Path, tell: Tell) -> None:
    losses = []
    for compiled in ("false", "true"):
        file = tmp_path / f"{compiled}.h5"
        trained(file, *QUICK, f"precision={precision}", "train.max_steps=8", f"train.compile={compiled}")
        with open_run(file) as run:
            losses.append(run.series("loss")[1])
            assert (run.status, run.message) == ("completed", "")
    tell(f"compile {precision}: losses differ by {float(abs(losses[1] / losses[0] - 1).max()):.1e}")
    assert losses[1] == pytest.approx(losses[0], rel=1e-4 if precision == "fp32" else 3e-2)


def test_that_training_for_int8_ends_with_the_model_of_the_cpu(tmp_path: Path, tell: Tell) -> None:
    found = []
    for name, device in (("own", DEVICE), ("cpu", "cpu")):
        trained(tmp_path / f"{name}.h5", *QUICK, "train.max_steps=4", recipe="digits-int8", device=device)
        with open_run(tmp_path / f"{name}.h5") as run:
            found.append(run.environment["quantised"])
    own, other = found
    unlike = differences(own, other, 1e-2)
    tell(f"int8: {len(own['layers'])} layers, differ at {unlike[:3]}")
    assert len(own["layers"]) == len(other["layers"]) == 4
    target = tmp_path / "model.pt2"
    document = command("evaluate", str(tmp_path / "own.int8.pt"))
    assert document["code"] == 0, document["told"]
    from precgui.cli.main import main

    assert main(["export", str(tmp_path / "own.h5"), "--pt2", str(target)]) == 0
    assert torch.export.load(target).module() is not None


def test_that_twins_tell_bias_from_noise(tmp_path: Path, tell: Tell) -> None:
    words = ("twin", "digits-quick", "--precision", "bf16-amp", "--branches", "10", "--steps", "2", "--warm-up", "2")
    own, other = (
        done(*words, settings=("train.max_steps=24", *QUICK, f"device={device}")) for device in (DEVICE, "cpu")
    )
    assert len(own["branches"]) == len(other["branches"]) == 10
    unlike = differences(own, other, 0.05)
    tell(f"twins: {len(unlike)} places differ by more than 5 % of those on the CPU: {unlike[:2]}")


def test_that_members_of_a_sweep_train_on_the_gpu(tmp_path: Path, tell: Tell) -> None:
    document = done("sweep", "digits-quick", "--precisions", "fp32,bf16-amp", "--seeds", "1", "--timing-rounds", "0",
                    "-o", str(tmp_path / "sweep"),
                    settings=(*QUICK, "train.max_steps=3", f"device={DEVICE}"))  # fmt: skip
    members = document["members"]
    assert {member["status"] for member in members} == {"completed"}, members
    assert {member["precision"] for member in members} == {"fp32", "bf16-amp"}
    for member in members:
        with open_run(member["run"]) as run:
            assert run.device.startswith(DEVICE)
            tell(f"sweep {member['precision']}: losses {run.series('loss')[1].tolist()}")


@pytest.mark.parametrize(("recipe", "precision"), [("digits-quick", "bf16-amp"), ("gpt-quick", "bf16-amp"),
                                                  ("gpt-quick", "fp8")])  # fmt: skip
def test_that_a_profile_accounts_for_the_step(recipe: str, precision: str, tell: Tell) -> None:
    small = ("model.size=small",) if REHEARSED else ()
    document = done("profile", recipe, "--seconds", "3", "--no-trials",
                    settings=(f"device={DEVICE}", f"precision={precision}", *small))  # fmt: skip
    for side in ("fp32", "run"):
        times = document[side]
        parts = sum(times[name] for name in PARTS)
        shown = ", ".join(f"{name} {times[name] * 1e3:.2f} ms" for name in ("step_s", "profiled_s", *PARTS))
        tell(f"profile {recipe} {precision}, {side}: {shown}, uncertainty {times['uncertainty']:.2f}")
        assert parts == pytest.approx(times["profiled_s"], rel=1e-6)
        assert times["products_s"] > 0
        assert 0.3 < times["profiled_s"] / times["step_s"] < 3
    tell(f"profile {recipe} {precision}: notes {document['notes']}")


def test_that_a_model_is_measured_in_formats_as_on_the_cpu(tmp_path: Path, tell: Tell) -> None:
    chosen = config.load("digits-quick", ["data.batch_size=32"])
    torch.manual_seed(0)
    file = tmp_path / "digits.safetensors"
    write_weights(tensors_of(make(chosen).model()), file, {"config": chosen.model_dump_json()})
    own, other = (done("quantize", str(file), "--formats", "bf16,e4m3fn,int8,int4,nvfp4", "--device", device)
                  for device in (DEVICE, "cpu"))  # fmt: skip
    unlike = differences(own, other, 1e-3)
    tell(f"quantize: {len(unlike)} figures differ by more than 1e-3 of those on the CPU: {unlike[:3]}")
    assert own.keys() == other.keys()


def test_that_a_what_if_asks_no_gpu(tmp_path: Path) -> None:
    trained(tmp_path / "a.h5", *QUICK, "train.max_steps=3")
    document = done("whatif", str(tmp_path / "a.h5"), "--format", "e4m3fn")
    assert document


@pytest.mark.parametrize("precision", ["fp32", "fp16-amp"])
def test_that_2_4_sparse_products_are_measured(precision: str, tmp_path: Path, tell: Tell) -> None:
    settings = ("model.size=small", f"precision={precision}", "pruning.method=2:4", "train.max_steps=6")
    trained(tmp_path / "a.h5", *QUICK, *settings, recipe="gpt-quick")
    with open_run(tmp_path / "a.h5") as run:
        layers = run.environment["pruning"]["layers"]
        ratios = {name: layer["dense_over_sparse_time"] for name, layer in layers.items()
                  if "dense_over_sparse_time" in layer}  # fmt: skip
        tell(f"2:4 {precision}: dense over sparse time {ratios}")
        assert (run.status, run.message) == ("completed", "")
    assert REHEARSED or ratios
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values())


def test_that_adapters_on_a_base_in_nf4_train_and_merge(tmp_path: Path, tell: Tell) -> None:
    settings = ("model.size=small", "base.train_steps=20", "train.max_steps=20", f"device={DEVICE}")
    document = done("run", "gpt-qlora", "-o", str(tmp_path / "a.h5"), settings=settings)
    with open_run(tmp_path / "a.h5") as run:
        losses = run.series("loss")[1]
        tell(f"qlora: losses {losses[0]:.3f} to {losses[-1]:.3f}, peak {run.summary['memory_peak_bytes']}")
        assert (run.status, run.message) == ("completed", "")
        assert losses[-1] < losses[0]
    assert document
