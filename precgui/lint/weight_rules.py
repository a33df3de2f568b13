"""Weights in 16 bits, layers and models that are not the ones that are meant."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from precgui.events import Severity
from precgui.lint.arguments import keyword
from precgui.lint.constants import constant
from precgui.lint.flow import (
    EXACT_UP_TO,
    base,
    binding_before,
    cast_of,
    created_optimizers,
    definition,
    dtype_of,
    model_format,
    statement,
    trained_models,
    trains,
    weights_format,
    whole_chain,
)  # fmt: skip
from precgui.lint.source import CallSite, Mistakes, Source
from precgui.lint.variables import Variable, path_text
from precgui.sentences import L_, Sentence

FP16_SMALLEST = 6e-8
_SMALL_RATE = (
    3e-4  # Adam moves a weight by about the rate; the weights of a layer are about 0.03, their ulp/2 in BF16 6e-5
)
_MOST_CASTS = 128  # of one script
LIKE_ADAM = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
_ALIKE = {"load_state_dict", "manual_seed", "seed_everything", "set_seed", "copy_"}  # calls that make weights the same


def trained_low(source: Source) -> Iterator[tuple[CallSite, Variable, str, ast.AST]]:
    """Optimizers of torch with a model whose weights are certainly in 16 bits, and the node that casts them."""
    if not trains(source) or "master" in source.text:
        return
    for site in created_optimizers(source):
        if is_wrapped(source, site):
            continue
        for model in trained_models(source, site.node):
            scope = source.scope(site.node)
            state = weights_format(source, model, scope)
            if state is None or _has_ended(source, site, state[1]):
                continue
            if _is_trained_after(source, model, site, state[1]):
                yield site, model, *state


def is_wrapped(source: Source, site: CallSite) -> bool:
    """Whether the optimizer is handed to something that may keep weights in FP32, `FP16_Optimizer(optimizer)`."""
    assigned = statement(source, site.node)
    variable = source.variable(assigned.targets[0]) if isinstance(assigned, ast.Assign) else None
    if variable is None:
        return True
    for each in source.variables.assignments(variable):
        value = each.value
        if isinstance(value, ast.Call) and value is not site.node and _is_given(variable, value):
            return True
    return any(not isinstance(each.targets[0], ast.Name | ast.Attribute) for each in [assigned]
               if isinstance(each, ast.Assign))  # fmt: skip


def _is_given(variable: Variable, call: ast.Call) -> bool:
    """Whether a variable is an argument of a call."""
    return any(path_text(given) == variable.text for given in [*call.args, *(k.value for k in call.keywords)])


def _has_ended(source: Source, site: CallSite, cast: ast.AST) -> bool:
    """Whether the last step of an optimizer comes before the cast, as of a teacher that is frozen afterwards."""
    assigned, place = statement(source, site.node), source.places[cast]
    made = source.variable(assigned.targets[0]) if isinstance(assigned, ast.Assign) else None
    steps = [each for each in source.of("step") if made is not None and (
        source.owner(each) == made or any(source.variable(given) == made for given in each.node.args))]  # fmt: skip
    return bool(steps) and all(
        each.place < place and source.scope(each.node) is source.scope(cast)
        and not any(isinstance(loop, ast.For | ast.While) and source.contains(loop, place)
                    for loop in source.above(each.node)) for each in steps
    )  # fmt: skip


def _is_trained_after(source: Source, model: Variable, site: CallSite, cast: ast.AST) -> bool:
    """Whether a backward() comes after the cast in its function, or a function that calls it gets the model or reads
    it from outside."""
    place, scope = source.places[cast], source.scope(site.node)
    if any(each.owner and each.place > place and source.scope(each.node) is scope for each in source.of("backward")):
        return True
    if isinstance(model.scope, ast.ClassDef):
        return True
    training = {source.scope(each.node) for each in source.of("backward") if each.owner}
    reading = _read_from_outside(source, training).get(model, set())
    if reading and site.place > place:
        return True
    return any(
        function in training and (function in reading or _is_given(model, each.node))
        for name, function in source.functions.items() for each in source.of(name) if each.place > place
    )  # fmt: skip


def _read_from_outside(source: Source, functions: set[ast.AST]) -> dict[Variable, set[ast.AST]]:
    """For each variable that functions read and do not bind themselves, these functions."""

    def collect() -> dict[Variable, set[ast.AST]]:
        found: dict[Variable, set[ast.AST]] = {}
        for node in source.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and source.scope(node) in functions:
                variable = source.variable(node)
                if variable is not None and variable.scope is not source.scope(node):
                    found.setdefault(variable, set()).add(source.scope(node))
        return found

    return source.cached("read from outside by training", collect)


_MIXED = L_("keep FP32 weights and use torch.autocast with a GradScaler")


def fp16_weights(model: object, *, scaled: bool, cure: str = _MIXED) -> tuple[Severity, str, str]:
    """That a model is trained with FP16 weights; `scaled`: torch's scaler divides the gradients."""
    title = (
        Sentence(
            "{model} is trained with FP16 weights: small updates and gradients are lost, and torch's scaler "
            "refuses FP16 gradients", model=model,
        )
        if scaled else
        Sentence("{model} is trained with FP16 weights: small updates and gradients are lost", model=model)
    )  # fmt: skip
    return "error" if scaled else "warning", title, cure


def half_weights(source: Source) -> Mistakes:
    """A model converted to FP16 whose parameters an optimizer of torch gets."""
    for site, model, weights, cast in trained_low(source):
        if weights != "fp16":
            continue
        scaled = any(source.scope(each.node) is source.scope(site.node) for scaler in source.scaling
                     for each in source.calls_of(scaler, "step"))  # fmt: skip
        yield getattr(cast, "lineno", site.line), *fp16_weights(model, scaled=scaled)
        given = keyword(site.node, "eps", 3)
        eps = 1e-8 if given is None else constant(source, given)
        if eps is not None and eps < FP16_SMALLEST and site.method in LIKE_ADAM:
            yield (
                site.line, "error", Sentence(
                    "eps = {eps:g} is zero in FP16: where a gradient vanishes, weights become NaN",
                    eps=eps,
                ),
                L_("eps=1e-4, or keep FP32 weights"),
            )  # fmt: skip


def bf16_weights(source: Source) -> Mistakes:
    """A model converted to BF16 whose optimizer has a small rate: most updates are below half an ulp of the weights."""
    for site, model, weights, cast in trained_low(source):
        rate = constant(source, keyword(site.node, "lr", 1))
        if weights == "bf16" and site.method in LIKE_ADAM and rate is not None and rate <= _SMALL_RATE:
            yield (
                getattr(cast, "lineno", site.line), "warning",
                Sentence(
                    "{model} is trained with BF16 weights at a rate of {rate:g} (line {line}): most updates are "
                    "rounded away",
                    model=model, rate=rate, line=site.line,
                ),
                L_("keep FP32 weights and use torch.autocast with dtype=torch.bfloat16"),
            )  # fmt: skip


def layer_replaced(source: Source) -> Mistakes:
    """A layer of a model that is replaced after the optimizer got the model's parameters."""
    created = created_optimizers(source)
    last_given = max((site.place for site in [*created, *source.of("add_param_group")]), default=0)
    for site in created:
        scope = source.scope(site.node)
        for model in trained_models(source, site.node):
            for node in source.nodes[source.end(site.node) : source.end(scope) + 1]:
                if not isinstance(node, ast.Assign) or not _is_layer(source, node.value):
                    continue
                text = path_text(node.targets[0])
                if not text.startswith(f"{model.text}.") or source.scope(node) is not scope:
                    continue
                if last_given < source.places[node] and not source.excludes(node, site.node):
                    yield (
                        node.lineno, "error", Sentence(
                            "{text} is replaced after the optimizer was made: it is never trained",
                            text=text,
                        ),
                        L_("replace it before the optimizer is made, or call optimizer.add_param_group()"),
                    )  # fmt: skip


def _is_layer(source: Source, value: ast.expr) -> bool:
    call = base(value)
    name = source.name_of(call.func) if isinstance(call, ast.Call) else ""
    last = name.rpartition(".")[2]
    return name.startswith("torch.nn.") and last[:1].isupper() and last not in ("Parameter", "Identity")


def other_initial_weights(source: Source) -> Mistakes:
    """Two models that are made alike one after the other and compared: their outputs, or their trainings."""
    yield from _compared_outputs(source)
    yield from _compared_trainings(source)


def _compared_outputs(source: Source) -> Mistakes:
    for node in source.nodes:
        pair = _compared(source, node)
        models = [_model_of(source, each) for each in pair]
        if len(models) != 2 or models[0] is None or models[1] is None or models[0][0] == models[1][0]:
            continue
        (first, one), (second, other) = sorted(models, key=lambda each: source.places[each[1]] if each else 0)  # type: ignore[misc]
        if {model_format(source, each) for each in _creations(source, first, second)} <= {"", "fp32"}:
            continue  # not a comparison of precisions
        same = [ast.dump(part) for part in (one, other)] if len(source.walk(one)) < 64 else []
        between = {site.method for site in source.between(source.scope(node), source.places[one], source.places[node])}
        if len(set(same)) == 1 and between.isdisjoint(_ALIKE) and source.name_of(one.func) in source.classes:
            yield (
                getattr(node, "lineno", 1), "warning", Sentence(
                    "{first} and {second} are compared, and begin with different weights: the difference is that of "
                    "two initialisations",
                    first=first, second=second,
                ),
                Sentence(
                    "{second}.load_state_dict({first}.state_dict()) before the comparison",
                    second=second, first=first,
                ),
            )  # fmt: skip
            return


def _creations(source: Source, *models: Variable) -> list[ast.expr]:
    """The expressions that create models, and those that cast them later."""
    values = [each for model in models for each in source.variables.values(model) if each is not None]
    casts = [site.node for model in models for site in source.calls_of(model, "half", "bfloat16", "to", "double")]
    return [*values, *casts]


def _compared(source: Source, node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return [node.left, node.right]
    if isinstance(node, ast.Call) and source.name_of(node.func).rpartition(".")[2] in ("allclose", "assert_close"):
        return node.args[:2]
    return []


def _model_of(source: Source, node: ast.expr) -> tuple[Variable, ast.Call] | None:
    """The model whose output an expression is, with the call that makes it."""
    current: ast.AST | None = node
    for _ in range(8):
        if isinstance(current, ast.Name):
            value = definition(source, current)
            current = value
        elif (cast := cast_of(source, current) if current is not None else None) is not None:
            current = cast[1]
        elif isinstance(current, ast.Call) and (model := source.variable(current.func)) is not None:
            created = definition(source, current.func)
            call = base(created) if created is not None else None
            if isinstance(call, ast.Call) and source.name_of(call.func) in source.classes:
                return model, call
            if isinstance(current.func, ast.Attribute) and current.func.attr in ("detach", "cpu", "mean", "sum"):
                current = current.func.value
                continue
            return None
        elif isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
            current = current.func.value
        else:
            return None
    return None


def halved_and_back(source: Source) -> Mistakes:
    """A model that is cast to 16 bits in place and back to FP32 in the same function of a script that trains."""
    if not trains(source) or not source.of("step"):
        return
    casts = source.of("half", "bfloat16", "to", "type", "float")[:_MOST_CASTS]
    for site in casts:
        model = source.variable(base(site.node))
        low = model_format(source, whole_chain(source, site.node))
        if low not in EXACT_UP_TO or model is None or not _is_in_place(source, model, site.node):
            continue
        scope = source.scope(site.node)
        back = [each for each in casts if each.place > source.end(site.node) and source.scope(each.node) is scope
                and source.variable(base(each.node)) == model and _is_in_place(source, model, each.node)
                and model_format(source, whole_chain(source, each.node)) == "fp32"]  # fmt: skip
        if not back or source.in_scope(scope, "load_state_dict") or source.excludes(site.node, back[0].node):
            continue
        if not _is_module(source, model, site) or not _is_trained(source, model, site, back[0]):
            continue
        yield (
            site.line, "warning", Sentence(
                "{model} is cast to {low} and back in line {line}: the digits that its weights have lost do not "
                "come back, and small updates are undone",
                model=model, low=low.upper(), line=back[0].line,
            ),
            L_("torch.autocast around the forward pass, or copy.deepcopy(model) before the cast"),
        )  # fmt: skip


def _is_in_place(source: Source, model: Variable, call: ast.Call) -> bool:
    """Whether a chain of casts is a statement, is assigned to its own variable, or handed on: `test(net.half())`."""
    chain = whole_chain(source, call)
    above = source.parent(chain)
    if isinstance(above, ast.Assign):
        return above.value is chain and source.variable(above.targets[0]) == model
    return isinstance(above, ast.Expr) or (isinstance(above, ast.Call) and chain in above.args)


def _is_trained(source: Source, model: Variable, cast: CallSite, back: CallSite) -> bool:
    """Whether a model may be trained after it was cast back, and is no copy that the function has made for itself."""
    last = binding_before(source, model, base(cast.node))
    made = base(last.value) if last is not None and last.value is not None else None
    if isinstance(made, ast.Call) and source.name_of(made.func).rpartition(".")[2] == "deepcopy":
        return False
    scope = source.scope(cast.node)
    if not isinstance(scope, ast.Module) or source.loop(cast.node) is not None:
        return True
    following = source.between(scope, back.place, source.end(scope) + 1)
    functions = [source.functions.get(each.name) for each in following]
    inside = [each for own in functions if own is not None for each in source.inside(own)]
    return any(each.method == "backward" for each in [*following, *inside])


def _is_module(source: Source, model: Variable, site: CallSite) -> bool:
    """Whether a variable is called or set to a mode in the function of a call."""
    scope = source.scope(site.node)
    used = [each for each in source.walk(scope) if isinstance(each, ast.Call) and source.variable(each.func) == model]
    modes = source.calls_of(model, "eval", "train", "parameters", "state_dict")
    return bool(used) or any(source.scope(each.node) is scope for each in modes)


def _compared_trainings(source: Source) -> Mistakes:
    """Two models that one function of the script trains in two precisions."""
    for name, function in source.functions.items():
        calls = source.of(name)
        if len(calls) != 2 or not any(source.scope(each.node) is function for each in source.of("backward")):
            continue
        first, second = calls
        formats = [{found for given in _arguments(each.node) if (found := dtype_of(source, given))} for each in calls]
        made, other_made = (_made_by(source, each.node) for each in calls)
        if source.scope(first.node) is not source.scope(second.node) or made is None or other_made is None:
            continue
        (one, one_call), (other, other_call) = made, other_made
        same = ast.dump(one_call) == ast.dump(other_call) if len(source.walk(one_call)) < 64 else False
        begin = min(source.places[one_call], source.places[other_call])
        between = {each.method for each in source.between(source.scope(first.node), begin, second.place)}
        if one != other and same and formats[0] and formats[1] and formats[0] != formats[1] and not between & _ALIKE:
            yield (
                second.line, "warning", Sentence(
                    "{one} and {other} are trained in two precisions, and begin with different weights: the "
                    "difference is that of two initialisations",
                    one=one, other=other,
                ),
                Sentence(
                    "{other}.load_state_dict({one}.state_dict()) before either is trained",
                    other=other, one=one,
                ),
            )  # fmt: skip


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _made_by(source: Source, call: ast.Call) -> tuple[Variable, ast.Call] | None:
    """The variable among the arguments of a call that the script makes by itself, with the call that makes it."""
    for given in _arguments(call):
        value = definition(source, given) if isinstance(given, ast.Name) else None
        made, variable = base(value) if value is not None else None, source.variable(given)
        if isinstance(made, ast.Call) and variable is not None and _makes_a_model(source, made):
            return variable, made
    return None


def _makes_a_model(source: Source, call: ast.Call) -> bool:
    name = source.name_of(call.func)
    function = source.functions.get(name)
    inside = source.inside(function) if function is not None else iter(())
    return name in source.classes or any(each.name.startswith("torch.nn.") for each in inside)


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "fp16-weights": half_weights,
    "bf16-weights": bf16_weights,
    "layer-replaced": layer_replaced,
    "other-initial-weights": other_initial_weights,
    "halved-and-back": halved_and_back,
}
