"""A plan as text for the libraries that quantise where the model fits: llm-compressor and torchao."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from precgui.engine.errors import EngineError
from precgui.engine.ptq.compressed_tensors import layout_of
from precgui.engine.ptq.methods import Method
from precgui.formats.model import IntFormat
from precgui.formats.weight_formats import WeightFormat


def llm_compressor_recipe(formats: Mapping[str, WeightFormat], ignored: Sequence[str], method: Method) -> str:
    """YAML for `oneshot` of llm-compressor. Raises EngineError for a format without a place there."""
    modifier = "GPTQModifier" if method == "gptq" else "QuantizationModifier"
    lines = ["quant_stage:", "  quant_modifiers:", f"    {modifier}:", f"      ignore: {json.dumps(list(ignored))}",
             "      config_groups:"]  # fmt: skip
    for number, (label, members) in enumerate(_by_format(formats).items()):
        layout = layout_of(formats[members[0]])
        if layout is None:
            raise EngineError(f"llm-compressor has no form for {label}; take int4/128, int8/row, e4m3fn/row or mxfp4")
        lines += [f"        group_{number}:  # {label}", f"          targets: {json.dumps(members)}",
                  f"          weights: {json.dumps(dict(layout.arguments))}"]  # fmt: skip
    return "\n".join([*lines, ""])


def torchao_recipe(formats: Mapping[str, WeightFormat]) -> str:
    """Python for `quantize_` of torchao. Raises EngineError for a format without a place there."""
    rows = [f"    {name!r}: {_torchao_config(fmt)}," for name, fmt in formats.items()]
    return "\n".join([
        "from torchao.quantization import FqnToConfig, Float8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_",
        "from torchao.quantization.granularity import PerAxis, PerGroup", "import torch", "",
        "quantize_(model, FqnToConfig({", *rows, "}), filter_fn=None)", "",
    ])  # fmt: skip


def _torchao_config(fmt: WeightFormat) -> str:
    if isinstance(fmt.element, IntFormat) and fmt.rule == "absmax" and fmt.group != 0 and not fmt.half_scale:
        granularity = f"PerGroup({fmt.group})" if fmt.group > 0 else "PerAxis(0)"
        return f"IntxWeightOnlyConfig(weight_dtype=torch.int{fmt.element.bits}, granularity={granularity})"
    if fmt.element.name == "e4m3fn" and fmt.group == -1:
        return "Float8WeightOnlyConfig()"
    raise EngineError(f"torchao has no form for {fmt.name}; take INT2 to INT8 with rows or groups, or e4m3fn/row")


def _by_format(formats: Mapping[str, WeightFormat]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, fmt in formats.items():
        found.setdefault(fmt.name, []).append(name)
    return found
