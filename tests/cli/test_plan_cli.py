"""`precgui plan` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from precgui.cli.main import main
from precgui.config import RECIPES
from precgui.config.names import DOWNLOADED
from precgui.engine.profile import planning

PARTS = {
    "weights_bytes", "gradients_bytes", "optimizer_bytes", "master_bytes", "activations_bytes", "cast_cache_bytes",
    "temporary_bytes",
}  # fmt: skip
MLP = ["digits-quick", "--set", "device=cpu", "--set", "model.name=mlp", "--set", "data.batch_size=16"]


def test_that_a_recipe_is_planned_as_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "digits-quick", "--device", "4GB", "--set", "device=cpu", "--json"]) == 0
    out = capsys.readouterr().out
    plain = json.loads(out)
    assert set(plain["parts"]) >= PARTS
    assert sum(plain["parts"].values()) == plain["total_bytes"]
    assert plain["fits"] is True
    assert plain["largest_batch"] > 64
    assert len(out.splitlines()) == 1


PLANS = """
import sys
from itertools import islice
from precgui.cli.main import main
from precgui.engine.profile import planning, predict
from precgui.engine.tasks import detection, segmentation, speech

predict._PROBE_S = 0  # buffers of kernels: not what this is about
changes = planning._alternatives  # two thirds of the time; of a packed base they once ended the process with a fault
planning._alternatives = lambda config: islice(changes(config), int(config.adapter.kind != "none"))
detection._SCENES = segmentation._SCENES = speech._SOUNDS = (24, 8)  # drawn anew for each ledger of a plan
few = ("data.batch_size=4", "data.sequence_length=16", "data.epoch_steps=1", "data.download=false")
settings = [word for setting in few for word in ("--set", setting)]
for recipe in sys.argv[1:]:
    print("EXIT", recipe, main(["plan", recipe, "--json", *settings]), file=sys.stderr, flush=True)
"""


def test_that_plans_of_all_recipes_end_with_exit_code_0_also_at_the_very_end_of_their_process() -> None:
    """One process plans them all, because its start and its end take as long as a plan: its own code is of its end."""
    recipes = list(RECIPES)
    done = subprocess.run([sys.executable, "-c", PLANS, *recipes], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    unfetched = sum("data.download = true" in line for line in lines)  # a data set that this machine has not
    codes = dict(line.split()[1:] for line in lines if line.startswith("EXIT "))
    bundled = [recipe for recipe in recipes if RECIPES[recipe][1].task not in DOWNLOADED]
    assert {recipe: codes[recipe] for recipe in bundled} == dict.fromkeys(bundled, "0"), done.stderr
    others = sorted(codes[recipe] for recipe in recipes if recipe not in bundled)
    assert others == ["0"] * (len(others) - unfetched) + ["2"] * unfetched, done.stderr
    plans = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(plans) == len(recipes) - unfetched
    assert all(plan["total_bytes"] > 0 for plan in plans)


def test_that_a_network_is_planned_by_formula(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--network", "llama-7b", "--precision", "bf16-master", "--device", "24GB", "--json"])
    plain = json.loads(capsys.readouterr().out)
    assert plain["states_bytes"] == 16 * plain["parameters"]
    assert plain["fits"] is False
    assert plain["first_change"]["fits"] is True


def test_that_without_a_device_nothing_is_said_to_fit(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--network", "gpt2", "--json"])
    plain = json.loads(capsys.readouterr().out)
    assert plain["fits"] is None
    assert plain["largest_batch"] is None


def test_that_a_plan_is_told_in_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--lora", "16", "--base", "nf4", "--offload", "optimizer", "--device", "12GB", "--sequence", "512"]
    main(["plan", "--network", "own", "--layers", "2", "--width", "512", "--heads", "8", *arguments])
    out = " ".join(capsys.readouterr().out.split())
    assert "It fits into 12 GiB" in out
    assert "lie in the host's memory." in out


def test_that_a_setting_that_is_likely_to_spoil_the_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lost = ["--set", "precision=fp16-pure", "--set", "optimizer.name=adamw"]
    assert main(["plan", *MLP, *lost, "--json"]) == 0
    assert "optimizer.eps = 1e-08 is zero in FP16" in json.loads(capsys.readouterr().out)["notes"][-1]
    assert main(["plan", *MLP, *lost]) == 0
    assert "optimizer.eps = 1e-08 is zero in FP16" in " ".join(capsys.readouterr().out.split())


def test_that_several_ranks_are_foretold_for_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*MLP, "--set", "parallel.strategy=ddp", "--set", "parallel.gradient_format=int8"]
    assert main(["plan", *settings, "--link", "1Gb/s", "--step-ms", "40", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["several_ranks"]
    assert plain["traffic"]["coded"] is True
    assert [row["ranks"] for row in plain["ranks"]] == [1, 2, 4, 8, 16]  # of 16 samples
    two = plain["ranks"][1]
    assert two["sent_bytes"] == plain["traffic"]["gradient_bytes"]
    assert two["step_s"] == pytest.approx(0.02 + two["exposed_s"])
    assert two["memory_bytes"]["zero3"] < two["memory_bytes"]["zero1"] < two["memory_bytes"]["zero0"]
    assert main(["plan", *settings, "--link", "1Gb/s", "--batch-per-rank"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1024" in out
    assert "Each rank has a batch like that of one rank." in out
    assert "Give --step-ms" in out


def test_that_changes_that_the_config_does_not_allow_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    powersgd = ["--set", "parallel.strategy=ddp", "--set", "parallel.gradient_format=powersgd:4"]  # in FP32 only
    assert main(["plan", *MLP, *powersgd, "--json"]) == 0
    settings = [change["settings"] for change in json.loads(capsys.readouterr().out)["changes"]]
    assert settings
    assert {"precision": "bf16-sr"} not in settings


def test_that_shards_of_a_network_are_foretold_by_formula(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--network", "llama-7b", "--precision", "bf16-master", "--zero", "3", "--link", "50GB/s", "--json"])
    plain = json.loads(capsys.readouterr().out)
    sent = {row["ranks"]: row["sent_bytes"] for row in plain["several_ranks"]["ranks"]}
    assert sent[1024] == pytest.approx(3 * 2 * plain["parameters"], rel=0.002)  # section 7.2 of ZeRO, in 16 bits


@pytest.mark.parametrize(
    ("link", "gradient_format"), [("fast", "int8"), ("1Gb/s", "powersgd:4")], ids=["no rate", "no bytes"]
)
def test_that_ranks_that_cannot_be_foretold_are_refused_before_a_plan_is_made(
    link: str, gradient_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "plan_config", lambda *_: pytest.fail("a plan takes seconds"))
    settings = ["--set", "parallel.strategy=ddp", "--set", f"parallel.gradient_format={gradient_format}"]
    assert main(["plan", *MLP, *settings, "--link", link]) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--network", "bert"], "the planner knows gpt2"),
        (["--network", "own", "--width", "100", "--heads", "7"], "is not a multiple of --heads 7"),
        (["--network", "gpt2", "--batch", "0"], "at least 1"),
        (["--network", "gpt2", "--layers", "0"], "at least 1"),
        (["--device", "many"], "write 24GB"),
        (["--link", "fast"], "write 10Gb/s for bits"),
        (["--link", "1Gb/s", "--step-ms", "0"], "--step-ms more than 0"),
        (
            [
                "gpt-quick",
                "--link",
                "1Gb/s",
                "--set",
                "parallel.strategy=ddp",
                "--set",
                "parallel.gradient_format=powersgd:4",
            ],
            "are not foretold",
        ),
        (["nosuch.toml"], "neither a file nor a recipe"),
        (["lstm-quick", "--set", "train.checkpointing=true"], "set train.checkpointing = false"),
    ],
)
def test_that_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
