"""Quantised layers as compressed-tensors keeps them, for vLLM and transformers, and what comes back from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.adapters.weights_file import narrowest, tensors_of, write_weights
from precgui.engine.errors import EngineError
from precgui.engine.ptq.layer_matrix import is_turned, weight_of
from precgui.engine.ptq.quantised_layers import QuantisedLayer, absorbed_numbers
from precgui.engine.ptq.rounding import CodedRows, nvfp4_factor
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.checkpoints.target_forms import compressed_layout, form_fault, keeps_input_scale
from precgui.formats.checkpoints.tensor import code_values
from precgui.formats.weight_formats import WeightFormat
from precgui.sentences import Sentence

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def check_layers(target: str, layers: Mapping[str, nn.Module], quantised: Mapping[str, QuantisedLayer],
                 formats: Mapping[str, WeightFormat]) -> None:  # fmt: skip
    """Raises EngineError for layers that the files of a target have no place for."""
    for name, low in quantised.items():
        if low.channel_scale is not None and not keeps_input_scale(target, formats[name]):
            raise EngineError(
                Sentence(
                    "such files have no place for the scale of the inputs of {layer} in {format}; use rtn or gptq",
                    layer=name,
                    format=formats[name].name,
                )
            )
        if why := form_fault(target, formats[name]):
            raise EngineError(why)
        if not isinstance(layers[name], nn.Linear):
            raise EngineError(Sentence("such files keep linear layers only; {layer} is a convolution", layer=name))
        if is_turned(layers[name]) and target != "gguf":
            raise EngineError(
                Sentence("such files have no form for {layer}, whose weight is stored as [inputs, outputs]", layer=name)
            )


def plain_tensors(
    model: nn.Module, layers: Mapping[str, nn.Module], quantised: Mapping[str, QuantisedLayer]
) -> dict[str, Tensor]:
    """The tensors of a model but the weights of quantised layers, after they have taken over scales."""
    replaced, changed = {id(weight_of(layers[name])) for name in quantised}, absorbed_numbers(quantised)
    return {
        name: narrowest(changed.get(id(value), value.detach()))
        for name, value in tensors_of(model).items()
        if id(value) not in replaced
    }


def keeps_absorbed(folder: Path, model: nn.Module, quantised: Mapping[str, QuantisedLayer]) -> bool:
    """Whether the parameters that have taken over scales stand in a written folder with the numbers of the plan."""
    changed = absorbed_numbers(quantised)
    stored = {each.name: each for each in open_checkpoint(folder).tensors} if changed else {}
    return all(
        torch.equal(torch.from_numpy(stored[name].read(0, stored[name].size)), changed[id(value)].cpu())
        for name, value in tensors_of(model).items()
        if id(value) in changed
    )


def write_compressed(
    folder: Path, model: nn.Module, layers: Mapping[str, nn.Module], quantised: Mapping[str, QuantisedLayer],
    formats: Mapping[str, WeightFormat], base_config: Mapping[str, Any],
) -> list[Path]:  # fmt: skip
    """Write a new folder with the weights and a config; other tensors keep their numbers. Returns what was written.

    base_config: the model's own config.json. Raises EngineError, and FileExistsError and other OSErrors.
    """
    check_layers("vllm", layers, quantised, formats)
    tensors = plain_tensors(model, layers, quantised)
    for name, low in quantised.items():
        tensors |= {f"{name}.{part}": each for part, each in packed_parts(low.coded, formats[name]).items()}
    ignored = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name not in quantised]
    config = {**base_config, "quantization_config": quantization_config(quantised, formats, ignored)}
    return write_folder(folder, tensors, config)


def write_folder(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> list[Path]:
    """Write a new folder with the weights of a model and its config; returns both files."""
    folder.mkdir(parents=True)
    write_weights(tensors, folder / WEIGHTS, metadata)
    (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")
    return [folder / WEIGHTS, folder / CONFIG]


def quantization_config(
    quantised: Mapping[str, QuantisedLayer], formats: Mapping[str, WeightFormat], ignored: list[str]
) -> dict[str, Any]:
    """The `quantization_config` of compressed-tensors, a group for each format."""
    used = dict.fromkeys(formats[name].name for name in quantised)
    groups = {}
    for number, label in enumerate(used):
        members = [name for name in quantised if formats[name].name == label]
        layout = compressed_layout(formats[members[0]])
        assert layout is not None
        groups[f"group_{number}"] = {"targets": members, "weights": dict(layout.arguments), "input_activations": None,
                                     "output_activations": None, "format": layout.format}  # fmt: skip
    kinds = list(dict.fromkeys(str(group["format"]) for group in groups.values()))
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed", "config_groups": groups,
            "format": kinds[0] if len(kinds) == 1 else "mixed-precision", "ignore": ignored}  # fmt: skip


def packed_parts(coded: CodedRows, fmt: WeightFormat) -> dict[str, Tensor]:
    """The tensors of a layer, by the end of their names. Raises EngineError for a format without such form."""
    layout = compressed_layout(fmt)
    if layout is None:
        raise EngineError(Sentence("compressed-tensors has no form for {format}", format=fmt.name))
    codes, scales = coded.codes.cpu(), coded.scales.cpu()
    if layout.format == "pack-quantized":
        shape = torch.tensor(codes.shape, dtype=torch.int64)
        return {"weight_packed": _words(codes, fmt.element.bits), "weight_scale": scales, "weight_shape": shape}
    if layout.format == "float-quantized":
        return {"weight": codes.to(torch.float8_e4m3fn), "weight_scale": scales}
    if layout.format == "nvfp4-pack-quantized":
        factor = nvfp4_factor(coded.peak.cpu())
        local = (scales * factor).to(torch.float8_e4m3fn)
        return {"weight_packed": _nibbles(codes), "weight_scale": local, "weight_global_scale": factor.reshape(1)}
    exponents = torch.frexp(scales)[1] - 1 + 127
    return {"weight_packed": _nibbles(codes), "weight_scale": exponents.to(torch.uint8)}


def _words(codes: Tensor, bits: int) -> Tensor:
    """Codes plus half of their range in words of 32 bits, the lowest bits first."""
    each = 32 // bits
    shifted = torch.nn.functional.pad(codes.to(torch.int64) + (1 << (bits - 1)), (0, -codes.shape[1] % each))
    places = torch.arange(each) * bits
    words = (shifted.view(len(codes), -1, each) << places).sum(-1)
    return (words - ((words >> 31) << 32)).to(torch.int32)


def _nibbles(codes: Tensor) -> Tensor:
    """E2M1 values as two codes a byte, the first in the lower half."""
    magnitudes = torch.from_numpy(code_values("e2m1")[:8].copy())
    found = torch.searchsorted(magnitudes, codes.abs().contiguous()) + 8 * torch.signbit(codes)
    pairs = found.view(len(codes), -1, 2)
    return (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)


def comes_back(folder: Path, quantised: Mapping[str, QuantisedLayer], formats: Mapping[str, WeightFormat]) -> str:
    """The reader that gave back every number of the layers as it was measured; "" where some differ.

    It is the library's where it is installed, and precgui's own otherwise.
    """
    library = _by_library(folder, quantised, formats)
    if library is not None:
        return "compressed-tensors" if library else ""
    stored = {each.name: each for each in open_checkpoint(folder).tensors}
    for name, low in quantised.items():
        values, tensor = low.coded.values.cpu(), stored[f"{name}.weight"]
        if tensor.why_not or not torch.equal(torch.from_numpy(tensor.read(0, tensor.size)).view(values.shape), values):
            return ""
    return "precgui"


def _by_library(
    folder: Path, quantised: Mapping[str, QuantisedLayer], formats: Mapping[str, WeightFormat]
) -> bool | None:
    """Whether all layers come back equal from the library; None where it is not installed, or is of another version."""
    try:
        from compressed_tensors.compressors.base import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    except ImportError:
        return None
    from precgui.engine.snapshot.file import read_tensors

    tensors, _ = read_tensors(folder / WEIGHTS, "weights")
    for name, low in quantised.items():
        layout = compressed_layout(formats[name])
        assert layout is not None
        parts = {key.removeprefix(f"{name}."): each for key, each in tensors.items() if _is_part(key, name)}
        scheme = QuantizationScheme(targets=[name], weights=QuantizationArgs(**layout.arguments), format=layout.format)
        reader = BaseCompressor.get_value_from_registry(layout.format)
        values = reader.decompress(parts, scheme)["weight"]  # those of NVFP4 are given in BF16
        if not torch.equal(values, low.coded.values.cpu().to(values.dtype)):
            return False
    return True


def _is_part(key: str, layer: str) -> bool:
    return key.rpartition(".")[0] == layer and key.rpartition(".")[2].startswith("weight")
