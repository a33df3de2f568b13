"""Weights of a model as a .safetensors file: written by precgui, read as plain data, nothing in it is executed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from precgui.config.new_places import TENSOR_FILE, tensor_file_fault
from precgui.engine.errors import EngineError
from precgui.engine.snapshot.file import write_tensors
from precgui.formats.checkpoints.contents import safetensors_places
from precgui.formats.checkpoints.suffixes import TORCH_SUFFIXES
from precgui.formats.checkpoints.tensor import CheckpointError
from precgui.formats.tensorfile import TensorFileError, open_tensor, tensor_names
from precgui.sentences import Sentence, message_of

_PIECE = 1 << 22  # elements that are read at once


def check_new_file(path: str, key: str) -> None:
    """Raises EngineError at once, not after the training, where nothing could be saved."""
    if fault := tensor_file_fault(path):
        raise EngineError(Sentence("{key}: {fault}", key=key, fault=fault))


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, as `load_state_dict` wants them; shared ones have several names."""
    state = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def write_weights(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors in their own types, by name, in full or not at all. Raises OSError, and TypeError for a type."""
    write_tensors(path, tensors, "weights", {"format": "pt", **(metadata or {})})  # transformers asks for `format`


def load_weights(model: nn.Module, path: str, key: str = "base.weights", *, also_torch: bool = False) -> None:
    """Fill the parameters and persistent buffers of a model, of any size, from a file or a folder of several.

    One of the names of a shared tensor is enough. also_torch: a file of torch.save is read, too, as data. Raises
    EngineError, which names what is missing or does not fit.
    """
    place = Path(path).expanduser()
    is_torch = also_torch and place.suffix in TORCH_SUFFIXES
    if (
        not is_torch
        and not place.is_dir()
        and place.suffix != TENSOR_FILE
        and not place.name.endswith(f"{TENSOR_FILE}.index.json")
    ):
        raise EngineError(
            Sentence(
                "{key}: {file} does not end in {tensor_file}; such a file is what is read here",
                key=key,
                file=place.name,
                tensor_file=TENSOR_FILE,
            )
        )
    parameters = {id(parameter) for parameter in model.parameters()}
    try:
        held = dict.fromkeys(tensor_names(place), place) if is_torch else safetensors_places(place)
        for tensor, names in _by_identity(tensors_of(model).items()):
            source = next((name for name in names if name in held), None)
            if source is None:
                fault = _missing(place.name, names[0], is_buffer=id(tensor) not in parameters)
                raise EngineError(Sentence("{key}: {fault}", key=key, fault=fault))
            _fill(tensor, held[source], source, key)
    except (TensorFileError, CheckpointError, OSError) as error:
        raise EngineError(Sentence("{key}: {fault}", key=key, fault=message_of(error))) from None


def _by_identity(named: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[Tensor, list[str]]]:
    """Each tensor once, with all of its names."""
    tensors: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in named:
        tensors.setdefault(id(tensor), (tensor, []))[1].append(name)
    return tensors.values()


def _missing(file: str, name: str, *, is_buffer: bool) -> str:
    if is_buffer:
        return Sentence(
            "{file} has no {tensor}, a buffer of the model; save all of the model's state_dict(), not its parameters",
            file=file,
            tensor=name,
        )
    return Sentence("{file} has no {tensor}; it is of another model", file=file, tensor=name)


@torch.no_grad()
def _fill(tensor: Tensor, place: Path, name: str, key: str) -> None:
    reader = open_tensor(place, name)
    if reader.shape != (tuple(tensor.shape) or (1,)):  # a reader gives single numbers one axis
        raise EngineError(
            Sentence(
                "{key}: {tensor} is {held} in {file} and {wanted} in the model",
                key=key,
                tensor=name,
                held=list(reader.shape),
                file=place.name,
                wanted=list(tensor.shape),
            )
        )
    filled = tensor.detach().contiguous()
    flat = filled.view(-1)
    for start in range(0, reader.size, _PIECE):
        stop = min(start + _PIECE, reader.size)
        flat[start:stop] = torch.from_numpy(reader.read(start, stop))
    tensor.copy_(filled)


def narrowest(tensor: Tensor) -> Tensor:
    """The numbers of an FP32 tensor in BF16 or FP16 where that keeps every one of them; others as they are."""
    if tensor.dtype != torch.float32:
        return tensor
    for dtype in (torch.bfloat16, torch.float16):
        low = tensor.to(dtype)
        if torch.equal(low.float(), tensor):
            return low
    return tensor
