"""`precgui quantize`: a trained model measured, kept beside its scan, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from precgui import config
from precgui.cli.main import main
from precgui.engine.adapters.weights_file import tensors_of, write_weights
from precgui.engine.tasks import make
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.quantize_job import free_output
from precgui.runs.errors import RunFileError
from precgui.runs.models.model_file import read_effects, read_model_file

OWN = """
import torch
from torch import nn

class Task:
    steps_per_epoch = 2
    def model(self):
        return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
    def _batches(self):
        g = torch.Generator().manual_seed(0)
        for _ in range(2):
            yield torch.randn(8, 32, generator=g), torch.randint(0, 3, (8,), generator=g)
    train_batches = validation_batches = _batches
    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

def make_task(config):
    return Task()
"""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as they begin, saved as train.save_to does: the config stands in the header."""
    chosen = config.load("digits-quick", ["data.batch_size=32"])
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("model") / "digits.safetensors"
    write_weights(tensors_of(make(chosen).model()), file, {"config": chosen.model_dump_json()})
    return file


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, str]:
    (tmp_path / "mine.py").write_text(OWN)
    model = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    torch.save(model.state_dict(), tmp_path / "mine.pt")
    return tmp_path / "mine.pt", f"{tmp_path / 'mine.py'}:make_task"


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["quantize", *words, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def fault(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["quantize", *words]) == 2
    return capsys.readouterr().err


def test_that_a_model_is_measured_kept_and_printed(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, other = tmp_path / "m.h5", tmp_path / "other.h5"
    words = (str(weights), "--samples", "64", "--formats", "int8/row,int2/row", "-o", str(kept))
    printed = document(capsys, *words, "--methods", "rtn,gptq", "--round", "weights,k")
    rows = {(row["format"], row["method"], row["round"]): row for row in printed["whole"]}
    assert printed["task"] == "digits" and printed["samples"] == printed["units"] == 64 and printed["truth"] == "kl"
    assert rows["int2/row", "rtn", "weights"]["distance"] > 10 * rows["int8/row", "rtn", "weights"]["distance"]
    assert rows["int8/row", "rtn", "k"]["why_not"] == "no attention was found"
    low, high = rows["int2/row", "rtn", "weights"]["interval"]
    assert low < rows["int2/row", "rtn", "weights"]["rise"] < high
    assert 2 * len({row["name"] for row in printed["layers"]}) == len(printed["layers"]) >= 4
    assert printed["rank_agreement"].keys() >= {"output_fisher", "weight_fisher", "sqnr"} and printed["ceiling"] <= 1
    effects, scan = read_effects(kept), read_model_file(kept)
    assert effects is not None and scan is not None and scan.is_complete
    assert effects.document["whole"] == printed["whole"] and [fmt.name for fmt in scan.formats] == printed["formats"]
    assert len(effects.of_layer(printed["layers"][0]["name"] + ".weight")) == 2
    assert main(["quantize", str(weights), "--samples", "32", "--formats", "int8/row", "--singles", "0",
                 "--round", "weights", "-o", str(other)]) == 0  # fmt: skip
    text = capsys.readouterr().out
    assert "equal within noise" in text and "held-out loss" in text
    assert read_model_file(other) is not None and len(read_effects(other).whole) == 1
    assert "already holds measurements" in fault(capsys, *words)
    again = read_effects(kept)
    assert again is not None and again.document == effects.document
    assert free_output(kept, open_checkpoint(weights)) == tmp_path / "m-2.h5"
    assert main(["model", str(weights), "--formats", "int8/row,int2/row", "-o", str(kept)]) == 0
    assert read_effects(kept) is not None  # and what was measured, when a scan is made again


def test_that_layers_alone_are_printed_with_the_agreement(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(weights), "--samples", "64", "--formats", "int4/row", "--round", "inputs"]) == 0
    text = capsys.readouterr().out
    assert "One layer alone, weights and inputs rounded to nearest" in text and "half of the data against half" in text
    assert "Fisher information of outputs" in text and "Fisher information of weights" not in text


def test_that_code_of_a_file_runs_only_where_it_was_named_or_allowed(
    own: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, task = own
    options = ("--formats", "int4/16", "--round", "weights", "--singles", "0")
    assert document(capsys, str(file), "--task", task, *options)["whole"][0]["rise"] is not None
    named = tmp_path / "named.safetensors"
    chosen = config.load("digits-quick", [f"task={task}"])
    write_weights(torch.load(file, weights_only=True), named, {"config": chosen.model_dump_json()})
    assert "--own-code runs the code that it names" in fault(capsys, str(named), *options)
    assert document(capsys, str(named), "--own-code", *options)["units"] == 16


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["W", "--formats", "int9"], "'int9' is no format of weights"),
        (["W", "--methods", "rtn,magic"], "--methods: 'magic' is not known; there are rtn, gptq, awq, smooth"),
        (["W", "--round", "q"], "--round: 'q' is not known"),
        (["W", "--samples", "0"], "--samples 0: a number from 1 on is needed"),
        (["W", "--budget", "cheap"], "--budget cheap is no budget"),
        (["W", "--write", "new"], "--as says who reads what is written"),
        (["W", "--write", "new", "--as", "vllm"], "several formats need a --budget"),
        (["W", "--write", "new", "--as", "torchao", "--formats", "mxfp4"], "torchao has no form for mxfp4"),
        (["W", "--write", "new.gguf", "--as", "gguf", "--formats", "int4/128"], "GGUF has no form for int4/128"),
        (["W", "--write", "new", "--as", "gguf", "--formats", "gguf:q4_0"], "name one that ends in .gguf"),
        (["W", "--recipe", "new", "--as", "gguf", "--formats", "gguf:q4_0", "--methods", "gptq"], "rounds to nearest"),
        (["W", "--converted", "x.gguf"], "belongs to --as gguf --write FILE.gguf"),
        (
            ["W", "--write", "new.gguf", "--as", "gguf", "--formats", "gguf:q4_0", "--converted", "no.gguf"],
            "there is no no.gguf",
        ),
        (["W", "--write", "no/such/new", "--as", "vllm", "--formats", "int8/row"], "not a folder that can be written"),
        (["W", "--write", "new", "--as", "vllm", "--formats", "nvfp4"], "compressed-tensors has no form for nvfp4"),
        (["W", "--write", "/", "--as", "vllm", "--formats", "int8/row"], "/ already exists"),
        (["W", "--as", "onnx"], "--as: 'onnx' is not known"),
        (
            ["W", "--as", "vllm", "--recipe", "r", "--recipe-adds", "adaround"],
            "'adaround' is not known; there are quarot",
        ),
        (["W", "--as", "torchao", "--recipe", "r", "--recipe-adds", "quarot"], "llm-compressor alone has them"),
        (["W", "--as", "vllm", "--recipe", "r", "--recipe-adds", "quarot,quip"], "quarot, quip are rotations"),
        (["W", "--as", "vllm", "--recipe", "r", "--recipe-adds", "autoround"], "takes one format for all layers"),
        (["W", "--task", "gpt-quick"], "digits.safetensors has no token.weight; it is of another model"),
        (["/nowhere.safetensors", "--task", "digits-quick"], "there is no /nowhere.safetensors"),
        (["/nowhere.safetensors"], "there is no /nowhere.safetensors"),
        (["hf:/nowhere"], "transformers"),
        (["W", "--formats", ""], "--formats names nothing"),
        (["W", "--methods", ","], "--methods names nothing"),
        (["W", "--round", ""], "--round names nothing"),
        (["W", "--singles", "-1"], "--singles -1: a number from 0 on is needed"),
        (["W", "--as", "vllm"], "--as vllm alone has no effect; add --budget, --write or --recipe"),
        (["W", "--text", "foo"], "--text foo belongs to hf:DIR"),
        (["RUN.h5"], "RUN.h5"),
    ],
)
def test_that_what_cannot_be_measured_is_one_sentence(
    words: list[str], sentence: str, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = fault(capsys, *(str(weights) if word == "W" else word for word in words))
    assert sentence in text and len(text.splitlines()) == 1


def test_that_weights_that_name_no_task_and_files_of_something_else_are_told(
    own: tuple[Path, str], tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "does not say which data it belongs to" in fault(capsys, str(own[0]))
    other = tmp_path / "other.h5"
    assert main(["model", str(own[0]), "--formats", "int8", "-o", str(other)]) == 0
    words = ("--samples", "32", "--formats", "int8", "--round", "weights", "--singles", "0", "-o", str(other))
    assert "holds something else than a scan of this model" in fault(capsys, str(weights), *words)


def test_that_damaged_measurements_are_a_sentence(tmp_path: Path, own: tuple[Path, str]) -> None:
    import h5py

    file = tmp_path / "m.h5"
    assert main(["model", str(own[0]), "--formats", "int8", "-o", str(file)]) == 0
    assert read_effects(file) is None
    for text in (b"{}", b"[1, 2]", b'{"whole": 3}', b"\xff\xff", b"[" * 4000):
        with h5py.File(file, "r+") as opened:
            opened.pop("effects", None)
            group = opened.create_group("effects")
            row = torch.zeros(1, 4096, dtype=torch.uint8).fill_(32).numpy()
            row[0, : min(len(text), 4096)] = list(text[:4096])
            group.create_dataset("about", data=row, chunks=(1, 4096), compression="gzip")
        with pytest.raises(RunFileError, match="measurements that cannot be read"):
            read_effects(file)


def test_that_a_plan_is_written_and_comes_back_as_it_was_measured(
    own: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, recipe = tmp_path / "out", tmp_path / "recipe.yaml"
    words = (str(own[0]), "--task", own[1], "--formats", "int4/16,int8/row", "--budget", "bits=7")
    printed = document(capsys, *words, "--as", "vllm", "--write", str(folder), "--recipe", str(recipe))
    assert printed["plan"].keys() == {"0", "2"} and printed["plan_measured"]["bits"] <= 7
    assert printed["plan_measured"]["units"] == 8 and printed["read_back"] == "equal"
    assert printed["written"] == [str(recipe), str(folder / "model.safetensors"), str(folder / "config.json")]
    assert main(["model", str(folder)]) == 0
    assert "compressed-tensors" in capsys.readouterr().out
    assert main(["quantize", *words]) == 0
    assert "did not choose the plan" in capsys.readouterr().out


def test_that_a_recipe_of_one_format_names_no_score_and_overwrites_nothing(
    own: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    words = (str(own[0]), "--task", own[1], "--formats", "int8/row", "--singles", "0", "--round", "weights",
             "--as", "vllm", "--recipe", str(recipe))  # fmt: skip
    assert main(["quantize", *words, "--recipe-adds", "spinquant,autoround"]) == 0
    printed = capsys.readouterr().out
    assert "the recipe adds spinquant, autoround, which was not measured here" in printed
    assert "SpinQuantModifier:" in recipe.read_text() and "AutoRoundModifier:" in recipe.read_text()
    assert "by a score" not in printed and "choose the plan" not in printed and "on 8 held-out units" in printed
    recipe.write_text("mine")
    text = fault(capsys, *words)
    assert "recipe.yaml already exists; choose another name or delete it first" in text
    assert recipe.read_text() == "mine"
    same = (*words[:-1], str(tmp_path / "new"), "-o", str(tmp_path / "new"))
    assert "both name" in fault(capsys, *same)


@pytest.mark.parametrize("method", ["awq", "smooth"])
@pytest.mark.parametrize("target", ["vllm", "torchao"])
def test_that_scales_of_inputs_are_written_where_the_target_has_a_place(
    method: str, target: str, own: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, recipe = tmp_path / "out", tmp_path / "recipe"
    printed = document(capsys, str(own[0]), "--task", own[1], "--formats", "int8/row", "--methods", method,
                       "--singles", "0", "--round", "weights", "--as", target, "--write", str(folder),
                       "--recipe", str(recipe))  # fmt: skip
    assert printed["plan_measured"]["method"] == method and printed["read_back"] == "equal"
    notes = " ".join(printed["notes"])
    stored = {each.name: each for each in open_checkpoint(folder).tensors}
    before = torch.load(own[0], weights_only=True)["0.bias"]
    bias = torch.from_numpy(stored["0.bias"].read(0, 16))
    if target == "torchao":  # beside each weight
        assert "rounded to nearest" not in notes and torch.equal(bias, before)
    else:  # the scale of layer 2 goes through ReLU into layer 0, which follows nothing
        assert "take over a scale of their inputs: 0" in notes and not torch.equal(bias, before)
        assert '"0"' in recipe.read_text() and ("AWQModifier" in recipe.read_text()) == (method == "awq")
