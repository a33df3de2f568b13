"""A plan as text for the tools that quantise where the model fits: llm-compressor, torchao and llama-quantize."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from precgui.engine.errors import EngineError
from precgui.engine.ptq.channel_scales import SMOOTH_EXPONENT
from precgui.engine.ptq.methods import Method
from precgui.engine.ptq.scale_folds import ScaleFold
from precgui.formats.checkpoints.gguf_names import gguf_name
from precgui.formats.checkpoints.target_forms import compressed_layout, form_fault, gguf_type, torchao_class
from precgui.formats.model import IntFormat
from precgui.formats.weight_formats import WeightFormat

_ROTATIONS = {  # modifiers of llm-compressor: Hadamard matrices that are fused into the weights
    "quarot": ("    SpinQuantModifier:", '      rotations: ["R1", "R2"]', "      transform_type: random-hadamard"),
    "spinquant": ("    SpinQuantModifier:", '      rotations: ["R1", "R2"]', "      transform_type: hadamard"),
    "quip": ("    QuIPModifier:", '      rotations: ["v", "u"]', "      transform_type: random-hadamard"),
}
_PAIRS = {"awq": "AWQConfig", "smooth": "SmoothQuantConfig"}  # configs of torchao around another one
_MODULES = {"awq": "awq", "smooth": "smoothquant"}


def llm_compressor_recipe(
    formats: Mapping[str, WeightFormat], ignored: Sequence[str], method: Method, folds: Sequence[ScaleFold] = (),
    added: Collection[str] = (),
) -> str:  # fmt: skip
    """YAML for `oneshot` of llm-compressor. Raises EngineError for a format without a place there.

    folds: where scales of AWQ and SmoothQuant go. added: rotations ("quarot", "spinquant", "quip") and learned rounding
    ("autoround") of the library, which take the place of rounding to nearest and of GPTQ.
    """
    rotations = [line for name, lines in _ROTATIONS.items() if name in added for line in lines]
    lines = ["quant_stage:", "  quant_modifiers:", *rotations, *_scaling(formats, method, folds)]
    modifier = "GPTQModifier" if method == "gptq" else "QuantizationModifier"
    modifier = "AutoRoundModifier" if "autoround" in added else modifier
    lines += [f"    {modifier}:", f"      ignore: {json.dumps(list(ignored))}", "      config_groups:"]
    for number, (label, members) in enumerate(_by_format(formats).items()):
        layout = compressed_layout(formats[members[0]])
        if layout is None:
            raise EngineError(form_fault("vllm", formats[members[0]]))
        lines += [f"        group_{number}:  # {label}", f"          targets: {json.dumps(members)}",
                  f"          weights: {json.dumps(dict(layout.arguments))}"]  # fmt: skip
    return "\n".join([*lines, ""])


def _scaling(formats: Mapping[str, WeightFormat], method: Method, folds: Sequence[ScaleFold]) -> list[str]:
    """The modifier that scales input channels before the weights are rounded."""
    used = [fold for fold in folds if all(name in formats for name in fold.layers)]
    if method == "awq" and used:
        pairs: list[object] = [{"smooth_layer": fold.source, "balance_layers": list(fold.layers)} for fold in used]
        return ["    AWQModifier:", "      duo_scaling: false", f"      mappings: {json.dumps(pairs)}"]
    if method == "smooth" and used:
        pairs = [[list(fold.layers), fold.source] for fold in used]
        return ["    SmoothQuantModifier:", f"      smoothing_strength: {SMOOTH_EXPONENT}",
                f"      mappings: {json.dumps(pairs)}"]  # fmt: skip
    return []


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


def torchao_recipe(formats: Mapping[str, WeightFormat], method: Method = "rtn") -> str:
    """Python for `quantize_` of torchao. Raises EngineError for a format without a place there.

    AWQ and SmoothQuant keep a scale of the inputs beside weights of whole numbers; other layers are rounded to nearest.
    """
    scaled = [name for name, fmt in formats.items() if method in _PAIRS and _scaled_config(fmt)]
    rows = [f"    {name!r}: {_torchao_config(fmt)}," for name, fmt in formats.items() if name not in scaled]
    head = [
        "import torch",
        "from torchao.quantization import FqnToConfig, Float8WeightOnlyConfig, Int4WeightOnlyConfig",
        "from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_",
        "from torchao.quantization.granularity import PerAxis, PerGroup, PerRow",
    ]
    plain = ["quantize_(model, FqnToConfig({", *rows, "}), filter_fn=None)"] if rows else []
    if not scaled:
        note = ["# measured with GPTQ; this rounds to nearest"] if method == "gptq" else []
        return "\n".join([*head, "", *note, *plain, ""])
    kind = _PAIRS[method]
    return "\n".join([
        *head, f"from torchao.prototype.{_MODULES[method]} import {kind}", "",
        "scaled = {", *(f"    {name!r}: {_scaled_config(formats[name])}," for name in scaled), "}",
        "for step in (\"prepare\", \"convert\"):",
        f"    configs = {{name: {kind}(config, step=step) for name, config in scaled.items()}}",
        "    quantize_(model, FqnToConfig(configs), filter_fn=None)",
        "    if step == \"prepare\":",
        "        with torch.no_grad():",
        "            for inputs in calibration:  # batches of your data",
        "                model(inputs)",
        *plain, "",
    ])  # fmt: skip


def _scaled_config(fmt: WeightFormat) -> str:
    """A config of torchao whose tensors keep a scale of their inputs; "" where it has none."""
    if not torchao_class(fmt) or not isinstance(fmt.element, IntFormat):
        return ""
    if fmt.element.bits == 8:
        return f"Int8WeightOnlyConfig(granularity={f'PerGroup({fmt.group})' if fmt.group > 0 else 'PerRow()'})"
    return f"Int4WeightOnlyConfig(group_size={fmt.group})" if fmt.element.bits == 4 and fmt.group >= 32 else ""


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
