"""Quantised layers as torchao keeps them in safetensors, for transformers and vLLM, and what comes back from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.ptq.compressed_tensors import WEIGHTS, check_layers, plain_tensors, write_folder
from precgui.engine.ptq.quantised_layers import QuantisedLayer
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.checkpoints.target_forms import torchao_class
from precgui.formats.model import IntFormat
from precgui.formats.weight_formats import WeightFormat

_INTEGERS, _SCALED_INTEGERS = "IntxUnpackedToInt8Tensor", "Int8Tensor"  # the second has a place for input scales


def write_torchao(
    folder: Path, model: nn.Module, layers: Mapping[str, nn.Module], quantised: Mapping[str, QuantisedLayer],
    formats: Mapping[str, WeightFormat], base_config: Mapping[str, Any],
) -> list[Path]:  # fmt: skip
    """Write a new folder with the weights and a config; other tensors keep their numbers. Returns what was written.

    base_config: the model's own config.json. Raises EngineError, and FileExistsError and other OSErrors.
    """
    check_layers("torchao", layers, quantised, formats)
    plain = plain_tensors(model, layers, quantised)
    tensors, metadata = dict(plain), {name: json.dumps({"_type": "Tensor"}) for name in plain}
    for name, low in quantised.items():
        parts = coded_parts(low, formats[name])
        tensors |= {f"{name}._weight_{part}": each for part, each in parts.items()}
        metadata[f"{name}.weight"] = json.dumps(_about(low, formats[name], list(parts)))
    metadata["tensor_names"] = json.dumps(list(metadata))
    configs = {name: _config(low, formats[name]) for name, low in quantised.items()}
    default = {"_type": "FqnToConfig", "_version": 1, "_data": {"fqn_to_config": configs}}
    config = {**base_config, "quantization_config": {"quant_method": "torchao", "quant_type": {"default": default}}}
    return write_folder(folder, tensors, config, metadata)


def coded_parts(low: QuantisedLayer, fmt: WeightFormat) -> dict[str, Tensor]:
    """The tensors of a layer, by the end of their names."""
    codes, scales = low.coded.codes.cpu(), low.coded.scales.cpu()
    if torchao_class(fmt) == _INTEGERS:
        zeros = torch.zeros_like(scales).to(torch.int8)
        return {"qdata": codes.to(torch.int8), "scale": scales, "zero_point": zeros, **_input_scale(low)}
    return {"qdata": codes.to(torch.float8_e4m3fn), "scale": scales}


def _input_scale(low: QuantisedLayer) -> dict[str, Tensor]:
    """The factor of the inputs that torchao keeps beside a weight, by its name; none without a scale."""
    return {} if low.channel_scale is None else {"act_pre_scale": (1 / low.channel_scale).cpu()}


def _class_of(low: QuantisedLayer, fmt: WeightFormat) -> str:
    return torchao_class(fmt) if low.channel_scale is None else _SCALED_INTEGERS


def _about(low: QuantisedLayer, fmt: WeightFormat, parts: list[str]) -> dict[str, Any]:
    """The attributes of a tensor as torchao writes them beside its parts."""
    block, kind = [1, fmt.group if fmt.group > 0 else low.coded.values.shape[1]], _class_of(low, fmt)
    common = {"block_size": block, "dtype": _named("torch.dtype", "float32")}
    if kind == _SCALED_INTEGERS:
        data: dict[str, Any] = {**common, "act_quant_kwargs": None, "reduce_range": False}
    elif kind == _INTEGERS:
        data = {"target_dtype": _named("torch.dtype", f"int{fmt.element.bits}"), **common,
                "activation_quantization": None}  # fmt: skip
    else:
        data = {**common, "mm_config": None, "act_quant_kwargs": None,
                "kernel_preference": _named("KernelPreference", "AUTO")}  # fmt: skip
    return {"_type": kind, "_data": data, "_tensor_data_names": parts}


def _config(low: QuantisedLayer, fmt: WeightFormat) -> dict[str, Any]:
    """The config of `quantize_` for a format, as torchao writes it."""
    if not isinstance(fmt.element, IntFormat):
        data: dict[str, Any] = {"weight_dtype": _named("torch.dtype", "float8_e4m3fn"), "set_inductor_config": True,
                                "granularity": _versioned("PerRow", 1, {"dim": -1})}  # fmt: skip
        return _versioned("Float8WeightOnlyConfig", 2, data)
    is_scaled = _class_of(low, fmt) == _SCALED_INTEGERS
    rows = _versioned("PerRow", 1, {"dim": -1}) if is_scaled else _versioned("PerAxis", 1, {"axis": 0})
    granularity = _versioned("PerGroup", 1, {"group_size": fmt.group}) if fmt.group > 0 else rows
    if is_scaled:
        plain = {"group_size": None, "granularity": granularity, "set_inductor_config": True}
        return _versioned("Int8WeightOnlyConfig", 2, plain)
    data = {"weight_dtype": _named("torch.dtype", f"int{fmt.element.bits}"), "granularity": granularity,
            "mapping_type": _named("MappingType", "SYMMETRIC"), "scale_dtype": None,
            "intx_packing_format": _named("IntxPackingFormat", "UNPACKED_TO_INT8"),
            "intx_choose_qparams_algorithm": _named("IntxChooseQParamsAlgorithm", "AFFINE")}  # fmt: skip
    return _versioned("IntxWeightOnlyConfig", 2, data)


def _named(kind: str, value: str) -> dict[str, Any]:
    return {"_type": kind, "_data": value}


def _versioned(kind: str, version: int, data: dict[str, Any]) -> dict[str, Any]:
    return {"_type": kind, "_version": version, "_data": data}


def comes_back(folder: Path, quantised: Mapping[str, QuantisedLayer]) -> str:
    """The reader that gave back every number of the layers as it was measured; "" where some differ.

    It is torchao where it is installed, and precgui's own otherwise.
    """
    library = _by_library(folder)
    stored = {each.name: each for each in open_checkpoint(folder).tensors}
    for name, low in quantised.items():
        values, factor = low.coded.values.cpu(), _input_scale(low).get("act_pre_scale")
        if library is not None:
            found, kept = library[f"{name}.weight"]
            same_factor = factor is None if kept is None else factor is not None and torch.equal(kept, factor)
        else:
            tensor = stored[f"{name}.weight"]
            found, same_factor = torch.from_numpy(tensor.read(0, tensor.size)), True
            values = values if factor is None else values * factor  # as the reader gives them
        if not same_factor or not torch.equal(found.view(values.shape), values):
            return ""
    return "precgui" if library is None else "torchao"


def _by_library(folder: Path) -> dict[str, tuple[Tensor, Tensor | None]] | None:
    """Numbers and input scales of quantised tensors by torchao; None where it is missing, or of another version."""
    try:
        from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict
    except (ImportError, OSError):
        return None
    from precgui.engine.snapshot.file import read_tensors
    from precgui.formats.tensorfile import metadata_of

    tensors, _ = read_tensors(folder / WEIGHTS, "weights")
    known, _ = unflatten_tensor_state_dict(tensors, metadata_of(folder / WEIGHTS))
    return {
        name: (value.dequantize(), getattr(value, "act_pre_scale", None))
        for name, value in known.items()
        if type(value) is not Tensor
    }
