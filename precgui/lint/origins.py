"""Where a value comes from: the expressions that it is computed from, and whether it is differentiated."""

from __future__ import annotations

import ast

from precgui.lint.arguments import keyword
from precgui.lint.flow import definition, handed_on, last_module, trains
from precgui.lint.method_names import SAME_VALUES
from precgui.lint.source import CallSite, Source
from precgui.lint.variables import Variable

_MOST_ORIGINS = 96  # of one value
_MOST_DEPTH = 24  # from one expression to the next
_MOST_CALLS = 32  # of one module or function
_WITHOUT_GRADIENT = {
    "detach", "item", "numpy", "tolist", "argmax", "argmin", "argsort", "long", "int", "bool", "byte", "size", "dim",
    "numel", "sign", "round", "floor", "ceil", "one_hot", "eq", "ne", "gt", "ge", "lt", "le", "isnan", "isfinite",
    "zeros_like", "ones_like", "empty_like", "full_like", "randn_like", "rand_like", "len", "range", "state_dict",
    "zeros", "ones", "eye", "arange", "rand", "randn", "randint", "linspace", "multinomial", "bernoulli", "sample",
    "nonzero", "bincount", "searchsorted", "logical_not", "new_zeros", "new_ones", "new_full", "print", "str",
}  # fmt: skip
_TRUTHS = {"eq", "ne", "gt", "ge", "lt", "le", "bool", "isnan", "isinf", "isfinite"}
_WHOLE = {"long", "int", "byte", "item", "expand", "repeat"}
_PLAIN_ATTRIBUTES = {"shape", "dtype", "device", "grad", "data", "ndim", "indices", "training", "is_cuda"}
_NO_GRADIENT = ("no_grad", "inference_mode")
_WITHOUT_WEIGHTS = {  # classes of torch.nn in lower case
    "relu", "leakyrelu", "gelu", "elu", "silu", "sigmoid", "tanh", "softmax", "logsoftmax", "softplus", "dropout",
    "flatten", "identity", "maxpool2d", "avgpool2d", "adaptiveavgpool2d", "upsample", "unflatten", "pairwisedistance",
    "cosinesimilarity", "parameter", "parameterlist", "dataparallel", "distributeddataparallel",
}  # fmt: skip
_ENDS_WITHOUT_WEIGHTS = ("loss", "pool1d", "pool2d", "pool3d", "dropout2d")
_MADE_ELSEWHERE = ("from_pretrained", "create_model", "torch.hub.load")
_OF_MODELS = {"forward", "encode", "decode", "encoder", "decoder", "module", "features", "backbone", "embed"}


def origins(source: Source, node: ast.AST) -> list[ast.AST]:
    """The expressions that a value is computed from, itself first: through variables, arguments that calls of this
    script give, and functions of this script."""
    found: dict[ast.AST, None] = {node: None}
    for each in (queue := [node]):  # which grows
        if len(found) >= _MOST_ORIGINS:
            break
        more: list[ast.expr] = []
        for part in source.walk(each)[:_MOST_ORIGINS]:
            if isinstance(part, ast.Name | ast.Attribute):
                certain = definition(source, part)
                more += [certain] if certain is not None else handed_on(source, part)[:_MOST_CALLS]
                more += given_to_forward(source, part) if certain is None else []
            elif isinstance(part, ast.Call):
                more += returns_of(source, part)
        fresh = [other for other in more if other not in found]
        found |= dict.fromkeys(fresh)
        queue += fresh
    return list(found)


def calls_in(source: Source, nodes: list[ast.AST]) -> list[ast.Call]:
    """The calls below nodes."""
    return [part for each in nodes for part in source.walk(each) if isinstance(part, ast.Call)]


def last_name(source: Source, call: ast.Call) -> str:
    """The last part of the name of what is called, also of a method of an expression: `x.sum(1).log()` is `log`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else source.name_of(call.func).rpartition(".")[2]


def operand_of(source: Source, call: ast.Call) -> ast.expr | None:
    """The tensor that a function of torch or a method is applied to: `x` in torch.log(x) and x.log()."""
    if isinstance(call.func, ast.Attribute) and not _is_of_torch(source, call.func):
        return None if source.name_of(call.func).startswith(("numpy.", "np.", "math.")) else call.func.value
    if not source.name_of(call.func).startswith("torch."):
        return None
    return keyword(call, "input", 0)


def arguments_of(source: Source, call: ast.Call) -> list[ast.expr]:
    """The other arguments by place, behind the tensor that a function of torch or a method is applied to."""
    return call.args[1:] if _is_of_torch(source, call.func) else call.args


def _is_of_torch(source: Source, func: ast.expr) -> bool:
    return source.name_of(func).startswith("torch.")


def is_truth(source: Source, node: ast.AST | None) -> bool:
    """Whether a tensor is one of truth values: of a comparison, or of operations on such, whatever it is cast to and
    in whatever shape."""
    for _ in range(_MOST_DEPTH):
        match node:
            case ast.Name():
                node = definition(source, node)
            case ast.Subscript(value=value):
                node = value
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in SAME_VALUES | _WHOLE:
                node = value
            case ast.Call():
                name = last_name(source, node)
                return name in _TRUTHS or name.startswith("logical_")
            case ast.BinOp(op=op):
                return isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor)
            case ast.UnaryOp(op=op):
                return isinstance(op, ast.Invert | ast.Not)
            case _:
                return isinstance(node, ast.Compare | ast.BoolOp)
    return False


def returns_of(source: Source, call: ast.Call) -> list[ast.expr]:
    """The expressions that a function or method of this script returns which a call names."""
    is_own = isinstance(call.func, ast.Name) or source.name_of(call.func).startswith("self.")
    function = source.functions.get(last_name(source, call)) if is_own else None
    if function is None:
        return []
    return source.cached(("returns", function), lambda: [
        each.value for each in source.walk(function) if isinstance(each, ast.Return) and each.value is not None
        and source.scope(each) is function
    ])  # fmt: skip


def is_without_gradients(source: Source, node: ast.AST) -> bool:
    """Whether an expression is in torch.no_grad(), in a function that is decorated with it, or whose calls all are."""
    for level in range(3):
        if any(isinstance(each, ast.With) and _is_no_grad(source, each) for each in source.above(node)):
            return True
        function = source.scope(node)
        if not isinstance(function, ast.FunctionDef):
            return False
        if any(source.name_of(each.func if isinstance(each, ast.Call) else each).endswith(_NO_GRADIENT)
               for each in function.decorator_list):  # fmt: skip
            return True
        calls = [site.node for site in source.of(function.name)][:_MOST_CALLS]
        if level == 2 or not calls or function.name == "forward":
            return False
        if not all(is_without_gradients(source, each) for each in calls[1:]):
            return False
        node = calls[0]
    return False


def _is_no_grad(source: Source, region: ast.With) -> bool:
    calls = [item.context_expr.func for item in region.items if isinstance(item.context_expr, ast.Call)]
    return any(source.name_of(each).endswith(_NO_GRADIENT) for each in calls)


def is_differentiated(source: Source, node: ast.AST) -> bool:
    """Whether a value is certainly computed from parameters of a model, or from what a model gives, in a script that
    takes gradients, and outside of torch.no_grad()."""
    if not takes_gradients(source):
        return False
    own = source.parent(source.scope(node))
    if isinstance(own, ast.ClassDef) and any(source.name_of(each).endswith("Function") for each in own.bases):
        return False  # an autograd.Function, whose backward pass is its own
    return not is_without_gradients(source, node) and _Gradients(source).carries(node, 0)


def takes_gradients(source: Source) -> bool:
    """Whether a script calls backward() or torch.autograd.grad(), or has the step of a trainer of Lightning."""
    taken = trains(source) or any(site.name.endswith("autograd.grad") for site in source.of("grad"))
    return taken or "training_step" in source.functions


class _Gradients:
    """The values of a script that carry a gradient. What it has answered once it keeps for the script."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: dict[ast.AST, bool] = source.cached("carries_gradient", dict)

    def carries(self, node: ast.AST | None, depth: int) -> bool:
        if node is None or depth > _MOST_DEPTH:
            return False
        if node not in self._known:
            self._known[node] = False  # where it is computed from itself
            self._known[node] = self._computed(node, depth + 1)
        return self._known[node]

    def _any(self, nodes: list[ast.expr], depth: int) -> bool:
        return any(self.carries(each, depth) for each in nodes)

    def _computed(self, node: ast.AST, depth: int) -> bool:
        match node:
            case ast.Attribute(attr=attr) if attr in _PLAIN_ATTRIBUTES:
                return False
            case ast.Name() | ast.Attribute():
                return self._held(node, depth)
            case ast.Subscript(value=value) | ast.Starred(value=value) | ast.UnaryOp(operand=value):
                return self.carries(value, depth)
            case ast.NamedExpr(value=value):
                return self.carries(value, depth)
            case ast.BinOp(left=left, right=right):
                return self._any([left, right], depth)
            case ast.IfExp(body=body, orelse=other):
                return self._any([body, other], depth)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return self._any(parts, depth)
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part):
                return self.carries(part, depth)
            case ast.Call():
                return self._called(node, depth)
        return False

    def _held(self, node: ast.Name | ast.Attribute, depth: int) -> bool:
        source = self._source
        if (certain := definition(source, node)) is not None:
            return self.carries(certain, depth)
        variable = source.variable(node)
        bindings = source.variables.assignments(variable)[:_MOST_CALLS] if variable is not None else []
        for each in bindings:
            if each.value is not None and self.carries(each.value, depth):
                return True
            if each.value is None and self.carries(_whole(each.node), depth):
                return True
        if variable is not None and self._any(handed_on(source, node)[:_MOST_CALLS], depth):
            return True
        if self._any(given_to_forward(source, node), depth) or _is_behind_modules(source, node):
            return True
        is_part = isinstance(node, ast.Attribute) and not bindings and source.name_of(node.value) not in ("self", "")
        return is_part and isinstance(node, ast.Attribute) and self.carries(node.value, depth)

    def _called(self, call: ast.Call, depth: int) -> bool:
        source, name = self._source, last_name(self._source, call)
        if name in _WITHOUT_GRADIENT:
            given = keyword(call, "requires_grad")
            return isinstance(given, ast.Constant) and given.value is True
        if name in ("Parameter", "parameters", "requires_grad_"):
            return not (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value is False)
        full = source.name_of(call.func)
        if full.startswith(("numpy.", "np.", "math.")) or is_in_no_grad(source, call):
            return False
        if is_model(source, call.func):
            return True
        if isinstance(call.func, ast.Attribute) and name in _OF_MODELS and is_model(source, call.func.value):
            return True
        if returned := returns_of(source, call):
            return self._any(returned, depth)
        made = definition(source, call.func) if isinstance(call.func, ast.Name | ast.Attribute) else None
        if (forward := _forward_of(source, made)) is not None:
            return self._any(forward, depth)
        operands = [*call.args, *(each.value for each in call.keywords)]
        is_method = isinstance(call.func, ast.Attribute) and not full.startswith(("torch.", "self."))
        if isinstance(call.func, ast.Attribute) and is_method:
            operands.append(call.func.value)
        return self._any(operands, depth)


def given_to_forward(source: Source, node: ast.AST) -> list[ast.expr]:
    """The expressions that calls of a module of this script give for an argument of its `forward`."""
    variable = source.variable(node)
    own = _module_of(source, variable)
    if own is None or variable is None or not isinstance(variable.scope, ast.FunctionDef):
        return []
    place = [each.arg for each in variable.scope.args.args].index(variable.text) - 1
    calls = [call for site in source.of(own.name)[:_MOST_CALLS] for call in calls_of_module(source, site)]
    return [given for call in calls if (given := keyword(call, variable.text, place)) is not None]


def _is_behind_modules(source: Source, node: ast.AST) -> bool:
    """Whether an argument of `forward` is what another module gives, in nn.Sequential."""
    own = _module_of(source, source.variable(node))
    around = [source.parent(site.node) for site in source.of(own.name)[:_MOST_CALLS]] if own is not None else []
    return any(
        isinstance(each, ast.Call) and last_name(source, each) == "Sequential" and isinstance(each.args[0], ast.Call)
        and own is not None and source.name_of(each.args[0].func) != own.name
        for each in around
    )  # fmt: skip


def _module_of(source: Source, variable: Variable | None) -> ast.ClassDef | None:
    """The class of which a variable is an argument of `forward`."""
    function = variable.scope if variable is not None else None
    own = source.parent(function) if isinstance(function, ast.FunctionDef) and function.name == "forward" else None
    if variable is None or not isinstance(function, ast.FunctionDef) or not isinstance(own, ast.ClassDef):
        return None
    return own if variable.text in [each.arg for each in function.args.args[1:]] else None


def calls_of_module(source: Source, made: CallSite) -> list[ast.Call]:
    """The calls of an object that a call makes: `loss(x, y)` after `loss = Dice()`, and `Dice()(x, y)`."""
    around = source.parent(made.node)
    if isinstance(around, ast.Call) and around.func is made.node:
        return [around]
    target = around.targets[0] if isinstance(around, ast.Assign) and around.value is made.node else None
    variable = source.variable(target) if target is not None else None
    return calls_of_variable(source, variable)[:_MOST_CALLS] if variable is not None else []


def calls_of_variable(source: Source, variable: Variable) -> list[ast.Call]:
    """The calls of what a variable holds, `net(x)`."""
    return source.cached("calls_by_function", lambda: _calls_by_function(source)).get(variable, [])


def is_in_no_grad(source: Source, node: ast.AST) -> bool:
    return any(isinstance(each, ast.With) and _is_no_grad(source, each) for each in source.above(node))


def _whole(node: ast.AST) -> ast.expr | None:
    """The expression of which a variable gets a part: of a loop, a comprehension or an assignment to several."""
    if isinstance(node, ast.For | ast.comprehension):
        return node.iter
    return node.value if isinstance(node, ast.Assign | ast.AugAssign) else None


def _calls_by_function(source: Source) -> dict[Variable, list[ast.Call]]:
    groups: dict[Variable, list[ast.Call]] = {}
    for site in source.calls:
        if (variable := source.variable(site.node.func)) is not None:
            groups.setdefault(variable, []).append(site.node)
    return groups


def _forward_of(source: Source, made: ast.expr | None) -> list[ast.expr] | None:
    """The expressions that `forward` of a class of this script returns, of which a call makes an object."""
    own = source.classes.get(source.name_of(made.func)) if isinstance(made, ast.Call) else None
    functions = [each for each in own.body if isinstance(each, ast.FunctionDef)] if own is not None else []
    forward = next((each for each in functions if each.name == "forward"), None)
    if forward is None:
        return None
    return [each.value for each in source.walk(forward) if isinstance(each, ast.Return) and each.value is not None]


def is_model(source: Source, node: ast.AST) -> bool:
    """Whether a variable certainly holds a module with weights: made by torch.nn or a class of this script that has
    layers, or one whose parameters the script asks for."""
    variable = source.variable(node)
    if variable is None or isinstance(source.scope(node), ast.Lambda):
        return False
    if variable.last_part in source.cached("owners_of_parameters", lambda: _owners_of_parameters(source)):
        return True
    values = source.variables.values(variable)
    return any(isinstance(each, ast.Call) and _makes_model(source, each, 0) for each in values[:_MOST_CALLS])


def _owners_of_parameters(source: Source) -> set[str]:
    sites = source.of("parameters", "named_parameters")
    return {site.owner.rpartition(".")[2] for site in sites} - {"", "self", "(...)"}


def _makes_model(source: Source, call: ast.Call, level: int) -> bool:
    name = source.name_of(call.func)
    last = name.rpartition(".")[2]
    if isinstance(call.func, ast.Attribute) and last in ("to", "cuda", "half", "float", "train", "eval", "bfloat16"):
        inner = call.func.value
        return isinstance(inner, ast.Call) and _makes_model(source, inner, level)
    if last == "Sequential":
        return any(isinstance(each, ast.Call) and _makes_model(source, each, level + 1) for each in call.args)
    if name.startswith("torch.nn.") and last[:1].isupper():
        return last.lower() not in _WITHOUT_WEIGHTS and not last.lower().endswith(_ENDS_WITHOUT_WEIGHTS)
    if name.startswith("torchvision.models.") or last in _MADE_ELSEWHERE or name in _MADE_ELSEWHERE:
        return True
    own = source.classes.get(name)
    if own is None or level > 3 or not any(source.name_of(each).endswith("Module") for each in own.bases):
        return False
    return source.cached(("has_weights", own), lambda: _has_weights(source, own, level))


def _has_weights(source: Source, own: ast.ClassDef, level: int) -> bool:
    calls = [each for each in source.walk(own) if isinstance(each, ast.Call)]
    return any(
        source.name_of(each.func) == "torch.nn.Parameter" or last_name(source, each) == "register_parameter"
        or _makes_model(source, each, level + 1) for each in calls
    )  # fmt: skip


def last_layer(source: Source, call: ast.Call) -> str:
    """The class of the last module of the model that a call runs, in lower case; '' where it is not certain."""
    module = last_module(source, definition(source, call.func))
    return source.name_of(module.func).rpartition(".")[2].lower() if module is not None else ""
