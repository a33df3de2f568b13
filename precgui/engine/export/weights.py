"""The weights of a run as a file for plain torch: out of its newest checkpoint, or of what it saved at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from precgui import __version__
from precgui.checkpoint_files import part_of_rank
from precgui.config.new_places import folder_fault, tensor_file_fault
from precgui.engine.adapters.peft_folder import CONFIG, WEIGHTS, PeftAdapters, write_peft
from precgui.engine.adapters.weights_file import write_weights
from precgui.engine.checkpoint.file import RunCheckpoint, read_checkpoint
from precgui.engine.errors import EngineError
from precgui.formats.tensorfile import TensorFileError, metadata_of
from precgui.safe_open import open_regular, replace_file
from precgui.sentences import L_, Sentence, message_of

KINDS = {"last": L_("last step"), "average": L_("moving average"), "master": L_("FP32 master weights")}
_UNFIT = (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError)


def write_run_weights(checkpoint: Path | None, saved: Path | None, run_id: str, target: Path, of: str) -> list[Path]:
    """Write weights to a new .safetensors file, of adapters to a new folder of PEFT. Returns what was written.

    `checkpoint` is the newest one of the run, `saved` the file or folder that `train.save_to` wrote; the checkpoint is
    taken where there are both. `of`: a key of `KINDS`. Raises EngineError, one sentence.
    """
    try:
        if checkpoint is not None:
            return _of_checkpoint(checkpoint, run_id, target, of)
        if saved is not None:
            return _copied(saved, run_id, target, of)
    except (OSError, TensorFileError) as error:
        raise EngineError(Sentence("the weights could not be written: {error}", error=message_of(error))) from None
    raise EngineError(
        L_(
            "the run kept no weights: set train.save_to = auto before it is trained again; a run that is stopped "
            "can be exported from its checkpoint"
        )
    )


def _of_checkpoint(path: Path, run_id: str, target: Path, of: str) -> list[Path]:
    first = read_checkpoint(path)
    if first.origin.get("run_id") != run_id:
        raise EngineError(Sentence("{path} is the checkpoint of another run, which had the same file name", path=path))
    if "names" not in first.training:
        raise EngineError(
            Sentence(
                "{path} was written by an earlier version of precgui; go on with the run and stop it, then export it",
                path=path,
            )
        )
    try:
        config = json.loads(first.origin["config"])
        metadata = {
            "precgui_version": __version__, "run_id": run_id, "precision": str(first.training["precision"]),
            "config": json.dumps(config), "step": str(first.step), "weights": KINDS[of],
        }  # fmt: skip
        if config["adapter"]["kind"] != "none":
            return _adapters(first, config, metadata, target, of)
        tensors = _state(path, first, of)
    except _UNFIT as error:
        raise EngineError(
            Sentence("{path} holds no weights that can be exported: {error}", path=path, error=message_of(error))
        ) from None
    _require_new(tensor_file_fault(str(target)))
    write_weights(tensors, target, metadata)
    return [target]


def _state(path: Path, first: RunCheckpoint, of: str) -> dict[str, Tensor]:
    """The `state_dict()` of the task's own model."""
    names = first.training["names"]
    if frozen := names["frozen"]:
        raise ValueError(
            Sentence(
                "{parameter} is not trained, so no checkpoint keeps it; set train.save_to = auto instead",
                parameter=frozen[0],
            )
        )
    kept = dict(first.training["weights"])
    if full := names["full"]:
        world = int(first.origin["ranks"])
        parts = [kept, *(read_checkpoint(part_of_rank(path, rank)).training["weights"] for rank in range(1, world))]
        for name, shape in full.items():
            kept[name] = torch.cat([part[name] for part in parts])
            if list(kept[name].shape) != shape:
                raise ValueError(Sentence("the parts of {parameter} do not make {shape}", parameter=name, shape=shape))
    kept |= _other_weights(first, of)
    return {name: kept[source] for name, source in names["state"].items()}


def _other_weights(first: RunCheckpoint, of: str) -> dict[str, Tensor]:
    """The weights that take the place of those of the last step."""
    training, names = first.training, first.training["names"]
    if of == "average":
        if not training["average"]:
            raise ValueError(L_("it keeps no moving average; train with train.ema_decay"))
        return dict(zip(names["trained"], training["average"], strict=True))
    if of == "master":
        if not names["copies"]:
            raise ValueError(L_("it keeps no master weights; the weights themselves are what the optimizer updates"))
        return dict(zip(names["copies"], training["updated"], strict=True))
    return {}


def _adapters(
    first: RunCheckpoint, config: Mapping[str, Any], metadata: Mapping[str, str], target: Path, of: str
) -> list[Path]:
    """A folder of PEFT."""
    if of == "master":
        raise ValueError(L_("adapters have no master weights"))
    names = first.training["names"]
    weights = {**first.training["weights"], **_other_weights(first, of)}
    layers = {name.removesuffix(".lora_a") for name in weights if name.endswith(".lora_a")}
    if others := weights.keys() - {f"{layer}.lora_{part}" for layer in layers for part in "ab"}:
        raise ValueError(
            Sentence("training moves {parameter}, too, for which a PEFT folder has no place", parameter=min(others))
        )
    pairs = {layer: (weights[f"{layer}.lora_a"], weights[f"{layer}.lora_b"]) for layer in sorted(layers)}
    rank = len(next(iter(pairs.values()))[0])
    _require_new(folder_fault(str(target)))
    write_peft(
        target, PeftAdapters(rank, float(names["lora_factor"]) * rank, pairs), config["adapter"]["dropout"], metadata
    )
    return [target]


def _copied(saved: Path, run_id: str, target: Path, of: str) -> list[Path]:
    """The file or folder that the run saved, under another name."""
    is_folder = saved.is_dir()
    held = metadata_of(saved / WEIGHTS if is_folder else saved)
    if held.get("run_id") != run_id:
        raise EngineError(Sentence("{path} holds the weights of another run", path=saved))
    if held.get("weights") != KINDS[of]:
        raise EngineError(
            Sentence(
                "the run saved its weights of the {held}; those of the {wanted} are lost",
                held=held.get("weights"),
                wanted=KINDS[of],
            )
        )
    _require_new((folder_fault if is_folder else tensor_file_fault)(str(target)))
    if not is_folder:
        _copy(saved, target)
        return [target]
    target.mkdir()
    for name in (WEIGHTS, CONFIG):
        _copy(saved / name, target / name)
    return [target]


def _copy(source: Path, target: Path) -> None:
    with open_regular(source) as file:
        replace_file(target, file.read())


def _require_new(fault: str) -> None:
    if fault:
        raise EngineError(fault)
