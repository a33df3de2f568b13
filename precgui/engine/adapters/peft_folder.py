"""Adapters as a folder of PEFT: `adapter_config.json` and `adapter_model.safetensors`, as its LoRA has them.

Layout: https://huggingface.co/docs/peft/developer_guides/checkpoint. Folders of others are data: JSON and safetensors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from precgui.config.new_places import folder_fault
from precgui.engine.adapters.weights_file import write_weights
from precgui.engine.errors import EngineError
from precgui.formats.tensorfile import TensorFileError, open_tensor, tensor_names
from precgui.safe_open import read_text, replace_file
from precgui.sentences import Sentence, message_of

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_KEY = re.compile(re.escape(_PREFIX) + r"(?P<layer>.+)\.lora_(?P<part>[AB])(?:\.default)?\.weight")
_MOST_BYTES = 1 << 20
_MOST_RANK = 4096
# What changes the result of an adapter and is not trained here; the value that leaves it out.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (False, None), "fan_in_fan_out": (False, None), "bias": ("none", None), "modules_to_save": (None, []),
    "rank_pattern": ({}, None), "alpha_pattern": ({}, None), "lora_bias": (False, None),
    "trainable_token_indices": (None,), "target_parameters": (None, []),
}  # fmt: skip


@dataclass(frozen=True)
class PeftAdapters:
    """Adapters by layer: A [rank, inputs] and B [outputs, rank] in FP32, multiplied by `alpha` / `rank`."""

    rank: int
    alpha: float
    layers: Mapping[str, tuple[Tensor, Tensor]]


def check_new_folder(path: str, key: str) -> Path:
    """The folder that is to be made. Raises EngineError at once, not after the training."""
    if fault := folder_fault(path):
        raise EngineError(Sentence("{key}: {fault}", key=key, fault=fault))
    return Path(path).expanduser().absolute()


def write_peft(folder: Path, adapters: PeftAdapters, dropout: float, metadata: Mapping[str, str]) -> None:
    """Write a folder that `PeftModel.from_pretrained` reads. Raises OSError."""
    tensors: dict[str, Tensor] = {}
    for layer, (a, b) in adapters.layers.items():
        tensors |= {f"{_PREFIX}{layer}.lora_A.weight": a, f"{_PREFIX}{layer}.lora_B.weight": b}
    document: dict[str, Any] = {
        "peft_type": "LORA", "task_type": None, "base_model_name_or_path": None, "inference_mode": True,
        "r": adapters.rank, "lora_alpha": adapters.alpha, "lora_dropout": dropout, "bias": "none",
        "target_modules": sorted(adapters.layers), "modules_to_save": None, "fan_in_fan_out": False,
        "init_lora_weights": True, "use_rslora": False, "use_dora": False, "rank_pattern": {}, "alpha_pattern": {},
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    write_weights(tensors, folder / WEIGHTS, metadata)
    replace_file(folder / CONFIG, json.dumps(document, indent=2).encode())


def read_peft(path: str, key: str = "adapter.weights") -> PeftAdapters:
    """The adapters of a folder. Raises EngineError, which names what is missing or is not trained here."""
    folder = Path(path).expanduser()
    try:
        document = json.loads(read_text(folder / CONFIG, _MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(
            Sentence(
                "{key}: {path} cannot be read ({error}); name a folder that PEFT wrote",
                key=key,
                path=folder / CONFIG,
                error=message_of(error),
            )
        ) from None
    rank, alpha = _rank_and_alpha(document, f"{key}: {CONFIG}")
    if not (folder / WEIGHTS).is_file():
        raise EngineError(
            Sentence(
                "{key}: {folder} has no {file}; a .bin of pickled tensors is not read, save it by save_pretrained",
                key=key,
                folder=folder,
                file=WEIGHTS,
            )
        )
    try:
        layers = _layers(folder / WEIGHTS, rank, key)
    except TensorFileError as error:
        raise EngineError(Sentence("{key}: {fault}", key=key, fault=message_of(error))) from None
    return PeftAdapters(rank, alpha, layers)


def _rank_and_alpha(document: Any, place: str) -> tuple[int, float]:
    if not isinstance(document, dict) or document.get("peft_type") != "LORA":
        kind = document.get("peft_type") if isinstance(document, dict) else None
        raise EngineError(
            Sentence("{place} is of {kind}, not of LORA; LoRA is what is trained here", place=place, kind=kind)
        )
    for name, values in _REFUSED.items():
        if name in document and document[name] not in values:
            raise EngineError(
                Sentence(
                    "{place} has {given}, which is not trained here", place=place, given=f"{name} = {document[name]}"
                )
            )
    rank, alpha = document.get("r"), document.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= _MOST_RANK:
        raise EngineError(
            Sentence(
                "{place} has r = {rank}, which is no rank from 1 to {most_rank}",
                place=place,
                rank=rank,
                most_rank=_MOST_RANK,
            )
        )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise EngineError(
            Sentence("{place} has lora_alpha = {alpha}, which is no number above 0", place=place, alpha=alpha)
        )
    return rank, float(alpha) * (math.sqrt(rank) if document.get("use_rslora") else 1.0)


def _layers(file: Path, rank: int, key: str) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name in tensor_names(file):
        if (match := _KEY.fullmatch(name)) is None:
            raise EngineError(
                Sentence(
                    "{key}: {file} has {tensor}, which is no part of a LoRA of linear layers",
                    key=key,
                    file=file.name,
                    tensor=name,
                )
            )
        reader = open_tensor(file, name)
        values = torch.from_numpy(reader.read(0, reader.size)).float().reshape(reader.shape)
        found.setdefault(match["layer"], {})[match["part"]] = values
    for layer, parts in found.items():
        shapes = {part: list(value.shape) for part, value in parts.items()}
        if parts.keys() != {"A", "B"} or any(value.dim() != 2 for value in parts.values()):
            raise EngineError(
                Sentence("{key}: {file} has not both matrices of {layer}", key=key, file=file.name, layer=layer)
            )
        if not shapes["A"][0] == shapes["B"][1] == rank:
            raise EngineError(
                Sentence(
                    "{key}: {layer} has the shapes {a} and {b}, not those of rank {rank}",
                    key=key,
                    layer=layer,
                    a=shapes["A"],
                    b=shapes["B"],
                    rank=rank,
                )
            )
    if not found:
        raise EngineError(Sentence("{key}: {file} holds no adapters", key=key, file=file.name))
    return {layer: (parts["A"], parts["B"]) for layer, parts in found.items()}
