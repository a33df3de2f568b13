"""A quantised model as files of its target, read back by the target's own reader where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from precgui.engine.adapters.weights_file import tensors_of
from precgui.engine.errors import EngineError
from precgui.engine.ptq import compressed_tensors, gguf_file, torchao_files
from precgui.engine.ptq.layer_matrix import is_turned, weight_of
from precgui.engine.ptq.quantised_layers import QuantisedLayer
from precgui.formats.weight_formats import WeightFormat
from precgui.sentences import Sentence


def write_model(
    target: str, place: Path, model: nn.Module, layers: Mapping[str, nn.Module],
    quantised: Mapping[str, QuantisedLayer], formats: Mapping[str, WeightFormat], config: Mapping[str, Any],
    converted: str = "",
) -> tuple[list[Path], str]:  # fmt: skip
    """Write files at a new place; returns them, and the reader that gave each number of the plan back as measured.

    config: the config.json of the model. converted: for GGUF, a file of the same model whose header and other tensors
    are kept. The reader is "" where some numbers differ. Raises SentenceError and OSError.
    """
    try:
        if target == "gguf":
            about = gguf_file.converted_target(config, converted)
            compressed_tensors.check_layers(target, layers, quantised, formats)
            coded = gguf_file.coded_layers(model, quantised, formats, about)
            absorbed = gguf_file.absorbed_tensors(model, quantised)
            paths = gguf_file.write_model(place, model, coded, about, absorbed)
            return paths, gguf_file.comes_back(place, coded, absorbed)
        if target == "torchao":
            paths = torchao_files.write_torchao(place, model, layers, quantised, formats, config)
            reader = torchao_files.comes_back(place, quantised)
        else:
            paths = compressed_tensors.write_compressed(place, model, layers, quantised, formats, config)
            reader = compressed_tensors.comes_back(place, quantised, formats)
        return paths, reader if compressed_tensors.keeps_absorbed(place, model, quantised) else ""
    except FileExistsError:
        raise EngineError(
            Sentence("{path} already exists; choose another name or delete it first", path=place)
        ) from None


def left_as_they_are(target: str, model: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, str]:
    """Layers that files of a target keep as they are, each with a sentence. Raises EngineError where all are such."""
    owners: dict[int, list[str]] = {}
    for name, value in tensors_of(model).items():
        owners.setdefault(id(value), []).append(name.rpartition(".")[0])
    found: dict[str, str] = {}
    for name, layer in layers.items():
        if not isinstance(layer, nn.Linear):
            found[name] = Sentence("{layer} is a convolution, which such files keep as it is", layer=name)
        elif target != "gguf" and is_turned(layer):
            found[name] = Sentence(
                "{layer} has its weight as [inputs, outputs], for which such files have no form", layer=name
            )
        elif target != "gguf" and set(owners[id(weight_of(layer))]) - layers.keys():
            found[name] = Sentence(
                "{layer} shares its weight with another part, such as an embedding, and stays as it is", layer=name
            )
    if len(found) == len(layers):
        raise EngineError(
            Sentence(
                "no layer of the model can be quantised in a file for {target}: {why}",
                target=target,
                why=next(iter(found.values())),
            )
        )
    return found
