"""Formats written into a script: deprecated names, masks that do not fit, TF32, cleared gradients."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.arguments import keyword
from precgui.lint.constants import constant
from precgui.lint.flow import (
    EXACT_UP_TO,
    SAME_MODEL,
    UNKNOWN,
    cast_of,
    comes_from_product,
    definition,
    dtype_of,
    handed_on,
    innermost_autocast,
    is_optimizer,
    model_format,
    region_is_fp16,
    statement,
    trains,
    weights_format,
    whole_chain,
)
from precgui.lint.lightning import FP16_MIXED, trainer_precision
from precgui.lint.method_names import PRODUCTS, SAME_FORMAT
from precgui.lint.origins import last_name, operand_of, origins
from precgui.lint.source import CallSite, Function, Mistakes, Source, is_disabled
from precgui.sentences import L_, Sentence

_FP16_LARGEST = 65504.0
_TF32_ROUNDOFF = 2.0**-11
_SWITCHES_OLD = ("allow_tf32", "set_float32_matmul_precision")
_SWITCHES_NEW = ("fp32_precision",)
_CONTAINERS = SAME_MODEL | {"Sequential"}
_MOST_LEVELS = 4  # of classes that hold one another: attention, block, transformer, model
_MOST_OBJECTS = 8  # of one class
_MOST_STEPS = 8  # from one definition to the next
_MOST_CALLS = 64  # of one function
_MOST_VALUES = 64  # that one tensor is computed from
_KEEP_FP32 = {"masked_fill", "masked_fill_", "add", "sub", "mul", "div", "add_", "mul_", "div_", "where"}


def class_format(source: Source, own: ast.ClassDef, level: int = 0) -> str:
    """The format in 16 bits that the script certainly casts an object of a class to, or one that holds it; else ''."""
    if level == _MOST_LEVELS:
        return ""
    made = [site.node for site in source.of(own.name) if site.name == own.name][:_MOST_OBJECTS]
    formats = [_format_of_object(source, each, level) for each in made]
    return next((each for each in formats if each in EXACT_UP_TO), "")


def _format_of_object(source: Source, made: ast.Call, level: int) -> str:
    """The format that an object ends in: cast in one expression, by its variable, or with the object that holds it."""
    whole: ast.AST = whole_chain(source, made)
    for _ in range(_MOST_LEVELS):
        around = source.parent(whole)
        if model_format(source, whole) or not isinstance(around, ast.Call) or whole is around.func:
            break
        if source.name_of(around.func).rpartition(".")[2] not in _CONTAINERS:
            break
        whole = whole_chain(source, around)
    if text := model_format(source, whole):
        return text
    assigned = statement(source, made)
    variable = source.variable(assigned.targets[0]) if isinstance(assigned, ast.Assign) else None
    if variable is not None and isinstance(assigned, ast.Assign) and assigned.value is whole:
        state = weights_format(source, variable, source.scope(made))
        if state is not None:
            return state[0]
    holder = enclosing_class(source, made)
    return class_format(source, holder, level + 1) if holder is not None else ""


def enclosing_class(source: Source, node: ast.AST) -> ast.ClassDef | None:
    """The class whose method a node is in, directly."""
    method = source.scope(node)
    while isinstance(method, ast.Lambda):
        method = source.scope(method)
    above = source.parent(method) if isinstance(method, Function) else None
    return above if isinstance(above, ast.ClassDef) else None


def deprecated_amp(source: Source) -> Mistakes:
    """torch.cuda.amp and torch.cpu.amp, deprecated since 2.4."""
    lines: dict[int, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module in ("torch.cuda.amp", "torch.cpu.amp"):
            lines[node.lineno] = node.module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            name = source.name_of(node)
            if name.startswith(("torch.cuda.amp.", "torch.cpu.amp.")):
                lines.setdefault(node.lineno, name.rpartition(".")[0])
    for line, name in lines.items():
        device = name.split(".")[1]
        yield (
            line, "warning", Sentence("{name} is deprecated", name=name),
            Sentence('torch.amp.autocast("{device}", ...) and torch.amp.GradScaler("{device}")', device=device),
        )  # fmt: skip


def scaler_with_bf16(source: Source) -> Mistakes:
    """A scaler beside autocast to BF16, which has the range of FP32."""
    given = [keyword(call, "dtype", 1) for _, call in source.autocasts]
    if not given or any(dtype_of(source, each) != "bf16" for each in given):
        return
    for scaler, calls in source.scalers.items():
        if keyword(calls[0], "enabled") is None and scaler.last_part not in source.disabled_scalers:
            yield (
                calls[0].lineno, "info", Sentence(
                    "the scaler {scaler} is not needed: BF16 has the range of FP32",
                    scaler=scaler,
                ),
                L_("leave it out, or enabled=(dtype == torch.float16)"),
            )  # fmt: skip


def large_mask(source: Source) -> Mistakes:
    """A finite mask value beyond FP16, in a script with autocast to FP16 or in a model that is cast to it."""
    fp16 = bool(source.scalers) or trainer_precision(source) in FP16_MIXED
    fp16 = fp16 or any(region_is_fp16(source, call) for _, call in source.autocasts)
    for site in source.of("masked_fill", "masked_fill_"):
        value = constant(source, keyword(site.node, "value", 2 if site.name.startswith("torch.") else 1))
        if value is None or not _FP16_LARGEST < abs(value) < float("inf"):
            continue
        if (fp16 and not _is_laid_on_fp32(source, site)) or _is_of_half_model(source, site):
            yield (
                site.line, "warning", Sentence(
                    "a mask of {value:g} does not fit into FP16 (65504): torch raises, or it becomes Inf",
                    value=value,
                ),
                L_('float("-inf") in a row that is not masked completely, or torch.finfo(scores.dtype).min'),
            )  # fmt: skip


def _masked(site: CallSite) -> ast.expr | None:
    is_function = site.name.startswith("torch.")
    operand = site.node.func.value if isinstance(site.node.func, ast.Attribute) and not is_function else None
    return keyword(site.node, "input", 0) if is_function else operand


def _is_laid_on_fp32(source: Source, site: CallSite) -> bool:
    """Whether a mask is laid on a tensor that autocast to FP16 certainly left in FP32, or that is cast to it."""
    operand, around = _masked(site), innermost_autocast(source, site.node)
    if operand is None:
        return False
    if _is_fp32(source, operand):
        return True
    outside = (
        not may_run_in_autocast(source, source.scope(site.node)) if around is None else is_disabled(source, around)
    )
    return outside and not _may_come_from_autocast(source, operand)


def _is_fp32(source: Source, node: ast.AST | None, depth: int = 0) -> bool:
    """Whether a tensor is certainly FP32 or FP64 in whatever region of autocast: cast to it, or computed from one by
    operations that keep the format or widen the other operand."""
    for _ in range(2 * _MOST_STEPS if depth < _MOST_STEPS else 0):
        if node is None or (cast := cast_of(source, node)) is not None:
            return node is not None and cast is not None and cast[0] in ("fp32", "fp64")
        if isinstance(node, ast.Name):
            node = definition(source, node)
        elif isinstance(node, ast.BinOp):
            sides = (node.left, node.right)
            return not isinstance(node.op, ast.MatMult) and any(_is_fp32(source, each, depth + 2) for each in sides)
        elif isinstance(node, ast.UnaryOp):
            node = node.operand
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            own = source.name_of(node.func).startswith("torch.")
            is_kept = node.func.attr in SAME_FORMAT or node.func.attr in _KEEP_FP32
            if not is_kept or keyword(node, "dtype") is not None or (own and not node.args):
                return False
            node = node.args[0] if own else node.func.value
        else:
            return False
    return False


def may_run_in_autocast(source: Source, scope: ast.AST, level: int = 0) -> bool:
    """Whether the code of a function, outside of its own regions, may be run in a region of autocast: it is a method of
    a class or is handed on, or a call of it is in such a region."""
    if isinstance(scope, ast.Module):
        return False
    if not isinstance(scope, ast.FunctionDef) or level == _MOST_LEVELS or scope.name not in source.functions:
        return True
    if isinstance(source.parent(scope), ast.ClassDef) and scope.name in ("forward", "__call__"):
        return True
    calls = source.of(scope.name)
    if not calls:  # somebody else's, unless it enters autocast by itself
        return not any(source.scope(region) is scope for region, _ in source.autocasts)
    is_handed_on = any(
        isinstance(each, ast.Name) and each.id == scope.name and not isinstance(source.parent(each), ast.Call)
        for each in source.nodes
    )  # fmt: skip
    if is_handed_on or scope.decorator_list:
        return True
    for site in calls[:_MOST_CALLS]:
        around = innermost_autocast(source, site.node)
        if around is not None and not is_disabled(source, around):
            return True
        if around is None and may_run_in_autocast(source, source.scope(site.node), level + 1):
            return True
    return False


def _may_come_from_autocast(source: Source, operand: ast.expr) -> bool:
    """Whether a tensor may have been computed in a region of autocast, which left it in FP16."""
    pending: list[ast.AST] = [operand]
    known: set[ast.AST] = set()
    while pending and len(known) < _MOST_VALUES:
        node = pending.pop()
        if node in known or _is_fp32(source, node):
            continue
        known.add(node)
        around = innermost_autocast(source, node)
        if around is not None and not is_disabled(source, around):
            return True
        if isinstance(node, ast.Name):
            variable, certain = source.variable(node), definition(source, node)
            place, held = source.places[node], handed_on(source, node)
            values = [certain] if certain is not None else [each for each in held if not source.contains(each, place)]
            bindings = source.variables.assignments(variable) if variable is not None else []
            parts = [each.node for each in bindings if each.value is None]
            if not (values or parts) or any(innermost_autocast(source, each) is not None for each in parts):
                return True
            pending += values
        else:
            pending += _operands(source, node, is_fp32=around is not None)
    return False


def _operands(source: Source, node: ast.AST, is_fp32: bool) -> list[ast.expr]:
    """The tensors that an expression is computed from. A module refuses FP16 where autocast is off (`is_fp32`)."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.UnaryOp(operand=value) | ast.Subscript(value=value):
            return [value]
        case ast.IfExp(body=body, orelse=other):
            return [body, other]
        case ast.Call(func=func, args=given):
            name = source.name_of(func)
            if (name.startswith("self.") and is_fp32) or name.rpartition(".")[2] in source.functions:
                return []
            if isinstance(func, ast.Attribute) and not name.startswith(("torch.", "self.")):
                return [func.value, *(given if func.attr in PRODUCTS else [])]
            return given
    return []


def _is_of_half_model(source: Source, site: CallSite) -> bool:
    """Whether a mask is laid on a product that a model of the script computes, one of which is certainly cast to FP16:
    without autocast, and without another cast before the mask."""
    own = enclosing_class(source, site.node)
    if own is None or source.autocasts or class_format(source, own) != "fp16":
        return False
    before = [each for each in source.inside(source.scope(site.node)) if each.place <= source.end(site.node)]
    casts = [cast for each in before if (cast := cast_of(source, each.node)) is not None]
    if any(text != "fp16" for text, _ in casts) or any(each.method == "type_as" for each in before):
        return False
    return comes_from_product(source, _masked(site))


def tf32(source: Source) -> Mistakes:
    """Both ways to switch TF32 in one script; or none in one that trains in FP32 on CUDA."""
    names = [(node, source.name_of(node)) for node in source.nodes if isinstance(node, ast.Attribute)]
    old = [node for node, name in names if name.startswith("torch.") and name.rpartition(".")[2] in _SWITCHES_OLD]
    new = [
        node for node, name in names if name.startswith("torch.backends") and name.rpartition(".")[2] in _SWITCHES_NEW
    ]
    if old and new and not any(isinstance(above, ast.If | ast.Try) for node in (old[0], new[0])
                               for above in source.above(node)):  # fmt: skip
        yield (
            old[0].lineno, "warning", L_(
                "TF32 is switched by the old and by the new interface: torch raises when the old one is read"
            ),
            L_("use fp32_precision only"),
        )  # fmt: skip
    mixed = source.autocasts or source.scalers or any(
        cast is not None and cast[0] == "fp16" for site in source.of("half", "to", "type")
        for cast in [cast_of(source, site.node)]
    ) or any(model_format(source, site.node) not in ("", "fp32") for site in source.of("from_pretrained"))  # fmt: skip
    cuda = [site for site in source.calls if site.method == "cuda" or any(
        isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith("cuda")
        for each in site.node.args)]  # fmt: skip
    if not old and not new and not mixed and cuda and trains(source) and source.of("step"):
        yield (
            cuda[0].line, "info", L_(
                "trains in FP32 on CUDA and says nothing of TF32: off in products, on in convolutions"
            ),
            L_('torch.backends.fp32_precision = "tf32" for speed, "ieee" for true FP32'),
        )  # fmt: skip


def tf32_below_jitter(source: Source) -> Mistakes:
    """TF32 for matrix products, whose rounding exceeds the jitter of a matrix that is factored by Cholesky."""
    switch = _switch_to_tf32(source) if source.of("cholesky", "cholesky_ex") else None
    if switch is None:
        return
    for site in source.of("cholesky", "cholesky_ex")[:_MOST_CALLS]:
        operand = operand_of(source, site.node)
        below = [part for each in origins(source, operand) for part in source.walk(each)] if operand is not None else []
        casts = [cast_of(source, each) for each in below]
        if any(each is not None and each[0] in ("fp64", UNKNOWN) for each in casts) or "float64" in source.text:
            continue
        jitter = [found for each in below if (found := _jitter(source, each)) is not None]
        if jitter and max(jitter) < _TF32_ROUNDOFF and any(_is_product(source, each) for each in below):
            yield (
                switch.lineno, "warning", Sentence(
                    "products are computed in TF32, whose rounding of up to 5e-4 exceeds the jitter of {jitter:g} in "
                    "line {line}: the matrix may have negative eigenvalues, and Cholesky fails",
                    jitter=max(jitter), line=site.line,
                ),
                L_("compute the matrix in FP64, or keep TF32 off for it"),
            )  # fmt: skip
            return


def _switch_to_tf32(source: Source) -> ast.stmt | None:
    """The last statement that switches TF32 on for matrix products, where none switches it off."""
    found: ast.stmt | None = None
    for node in source.nodes:
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            name = source.name_of(node.targets[0])
            if not name.startswith("torch.backends") or "cudnn" in name:
                continue
            value = node.value if name.endswith(("matmul.allow_tf32", "fp32_precision")) else None
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = source.name_of(node.value.func)
            value = keyword(node.value, "precision", 0) if called == "torch.set_float32_matmul_precision" else None
        if value is None or not isinstance(node, ast.stmt):
            continue
        if not isinstance(value, ast.Constant) or value.value not in (True, "tf32", "high", "medium"):
            return None
        found = node
    return found


def _jitter(source: Source, node: ast.AST) -> float | None:
    """The number on the diagonal: the c of `c * torch.eye(n)`, `torch.eye(n) * c` and `x.diagonal().add_(c)`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Call) and last_name(source, one) in ("eye", "eye_like"):
                return constant(source, other)
    if isinstance(node, ast.Call) and last_name(source, node) == "add_" and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Call) and last_name(source, owner) == "diagonal" and node.args:
            return constant(source, node.args[0])
    if isinstance(node, ast.Call) and last_name(source, node) == "eye":
        above = source.parent(node)
        return None if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mult) else 1.0
    return None


def _is_product(source: Source, node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and last_name(source, node) in PRODUCTS | {"cdist"}


def gradients_not_cleared(source: Source) -> Mistakes:
    """backward() and step() in a loop, and gradients are never set to zero."""
    steps = [
        site for site in source.of("step")
        if (not site.node.args and is_optimizer(source, site)) or source.owner(site) in source.scaling
    ]  # fmt: skip
    looped = [site for site in steps if source.repeats(site.node) and not _is_created_anew(source, site)]
    cleared = source.of("zero_grad", "zero_grad_", "zero_gradients", "clear_grad") or any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Store)
        for node in source.nodes
    ) or any(site.owner.endswith(".grad") for site in source.of("zero_", "fill_", "detach_"))  # fmt: skip
    direct = [site for site in source.of("backward") if site.owner and source.repeats(site.node)]
    if looped and direct and not cleared:
        yield (
            looped[0].line,
            "error",
            L_("gradients are never cleared: each step adds to those before"),
            "optimizer.zero_grad()",
        )


def _is_created_anew(source: Source, step: CallSite) -> bool:
    """Whether the optimizer of a step is created in the same pass of the loop, for new tensors."""
    variable = source.owner(step)
    created = source.variables.assignments(variable) if variable is not None else []
    loop = source.loop(step.node)
    return any(
        source.scope(each.node) is source.scope(step.node) and source.loop(each.node) is loop for each in created
    )  # fmt: skip


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "deprecated-amp": deprecated_amp,
    "scaler-with-bf16": scaler_with_bf16,
    "mask-beyond-fp16": large_mask,
    "tf32-unawares": tf32,
    "tf32-below-jitter": tf32_below_jitter,
    "gradients-not-cleared": gradients_not_cleared,
}
