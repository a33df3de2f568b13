"""Quantised layers as a GGUF file of llama.cpp, and what comes back from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precgui.engine.adapters.weights_file import narrowest, tensors_of
from precgui.engine.errors import EngineError
from precgui.engine.ptq.layer_matrix import weight_of
from precgui.engine.ptq.quantised_layers import QuantisedLayer, absorbed_numbers
from precgui.engine.ptq.rounding import CodedRows
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.checkpoints.gguf import GgufParts, gguf_parts
from precgui.formats.checkpoints.gguf_names import gguf_name, header_values, heads_of, turned_rows
from precgui.formats.checkpoints.gguf_write import ROW, WrittenTensor, blocks_of, packed_entries, write_gguf
from precgui.formats.checkpoints.target_forms import gguf_type
from precgui.formats.checkpoints.tensor import CheckpointTensor
from precgui.formats.tensorfile import read_words
from precgui.formats.torchfile import Place
from precgui.formats.weight_formats import WeightFormat
from precgui.sentences import Sentence

SUFFIX = ".gguf"
_PLAIN = {"F16": torch.float16, "BF16": torch.bfloat16}
_KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_MOST_AXES = 4


@dataclass(frozen=True)
class GgufTarget:
    """The rest of a file beside its layers: entries of the header from a config.json, or from a file of the same model.

    converted: that file, as the converter of llama.cpp writes it; its vocabulary and its other tensors are kept.
    """

    config: Mapping[str, Any]
    converted: GgufParts | None = None
    source: Path = Path()

    @property
    def values(self) -> Mapping[str, Any]:
        return header_values(self.config) if self.converted is None else self.converted.values


def converted_target(config: Mapping[str, Any], source: str) -> GgufTarget:
    """The target with a file of the same model, if one is named. Raises CheckpointError."""
    path = Path(source).expanduser()
    return GgufTarget(config, gguf_parts(path), path) if source else GgufTarget(config)


def coded_layers(
    model: nn.Module, quantised: Mapping[str, QuantisedLayer], formats: Mapping[str, WeightFormat], target: GgufTarget
) -> dict[str, tuple[CodedRows, str]]:
    """By name in GGUF the rows of each layer in the order of the file, and their type. Raises EngineError."""
    names = {id(value): name for name, value in reversed(tensors_of(model).items())}
    found = {}
    for layer, low in quantised.items():
        rows, line = low.coded.values.shape
        kind = gguf_type(formats[layer])
        if line % ROW and kind not in _PLAIN:
            raise EngineError(
                Sentence(
                    "GGUF has no form for {layer}: its rows of {line} are no multiple of {row}",
                    layer=layer,
                    line=line,
                    row=ROW,
                )
            )
        name = gguf_name(names[id(weight_of(model.get_submodule(layer)))])
        heads, coded = heads_of(name, target.values), low.coded
        if heads and rows % (2 * heads) == 0:
            order = torch.from_numpy(turned_rows(rows, heads)).to(coded.values.device)
            coded = replace(
                coded, values=coded.values[order], codes=coded.codes[order],
                scales=coded.scales if len(coded.scales) == 1 else coded.scales[order],
            )  # fmt: skip
        found[name] = coded, kind
    return found


def absorbed_tensors(model: nn.Module, quantised: Mapping[str, QuantisedLayer]) -> dict[str, Tensor]:
    """By name in GGUF the parameters that have taken over scales, with their new numbers."""
    changed = absorbed_numbers(quantised)
    return {gguf_name(name): changed[id(value)] for name, value in _once(model).items() if id(value) in changed}


def write_model(
    path: Path, model: nn.Module, coded: Mapping[str, tuple[CodedRows, str]], target: GgufTarget,
    absorbed: Mapping[str, Tensor],
) -> list[Path]:  # fmt: skip
    """Write a new file with the names of GGUF. Returns what was written. Raises EngineError and OSError."""
    low = {name: _coded(name, *each) for name, each in coded.items()}
    low |= {name: _whole(name, value) for name, value in absorbed.items()}
    parts = target.converted
    if parts is None:
        entries = dict(target.values) | {"general.name": path.stem}
        plain = {gguf_name(name): value.detach() for name, value in _once(model).items() if value.is_floating_point()}
        tensors = [low.get(name) or _plain(name, value) for name, value in plain.items()]
        write_gguf(path, tensors, packed_entries(entries), len(entries))
        return [path]
    shapes = {each.name: each.shape for each in parts.tensors}
    for name, each in low.items():
        if shapes.get(name) != each.shape:
            raise EngineError(_other_shape(target.source, name, each.shape, shapes.get(name)))
    tensors = [low.get(each.name) or _stored(each, target) for each in parts.tensors]
    write_gguf(path, tensors, parts.entries, parts.count, parts.values.get("general.alignment", 32))
    return [path]


def _other_shape(source: Path, name: str, here: Sequence[int], there: Sequence[int] | None) -> Sentence:
    """That a tensor of the converted file does not have the shape that the model gives it."""
    if there is None:
        return Sentence(
            "{source} is of another model: {tensor} is {shape} here, and it has no such tensor",
            source=source,
            tensor=name,
            shape=list(here),
        )
    return Sentence(
        "{source} is of another model: {tensor} is {shape} here, and it has {other}",
        source=source,
        tensor=name,
        shape=list(here),
        other=list(there),
    )


def _once(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by the first of their names."""
    first = {id(value): name for name, value in reversed(tensors_of(model).items())}
    return {name: value for name, value in tensors_of(model).items() if first[id(value)] == name}


def _plain(name: str, value: Tensor) -> WrittenTensor:
    if value.dim() > _MOST_AXES:
        raise EngineError(
            Sentence(
                "GGUF has no form for {tensor}: it has {axes} axes, and the most there is {most}",
                tensor=name,
                axes=value.dim(),
                most=_MOST_AXES,
            )
        )
    kept = narrowest(value)
    return WrittenTensor(name, tuple(value.shape), _KINDS[kept.dtype], lambda: _bytes(kept))


def _whole(name: str, value: Tensor) -> WrittenTensor:
    """Numbers of a norm in FP32, as llama.cpp wants them."""
    return WrittenTensor(name, tuple(value.shape), "F32", lambda: _bytes(value.float()))


def _bytes(value: Tensor) -> bytes:
    return value.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _stored(tensor: CheckpointTensor, target: GgufTarget) -> WrittenTensor:
    assert target.converted is not None
    _, begin = target.converted.places[tensor.name]
    size = tensor.nbytes
    return WrittenTensor(tensor.name, tensor.shape, tensor.stored_as,
                         lambda: read_words(target.source, Place(begin, "u1"), 0, size).tobytes())  # fmt: skip


def _coded(name: str, coded: CodedRows, kind: str) -> WrittenTensor:
    def content() -> bytes:
        if kind in _PLAIN:
            return _bytes(coded.values.to(_PLAIN[kind]))
        codes = coded.codes.cpu().reshape(-1, ROW).numpy()
        return blocks_of(kind, codes, coded.scales.cpu().reshape(-1).numpy()).tobytes()

    return WrittenTensor(name, tuple(coded.values.shape), kind, content)


def comes_back(path: Path, coded: Mapping[str, tuple[CodedRows, str]], absorbed: Mapping[str, Tensor]) -> str:
    """The reader that gave back every number of the plan as it was measured; "" where some differ.

    It is the library gguf where it is installed, and precgui's own otherwise.
    """
    library = _by_library(path)
    stored = {each.name: each for each in open_checkpoint(path).tensors}
    expected = {name: each.values for name, (each, _) in coded.items()} | dict(absorbed)
    for name, each in expected.items():
        values = each.cpu().numpy()
        found = stored[name].read(0, stored[name].size) if library is None else library(name)
        if not np.array_equal(found.reshape(values.shape), values):
            return ""
    return "precgui" if library is None else "gguf"


def _by_library(path: Path) -> Callable[[str], NDArray[Any]] | None:
    """The numbers of a tensor by the library; None where it is not installed, or is of another version."""
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ImportError:
        return None
    held = {each.name: each for each in GGUFReader(path).tensors}
    return lambda name: dequantize(held[name].data, held[name].tensor_type)
