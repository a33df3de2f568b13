"""The precision that a script gives to Lightning's Trainer, which runs the steps of its modules in autocast."""

from __future__ import annotations

import ast

from precgui.lint.arguments import keyword
from precgui.lint.source import Source

FP16_MIXED = ("16", "16-mixed")
_MIXED = (*FP16_MIXED, "bf16", "bf16-mixed")
_STEPS = ("training_step", "validation_step", "test_step", "predict_step", "forward")
_NOT_ON_CUDA = ("cpu", "mps", "tpu")


def trainer_precision(source: Source) -> str:
    """The precision of the one Trainer of a script that names one, as it is written out; '' where it is not certain."""
    makers = source.of("Trainer")
    given = keyword(makers[0].node, "precision") if len(makers) == 1 else None
    return str(given.value) if isinstance(given, ast.Constant) else ""


def steps_in_autocast(source: Source) -> list[ast.FunctionDef]:
    """The methods of Lightning's modules that a Trainer of this script runs in autocast, where it is not off CUDA."""
    if trainer_precision(source) not in _MIXED:
        return []
    device = keyword(source.of("Trainer")[0].node, "accelerator")
    if isinstance(device, ast.Constant) and device.value in _NOT_ON_CUDA:
        return []
    return [
        method
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and any(_is_lightning(source, each) for each in node.bases)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name in _STEPS
    ]


def _is_lightning(source: Source, base: ast.expr) -> bool:
    return source.name_of(base).rpartition(".")[2] == "LightningModule"
