"""Static analysis of training scripts: mistakes in mixed precision. Nothing is run or imported."""

from precgui.lint.check import LINT_RULES, ScriptError, ScriptFinding, check

__all__ = ["LINT_RULES", "ScriptError", "ScriptFinding", "check"]
