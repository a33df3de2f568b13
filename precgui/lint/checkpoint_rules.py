"""Checkpoints in 16 bits from which a training of FP32 weights resumes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from precgui.events import Severity
from precgui.lint.arguments import keyword
from precgui.lint.flow import EXACT_UP_TO, base, cast_of, definition, is_optimizer, model_format, trains, whole_chain
from precgui.lint.origins import is_model, last_name
from precgui.lint.source import CallSite, Function, Mistakes, Source
from precgui.lint.variables import path_text
from precgui.sentences import Sentence

_SAVES = ("torch.save", "safetensors.torch.save_file")
_LOADS = ("torch.load", "safetensors.torch.load_file")
_CASTS = ("half", "bfloat16", "to", "type")
_TENSOR_TESTS = {"is_floating_point", "is_tensor", "isinstance", "dtype"}  # of a condition that leaves counters alone
_NO_WEIGHTS = ("optim", "opt", "sched", "scaler", "loader", "sampler", "generator", "rng", "tokenizer", "loss")
# Said where something else may keep the FP32 weights, and not by MASTER_ADDR or a link to a branch.
_OTHER_OWNERS = re.compile(r"masters\b|master_?(param|weight|cop|group)|deepspeed|set_default_dtype", re.IGNORECASE)
_MOST_CALLS = 32


def low_checkpoint(source: Source) -> Mistakes:
    """Weights or the state of an optimizer that are cast to 16 bits in the checkpoint that a training resumes from."""
    if not source.of("state_dict") or not trains(source) or _OTHER_OWNERS.search(source.text):
        return
    for site in source.of("save", "save_file")[:_MOST_CALLS]:
        given = keyword(site.node, "obj", 0) if site.name in _SAVES else None
        if given is None:
            continue
        saved = _written(source, given)
        parts = saved.values if isinstance(saved, ast.Dict) and None not in saved.keys else [given]
        casts = {part: cast for part in parts if (cast := _low_cast(source, part, site)) is not None}
        others = [part for part in parts if part not in casts]
        is_whole = any(_has_weights(source, each) for each in others)
        told = [part for part in casts if _has_state_of_optimizer(source, part) or not is_whole]
        if not told or _is_low_model(source, casts):
            continue
        if any(_has_state_of_optimizer(source, each) for each in parts) or _is_loaded_before(source, site):
            yield _lost_digits(source, told[0], casts[told[0]])


def _lost_digits(source: Source, part: ast.expr, cast: ast.Call) -> tuple[int, Severity, str, str]:
    known = cast_of(source, cast)
    low = "FP16" if known is not None and known[0] == "fp16" else "BF16"
    return (
        cast.lineno if source.scope(cast) is source.scope(part) else part.lineno, "warning", Sentence(
            "the checkpoint that a run resumes from stores the state of the optimizer in {low}: its digits are lost "
            "with each restart",
            low=low,
        ) if _has_state_of_optimizer(source, part) else Sentence(
            "the checkpoint that a run resumes from stores FP32 weights in {low}: their digits, and the small updates "
            "in them, are lost with each restart",
            low=low,
        ),
        Sentence("store them as they are, and a copy in {low} for inference in a file of its own", low=low),
    )  # fmt: skip


def _written(source: Source, node: ast.expr) -> ast.expr:
    return (definition(source, node) or node) if isinstance(node, ast.Name) else node


def _low_cast(source: Source, part: ast.expr, save: CallSite) -> ast.Call | None:
    """The cast to 16 bits of all tensors of a state, or of the model or the copy of one, that an entry saves."""
    written = _written(source, part)
    nodes = _nodes(source, written)
    if not any(isinstance(each, ast.Call) and _is_state(source, each) for each in nodes):
        return None
    casts = [each for each in nodes if isinstance(each, ast.Call) and cast_of(source, each) is not None]
    if isinstance(part, ast.Name) and written is not part and not casts:
        casts = _casts_in_place(source, part, source.places[written], save.place)
    formats = {found[0] for each in casts if (found := cast_of(source, each)) is not None}
    if len(formats) != 1 or formats.isdisjoint(EXACT_UP_TO):
        return None
    return casts[0] if not any(_is_chosen(source, each, part) for each in casts) else None


def _nodes(source: Source, written: ast.expr) -> list[ast.AST]:
    """The nodes of an expression, of what the names in it hold, and of the functions of this script that it calls."""
    nodes = source.walk(written)
    found = list(nodes)
    for each in nodes:
        if isinstance(each, ast.Name) and isinstance(held := definition(source, each), ast.Call):
            found += source.walk(held)
        own = (
            source.functions.get(each.func.id)
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
            else None
        )
        if own is not None:
            found += source.walk(own)
    return found


def _is_state(source: Source, call: ast.Call) -> bool:
    """Whether a call gives the state of an object, or is the copy of a model."""
    name = last_name(source, call)
    return name in ("state_dict", "named_parameters") or (name == "deepcopy" and bool(call.args))


def _casts_in_place(source: Source, name: ast.Name, first: int, last: int) -> list[ast.Call]:
    """The casts of `state[key] = value.half()` between the definition of a state and the call that saves it."""
    found = []
    for node in source.nodes[first:last]:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(target, ast.Subscript) or not isinstance(node, ast.Assign):
            continue
        value = node.value
        is_own = isinstance(target.value, ast.Name) and target.value.id == name.id
        in_loop = isinstance(source.loop(node), ast.For) and not isinstance(target.slice, ast.Constant)
        if is_own and in_loop and isinstance(value, ast.Call) and cast_of(source, value) is not None:
            found.append(value)
    return found


def _is_chosen(source: Source, cast: ast.Call, part: ast.expr) -> bool:
    """Whether only some tensors are cast, by another condition than that they hold floating-point numbers."""
    around, loop = list(source.above(cast)), source.loop(cast)
    is_here = source.scope(cast) is source.scope(part)
    tests = [each.test for each in around if isinstance(each, ast.IfExp)]
    tests += [test for each in around if isinstance(each, ast.DictComp | ast.ListComp) for inner in each.generators
              for test in inner.ifs]  # fmt: skip
    for each in around:  # of the `if` statements around the call that saves none is meant
        in_loop = (
            isinstance(part, ast.Name) and isinstance(loop, ast.For) and source.contains(loop, source.places[each])
        )
        if isinstance(each, ast.If) and (in_loop or not is_here):
            tests.append(each.test)
    return not all(_is_tensor_test(source, each) for each in tests)


def _is_tensor_test(source: Source, test: ast.expr) -> bool:
    names = {each.attr if isinstance(each, ast.Attribute) else each.id for each in source.walk(test)
             if isinstance(each, ast.Attribute | ast.Name)}  # fmt: skip
    return not names.isdisjoint(_TENSOR_TESTS)


def _owners_of_states(source: Source, part: ast.expr) -> list[CallSite]:
    nodes = {each for each in _nodes(source, _written(source, part)) if isinstance(each, ast.Call)}
    return [site for site in source.of("state_dict") if site.node in nodes]


def _has_state_of_optimizer(source: Source, part: ast.expr) -> bool:
    return any(is_optimizer(source, site) for site in _owners_of_states(source, part))


def _has_weights(source: Source, part: ast.expr) -> bool:
    """Whether an entry may hold weights as they are: any that is not an optimizer, a scheduler, a number or a text."""
    if isinstance(part, ast.Constant):
        return False
    names = [each for each in source.walk(part) if isinstance(each, ast.Name | ast.Attribute)]
    return any(
        isinstance(each, ast.Call) and _is_state(source, each)
        and not any(word in path_text(each.func).lower() for word in _NO_WEIGHTS) for each in source.walk(part)
    ) or any(
        isinstance(held := definition(source, each), ast.expr)
        and any(isinstance(below, ast.Call) and _is_state(source, below) for below in source.walk(held))
        for each in names if isinstance(each, ast.Name)
        and not any(word in each.id.lower() for word in _NO_WEIGHTS)
    ) or (isinstance(part, ast.Name | ast.Attribute) and is_model(source, part))  # fmt: skip


def _is_low_model(source: Source, casts: dict[ast.expr, ast.Call]) -> bool:
    """Whether the script casts a model to 16 bits anywhere else, so that its weights have no more digits."""
    known = set(casts.values())
    for site in source.of(*_CASTS, "from_pretrained"):
        if site.node in known or model_format(source, whole_chain(source, site.node)) not in EXACT_UP_TO:
            continue
        made = base(site.node)
        if site.method == "from_pretrained" or is_model(source, made):
            return True
        if isinstance(made, ast.Call) and (last_name(source, made)[:1].isupper() or not source.of("deepcopy")):
            return not isinstance(source.scope(site.node), ast.Lambda)
    return False


def _is_loaded_before(source: Source, save: CallSite) -> bool:
    """Whether the script loads the file that it saves before it trains."""
    path = keyword(save.node, "f", 1) or keyword(save.node, "filename")
    for load in source.of("load", "load_file")[:_MOST_CALLS] if path is not None else ():
        given = keyword(load.node, "f", 0) if load.name in _LOADS else None
        if given is None or path is None or ast.dump(_written(source, given)) != ast.dump(_written(source, path)):
            continue
        scope = source.scope(load.node)
        following = source.between(scope, load.place, source.end(scope) + 1)
        if source.in_scope(scope, "load_state_dict") and any(_trains(source, each) for each in following):
            return True
    return False


def _trains(source: Source, site: CallSite) -> bool:
    function = source.functions.get(site.name)
    if site.method == "backward" and site.owner:
        return True
    return isinstance(function, Function) and any(each.method == "backward" for each in source.inside(function))


RULES: dict[str, Callable[[Source], Mistakes]] = {"checkpoint-in-16-bits": low_checkpoint}
