"""Ratios of sums in FP16, as Dice and IoU of a whole picture."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.arguments import keyword, number
from precgui.lint.constants import constant, given_for
from precgui.lint.dtype_rules import enclosing_class
from precgui.lint.flow import (
    base,
    binding_before,
    cast_of,
    definition,
    handed_on,
    innermost_autocast,
    is_half,
    last_module,
    region_is_fp16,
    returned,
    weights_format,
)
from precgui.lint.fp16_range_rules import LOW_WORDS, is_outside_autocast, is_over_all
from precgui.lint.method_names import FP32_IN_AUTOCAST, SAME_FORMAT
from precgui.lint.origins import calls_of_module, given_to_forward, last_name, operand_of
from precgui.lint.source import Mistakes, Source
from precgui.sentences import L_, Sentence

_AFTER_A_SUM = {"clamp", "clamp_min", "float", "item", "mean", "squeeze", "detach", "cpu"}
_SCORES = {"sigmoid", "softmax", "mul"}
_SEGMENTATION = ("segmentation_models_pytorch.", "monai.networks.nets.")  # models that end in a convolution
_PRODUCT_LAYERS = ("torch.nn.Conv", "torch.nn.Linear")
_MOST_STEPS = 8  # from one expression to the next
_MOST_CALLS = 64  # of one module


def ratio_of_sums(source: Source) -> Mistakes:
    """A ratio of sums over all elements of scores that are certainly FP16, as Dice and IoU are."""
    if not any(word in source.text for word in (*LOW_WORDS, "autocast")):
        return
    told: set[ast.AST] = set()
    for node in source.nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or not _sums_in(source, node.left):
            continue
        low = [each for each in _sums_in(source, node.right) if _is_low_sum(source, each)]
        if low and low[0] not in told:
            told.add(low[0])
            yield (
                low[0].lineno, "warning", Sentence(
                    "a sum over all elements in the ratio of line {line} is FP16: beyond 65504, as of a large picture, "
                    "it is Inf, and the ratio is zero or NaN",
                    line=node.lineno,
                ),
                L_("widen the scores before the sums: scores.float()"),
            )  # fmt: skip


def _sums_in(source: Source, node: ast.expr) -> list[ast.Call]:
    """The sums over all elements that one side of a ratio is computed from, by names and by + and *."""
    found: list[ast.Call] = []
    pending = [node]
    for _ in range(4 * _MOST_STEPS):
        if not pending:
            break
        current = pending.pop(0)
        if isinstance(current, ast.Name) and (held := definition(source, current)) is not None:
            pending.append(held)
        elif isinstance(current, ast.BinOp):
            pending += [current.left, current.right]
        elif isinstance(current, ast.Call) and last_name(source, current) == "sum":
            operand = operand_of(source, current)
            if operand is not None and _is_over_picture(source, current, operand):
                found.append(current)
        elif isinstance(current, ast.Call) and last_name(source, current) in _AFTER_A_SUM:
            inner = operand_of(source, current)
            pending += [inner] if inner is not None else []
    return found


def _is_over_picture(source: Source, call: ast.Call, operand: ast.expr) -> bool:
    """Whether a sum is over all elements of a batch or of a sample, also behind `view(batch, -1)`."""
    if keyword(call, "dtype") is not None:
        return False
    return is_over_all(source, call, operand) or _is_flat(source, operand)


def _is_flat(source: Source, node: ast.expr) -> bool:
    """Whether all dimensions of a tensor, or all but those of the batch, are one."""
    shaped = definition(source, node) if isinstance(node, ast.Name) else node
    if isinstance(shaped, ast.BinOp):
        return _is_flat(source, shaped.left) or _is_flat(source, shaped.right)
    if not isinstance(shaped, ast.Call):
        return False
    last = shaped.args[-1] if shaped.args else None
    is_rest = last_name(source, shaped) in ("view", "reshape") and number(last) == -1
    return is_rest or last_name(source, shaped) == "flatten"


def _is_low_sum(source: Source, call: ast.Call) -> bool:
    operand = operand_of(source, call)
    return operand is not None and is_run_outside(source, call) and _is_half_score(source, operand, 0)


def is_run_outside(source: Source, node: ast.AST) -> bool:
    """As `is_outside_autocast`, also of `forward` of a module all of whose calls in this script are outside."""
    if is_outside_autocast(source, node):
        return True
    function, own = source.scope(node), enclosing_class(source, node)
    if own is None or getattr(function, "name", "") != "forward" or innermost_autocast(source, node) is not None:
        return False
    calls = [call for site in source.of(own.name)[:_MOST_CALLS] for call in calls_of_module(source, site)]
    return bool(calls) and all(is_outside_autocast(source, each) for each in calls)


def _is_half_score(source: Source, node: ast.expr, depth: int) -> bool:
    """As `is_half`, also of arguments that are FP16 in all calls, of scores, and of what a model in FP16 gives."""
    if depth > 2 * _MOST_STEPS:
        return False
    if is_half(source, node):
        return True
    if isinstance(node, ast.Name):
        held = definition(source, node)
        given = [held] if held is not None else _arguments_for(source, node)
        return bool(given) and all(_is_half_score(source, each, depth + 1) for each in given)
    if isinstance(node, ast.BinOp):
        sides = [each for each in (node.left, node.right) if constant(source, each) is None]
        return bool(sides) and all(_is_half_score(source, each, depth + 1) for each in sides)
    if isinstance(node, ast.Subscript):
        return _is_half_score(source, node.value, depth + 1)
    if not isinstance(node, ast.Call) or keyword(node, "dtype") is not None or cast_of(source, node) is not None:
        return False
    if last_name(source, node) in SAME_FORMAT | _SCORES:
        inner = operand_of(source, node)
        is_fp32 = last_name(source, node) in FP32_IN_AUTOCAST | {"softmax"} and not is_run_outside(source, node)
        return inner is not None and not is_fp32 and _is_half_score(source, inner, depth + 1)
    return _is_given_by_half_model(source, node)


def _arguments_for(source: Source, name: ast.Name) -> list[ast.expr]:
    """The expressions that all calls give for an argument that its function leaves alone; [] for other variables."""
    variable = source.variable(name)
    if variable is None or not isinstance(variable.scope, ast.FunctionDef) or binding_before(source, variable, name):
        return []
    return given_to_forward(source, name) or given_for(source, variable)


def _is_given_by_half_model(source: Source, call: ast.Call) -> bool:
    """Whether a call runs a model that ends in a convolution or a linear layer, in FP16: cast to it, or by autocast."""
    made = _made(source, call.func)
    if made is None or not _ends_in_product(source, made):
        return False
    around, model = innermost_autocast(source, call), source.variable(call.func)
    if around is not None:
        return region_is_fp16(source, around)
    state = weights_format(source, model, source.scope(call)) if model is not None else None
    return state is not None and state[0] == "fp16" and is_outside_autocast(source, call)


def _made(source: Source, node: ast.expr) -> ast.Call | None:
    """The call that makes the model in a variable, also in one that a function gets as an argument."""
    values = [definition(source, node) or node] if definition(source, node) is not None else handed_on(source, node)
    held = [definition(source, each) if isinstance(each, ast.Name) else each for each in values]
    made = base(held[0]) if len(held) == 1 and held[0] is not None else None
    return made if isinstance(made, ast.Call) else None


def _ends_in_product(source: Source, made: ast.Call) -> bool:
    if source.name_of(made.func).startswith(_SEGMENTATION):
        return keyword(made, "activation") is None
    own = source.classes.get(source.name_of(made.func))
    if own is None:
        last = last_module(source, made)
        return last is not None and _is_product_layer(source, last)
    given = returned(source, made)
    given = definition(source, given) if isinstance(given, ast.Name) else given
    layer = last_module(source, definition(source, given.func)) if isinstance(given, ast.Call) else None
    return layer is not None and _is_product_layer(source, layer)


def _is_product_layer(source: Source, layer: ast.Call) -> bool:
    return source.name_of(layer.func).startswith(_PRODUCT_LAYERS)


RULES: dict[str, Callable[[Source], Mistakes]] = {"ratio-of-sums-in-fp16": ratio_of_sums}
