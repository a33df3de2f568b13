"""Weights out of a run: of its checkpoint or of what it saved, loaded in plain torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from precgui import config
from precgui.checkpoint_files import checkpoint_files
from precgui.cli.main import main
from precgui.engine import tasks
from precgui.engine.adapters.peft_folder import read_peft
from precgui.engine.checkpoint.file import read_checkpoint, write_checkpoint
from precgui.engine.errors import EngineError
from precgui.engine.export.weights import write_run_weights
from precgui.engine.snapshot.file import write_tensors
from precgui.events import Event, StepDone
from precgui.formats.tensorfile import load_tensor, metadata_of, tensor_names
from precgui.job import Job

FEW = ["device=cpu", "threads=1", "train.epochs=1", "data.epoch_steps=6", "record.tensors=false"]


def stopped(path: Path, recipe: str, *settings: str, step: int = 4) -> Job:
    def watch(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step:
            job.stop()

    job = Job(config.load(recipe, [*FEW, *settings]), path, [watch])
    job.run()
    return job


def exported(path: Path, target: Path, *arguments: str) -> dict[str, torch.Tensor]:
    assert main(["export", str(path), "--weights", str(target), *arguments]) == 0
    return {name: torch.tensor(load_tensor(target, name)) for name in tensor_names(target)}


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [("digits-quick", ["model.name=resnet"]), ("digits-pruned", ["pruning.start=1", "pruning.every=1"]),
     ("digits-quick", ["precision=int4-qat", "qat.learned_scales=true", "qat.measure=false"])],
)  # fmt: skip
def test_that_a_stopped_run_gives_what_save_to_writes_of_it(tmp_path: Path, recipe: str, settings: list[str]) -> None:
    run, saved = tmp_path / "run.h5", tmp_path / "saved.safetensors"
    job = stopped(run, recipe, *settings, f"train.save_to={saved}")
    found = exported(run, tmp_path / "out.safetensors")
    model = tasks.make(job.config, print).model()
    model.load_state_dict({name: value.reshape(model.state_dict()[name].shape) for name, value in found.items()})
    assert found.keys() == {*tensor_names(saved)}
    assert all(torch.equal(found[name], torch.tensor(load_tensor(saved, name))) for name in found)
    facts = metadata_of(tmp_path / "out.safetensors")
    assert facts["run_id"] == metadata_of(saved)["run_id"]
    assert (facts["step"], facts["weights"], facts["precision"]) == ("4", "last step", job.config.precision)
    assert json.loads(facts["config"])["model"]["name"] == job.config.model.name
    if recipe == "digits-pruned":
        weights = torch.cat([value.reshape(-1) for name, value in found.items() if value.dim() > 1])
        assert (weights == 0).float().mean() > 0.1


def test_that_average_and_master_weights_are_given_on_request(tmp_path: Path) -> None:
    run = tmp_path / "run.h5"
    settings = ["model.name=mlp", "precision=bf16-pure", "precision_options.master_weights=true", "train.ema_decay=0.5"]
    stopped(run, "digits-quick", *settings)
    (newest,) = [read_checkpoint(path) for path in list(checkpoint_files(run).values())[:1]]
    files = {of: exported(run, tmp_path / f"{of}.safetensors", "--of", of) for of in ("last", "average", "master")}
    names = newest.training["names"]
    for of, key in (("average", "average"), ("master", "updated")):
        for name, value in zip(names["trained"], newest.training[key], strict=True):
            assert torch.equal(files[of][name].reshape(value.shape).float(), value)
            assert not torch.equal(files[of][name], files["last"][name])
    with pytest.raises(EngineError, match="already exists"):
        write_run_weights(next(iter(checkpoint_files(run).values())), None, newest.origin["run_id"],
                          tmp_path / "last.safetensors", "last")  # fmt: skip


def test_that_adapters_are_a_folder_of_peft(tmp_path: Path) -> None:
    run, out = tmp_path / "run.h5", tmp_path / "out"
    small = ["data.batch_size=2", "data.sequence_length=16", "base.train_steps=0", "adapter.rank=3", "adapter.alpha=6"]
    job = stopped(run, "gpt-qlora", *small, f"train.save_to={tmp_path / 'saved'}")
    assert job.ended is not None
    assert main(["export", str(run), "--weights", str(out)]) == 0
    found, saved = read_peft(str(out)), read_peft(str(tmp_path / "saved"))
    assert (found.rank, found.alpha) == (3, 6.0)
    assert found.layers.keys() == saved.layers.keys()
    assert all(
        torch.equal(a, b) for name in found.layers for a, b in zip(found.layers[name], saved.layers[name], strict=True)
    )


def test_that_a_complete_run_gives_what_it_saved_and_says_what_it_did_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.h5"
    Job(config.load("digits-quick", [*FEW, "model.name=mlp", "train.save_to=auto"]), run).run()
    kept = exported(run, tmp_path / "copy.safetensors")
    assert kept.keys() == {*tensor_names(run.with_suffix(".safetensors"))}
    assert main(["export", str(run), "--weights", str(tmp_path / "other.safetensors"), "--of", "average"]) == 2
    assert "those of the moving average are lost" in capsys.readouterr().err
    run.with_suffix(".safetensors").unlink()
    assert main(["export", str(run), "--weights", str(tmp_path / "other.safetensors")]) == 2
    assert "the run kept no weights: set train.save_to = auto" in capsys.readouterr().err
    assert not (tmp_path / "other.safetensors").exists()


def test_that_hostile_and_foreign_checkpoints_are_refused_in_a_sentence(tmp_path: Path) -> None:
    run = tmp_path / "run.h5"
    stopped(run, "digits-quick", "model.name=mlp")
    path = next(iter(checkpoint_files(run).values()))
    good = read_checkpoint(path)
    target = tmp_path / "out.safetensors"
    with pytest.raises(EngineError, match="checkpoint of another run"):
        write_run_weights(path, None, "another", target, "last")
    for names in ({}, {"state": 3}, {**good.training["names"], "state": {"a": "missing"}},
                  {**good.training["names"], "frozen": ["x"]}):  # fmt: skip
        write_checkpoint(path, type(good)(**{**vars(good), "training": {**good.training, "names": names}}))
        with pytest.raises(EngineError, match="holds no weights that can be exported"):
            write_run_weights(path, None, good.origin["run_id"], target, "last")
    assert not target.exists()


def test_that_a_base_may_lie_in_several_files(tmp_path: Path) -> None:
    from precgui.engine.adapters.weights_file import load_weights, tensors_of

    model, other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)), None
    folder = tmp_path / "base"
    folder.mkdir()
    names = {name: f"model-{place % 2 + 1:05d}-of-00002.safetensors" for place, name in enumerate(tensors_of(model))}
    for file in set(names.values()):
        tensors = {name: value.detach() for name, value in tensors_of(model).items() if names[name] == file}
        write_tensors(folder / file, tensors, "weights", {"format": "pt"})
    index = folder / "model.safetensors.index.json"
    for place in (folder, index):
        index.write_text(json.dumps({"weight_map": names}))
        other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        load_weights(other, str(place))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    for placed, words in (
        ({**names, "0.bias": "../other.safetensors"}, "which is no .safetensors file beside it"),
        ({**names, "0.bias": "none.safetensors"}, "the download is not complete"),
        ({**names, "0.weight": names["0.bias"]}, "which the index puts there"),
        ({name: file for name, file in names.items() if name != "1.bias"}, "has no 1.bias; it is of another model"),
        ("nonsense", "no usable weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": placed}))
        with pytest.raises(EngineError, match=words):
            load_weights(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)), str(folder))
