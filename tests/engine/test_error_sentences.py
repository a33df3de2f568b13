"""Errors of the engine in the reader's language: whole sentences, with names as they were given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
from torch import nn

from precgui import words
from precgui.config import RunConfig, build
from precgui.engine import device, tasks
from precgui.engine.adapters.peft_folder import read_peft
from precgui.engine.adapters.weights_file import load_weights
from precgui.engine.checkpoint.file import read_checkpoint
from precgui.engine.errors import EngineError
from precgui.engine.export.weights import write_run_weights
from precgui.engine.precisions import fp32_modules
from precgui.engine.qat.saved_model import restore_file
from precgui.engine.snapshot.step import read_snapshot
from precgui.sentence_keys import key_of, sentence_of
from precgui.sentences import message_of
from precgui.words import translated

CHINESE = re.compile("[\u4e00-\u9fff]")


@pytest.fixture
def chinese() -> Iterator[None]:
    words.use("zh_CN")
    yield
    words.use("en")


def own_task(folder: Path, function: str) -> RunConfig:
    (folder / "mine.py").write_text("def nothing(config):\n    return object()\n", encoding="utf-8")
    return build({"task": f"{folder / 'mine.py'}:{function}"})


def junk(folder: Path) -> Path:
    (folder / "junk.safetensors").write_bytes(b"junk" * 8)
    return folder / "junk.safetensors"


# How a user meets an error, and the words that are in it in every language.
WAYS: dict[str, tuple[Callable[[Path], object], str]] = {
    "device": (lambda folder: device.choose("cuda:99"), "cuda:99"),
    "pattern": (lambda folder: fp32_modules.find(nn.Sequential(nn.Linear(2, 2)), ["nothing"]), "'nothing'"),
    "weights": (lambda folder: load_weights(nn.Linear(2, 2), str(junk(folder))), "base.weights"),
    "adapter": (lambda folder: read_peft(str(folder)), "adapter_config.json"),
    "checkpoint": (lambda folder: read_checkpoint(junk(folder)), "junk.safetensors"),
    "snapshot": (lambda folder: read_snapshot(junk(folder)), "junk.safetensors"),
    "integer model": (lambda folder: restore_file(junk(folder), own_code=False), "qat.save_to"),
    "export": (lambda folder: write_run_weights(None, None, "", folder / "out", "last"), "train.save_to = auto"),
    "function of a task": (lambda folder: tasks.make(own_task(folder, "loss")), "loss"),
    "method of a task": (lambda folder: tasks.make(own_task(folder, "nothing")), "validation_batches"),
    "text": (lambda folder: tasks.make(build({"task": "text", "data": {"path": str(folder / "none")}})), "data.path"),
    "images": (lambda folder: tasks.make(build({"task": "image-folder"})), "data.path"),
}


@pytest.mark.parametrize("name", WAYS)
def test_that_an_error_is_a_sentence_in_chinese_also_from_another_process(
    name: str, tmp_path: Path, chinese: None
) -> None:
    way, kept = WAYS[name]
    with pytest.raises(EngineError) as raised:
        way(tmp_path)
    english = message_of(raised.value)
    over_a_pipe = ForkingPickler.loads(ForkingPickler.dumps(english))
    over_a_frame = sentence_of(str(english), json.loads(json.dumps(key_of(english))))
    assert kept in english
    assert not CHINESE.search(str(english))
    for message in (english, over_a_pipe, over_a_frame):
        assert CHINESE.search(translated(message))
        assert kept in translated(message)
