"""Models of transformers, where it is installed; and what is said where it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from precgui.engine.errors import EngineError
from precgui.engine.ptq.hf_model import LanguageModelTask, hugging_face_task


def test_that_a_missing_library_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EngineError, match="hf:DIR needs the package transformers, which is not installed"):
        hugging_face_task(tmp_path, "", 16, 2)


def test_that_a_text_is_cut_into_windows_that_share_nothing() -> None:
    task = LanguageModelTask(torch.nn.Identity(), torch.arange(1001), 10, 4, {})
    held = torch.cat([x for x, _ in task.validation_batches()])
    others = torch.cat([x for x, _ in task.train_batches()])
    assert len(held) == 10 and len(others) == 90
    assert not set(held.flatten().tolist()) & set(others.flatten().tolist())
    x, y = next(iter(task.validation_batches()))
    assert torch.equal(x[:, 1:], y[:, :-1]) and x.shape == (4, 10)
    with pytest.raises(EngineError, match="12 tokens, too few for windows of 10"):
        LanguageModelTask(torch.nn.Identity(), torch.arange(12), 10, 4, {})


def test_that_a_folder_is_loaded_and_measured(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    from precgui.engine.ptq.effects import EffectMeter
    from precgui.engine.ptq.held_out import HeldOut
    from precgui.formats.weight_formats import weight_format

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({chr(n): n for n in range(128)} | {"?": 128}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 129}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).save_pretrained(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    task = hugging_face_task(tmp_path, str(text), 64, 4)
    model = task.model()
    held = HeldOut(task, model, list(task.validation_batches()), torch.device("cpu"))
    meter = EffectMeter(held, list(task.train_batches()), [weight_format("mxfp4")])
    assert held.truth == "kl" and "transformer.h.0.attn.c_attn" in meter.layers  # its Conv1D has become a layer
    found = {effect.rounded: effect for effect in meter.whole(["gptq"], ["weights", "k"])}
    assert all(effect.change is not None and effect.change.mean_distance > 0 for effect in found.values())
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}')
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    with pytest.raises(EngineError, match="cannot be loaded by transformers"):
        hugging_face_task(tmp_path, str(text), 64, 4)
