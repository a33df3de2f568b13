"""The forms that files of compressed-tensors (vLLM, transformers), torchao and GGUF have for formats of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from precgui.formats.blocks import SCALE_RULES
from precgui.formats.model import IntFormat
from precgui.formats.weight_formats import NVFP4_DIVIDED, WeightFormat
from precgui.sentences import L_, Sentence

_PACKED_BITS = (4, 8)
_GGUF_INTEGERS = {(4, "signed"): "Q4_0", (5, "signed"): "Q5_0", (8, "absmax"): "Q8_0"}
_FORMS = {
    "vllm": ("compressed-tensors", L_("INT4 and INT8 with groups or rows, e4m3fn/row, mxfp4 and vllm:nvfp4")),
    "gguf": ("GGUF", L_("gguf:q4_0, gguf:q5_0, gguf:q8_0, mxfp4 of any rule, fp16 and bf16")),
    "torchao": ("torchao", L_("INT2 to INT8 with rows or groups, torchao:int8 and e4m3fn/row")),
}
_FORMS["transformers"] = _FORMS["vllm"]


@dataclass(frozen=True)
class Layout:
    """A format of compressed-tensors: its name, and its `weights` arguments."""

    format: str
    arguments: Mapping[str, Any]


def compressed_layout(fmt: WeightFormat) -> Layout | None:
    """How compressed-tensors keeps a format; None where it has no such form."""
    common = {"symmetric": True, "dynamic": False}
    grouped = {"strategy": "group", "group_size": fmt.group} if fmt.group > 0 else {"strategy": "channel"}
    element = fmt.element
    if fmt.group == 0 or fmt.half_scale:
        return None
    if isinstance(element, IntFormat):
        fits = element.bits in _PACKED_BITS and fmt.rule == "absmax"
        arguments = {"num_bits": element.bits, "type": "int", **grouped, **common}
        return Layout("pack-quantized", arguments) if fits else None
    if element.name == "e4m3fn" and fmt.group == -1 and fmt.rule == "absmax":
        return Layout("float-quantized", {"num_bits": 8, "type": "float", **grouped, **common})
    if element.name == "e2m1" and fmt.rule in SCALE_RULES and fmt.group == 32:
        return Layout("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", **grouped, **common,
                                               "scale_dtype": "torch.uint8"})  # fmt: skip
    if fmt.rule == NVFP4_DIVIDED:
        tensor_groups = {"strategy": "tensor_group", "group_size": fmt.group, "scale_dtype": "torch.float8_e4m3fn"}
        return Layout("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", **common, **tensor_groups})
    return None


def gguf_type(fmt: WeightFormat) -> str:
    """The type of ggml that holds a format; "" where there is none."""
    if fmt.rule == "none":
        return {"fp16": "F16", "bf16": "BF16"}.get(fmt.element.name, "")
    if fmt.group != 32:
        return ""
    if isinstance(fmt.element, IntFormat):
        return _GGUF_INTEGERS.get((fmt.element.bits, fmt.rule), "") if fmt.half_scale else ""
    return "MXFP4" if fmt.element.name == "e2m1" and fmt.rule in SCALE_RULES else ""


def torchao_class(fmt: WeightFormat) -> str:
    """The tensor class of torchao that holds a format; "" where there is none."""
    if fmt.rule != "absmax" or fmt.group == 0 or fmt.half_scale:
        return ""
    if isinstance(fmt.element, IntFormat):
        return "IntxUnpackedToInt8Tensor"
    return "Float8Tensor" if fmt.element.name == "e4m3fn" and fmt.group == -1 else ""


def form_fault(target: str, fmt: WeightFormat) -> str:
    """Why files of a target cannot hold a format, one sentence; empty where they can."""
    if {"gguf": gguf_type, "torchao": torchao_class}.get(target, compressed_layout)(fmt):
        return ""
    owner, forms = _FORMS[target]
    return Sentence("{owner} has no form for {format}; it has {forms}", owner=owner, format=fmt.name, forms=forms)


def keeps_input_scale(target: str, fmt: WeightFormat) -> bool:
    """Whether files of a target keep a scale of input channels beside a weight: torchao does, beside integers."""
    return target == "torchao" and isinstance(fmt.element, IntFormat) and bool(torchao_class(fmt))
