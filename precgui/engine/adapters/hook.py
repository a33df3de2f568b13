"""The end of a run with adapters: merged, compared with what was trained, saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from precgui.config import RunConfig
from precgui.engine.adapters.adapt import adapter_tensors, bits_per_weight, merged_model
from precgui.engine.adapters.weights_file import tensors_of, write_weights
from precgui.engine.casting import cast_floats, tensors_in
from precgui.engine.hook import LoopHook, TrainingRun
from precgui.engine.qat.measure import evaluate
from precgui.engine.run_parts import RunParts
from precgui.sentences import Sentence


class Adapters(LoopHook):
    """Merges and saves the adapters after the last step, as the config asks."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        return cls(run) if run.config.adapter.kind != "none" else None

    def end_run(self) -> None:
        run = self._run
        facts, sentences = merge_and_save(run.config, run.parts)
        run.journal.facts(facts)
        for sentence in sentences:
            run.journal.note(run.step, sentence)


def merge_and_save(config: RunConfig, parts: RunParts) -> tuple[dict[str, Any], list[str]]:
    """Facts about the adapters as built-in types, and the sentences that go with them."""
    model = parts.model
    was_training = model.training
    model.eval()
    facts: dict[str, Any] = {"base_format": config.base.format, "bits_per_weight": bits_per_weight(model)}
    sentences: list[str] = []
    saved = adapter_tensors(model)
    if config.adapter.merge_at_end:
        merged = merged_model(model)
        facts["merged"] = _compare(parts, merged)
        saved = tensors_of(merged)
        sentences.append(
            Sentence(
                "adapters merged into the base: validation loss {loss:.4f}, outputs differ by at most "
                "{largest_difference:.2g} from those of the adapted model in FP32",
                loss=facts["merged"]["loss"],
                largest_difference=facts["merged"]["largest_difference"],
            )
        )
    model.train(was_training)
    if config.adapter.save_to:
        sentences.append(_save(saved, Path(config.adapter.save_to).expanduser()))
    return {"adapters": facts}, sentences


def _compare(parts: RunParts, merged: nn.Module) -> dict[str, float]:
    """Validation loss of the merged model, and the largest difference of an output on the first batch, both in FP32."""
    batches = list(parts.task.validation_batches())
    loss = evaluate(merged, parts.task, batches, parts.device)["loss"]
    inputs = cast_floats(batches[0][0], torch.float32, parts.device)
    with torch.inference_mode():
        adapted, own = parts.model(inputs), merged(inputs)
    pairs = zip(tensors_in(adapted), tensors_in(own), strict=True)
    return {"loss": loss, "largest_difference": max(float((a - b).abs().max()) for a, b in pairs)}


def _save(tensors: dict[str, Any], path: Path) -> str:
    try:
        write_weights(tensors, path)
    except OSError as error:
        return Sentence("adapter.save_to: {path} could not be written: {why}", path=path, why=error.strerror)
    except TypeError as error:  # of a model of one's own
        return Sentence(
            "adapter.save_to: {path} could not be written: {error}, which a .safetensors file does not hold",
            path=path,
            error=str(error),
        )
    return Sentence("the weights were written to {path}", path=path)
