"""Published models whose activations are known to be beyond the range of FP16, where a script runs them in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from precgui.lint.arguments import keyword
from precgui.lint.flow import cast_of, definition, dtype_of, statement, weights_format, whole_chain
from precgui.lint.lightning import FP16_MIXED, trainer_precision
from precgui.lint.source import CallSite, Mistakes, Source
from precgui.sentences import Sentence

# Trained in BF16: the gated feed-forward parts of T5 1.1 overflow. https://github.com/huggingface/transformers/issues/9295
# Those that are loaded in FP16 keep the layer that overflows in FP32, as long as nothing casts or autocasts it.
_T5 = re.compile(r"(^|/)(mt5|umt5|flan-t5|t5-v1_1|mt0)([-_.]|$)")
# The decoder overflows, and so do latents; a version that was changed for FP16 says so in its name.
_SDXL = re.compile(r"(stable-diffusion-xl|sdxl)(?!.*(fp16|fix))", re.IGNORECASE)
_MOST_SITES = 64


def beyond_fp16(source: Source) -> Mistakes:
    """A T5 that a trainer or a cast runs in FP16, or the autoencoder of SDXL that is loaded in FP16."""
    sites = source.of("from_pretrained")[:_MOST_SITES]
    trained_at = next(_trainings_in_fp16(source), None)
    for site in sites:
        name = _name(source, site)
        is_half = dtype_of(source, keyword(site.node, "torch_dtype") or keyword(site.node, "dtype")) == "fp16"
        if "AutoencoderKL" in site.name and _SDXL.search(name):
            line = site.line if is_half else None
        elif _T5.search(name) and ("Model" in site.name or "ForConditionalGeneration" in site.name):
            line = _line_of_cast(source, site) or trained_at
        else:
            continue
        if line is not None:
            yield (
                line, "warning", Sentence(
                    "activations of {model} are beyond the range of FP16 (65504): its outputs become NaN", model=name
                ),
                Sentence("BF16 or FP32 for {model}", model=name),
            )  # fmt: skip


def _name(source: Source, site: CallSite) -> str:
    """The name of the model as it is written out; '' where it is not certain."""
    given = keyword(site.node, "pretrained_model_name_or_path", 0)
    held = definition(source, given) if isinstance(given, ast.Name | ast.Attribute) else given
    return held.value if isinstance(held, ast.Constant) and isinstance(held.value, str) else ""


def _line_of_cast(source: Source, site: CallSite) -> int | None:
    """The line in which a model that is loaded is cast to FP16, in the same expression or by its variable."""
    whole = whole_chain(source, site.node)
    if any((cast := cast_of(source, each)) is not None and cast[0] == "fp16" and each is not site.node
           for each in source.walk(whole)):  # fmt: skip
        return site.line
    assigned = statement(source, site.node)
    model = source.variable(assigned.targets[0]) if isinstance(assigned, ast.Assign) else None
    state = weights_format(source, model, source.scope(site.node)) if model is not None else None
    is_cast = state is not None and state[0] == "fp16" and state[1] is not assigned
    return getattr(state[1], "lineno", site.line) if state is not None and is_cast else None


def _trainings_in_fp16(source: Source) -> Iterator[int]:
    """The lines that have a trainer of Transformers, Accelerate or Lightning run its model in FP16."""
    for site in source.calls:
        if site.method.endswith("TrainingArguments"):
            given = keyword(site.node, "fp16")
            if isinstance(given, ast.Constant) and given.value is True:
                yield given.lineno
    for site in source.of("Accelerator"):
        given = keyword(site.node, "mixed_precision")
        if isinstance(given, ast.Constant) and given.value == "fp16":
            yield given.lineno
    if trainer_precision(source) in FP16_MIXED:
        yield source.of("Trainer")[0].line


RULES: dict[str, Callable[[Source], Mistakes]] = {"model-beyond-fp16": beyond_fp16}
