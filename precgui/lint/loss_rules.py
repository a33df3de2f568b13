"""Losses, dropout and functions of probabilities that lose digits, or that are not the ones that are meant."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import islice

from precgui.lint.arguments import keyword, number
from precgui.lint.constants import constant
from precgui.lint.flow import cast_of, definition, dtype_of, is_half, operation, region_is_fp16
from precgui.lint.lightning import steps_in_autocast
from precgui.lint.method_names import FP32_IN_AUTOCAST, SAME_VALUES
from precgui.lint.origins import calls_in, last_name, origins
from precgui.lint.shapes import trailing_shape
from precgui.lint.source import CallSite, Mistakes, Source, is_disabled
from precgui.lint.variables import Variable, path_text
from precgui.sentences import L_, Sentence

_SENSITIVE = (
    "softmax", "log_softmax", "cross_entropy", "nll_loss", "kl_div", "mse_loss", "binary_cross_entropy_with_logits",
    "binary_cross_entropy", "logsumexp", "layer_norm", "normalize",
)  # fmt: skip
_OF_DRAWN = SAME_VALUES | {"randn", "softmax", "sigmoid", "log_softmax", "exp", "cuda"}
_MOST_VALUES = 16  # that are assigned to one variable
_MOST_CALLS = 64  # of one kind in a script
_DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip
_ON_PURPOSE = ("mcdropout", "montecarlo")  # without spaces and underscores
_HALF_SMALLEST = 2.0**-25  # what is not larger is rounded to zero in FP16
_LOW_RESULTS = ("sigmoid", "tanh", "std", "var", "mean")  # of operations that autocast leaves in FP16
_STABLE = {
    "log softmax": (
        L_("the logarithm of softmax is -Inf where a probability is rounded to zero"),
        "log_softmax(logits)",
    ),
    "log sigmoid": (L_("the logarithm of sigmoid is -Inf where it is rounded to zero"), "logsigmoid(logits)"),
    "1 - softmax": (
        L_("log(1 - p) of a softmax is -Inf where a probability is rounded to 1"),
        L_("logsumexp over the other logits, minus logsumexp over all"),
    ),
    "1 - sigmoid": (L_("log(1 - p) of a sigmoid is -Inf where p is rounded to 1"), "logsigmoid(-logits)"),
}
_TANH = (
    L_("log(1 - tanh(x)^2) is -Inf where tanh(x) is rounded to 1"), "2 * (log(2) - x - softplus(-2 * x))",
)  # fmt: skip


def low_by_hand(source: Source) -> Mistakes:
    """Softmax, a norm or a loss of operands that were cast to FP16 by hand."""
    for site in source.of(*_SENSITIVE):
        operands = [*site.node.args, *(each.value for each in site.node.keywords if each.arg == "input")]
        if site.method in ("softmax", "log_softmax", "logsumexp") and isinstance(site.node.func, ast.Attribute):
            operands.append(site.node.func.value)
        dtype = keyword(site.node, "dtype")
        is_half = [cast[0] == "fp16" for each in operands if (cast := cast_of(source, each)) is not None]
        if (dtype is None and any(is_half)) or dtype_of(source, dtype) == "fp16":
            yield (
                site.line, "warning", Sentence(
                    "{method} is computed in FP16 by hand: exp and sums overflow at 65504",
                    method=site.method,
                ),
                L_("leave the operands in FP32 (.float()), or let autocast choose"),
            )  # fmt: skip


def log_of_probability(source: Source) -> Mistakes:
    """The logarithm of a softmax or a sigmoid, or of one minus it, without an epsilon."""
    for site in source.of("log", "log2", "log10", "log1p"):
        if site.name in source.functions:
            continue  # one of the script, which may add an epsilon
        if site.name.startswith(("torch.", "log")) and site.node.args:
            operand: ast.expr = site.node.args[0]
        elif isinstance(site.node.func, ast.Attribute) and not site.node.args:
            operand = site.node.func.value
        else:
            continue
        named = _named_of(source, site, operand)
        if named is not None and not _is_selected(source, site) and not _is_drawn(source, operand):
            yield site.line, "warning", named[0], named[1]


def _is_drawn(source: Source, operand: ast.expr) -> bool:
    """Whether a probability is that of numbers drawn from a normal distribution, which are small, as in a test."""
    names = {last_name(source, each) for each in calls_in(source, origins(source, operand))}
    return "randn" in names and names <= _OF_DRAWN


def _is_selected(source: Source, site: CallSite) -> bool:
    """Whether the logarithm is an argument of torch.where, which leaves out the elements that it is not meant for."""
    above = islice(source.above(site.node), _MOST_VALUES)
    return any(isinstance(each, ast.Call) and source.name_of(each.func).endswith("where") for each in above)


def _named_of(source: Source, site: CallSite, operand: ast.expr) -> tuple[str, str] | None:
    if isinstance(operand, ast.Name) and isinstance(value := definition(source, operand), ast.BinOp):
        operand = value
    if site.method == "log1p":
        is_negative = isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.USub)
        return _of_complement(source, operand.operand) if is_negative and isinstance(operand, ast.UnaryOp) else None
    if isinstance(operand, ast.BinOp) and isinstance(operand.op, ast.Sub):
        return _of_complement(source, operand.right) if number(operand.left) == 1.0 else None
    return _STABLE.get(f"log {operation(source, operand)}")


def _of_complement(source: Source, node: ast.expr) -> tuple[str, str] | None:
    """The mistake in log(1 - node)."""
    square: ast.AST | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and number(node.right) == 2.0:
        square = node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("pow", "square"):
        square = node.func.value if path_text(node.func.value) != "torch" else next(iter(node.args), None)
    if square is not None:
        return _TANH if operation(source, square) == "tanh" else None
    return _STABLE.get(f"1 - {operation(source, node)}")


def _loss_calls(source: Source, function: str, module: str) -> list[CallSite]:
    """Calls of a loss: torch's function, or an object of its class, told apart by scope."""
    sites = [site for site in source.of(function) if site.name.startswith("torch.") or site.name == function]
    makers = source.of(module)
    if not makers:
        return sites
    for site in source.calls:
        if isinstance(site.node.func, ast.Call):
            if source.name_of(site.node.func.func).rpartition(".")[2] == module:
                sites.append(site)
        elif (variable := source.variable(site.node.func)) is not None and _holds(source, variable, module):
            sites.append(site)
    return sites


def _holds(source: Source, variable: Variable, module: str) -> bool:
    """Whether all that is assigned to a variable are objects of one class."""
    values = [_without_moves(each) for each in source.variables.values(variable)[:_MOST_VALUES]]
    return bool(values) and all(
        isinstance(each, ast.Call) and source.name_of(each.func).rpartition(".")[2] == module for each in values
    )


def _without_moves(node: ast.expr | None) -> ast.expr | None:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda"):
        node = node.func.value
    return node


def applied_twice(source: Source) -> Mistakes:
    """Softmax before cross entropy, or sigmoid before binary cross entropy with logits, which apply it themselves."""
    for function, module, before in (
        ("cross_entropy", "CrossEntropyLoss", "softmax"),
        ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss", "sigmoid"),
    ):
        for site in _loss_calls(source, function, module):
            given = keyword(site.node, "input", 0)
            if given is not None and operation(source, given) == before:
                yield (
                    site.line, "error", Sentence(
                        "{before} is applied twice: {function} applies it to its input, too",
                        before=before, function=function,
                    ),
                    Sentence(
                        "give the logits to {function}, without {before}",
                        function=function, before=before,
                    ),
                )  # fmt: skip


def broadcast_loss(source: Source) -> Mistakes:
    """A mean squared error of [B] against [B, 1], which broadcasts to [B, B]."""
    for function, module in (("mse_loss", "MSELoss"), ("l1_loss", "L1Loss"), ("smooth_l1_loss", "SmoothL1Loss"),
                             ("huber_loss", "HuberLoss")):  # fmt: skip
        for site in _loss_calls(source, function, module):
            given = [keyword(site.node, "input", 0), keyword(site.node, "target", 1)]
            shapes = {trailing_shape(source, each) for each in given if each is not None}
            if shapes == {"[B]", "[B, 1]"}:
                yield (
                    site.line, "error", Sentence(
                        "{function} compares [B] with [B, 1]: it broadcasts to [B, B]",
                        function=function,
                    ),
                    L_("give both the same shape: prediction.squeeze(1), or target.unsqueeze(1)"),
                )  # fmt: skip


def bce_in_autocast(source: Source) -> Mistakes:
    """Binary cross entropy of probabilities inside autocast, which torch refuses on CUDA."""
    losses = {site.node for site in _loss_calls(source, "binary_cross_entropy", "BCELoss")}
    regions = [region for region, call in source.autocasts if not is_disabled(source, call)]
    for region in [*regions, *steps_in_autocast(source)] if losses else ():
        for site in source.inside(region):
            if site.node in losses and not _in_disabled(source, site, region):
                yield (
                    site.line, "error", L_(
                        "binary cross entropy of probabilities inside autocast: torch refuses it on CUDA"
                    ),
                    L_("binary_cross_entropy_with_logits (BCEWithLogitsLoss) on the logits"),
                )  # fmt: skip


def _in_disabled(source: Source, site: CallSite, region: ast.AST) -> bool:
    disabled = source.cached("disabled", lambda: {node for node, call in source.autocasts if is_disabled(source, call)})
    return any(each in disabled for each in source.above(site.node) if each is not region)


def vanishing_epsilon(source: Source) -> Mistakes:
    """An epsilon that FP16 rounds to zero, added to a value in FP16."""
    low_regions = {node for node, call in source.autocasts if region_is_fp16(source, call)}
    for node in source.nodes:
        operand, eps = _with_epsilon(source, node)
        if operand is None or eps is None or not 0 < eps <= _HALF_SMALLEST:
            continue
        low = is_half(source, operand, autocast=bool(source.autocasts))
        if not low and low_regions and any(each in low_regions for each in source.above(node)):
            low = operation(source, operand) in _LOW_RESULTS and not _is_of_fp32(source, operand)
        if low:
            yield (
                getattr(node, "lineno", 1), "warning", Sentence(
                    "an epsilon of {eps:g} is zero in FP16: it does not protect from a division by zero or log(0)",
                    eps=eps,
                ),
                L_("an epsilon of 1e-4, or .float() before it is added"),
            )  # fmt: skip


def _is_of_fp32(source: Source, node: ast.expr) -> bool:
    """Whether a tensor is a statistic of a power, sum or cast that is in FP32 in a region of autocast on CUDA."""
    if operation(source, node) not in ("std", "var", "mean"):
        return False
    written = definition(source, node) if isinstance(node, ast.Name) else node
    below = source.walk(written) if written is not None else []
    calls = {each.func.attr for each in below if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)}
    powers = any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Pow) for each in below)
    return powers or bool(calls & {*FP32_IN_AUTOCAST, "float", "double"})


def _with_epsilon(source: Source, node: ast.AST) -> tuple[ast.expr | None, float | None]:
    """The tensor and the number of `x + eps`, `x.clamp(min=eps)` and `normalize(x, eps=eps)`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        right = constant(source, node.right)
        return (node.left, right) if right is not None else (node.right, constant(source, node.left))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("clamp", "clamp_min", "clip", "clamp_"):
            return node.func.value, constant(source, keyword(node, "min", 0))
        if node.func.attr == "normalize" and node.args:
            return node.args[0], constant(source, keyword(node, "eps", 3))
    return None, None


def dropout_in_evaluation(source: Source) -> Mistakes:
    """A function for dropout in a module that does not hear of eval(), which the script calls."""
    if not any(site.owner and not site.node.args for site in source.of("eval")):
        return
    text = source.text.lower().replace("_", "").replace(" ", "")
    if any(word in text for word in _ON_PURPOSE):
        return
    for site in source.of(*_DROPOUTS, "scaled_dot_product_attention")[:_MOST_CALLS]:
        function, call = source.scope(site.node), site.node
        own = source.parent(function)
        is_module = isinstance(own, ast.ClassDef) and any(source.name_of(each).endswith("Module") for each in own.bases)
        if not is_module or not site.name.startswith("torch.nn.functional."):
            continue
        rate = keyword(call, "p", 1) if site.method in _DROPOUTS else keyword(call, "dropout_p", 4)
        if site.method in _DROPOUTS and keyword(call, "training", 2) is not None:
            continue
        if any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
            continue
        if site.method not in _DROPOUTS and not _is_rate(source, rate):
            continue
        if constant(source, rate) == 0 or _hears_of_training(source, function, rate):
            continue
        yield (
            site.line, "warning", Sentence(
                "{method} drops elements after model.eval(), too: it is not told whether the module trains",
                method=site.method,
            ),
            L_("training=self.training, or a module (torch.nn.Dropout)") if site.method in _DROPOUTS
            else L_("dropout_p=p if self.training else 0.0"),
        )  # fmt: skip


def _is_rate(source: Source, rate: ast.expr | None) -> bool:
    """Whether a rate is written out or an attribute; as an argument it may be 0 in evaluation."""
    return rate is not None and (isinstance(rate, ast.Attribute) or constant(source, rate) is not None)


def _hears_of_training(source: Source, function: ast.AST, rate: ast.expr | None) -> bool:
    """Whether the function of a call, or the value of its rate, asks whether the module trains."""
    variable = source.variable(rate) if rate is not None else None
    values = source.variables.values(variable)[:_MOST_VALUES] if variable is not None else []
    below = [*source.walk(function), *(part for each in values if each is not None for part in source.walk(each))]
    return any((isinstance(each, ast.Attribute) and each.attr == "training")
               or (isinstance(each, ast.Name | ast.arg) and "train" in getattr(each, "id", getattr(each, "arg", "")))
               for each in below)  # fmt: skip


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "fp16-by-hand": low_by_hand,
    "log-of-probability": log_of_probability,
    "applied-twice": applied_twice,
    "broadcast-loss": broadcast_loss,
    "bce-in-autocast": bce_in_autocast,
    "epsilon-below-fp16": vanishing_epsilon,
    "dropout-in-evaluation": dropout_in_evaluation,
}
