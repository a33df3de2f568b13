"""`precgui plan` on the command line."""

from __future__ import annotations

import json

import pytest

from precgui.cli.main import main

PARTS = {
    "weights_bytes", "gradients_bytes", "optimizer_bytes", "master_bytes", "activations_bytes", "cast_cache_bytes",
    "temporary_bytes",
}  # fmt: skip


def test_that_a_recipe_is_planned_as_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "digits-quick", "--device", "4GB", "--set", "device=cpu", "--json"]) == 0
    out = capsys.readouterr().out
    plain = json.loads(out)
    assert set(plain["parts"]) >= PARTS
    assert sum(plain["parts"].values()) == plain["total_bytes"]
    assert plain["fits"] is True
    assert plain["largest_batch"] > 64
    assert len(out.splitlines()) == 1


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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--network", "bert"], "the planner knows gpt2"),
        (["--network", "own", "--width", "100", "--heads", "7"], "is not a multiple of --heads 7"),
        (["--network", "gpt2", "--batch", "0"], "at least 1"),
        (["--network", "gpt2", "--layers", "0"], "at least 1"),
        (["--device", "many"], "write 24GB"),
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
