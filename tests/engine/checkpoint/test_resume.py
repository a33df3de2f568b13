"""A run that goes on from a checkpoint is, to the last bit, the run that was never cut."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from precgui.checkpoint_files import checkpoint_files, checkpoint_path
from precgui.config.precision_traits import TRAITS
from precgui.engine.checkpoint.file import read_checkpoint, write_checkpoint
from precgui.engine.checkpoint.random_state import held_generators, random_states, set_random_states
from precgui.engine.checkpoint.resume import Resumption
from precgui.engine.errors import EngineError
from precgui.events import Incident
from tests.engine.checkpoint.cut_runs import CutRun, after_a_cut, loaded

FEW = ["train.epochs=2", "data.epoch_steps=4", "record.tensors=false", "train.checkpoint_every=3", "model.name=mlp"]
LETTERS = ["data.batch_size=2", "data.sequence_length=16"]
CASES = {
    "average, augmentation, decay": ("digits-adamw", ["data.augment=true", "train.ema_decay=0.9"]),
    "delayed FP8 scales": ("digits-quick", ["precision=fp8", "precision_options.fp8_amax=delayed"]),
    "master weights": ("digits-quick", ["precision=bf16-pure", "precision_options.master_weights=true"]),
    "stochastic updates": ("digits-adamw", ["precision=bf16-sr"]),
    "stochastic operands": ("digits-quick", ["precision=mxfp4", "precision_options.rounding=stochastic"]),
    "scaler, accumulation": ("digits-scale-demo", ["train.accumulation=2", "data.epoch_steps=8"]),
    "quantisation": ("digits-quick", ["precision=int4-qat", "qat.learned_scales=true", "qat.measure=false"]),
    "schedule": ("digits-quick", ["precision_schedule=step:3=bf16-amp, step:6=fp32"]),
    "pruning": ("digits-pruned", []),
    "generators of the task": ("gan-quick", ["model.name=auto", "data.batch_size=8"]),
    "batches played by the model": ("cartpole-quick", ["data.batch_size=4"]),
    "dropout": ("gpt-qlora", ["model.name=gpt", *LETTERS, "base.train_steps=0", "adapter.dropout=0.3"]),
}
LONG = os.environ.get("RESUMED_LONG")
OWN = """
import random, numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Words:
    steps_per_epoch = 4
    def __init__(self):
        self.numbers = np.random.default_rng(3)
        data = TensorDataset(torch.randn(16, 4), torch.arange(16) % 2)
        self.loader = DataLoader(data, batch_size=4, shuffle=True)
    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 2))
    def train_batches(self):
        for x, y in self.loader:
            yield x + random.random() + float(np.random.rand()) + float(self.numbers.random()), y
    def validation_batches(self):
        return self.loader
    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

def make_task(config):
    return Words()
"""


@pytest.mark.parametrize("case", CASES)
def test_that_a_run_goes_on_as_if_it_had_not_been_cut(case: str, tmp_path: Path) -> None:
    recipe, settings = CASES[case]
    chosen = loaded(recipe, *FEW, *settings)
    whole = CutRun(chosen, tmp_path / "whole.h5")
    cuts = random.Random(case)
    for cut in cuts.sample(range(3, 8), 3 if LONG else 1):
        assert after_a_cut(chosen, tmp_path / f"cut {cut}", cut, whole, killed=cuts.random() < 0.5) == []


@pytest.mark.parametrize("precision", [*TRAITS, "emulated:e4m3fn"] if LONG else ["tf32", "fp16-amp", "nvfp4"])
def test_that_a_run_goes_on_in_every_precision(precision: str, tmp_path: Path) -> None:
    chosen = loaded("digits-quick", *FEW, f"precision={precision}", "qat.measure=false", "train.max_steps=7")
    whole = CutRun(chosen, tmp_path / "whole.h5")
    for cut in random.Random(precision).sample(range(3, 7), 3 if LONG else 1):
        assert after_a_cut(chosen, tmp_path / f"cut {cut}", cut, whole) == []


@pytest.mark.parametrize(("cut", "killed"), [(4, False), (5, True)])
def test_that_a_task_of_ones_own_goes_on_with_any_random_numbers(cut: int, killed: bool, tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(OWN)
    chosen = loaded("digits-quick", *FEW[:-1], "model.name=auto", f"task={tmp_path / 'words.py'}:make_task")
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - as tasks do
    whole = CutRun(chosen, tmp_path / "whole.h5")
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert after_a_cut(chosen, tmp_path / "cut", cut, whole, killed=killed) == []


def test_that_the_newest_two_are_kept_and_none_that_is_ahead(tmp_path: Path) -> None:
    file = tmp_path / "run.h5"
    chosen = loaded("digits-quick", *FEW, "train.checkpoint_every=2")
    CutRun(chosen, file, cut=7, killed=True)
    assert list(checkpoint_files(file)) == [6, 4]
    CutRun(chosen, file, cut=5, resumed=Resumption.read(checkpoint_path(file, 4)))
    assert list(checkpoint_files(file)) == [5, 4]  # step 6 is to be made anew


def test_that_minutes_do_not_make_a_short_run_write(tmp_path: Path) -> None:
    CutRun(loaded("digits-quick", *FEW, "train.checkpoint_every=10 min"), tmp_path / "run.h5", cut=3, killed=True)
    assert not list(tmp_path.iterdir())


def test_that_a_full_disk_costs_the_checkpoint_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("precgui.engine.checkpoint.hook.write_checkpoint", full)
    run = CutRun(loaded("digits-quick", *FEW, "train.checkpoint_every=2"), tmp_path / "run.h5")
    told = [event.message for event in run.events if isinstance(event, Incident) and "checkpoint" in event.message]
    assert run.step == 8
    assert told == ["no checkpoint was kept: the file could not be written (No space left on device)"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"torch": "1.0"}, "trained with torch 1.0"), ({"run_id": "r2"}, "another run"), ({"device": "cuda"}, "on cuda"),
     ({"data": "{}"}, "data are others"), ({"weights": ""}, "begin with are others"),
     ({"config": json.dumps({"seed": 3})}, "settings are others now, ")],
)  # fmt: skip
def test_that_a_run_with_another_origin_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "run.h5"
    chosen = loaded("digits-quick", *FEW)
    CutRun(chosen, file, cut=3)
    kept = read_checkpoint(checkpoint_path(file, 3))
    with pytest.raises(EngineError, match=sentence):
        CutRun(chosen, file, resumed=Resumption(replace(kept, origin={**kept.origin, **change})))


def test_that_a_damaged_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "run.h5"
    chosen = loaded("digits-quick", *FEW)
    CutRun(chosen, file, cut=3)
    path = checkpoint_path(file, 3)
    kept = read_checkpoint(path)
    odd = {**kept.training, "weights": {name: value[:1] for name, value in kept.training["weights"].items()}}
    for unfit in (replace(kept, training=odd), replace(kept, training={}), replace(kept, step=8)):
        with pytest.raises(EngineError, match="the run cannot go on"):
            CutRun(chosen, file, resumed=Resumption(unfit))
    with pytest.raises(EngineError, match="random numbers"):
        CutRun(chosen, file, resumed=Resumption(replace(kept, epoch_random={"torch": torch.zeros(3)})))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EngineError, match="is no checkpoint of precgui, or is damaged"):
        Resumption.read(path)


def test_that_random_states_survive_a_file(tmp_path: Path) -> None:
    class Holder:
        def __init__(self) -> None:
            self.kept = {"a": [random.Random(3)], "b": (np.random.default_rng(2), torch.Generator().manual_seed(4))}

    holder, cpu = Holder(), torch.device("cpu")
    file = tmp_path / "run.h5"
    CutRun(loaded("digits-quick", *FEW), file, cut=3)
    kept = replace(read_checkpoint(checkpoint_path(file, 3)), random=random_states(cpu, holder))
    write_checkpoint(tmp_path / "other.safetensors", kept)

    def drawn() -> list[float]:
        one, two, three = held_generators(holder)
        return [
            float(torch.rand(())), random.random(), float(np.random.rand()),  # noqa: NPY002
            one.random(), float(two.random()), float(torch.rand((), generator=three)),
        ]  # fmt: skip

    first = drawn()
    set_random_states(read_checkpoint(tmp_path / "other.safetensors").random, cpu, holder)
    assert drawn() == first


def test_that_another_number_of_threads_is_said(tmp_path: Path) -> None:
    chosen = loaded("digits-quick", *FEW)
    CutRun(chosen, tmp_path / "run.h5", cut=3)
    resumed = Resumption.read(checkpoint_path(tmp_path / "run.h5", 3))
    notes = [e.message for e in CutRun(chosen, tmp_path / "run.h5", resumed=resumed).events if isinstance(e, Incident)]
    assert not any("CPU threads" in note for note in notes)
    kept = replace(resumed.checkpoint, origin={**resumed.checkpoint.origin, "threads": 7})
    other = CutRun(chosen, tmp_path / "run.h5", resumed=replace(resumed, checkpoint=kept))
    (note,) = [e.message for e in other.events if isinstance(e, Incident) and "CPU threads" in e.message]
    assert note.startswith("it goes on with 1 CPU threads, before the break it had 7")
