"""Single tensors, parameters and adapters that are trained in FP16, of a model that may be in another format."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from precgui.events import Severity
from precgui.lint.arguments import keyword
from precgui.lint.constants import constant
from precgui.lint.dtype_rules import enclosing_class
from precgui.lint.flow import (
    base,
    cast_of,
    created_optimizers,
    definition,
    dtype_of,
    format_at,
    model_format,
    trained_models,
    trains,
    weights_format,
)
from precgui.lint.method_names import CONVERSIONS, SAME_FORMAT
from precgui.lint.source import CallSite, Mistakes, Source
from precgui.lint.trainer_rules import HUGGING_FACE, TRAINERS, settings_of
from precgui.lint.variables import Variable, path_text
from precgui.lint.weight_rules import FP16_SMALLEST, LIKE_ADAM, is_wrapped
from precgui.sentences import L_, Sentence

_CREATORS = {"randn", "rand", "zeros", "ones", "empty", "full", "tensor", "eye", "normal", "randint"}
_LIKE = {"randn_like", "rand_like", "zeros_like", "ones_like", "empty_like", "full_like"}
_COPIES = {"Parameter", "clone", "deepcopy"}
_KEEPING = SAME_FORMAT | {"repeat", "expand", "mul", "div", "index_select"}
_TABLES = {"embed_tokens", "wte", "word_embeddings", "get_input_embeddings", "token_embedding", "tok_embeddings"}
_LAYERS = ("Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d", "LayerNorm", "LSTM", "GRU")
_ADDING = ("add_adapter", "get_peft_model", "inject_adapter_in_model")
_WIDENING = ("cast_training_params", "upcast", "master", "prepare_model_for_kbit_training", "loralib")
_MOST_CALLS = 64  # of one kind in a script
_MOST_DEPTH = 12  # from one expression to the next


def trained_tensors(source: Source) -> Mistakes:
    """A tensor, or a parameter of a class of the script, that is certainly FP16 and that an optimizer of torch gets."""
    if "float16" not in source.text and "half" not in source.text:
        return
    if not trains(source) or "master" in source.text.lower():
        return
    for site in created_optimizers(source):
        if is_wrapped(source, site):
            continue
        for tensor in _given_tensors(source, site):
            held = tensor if isinstance(tensor, ast.Call) else definition(source, tensor)
            if _tensor_format(source, tensor, 0) == "fp16":
                line = held.lineno if held is not None else tensor.lineno
                yield line, *_trained_in_fp16(source, site, path_text(tensor))
        for model in trained_models(source, site.node):
            for text, line in _low_parameters(source, model):
                yield line, *_trained_in_fp16(source, site, text)


def _trained_in_fp16(source: Source, site: CallSite, text: str) -> tuple[Severity, str, str]:
    given = keyword(site.node, "eps", 3)
    eps = 1e-8 if given is None else constant(source, given)
    cure = L_("train a tensor in FP32 (.float()), and cast it where the model reads it")
    if eps is not None and eps < FP16_SMALLEST and site.method in LIKE_ADAM:
        return (
            "error", Sentence(
                "{tensor} is trained in FP16 by {optimizer}, which keeps its state in FP16, too: squares of gradients "
                "below 5e-3 and eps = {eps:g} are zero in it, and the step is infinite",
                tensor=text, optimizer=site.method, eps=eps,
            ), cure,
        )  # fmt: skip
    return "warning", Sentence("{tensor} is trained in FP16: small updates and gradients are lost", tensor=text), cure


def _given_tensors(source: Source, site: CallSite) -> Iterator[ast.expr]:
    """The tensors that an optimizer gets one by one, also in groups."""
    first = keyword(site.node, "params", 0)
    if isinstance(first, ast.Name):
        first = definition(source, first)
    for each in first.elts if isinstance(first, ast.List | ast.Tuple) else ():
        given: ast.expr | None = each
        if isinstance(each, ast.Dict):
            entries = zip(each.keys, each.values, strict=True)
            given = next((v for k, v in entries if isinstance(k, ast.Constant) and k.value == "params"), None)
        for tensor in given.elts if isinstance(given, ast.List | ast.Tuple) else [given]:
            if isinstance(tensor, ast.Name | ast.Attribute | ast.Call):
                yield tensor


def _tensor_format(source: Source, node: ast.expr | None, depth: int) -> str:
    """The format in 16 bits that a tensor certainly has: made in it, cast to it, or taken from a table of a model."""
    if node is None or depth > _MOST_DEPTH:
        return ""
    known: dict[ast.AST, str] = source.cached("formats_of_tensors", dict)
    if node not in known:
        known[node] = ""  # where it is made of itself
        known[node] = _format_of_expression(source, node, depth)
    return known[node]


def _format_of_expression(source: Source, node: ast.expr, depth: int) -> str:
    if (cast := cast_of(source, node)) is not None:
        return cast[0]
    match node:
        case ast.Name():
            return _tensor_format(source, definition(source, node), depth + 1)
        case ast.Attribute(attr="weight", value=value):
            return _format_of_table(source, value)
        case ast.Attribute(attr="data", value=value) | ast.Subscript(value=value):
            return _tensor_format(source, value, depth + 1)
        case ast.Attribute():
            return _tensor_format(source, definition(source, node), depth + 1)
        case ast.BinOp(left=left, right=right) if not isinstance(node.op, ast.MatMult):
            sides = [each for each in (left, right) if constant(source, each) is None]
            formats = {_tensor_format(source, each, depth + 1) for each in sides}
            return next(iter(formats)) if len(formats) == 1 else ""
        case ast.Call():
            return _format_of_call(source, node, depth + 1)
    return ""


def _format_of_call(source: Source, call: ast.Call, depth: int) -> str:
    full = source.name_of(call.func)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else full.rpartition(".")[2]
    is_function = full.startswith(("torch.", "copy."))
    if (given := keyword(call, "dtype")) is not None:
        return dtype_of(source, given) if is_function and name in _CREATORS | _LIKE else ""
    if is_function and name in ("cat", "stack"):
        parts = call.args[0].elts if call.args and isinstance(call.args[0], ast.List | ast.Tuple) else []
        formats = {_tensor_format(source, each, depth) for each in parts}
        return next(iter(formats)) if len(formats) == 1 else ""
    if is_function and name in _LIKE | _COPIES | _KEEPING:
        return _tensor_format(source, next(iter(call.args), None), depth)
    if isinstance(call.func, ast.Attribute) and not is_function and name in _KEEPING:
        return _tensor_format(source, call.func.value, depth)
    return _format_of_table(source, call.func)


def _format_of_table(source: Source, node: ast.expr) -> str:
    """The format of the weights of a model whose table of embeddings an expression is; they are the format of rows of
    it, in autocast, too."""
    held = definition(source, node) if isinstance(node, ast.Name) else node
    made = held.func if isinstance(held, ast.Call) else held
    if not isinstance(made, ast.Attribute) or made.attr not in _TABLES or held is None:
        return ""
    model: ast.expr = made.value
    while (
        isinstance(model, ast.Attribute)
        and source.variables.assignments(source.variable(model) or Variable(model, "")) == []
    ):
        model = model.value
    return format_at(source, model, held)


def _low_parameters(source: Source, model: Variable) -> Iterator[tuple[str, int]]:
    """The parameters and layers that a class of the script makes in FP16, of an object that nothing casts."""
    values = source.variables.values(model)
    made = base(values[0]) if len(values) == 1 and values[0] is not None else None
    own = source.classes.get(source.name_of(made.func)) if isinstance(made, ast.Call) else None
    casts = source.calls_of(model, *CONVERSIONS)
    if own is None or values[0] is None or model_format(source, values[0]) or any(
        model_format(source, each.node) for each in casts
    ):  # fmt: skip
        return
    for site in source.of("Parameter", *_LAYERS)[:_MOST_CALLS]:
        if enclosing_class(source, site.node) is not own or not site.name.startswith("torch.nn."):
            continue
        frozen = keyword(site.node, "requires_grad", 1) if site.method == "Parameter" else None
        above = source.parent(site.node)
        if frozen is not None or not isinstance(above, ast.Assign):
            continue
        is_low = (
            _tensor_format(source, site.node, 0) == "fp16"
            if site.method == "Parameter"
            else dtype_of(source, keyword(site.node, "dtype")) == "fp16"
        )
        if is_low:
            yield path_text(above.targets[0]), site.line


def low_adapters(source: Source) -> Mistakes:
    """Adapters that are cast to FP16 with the model that they were added to before, and trained so."""
    added = source.of(*_ADDING)[:_MOST_CALLS]
    if not added or any(word in source.text.lower() for word in _WIDENING) or _sets_data(source):
        return
    for site in added:
        model = _with_adapter(source, site)
        training = next(_trainings(source, model, source.scope(site.node)), None) if model is not None else None
        if model is None or training is None:
            continue
        state = weights_format(source, model, source.scope(site.node), until=training.place)
        if state is None or state[0] != "fp16" or source.places[state[1]] < site.place:
            continue
        scaled = _is_scaled(source, training)
        yield (
            getattr(state[1], "lineno", site.line), "error" if scaled else "warning", Sentence(
                "the adapters that {model} got in line {line} are cast to FP16 with it and trained so: small updates "
                "and gradients are lost, and torch's scaler refuses FP16 gradients",
                model=model, line=site.line,
            ) if scaled else Sentence(
                "the adapters that {model} got in line {line} are cast to FP16 with it and trained so: small updates "
                "and gradients are lost",
                model=model, line=site.line,
            ),
            L_("cast the model before it gets adapters, and keep these in FP32: cast_training_params(model)"),
        )  # fmt: skip


def _sets_data(source: Source) -> bool:
    """Whether a script sets the data of parameters anew, which may widen them."""
    return any(
        isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Attribute) and each.targets[0].attr == "data"
        for each in source.nodes
    )  # fmt: skip


def _with_adapter(source: Source, site: CallSite) -> Variable | None:
    """The variable of the model that gets adapters."""
    if site.method == "add_adapter":
        return source.owner(site)
    above = source.parent(site.node)
    if isinstance(above, ast.Assign) and above.value is site.node:
        return source.variable(above.targets[0])
    given = site.node.args[1:2] if site.method == "inject_adapter_in_model" else site.node.args[:1]
    return source.variable(given[0]) if given and isinstance(above, ast.Expr) else None


def _trainings(source: Source, model: Variable, scope: ast.AST) -> Iterator[CallSite]:
    """The calls in a function that make a trainer, or an optimizer of those parameters that require gradients."""
    if any(model_format(source, each.node) == "fp32" for each in source.calls_of(model, *CONVERSIONS)):
        return
    for site in source.of(*TRAINERS):
        given = keyword(site.node, "model", 0)
        is_given = given is not None and source.variable(given) == model and site.name.startswith(HUGGING_FACE)
        if is_given and source.scope(site.node) is scope and settings_of(source, site) is not None:
            yield site
    for site in created_optimizers(source) if trains(source) else ():
        if source.scope(site.node) is scope and model in _chosen(source, site):
            yield site


def _is_scaled(source: Source, training: CallSite) -> bool:
    """Whether torch's scaler steps the parameters that are trained."""
    if training.method in TRAINERS:
        settings = settings_of(source, training)
        return settings is not None and getattr(keyword(settings, "fp16"), "value", False) is True
    mixed = [keyword(site.node, "mixed_precision") for site in source.of("Accelerator")]
    return any(isinstance(each, ast.Constant) and each.value == "fp16" for each in mixed) or bool(source.scaling)


def _chosen(source: Source, site: CallSite) -> set[Variable | None]:
    """The models of which an optimizer gets the parameters that require gradients, by a filter or a list."""
    first = keyword(site.node, "params", 0)
    for _ in range(_MOST_DEPTH):
        if isinstance(first, ast.Name):
            first = definition(source, first)
        elif isinstance(first, ast.Call) and source.name_of(first.func) == "list" and first.args:
            first = first.args[0]
        else:
            break
    nodes = source.walk(first) if first is not None else []
    if not any(isinstance(each, ast.Attribute) and each.attr == "requires_grad" for each in nodes):
        return set()
    return {
        source.variable(each.func.value) for each in nodes if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute) and each.func.attr in ("parameters", "named_parameters")
    }  # fmt: skip


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "tensor-trained-in-fp16": trained_tensors,
    "adapters-in-fp16": low_adapters,
}
