"""Adapters as a folder of PEFT: written, read by PEFT itself, and read back, also those that PEFT has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from precgui import config
from precgui.engine import backend_flags, tasks
from precgui.engine.adapters.peft_folder import CONFIG, WEIGHTS, read_peft, write_peft
from precgui.engine.errors import EngineError
from precgui.engine.journal import Journal
from precgui.engine.loop import Loop
from precgui.engine.snapshot.file import write_tensors
from precgui.engine.train import make_loop
from precgui.events import Event, Facts

TINY = [
    "device=cpu", "threads=1", "model.size=small", "data.batch_size=2", "data.sequence_length=16", "train.max_steps=3",
    "base.train_steps=0", "base.format=fp32", "record.tensors=false", "adapter.rank=4", "adapter.alpha=6",
    "train.checkpoint_every=", "optimizer.lr=0.05",
]  # fmt: skip


def trained(*settings: str, steps: int | None = None) -> tuple[Loop, list[Event]]:
    events: list[Event] = []
    chosen = config.load("gpt-qlora", [*TINY, *settings])
    with backend_flags.restored():
        loop = make_loop(chosen, Journal(events.append, run_id="r1"), lambda: False)
        if steps is None:
            loop.train()
    return loop, events


def output(model: nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        result: torch.Tensor = model(torch.arange(16)[None])
    return result


def plain_model() -> nn.Module:
    chosen = config.load("gpt-qlora", TINY)
    torch.manual_seed(chosen.seed)
    return tasks.make(chosen, print).model()


def test_that_adapters_of_a_run_begin_another_one(tmp_path: Path) -> None:
    first, events = trained(f"train.save_to={tmp_path / 'kept'}")
    (told,) = [e.values["saved_weights"] for e in events if isinstance(e, Facts) and "saved_weights" in e.values]
    assert told["file"] == str(tmp_path / "kept")
    document = json.loads((tmp_path / "kept" / CONFIG).read_text())
    assert (document["r"], document["lora_alpha"], document["peft_type"]) == (4, 6.0, "LORA")
    second, _ = trained(f"adapter.weights={tmp_path / 'kept'}", "adapter.rank=2", "adapter.targets=head", steps=0)
    torch.testing.assert_close(output(second.model), output(first.model), rtol=0, atol=0)
    assert float(output(first.model).sub(output(plain_model())).abs().max()) > 1e-4


def test_that_peft_reads_the_folder_and_is_read(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed, with which folders are exchanged")
    ours, _ = trained(f"train.save_to={tmp_path / 'ours'}")
    with_ours = peft.PeftModel.from_pretrained(plain_model(), tmp_path / "ours")
    torch.testing.assert_close(output(with_ours), output(ours.model), rtol=0, atol=0)

    settings = peft.LoraConfig(r=2, lora_alpha=5, target_modules=["qkv"], use_rslora=True, init_lora_weights=False)
    theirs = peft.get_peft_model(plain_model(), settings)
    theirs.save_pretrained(tmp_path / "theirs")
    read, _ = trained(f"adapter.weights={tmp_path / 'theirs'}", steps=0)
    torch.testing.assert_close(output(read.model), output(theirs), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"peft_type": "IA3"}, "not of LORA"), ({"use_dora": True}, "use_dora = True"), ({"r": 0}, "no rank from 1"),
     ({"r": 3}, "not those of rank 3"), ({"lora_alpha": None}, "no number above 0"),
     ({"rank_pattern": {"a": 2}}, "rank_pattern")],
)  # fmt: skip
def test_that_what_is_not_trained_here_is_refused_by_name(
    change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    trained(f"train.save_to={tmp_path / 'kept'}", "train.max_steps=1")
    place = tmp_path / "kept" / CONFIG
    place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
    with pytest.raises(EngineError, match=sentence):
        read_peft(str(tmp_path / "kept"))


def test_that_folders_of_others_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="name a folder that PEFT wrote"):
        read_peft(str(tmp_path))
    trained(f"train.save_to={tmp_path / 'kept'}", "train.max_steps=1")
    kept = read_peft(str(tmp_path / "kept"))
    other = {f"blocks.9.{name}": pair for name, pair in kept.layers.items()}
    write_peft(tmp_path / "odd", type(kept)(kept.rank, kept.alpha, other), 0.0, {})
    with pytest.raises(EngineError, match="adapter"):
        trained(f"adapter.weights={tmp_path / 'odd'}", steps=0)
    write_tensors(tmp_path / "kept" / WEIGHTS, {"base_model.model.x.lora_embedding_A": torch.ones(2, 2)}, "")
    with pytest.raises(EngineError, match="no part of a LoRA"):
        read_peft(str(tmp_path / "kept"))
    (tmp_path / "kept" / WEIGHTS).rename(tmp_path / "kept" / "adapter_model.bin")
    with pytest.raises(EngineError, match="pickled"):
        read_peft(str(tmp_path / "kept"))


def test_that_a_folder_is_never_replaced_and_must_hold_all_that_is_learned(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="already exists"):
        trained(f"train.save_to={tmp_path}", steps=0)
    with pytest.raises(EngineError, match="name of a file"):
        trained(f"train.save_to={tmp_path / 'a.safetensors'}", steps=0)
    chosen = config.load(
        "digits-quick",
        ["device=cpu", "threads=1", "model.name=resnet", "adapter.kind=lora", "adapter.targets=head",
         "base.train_steps=0", "base.format=fp32", f"train.save_to={tmp_path / 'kept'}"],
    )  # fmt: skip
    with pytest.raises(EngineError, match="running_mean"), backend_flags.restored():
        make_loop(chosen, Journal(lambda event: None), lambda: False)
