"""Values followed through a script: definitions, casts, the formats of models, the operation that gave a tensor."""

from __future__ import annotations

import ast

from precgui.lint.arguments import keyword
from precgui.lint.constants import constant, given_for
from precgui.lint.method_names import (
    CASTS,
    CONVERSIONS,
    FP32_IN_AUTOCAST,
    PRODUCTS,
    SAME_FORMAT,
    SAME_OBJECT,
    SAME_VALUES,
)
from precgui.lint.source import CallSite, Source, is_disabled
from precgui.lint.variables import NameBinding, Variable

UNKNOWN = "unknown"
_MOST_OPTIMIZERS = 32
_MOST_STEPS = 8  # from one definition to the next
_MOST_GIVEN = 64  # expressions that calls give for one argument
_DTYPES = {
    "torch.half": "fp16", "torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float": "fp32",
    "torch.float32": "fp32", "torch.double": "fp64", "torch.float64": "fp64",
}  # fmt: skip
EXACT_UP_TO = {"bf16": 256, "fp16": 2048}  # all whole numbers
SAME_MODEL = {"DataParallel", "DistributedDataParallel", "DDP", "compile", "deepcopy"}
OPERATIONS = {"softmax", "log_softmax", "sigmoid", "tanh", "std", "var", "mean"}
_MODULES = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid", "Tanh": "tanh"}


def definition(source: Source, node: ast.AST, conditional: bool = False) -> ast.expr | None:
    """The expression that a variable certainly holds where it is read. None where branches or calls may change it.
    With `conditional`, the last one that is written before it, whatever the branch."""
    variable = source.variable(node)
    if variable is None:
        return None
    place, last = source.places[node], binding_before(source, variable, node)
    if last is not None and source.scope(last.node) is source.scope(node):
        sure = conditional or all(
            source.contains(each, place) for each in source.above(last.node) if isinstance(each, ast.If | ast.Try)
        )
        return last.value if sure and not source.excludes(last.node, node) else None
    values = source.variables.values(variable)
    return values[0] if len(values) == 1 and source.scope(node) is not variable.scope else None


def binding_before(source: Source, variable: Variable, node: ast.AST) -> NameBinding | None:
    """The last assignment that is written before the place where a variable is read."""
    place = source.places[node]
    last = source.variables.last_before(variable, place)
    if last is not None and isinstance(last.node, ast.Assign | ast.AnnAssign) and source.contains(last.node, place):
        last = source.variables.last_before(variable, last.place)  # `x = f(x)` reads the value before it
    return last


def handed_on(source: Source, node: ast.AST) -> list[ast.expr]:
    """The expressions that a variable may hold: those that are assigned to it, or that calls of this script give for an
    argument; [] where none is known."""
    variable = source.variable(node)
    if variable is None:
        return []
    values = [each for each in source.variables.values(variable) if each is not None]
    return values + (given_for(source, variable) if isinstance(variable.scope, ast.FunctionDef) else [])


def alternatives(node: ast.expr | None) -> list[ast.expr]:
    """The expressions of which one is the value: the branches of `a if c else b` and `a or b`, what min and max get."""
    if isinstance(node, ast.IfExp):
        return [*alternatives(node.body), *alternatives(node.orelse)]
    if isinstance(node, ast.BoolOp):
        return [each for value in node.values for each in alternatives(value)]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("min", "max", "int", "float")
    ):
        return [each for given in node.args for each in alternatives(given)]
    return [] if node is None else [node]


def innermost_autocast(source: Source, node: ast.AST) -> ast.Call | None:
    """The call that made the innermost region of autocast around a node, within its function."""
    regions = source.cached("regions", lambda: dict(source.autocasts))
    return next((regions[each] for each in source.above(node) if each in regions), None)


def dtype_of(source: Source, node: ast.AST | None) -> str:
    """The format that an expression of a torch.dtype names, `fp16` for torch.half; '' where it is not certain."""
    for _ in range(_MOST_STEPS):
        if node is None or (name := _DTYPES.get(source.name_of(node), "")):
            return name if node is not None else ""
        node = definition(source, node)
    return ""


def cast_of(source: Source, node: ast.AST) -> tuple[str, ast.expr] | None:
    """The format and the operand of `x.half()`, `x.to(torch.float16)` or the like; UNKNOWN for `x.to(dtype)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    method, operand = node.func.attr, node.func.value
    if method in CASTS and not node.args:
        return CASTS[method], operand
    if method not in ("to", "type"):
        return None
    named = keyword(node, "dtype")
    given = [*node.args, *([named] if named is not None else [])]
    known = next((format_name for each in given if (format_name := dtype_of(source, each))), "")
    if known:
        return known, operand
    is_dtype = named is not None or any("type" in source.name_of(each) for each in given)
    return (UNKNOWN, operand) if is_dtype else None


def is_half(source: Source, node: ast.AST | None, depth: int = 0, *, autocast: bool = False) -> bool:
    """Whether a tensor is certainly FP16: cast to it, or computed from such tensors and numbers by operations that keep
    the format, outside of autocast; with `autocast`, by those that keep it there, too."""
    for _ in range(2 * _MOST_STEPS if depth < _MOST_STEPS else 0):
        if node is None or (cast := cast_of(source, node)) is not None:
            return node is not None and cast is not None and cast[0] == "fp16"
        if isinstance(node, ast.Name):
            node = definition(source, node)
        elif isinstance(node, ast.BinOp):
            sides = [each for each in (node.left, node.right) if constant(source, each) is None]
            if autocast and (
                isinstance(node.op, ast.Pow)
                or (isinstance(node.op, ast.Div) and constant(source, node.left) is not None)
            ):
                return False
            return bool(sides) and all(is_half(source, each, depth + 2, autocast=autocast) for each in sides)
        elif isinstance(node, ast.UnaryOp):
            node = node.operand
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME_FORMAT:
            own = source.name_of(node.func).startswith("torch.")
            if keyword(node, "dtype") is not None or (own and not node.args):
                return False
            if autocast and node.func.attr in FP32_IN_AUTOCAST:
                return False
            node = node.args[0] if own else node.func.value
        else:
            return False
    return False


def model_format(source: Source, node: ast.AST) -> str:
    """The format that an expression gives to the weights of a model; '' where it casts nothing."""
    for _ in range(4 * _MOST_STEPS):
        if (cast := cast_of(source, node)) is not None:
            return cast[0]
        if not isinstance(node, ast.Call):
            return ""
        name = source.name_of(node.func).rpartition(".")[2]
        if name == "from_pretrained":
            return _dtype_of_pretrained(source, keyword(node, "torch_dtype") or keyword(node, "dtype"))
        if isinstance(node.func, ast.Attribute) and name in SAME_OBJECT:
            node = node.func.value
        elif name in SAME_MODEL and node.args:
            node = node.args[0]
        else:
            return ""
    return ""


def _dtype_of_pretrained(source: Source, given: ast.expr | None) -> str:
    """As `dtype_of`, also by its name as text; UNKNOWN where the text does not tell (`"auto"`, an argument)."""
    if given is None or (isinstance(given, ast.Constant) and given.value is None):
        return ""
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        return _DTYPES.get(f"torch.{given.value}", UNKNOWN)
    return dtype_of(source, given) or UNKNOWN


def base(node: ast.AST) -> ast.AST:
    """The expression that a chain of casts and moves begins with: `Net()` of `Net().half().cuda()`."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr in SAME_OBJECT or node.func.attr in CASTS)
    ):
        node = node.func.value
    return node


def weights_format(
    source: Source, model: Variable, scope: ast.AST, *, into_functions: bool = True, until: float = float("inf")
) -> tuple[str, ast.AST] | None:
    """The format that a function certainly leaves the weights of a model in, with the node that says so.

    `into_functions`: also what a function of the file gives to a model that it makes. `until`: the place up to which
    the function is read.

    None where a cast depends on a condition, where two disagree, or where the model becomes something else after it.
    """
    events: list[tuple[int, ast.AST, str]] = []  # place, node, format
    for each in source.variables.assignments(model):
        if source.scope(each.node) is scope:
            text = model_format(source, each.value) if each.value is not None else UNKNOWN
            if not text and into_functions and each.value is not None:
                text = _made_in(source, each.value)
            if text or each.value is None or not _is_same_model(source, model, each.value):
                events.append((each.place, each.node, text))
    for site in source.calls_of(model, *CONVERSIONS, *SAME_OBJECT):
        text = model_format(source, whole_chain(source, site.node)) if source.scope(site.node) is scope else ""
        if text and not isinstance(statement(source, site.node), ast.Assign):
            events.append((site.place, site.node, text))
    events = sorted((each for each in events if each[0] < until), key=lambda event: event[0])
    formats = [text for _, _, text in events]
    if (
        not formats
        or formats[-1] not in ("fp16", "bf16")
        or any(isinstance(each, ast.If | ast.Try | ast.IfExp) for each in source.above(events[-1][1]))
    ):
        return None
    return formats[-1], events[-1][1]


def format_at(source: Source, node: ast.expr, place: ast.AST) -> str:
    """The format of 16 bits that the weights of a model certainly have at a place, also of one that each call of the
    function gives; else '', or the other format that the expression itself casts to."""
    if (own := model_format(source, node)) or (model := source.variable(base(node))) is None:
        return own
    state = weights_format(source, model, source.scope(place))
    if state is not None:
        return state[0] if source.places[state[1]] < source.places[place] else ""
    given = given_for(source, model) if isinstance(model.scope, ast.FunctionDef) else []
    if not given or source.variables.assignments(model) or source.calls_of(model, *CONVERSIONS):
        return ""
    formats = set()
    for each in given[:_MOST_GIVEN]:
        variable = source.variable(each)
        held = weights_format(source, variable, source.scope(each)) if variable is not None else None
        is_before = held is not None and source.places[held[1]] < source.places[each]
        formats.add(held[0] if held is not None and is_before else model_format(source, each))
    return next(iter(formats)) if len(formats) == 1 else ""


def _made_in(source: Source, value: ast.expr) -> str:
    """The format that a function of this file certainly gives to the weights of a model which it makes and returns."""
    call = base(value)
    function = source.functions.get(source.name_of(call.func)) if isinstance(call, ast.Call) else None
    if not isinstance(function, ast.FunctionDef) or value is not call:
        return ""
    own = [each for each in source.walk(function) if isinstance(each, ast.Return) and source.scope(each) is function]
    made = own[0].value if len(own) == 1 and function.body[-1] is own[0] else None
    if made is None or isinstance(made, ast.Tuple):
        return ""
    variable = source.variable(made)
    if variable is None:
        return model_format(source, made)
    state = weights_format(source, variable, function, into_functions=False)
    return state[0] if state is not None else ""


def _is_same_model(source: Source, model: Variable, value: ast.expr) -> bool:
    """Whether an assignment leaves the weights of a model as they are: `net = net.cuda()`, `net = DDP(net)`."""
    wraps = isinstance(value, ast.Call) and source.name_of(value.func).rpartition(".")[2] in SAME_MODEL
    return wraps or source.variable(base(value)) == model


def whole_chain(source: Source, node: ast.AST) -> ast.AST:
    """The chain of calls that begins with a call: `net.half().float()` for `net.half()`."""
    while isinstance(attribute := source.parent(node), ast.Attribute):
        call = source.parent(attribute)
        if not isinstance(call, ast.Call):
            break
        node = call
    return node


def statement(source: Source, node: ast.AST) -> ast.AST | None:
    """The statement that an expression is part of."""
    above: ast.AST | None = node
    while above is not None and not isinstance(above, ast.stmt):
        above = source.parent(above)
    return above


def is_torch_optimizer(source: Source, call: ast.AST) -> bool:
    name = source.name_of(call.func) if isinstance(call, ast.Call) else ""
    last = name.rpartition(".")[2]
    return name.startswith("torch.optim.") and "lr_scheduler" not in name and last[:1].isupper() and last != "Optimizer"


def trained_models(source: Source, call: ast.Call) -> list[Variable]:
    """The models whose parameters an optimizer gets, also by a list, a filter or a variable in between.

    Parameters that are chosen by a condition (of which one does not know which they are) name no model.
    """
    first = keyword(call, "params", 0)
    models: dict[Variable, None] = {}
    for _ in range(_MOST_STEPS):
        if first is None:
            break
        nodes = source.walk(first)
        if any(isinstance(each, ast.comprehension) and each.ifs for each in nodes):
            break
        calls = [each for each in nodes if isinstance(each, ast.Call)]
        if any(source.name_of(each.func) == "filter" for each in calls):
            break
        owners = [each.func.value for each in calls if isinstance(each.func, ast.Attribute)
                  and each.func.attr in ("parameters", "named_parameters")]  # fmt: skip
        models |= {model: None for each in owners if (model := source.variable(each)) is not None}
        is_list = isinstance(first, ast.Call) and source.name_of(first.func) == "list" and bool(first.args)
        inner = first.args[0] if is_list and isinstance(first, ast.Call) else first
        first = definition(source, inner) if not models else None
    return list(models)


def operation(source: Source, node: ast.AST) -> str:
    """The operation that certainly computed a tensor (softmax, sigmoid, ...), followed through variables, shapes, and
    modules and classes of the script; '' where it is another one or not clear."""
    current: ast.AST | None = node
    for _ in range(2 * _MOST_STEPS):
        if isinstance(current, ast.Name | ast.Attribute):
            current = definition(source, current)
        elif isinstance(current, ast.Subscript):
            current = current.value
        elif isinstance(current, ast.Call):
            name = source.name_of(current.func).rpartition(".")[2]
            own = name in source.functions or source.name_of(current.func).startswith("self.")
            if name in OPERATIONS and not own:
                return name
            is_method = isinstance(current.func, ast.Attribute)
            if name in SAME_VALUES and is_method and not source.name_of(current.func).startswith("torch."):
                current = current.func.value if isinstance(current.func, ast.Attribute) else None
            else:
                maker = definition(source, current.func)
                if maker is None:
                    return ""
                module = last_module(source, maker)
                if module is not None and (kind := _MODULES.get(source.name_of(module.func).rpartition(".")[2])):
                    return kind
                current = returned(source, maker)
        else:
            return ""
    return ""


def comes_from_product(source: Source, node: ast.AST | None) -> bool:
    """Whether a tensor is certainly made of a matrix product, or of a layer that is one."""
    for _ in range(_MOST_STEPS):
        below = source.walk(node) if node is not None else []
        if any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult) for each in below):
            return True
        calls = [each for each in below if isinstance(each, ast.Call)][:_MOST_STEPS]
        if any(source.name_of(each.func).rpartition(".")[2] in PRODUCTS for each in calls):
            return True
        modules = [last_module(source, definition(source, each.func)) for each in calls]
        if any(each is not None and source.name_of(each.func) == "torch.nn.Linear" for each in modules):
            return True
        names = [each for each in below if isinstance(each, ast.Name)][:_MOST_STEPS]
        node = next((value for each in names if (value := definition(source, each)) is not None), None)
    return False


def last_module(source: Source, node: ast.AST | None) -> ast.Call | None:
    """The call that creates a module, the last one of nn.Sequential(...)."""
    for _ in range(_MOST_STEPS):
        if isinstance(node, ast.Call):
            node = base(node)
        if not isinstance(node, ast.Call):
            return None
        if source.name_of(node.func).rpartition(".")[2] != "Sequential":
            return node
        node = node.args[-1] if node.args and not isinstance(node.args[-1], ast.Starred) else None
    return None


def returned(source: Source, node: ast.AST | None) -> ast.expr | None:
    """The expression that `forward` of the class returns that a call creates an object of, where there is one only."""
    call = base(node) if node is not None else None
    own = source.classes.get(source.name_of(call.func)) if isinstance(call, ast.Call) else None
    functions = [each for each in own.body if isinstance(each, ast.FunctionDef)] if own is not None else []
    forward = next((each for each in functions if each.name == "forward"), None)
    if forward is None:
        return None
    returns = [each for each in source.walk(forward) if isinstance(each, ast.Return)]
    values = [each.value for each in returns if source.scope(each) is forward]
    return values[0] if len(values) == 1 else None


def region_is_fp16(source: Source, call: ast.Call) -> bool:
    """Whether a call of autocast asks for FP16: by its dtype, or on CUDA by saying nothing."""
    dtype = keyword(call, "dtype", 1)
    if is_disabled(source, call):
        return False
    if dtype is not None:
        return dtype_of(source, dtype) == "fp16"
    device = keyword(call, "device_type", 0)
    on_cuda = isinstance(device, ast.Constant) and str(device.value).startswith("cuda")
    return on_cuda or source.name_of(call.func) == "torch.cuda.amp.autocast"


def is_cuda(source: Source, node: ast.AST | None) -> bool:
    """Whether an expression is certainly CUDA as a device: "cuda:0", torch.device("cuda"), a variable that holds it."""
    for _ in range(_MOST_STEPS):
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str) and node.value.startswith("cuda")
        if isinstance(node, ast.Call) and source.name_of(node.func) == "torch.device":
            node = keyword(node, "device", 0) or keyword(node, "type")
        else:
            node = definition(source, node) if isinstance(node, ast.Name | ast.Attribute) else None
    return False


def trains(source: Source) -> bool:
    return any(site.owner for site in source.of("backward"))


def is_optimizer(source: Source, site: CallSite) -> bool:
    """Whether a method is called on a variable that is named like an optimizer, that torch.optim made, or that a script
    both clears and steps."""
    name = site.owner.lower()
    if "optim" in name or "opt" in name.rpartition(".")[2].split("_"):
        return True
    return source.owner(site) in source.cached("optimizers", lambda: _optimizer_variables(source))


def _optimizer_variables(source: Source) -> set[Variable | None]:
    assigned = [statement(source, site.node) for site in created_optimizers(source)]
    made = {source.variable(each.targets[0]) for each in assigned if isinstance(each, ast.Assign)}
    stepped = {source.owner(site) for site in source.of("step")}
    return (made | (stepped & {source.owner(site) for site in source.of("zero_grad")})) - {None}


def created_optimizers(source: Source) -> list[CallSite]:
    """The calls that create optimizers of torch, as many as a script has that trains."""
    return [site for site in source.calls if is_torch_optimizer(source, site.node)][:_MOST_OPTIMIZERS]
