"""A plan as text for the tools that quantise where the model fits: llm-compressor, torchao and llama-quantize."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from precgui.engine.errors import EngineError
from precgui.engine.ptq.methods import Method
from precgui.formats.checkpoints.gguf_names import gguf_name
from precgui.formats.checkpoints.target_forms import compressed_layout, form_fault, gguf_type, torchao_class
from precgui.formats.model import IntFormat
from precgui.formats.weight_formats import WeightFormat


def llm_compressor_recipe(formats: Mapping[str, WeightFormat], ignored: Sequence[str], method: Method) -> str:
    """YAML for `oneshot` of llm-compressor. Raises EngineError for a format without a place there."""
    modifier = "GPTQModifier" if method == "gptq" else "QuantizationModifier"
    lines = ["quant_stage:", "  quant_modifiers:", f"    {modifier}:", f"      ignore: {json.dumps(list(ignored))}",
             "      config_groups:"]  # fmt: skip
    for number, (label, members) in enumerate(_by_format(formats).items()):
        layout = compressed_layout(formats[members[0]])
        if layout is None:
            raise EngineError(form_fault("vllm", formats[members[0]]))
        lines += [f"        group_{number}:  # {label}", f"          targets: {json.dumps(members)}",
                  f"          weights: {json.dumps(dict(layout.arguments))}"]  # fmt: skip
    return "\n".join([*lines, ""])


def llama_quantize_recipe(formats: Mapping[str, WeightFormat], ignored: Sequence[str]) -> str:
    """A command of llama.cpp, which rounds to nearest as precgui does. Raises EngineError for a format without type.

    The other matrices become FP16; `ignored` are layers that are to stay as they are.
    """
    types = {}
    for name, fmt in formats.items():
        if not (kind := gguf_type(fmt)):
            raise EngineError(form_fault("gguf", fmt))
        types[gguf_name(f"{name}.weight")] = kind.lower()
    types |= {gguf_name(f"{name}.weight"): "f16" for name in ignored}
    quantised = [kind for kind in types.values() if kind not in ("f16", "bf16")]
    head = types.pop("output.weight", "f16")
    lines = ["#!/bin/sh", "# sh FILE model-f16.gguf model-quantised.gguf, as convert_hf_to_gguf.py wrote the first",
             'llama-quantize --token-embedding-type f16 --output-tensor-type ' + head + " \\"]  # fmt: skip
    lines += [f"  --tensor-type {shlex.quote(f'{re.escape(name)}={kind}')} \\" for name, kind in types.items()]
    return "\n".join([*lines, f'  "$1" "$2" {max(quantised, key=quantised.count) if quantised else "f16"}', ""])


def torchao_recipe(formats: Mapping[str, WeightFormat]) -> str:
    """Python for `quantize_` of torchao. Raises EngineError for a format without a place there."""
    rows = [f"    {name!r}: {_torchao_config(fmt)}," for name, fmt in formats.items()]
    return "\n".join([
        "from torchao.quantization import FqnToConfig, Float8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_",
        "from torchao.quantization.granularity import PerAxis, PerGroup", "import torch", "",
        "quantize_(model, FqnToConfig({", *rows, "}), filter_fn=None)", "",
    ])  # fmt: skip


def _torchao_config(fmt: WeightFormat) -> str:
    if not torchao_class(fmt):
        raise EngineError(form_fault("torchao", fmt))
    if not isinstance(fmt.element, IntFormat):
        return "Float8WeightOnlyConfig()"
    granularity = f"PerGroup({fmt.group})" if fmt.group > 0 else "PerAxis(0)"
    return f"IntxWeightOnlyConfig(weight_dtype=torch.int{fmt.element.bits}, granularity={granularity})"


def _by_format(formats: Mapping[str, WeightFormat]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, fmt in formats.items():
        found.setdefault(fmt.name, []).append(name)
    return found
