"""Formats and loss scales that a script asks of a trainer: Lightning, Transformers, DeepSpeed."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.arguments import keyword, number
from precgui.lint.flow import base, definition, statement, weights_format
from precgui.lint.source import CallSite, Mistakes, Source
from precgui.lint.weight_rules import fp16_weights
from precgui.sentences import L_

_FP16_WEIGHTS = "16-true"  # precision of Lightning's Trainer
TRAINERS = ("Trainer", "Seq2SeqTrainer", "SFTTrainer")
HUGGING_FACE = ("transformers.", "trl.")
_SOME_TRAINED = ("peft", "lora", "adapter", "requires_grad")  # said where the weights in FP16 may stay as they are


def weights_of_a_trainer(source: Source) -> Mistakes:
    """Weights in FP16 that a trainer gives to an optimizer: by Lightning's precision, or of a model cast before."""
    for site in source.of("Trainer"):
        strategy = keyword(site.node, "strategy")
        keeps_masters = strategy is not None and not isinstance(strategy, ast.Constant)
        precision = keyword(site.node, "precision")
        if precision is None or _text(precision) != _FP16_WEIGHTS or not _is_run(source, site, "fit"):
            continue
        if not keeps_masters and "deepspeed" not in _text(strategy):
            yield (
                precision.lineno, "warning", L_(
                    'precision="16-true" trains weights in FP16: small updates and gradients are lost'
                ),
                L_('precision="16-mixed", which keeps FP32 weights and scales the loss'),
            )  # fmt: skip
    if any(word in source.text.lower() for word in _SOME_TRAINED):
        return
    for site in source.of(*TRAINERS):
        model = source.variable(given) if (given := keyword(site.node, "model", 0)) is not None else None
        settings = settings_of(source, site)
        if model is None or settings is None or not site.name.startswith(HUGGING_FACE):
            continue
        state = weights_format(source, model, source.scope(site.node))
        if state is not None and state[0] == "fp16" and _is_run(source, site, "train"):
            scaled = getattr(keyword(settings, "fp16"), "value", False) is True
            cure = L_("load the model in FP32 and leave FP16 to the trainer, fp16=True")
            yield getattr(state[1], "lineno", site.line), *fp16_weights(model, scaled=scaled, cure=cure)


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_run(source: Source, site: CallSite, method: str) -> bool:
    """Whether a method of the object that a call makes is called, directly or by its variable."""
    if getattr(source.parent(site.node), "attr", "") == method:
        return True
    assigned = statement(source, site.node)
    made = source.variable(assigned.targets[0]) if isinstance(assigned, ast.Assign) else None
    return made is not None and bool(source.calls_of(made, method))


def settings_of(source: Source, site: CallSite) -> ast.Call | None:
    """The call that makes the arguments of a trainer; None where something else may keep FP32 weights or is unknown."""
    given = keyword(site.node, "args", 1)
    made = base(definition(source, given) or given) if given is not None else None
    if not isinstance(made, ast.Call) or any(each.arg in (None, "deepspeed", "fsdp") for each in made.keywords):
        return None
    return made


def scale_of_one(source: Source) -> Mistakes:
    """A configuration of DeepSpeed for FP16 whose loss scale is fixed at 1, which scales nothing."""
    for node in source.nodes if "deepspeed" in source.text.lower() else ():
        if not isinstance(node, ast.Dict):
            continue
        part = entry_of(node, "fp16")
        scale = entry_of(part, "loss_scale") if isinstance(part, ast.Dict) else None
        if not isinstance(part, ast.Dict) or scale is None or number(scale) != 1:
            continue
        if getattr(entry_of(part, "enabled"), "value", False) is True:
            yield (
                scale.lineno, "warning", L_(
                    "a loss scale that is fixed at 1 scales nothing: small gradients are zero in FP16"
                ),
                L_('"loss_scale": 0, which lets DeepSpeed find and change the scale'),
            )  # fmt: skip


def entry_of(table: ast.Dict, name: str) -> ast.expr | None:
    """The value of a key in a dictionary that is written out."""
    pairs = zip(table.keys, table.values, strict=True)
    return next((value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name), None)


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "fp16-weights-of-a-trainer": weights_of_a_trainer,
    "loss-scale-of-1": scale_of_one,
}
