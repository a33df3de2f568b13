"""A look at training scripts as text: mistakes in mixed precision that the source shows. Nothing is run or imported."""

from precgui.lint.check import LINT_RULES, ScriptError, ScriptFinding, check

__all__ = ["LINT_RULES", "ScriptError", "ScriptFinding", "check"]
