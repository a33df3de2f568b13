"""Weights of a model as a .safetensors file: written by precgui, read as plain data, nothing in it is executed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from precgui.engine.errors import EngineError
from precgui.formats.tensorfile import TensorFileError, load_tensor, tensor_names

_SUFFIX = ".safetensors"


def check_new_file(path: str, key: str) -> None:
    """Raises EngineError at once, not after the training, where nothing could be saved."""
    place = Path(path).expanduser()
    if place.suffix != _SUFFIX:
        raise EngineError(f"{key}: {place.name} does not end in {_SUFFIX}; name the file so")
    if place.exists():
        raise EngineError(f"{key}: {place} already exists; choose another name or delete it first")
    if not place.parent.is_dir() or not os.access(place.parent, os.W_OK):
        raise EngineError(f"{key}: {place.parent} is not a folder that can be written; choose another place")


def write_weights(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as FP32, by name, under another name first. Raises OSError."""
    arrays = {name: tensor.detach().to("cpu", torch.float32).contiguous().numpy() for name, tensor in tensors.items()}
    header: dict[str, object] = {"__metadata__": {"writer": "precgui"}}
    place = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    with temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.tobytes())
    temporary.replace(path)


def load_weights(model: nn.Module, path: str, key: str = "base.weights") -> None:
    """Fill the parameters of a model from a file. Raises EngineError, which names what is missing or does not fit."""
    place = Path(path).expanduser()
    if place.suffix != _SUFFIX:
        raise EngineError(f"{key}: {place.name} does not end in {_SUFFIX}; such a file is what is read here")
    try:
        names = set(tensor_names(place))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name not in names:
                    raise EngineError(f"{key}: {place.name} has no {name}; it is of another model")
                values = torch.from_numpy(load_tensor(place, name))
                if values.shape != parameter.shape:
                    shapes = f"{list(values.shape)} in {place.name} and {list(parameter.shape)} in the model"
                    raise EngineError(f"{key}: {name} is {shapes}")
                parameter.copy_(values)
    except TensorFileError as error:
        raise EngineError(f"{key}: {error}") from None
