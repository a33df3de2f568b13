"""Findings as changes of the text. A change is offered only when the finding is gone in the changed text, and no other
one has come; a mistake whose cure needs a decision has none."""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from precgui.lint.check import ScriptError, ScriptFinding, check
from precgui.lint.fragment import Fragment, lines_of
from precgui.lint.source import CallSite, Source

_SYNCHRONIZE = "torch.cuda.synchronize()"
_CLOCKS = ("time.time", "time.perf_counter", "time.monotonic", "time.process_time")
_CUDA = '"cuda"'
_AUTOCAST = ("enabled", "dtype", "cache_enabled")  # positions of the arguments of torch.cuda.amp.autocast
_LARGEST = "torch.finfo({tensor}.dtype).min"


@dataclass(frozen=True)
class Edit:
    """The text between two places of the script (line from 1, column in UTF-8 bytes from 0) becomes `text`."""

    start: tuple[int, int]
    stop: tuple[int, int]
    text: str


Rewrite = Callable[[Source, int], Iterator[Edit]]


def rewritten(text: str, finding: ScriptFinding) -> str | None:
    """The text without the mistake of a finding, as it was around its code; None where no rule changes it so that
    nothing else is found."""
    rewrite = REWRITES.get(finding.rule)
    if rewrite is None:
        return None
    try:
        fragment = Fragment.of(text)
        source = Source(_lines_end(fragment.code))
        changed = fragment.with_code(_applied(source.text, list(rewrite(source, finding.line))))
        before, after = (Counter(each.rule for each in check(each)) for each in (text, changed))
    except (SyntaxError, ScriptError):
        return None
    return changed if after[finding.rule] < before[finding.rule] and not after - before else None


def difference(text: str, finding: ScriptFinding, name: str = "script.py") -> str:
    """The change of `rewritten` as a unified diff with paths `a/name` and `b/name`; empty where there is none."""
    changed = rewritten(text, finding)
    if changed is None:
        return ""
    before, after = lines_of(text), lines_of(changed)
    pieces = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", n=2)
    return "".join(piece if piece.endswith("\n") else f"{piece}\n\\ No newline at end of file\n" for piece in pieces)


def _applied(text: str, edits: list[Edit]) -> str:
    """The text with all edits made, the last one first."""
    lines = text.encode().splitlines(keepends=True)
    for edit in sorted(edits, key=lambda each: (each.start, each.stop), reverse=True):
        (first, left), (last, right) = edit.start, edit.stop
        before = lines[first - 1][:left] if first <= len(lines) else b""
        after = lines[last - 1][right:] if last <= len(lines) else b""
        lines[first - 1 : last] = (before + edit.text.encode() + after).splitlines(keepends=True)
    return b"".join(lines).decode()


def _lines_end(text: str) -> str:
    """The text with an end of its last line."""
    return text if text.endswith("\n") else f"{text}\n"


# Places in the script


def _calls(source: Source, line: int, *methods: str) -> Iterator[CallSite]:
    """The calls of these methods that begin at a line."""
    return (site for site in source.calls if site.line == line and (not methods or site.method in methods))


def _statement(source: Source, node: ast.AST) -> ast.stmt | None:
    found: ast.AST | None = node
    while found is not None and not isinstance(found, ast.stmt):
        found = source.parent(found)
    return found


def _at(source: Source, line: int) -> ast.stmt | None:
    """The innermost statement that begins at a line."""
    found = [node for node in source.nodes if isinstance(node, ast.stmt) and node.lineno == line]
    return found[-1] if found else None


def _segment(source: Source, node: ast.AST) -> str:
    return ast.get_source_segment(source.text, node) or ""


def _replaced(node: ast.expr, text: str) -> Edit:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return Edit((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), text)


def _before(statement: ast.stmt | None, text: str) -> Iterator[Edit]:
    """A statement on a line of its own before another."""
    if statement is not None:
        place = (statement.lineno, 0)
        yield Edit(place, place, f"{' ' * statement.col_offset}{text}\n")


def _after(statement: ast.stmt | None, text: str) -> Iterator[Edit]:
    """A statement on a line of its own after another."""
    if statement is not None and statement.end_lineno is not None:
        place = (statement.end_lineno + 1, 0)
        yield Edit(place, place, f"{' ' * statement.col_offset}{text}\n")


def _scaler(source: Source) -> tuple[str, str]:
    """The texts of the first scaler and of the optimizer that it steps; empty where they are not found."""
    for site in source.of("step"):
        if site.node.args and isinstance(site.node.func, ast.Attribute) and source.owner(site) in source.scaling:
            return _segment(source, site.node.func.value), _segment(source, site.node.args[0])
    for site in source.of("GradScaler"):
        statement = _statement(source, site.node)
        if isinstance(statement, ast.Assign):
            return _segment(source, statement.targets[0]), ""
    return "", ""


# Changes by rule


def _unscale_before(source: Source, line: int) -> Iterator[Edit]:
    scaler, optimizer = _scaler(source)
    if optimizer:
        yield from _before(_at(source, line), f"{scaler}.unscale_({optimizer})")


def _unscale_earlier(source: Source, line: int) -> Iterator[Edit]:
    """The division by the scale before a reading of norms; one that comes later in the step is taken out."""
    for site in source.of("unscale_"):
        statement = _statement(source, site.node)
        if isinstance(statement, ast.Expr) and statement.lineno > line and statement.end_lineno is not None:
            yield Edit((statement.lineno, 0), (statement.end_lineno + 1, 0), "")
    yield from _unscale_before(source, line)


def _update_after(source: Source, line: int) -> Iterator[Edit]:
    scaler, _ = _scaler(source)
    yield from _after(_at(source, line), f"{scaler}.update()")


def _scaled_backward(source: Source, line: int) -> Iterator[Edit]:
    scaler, _ = _scaler(source)
    for site in _calls(source, line, "backward"):
        if isinstance(site.node.func, ast.Attribute):
            loss = _segment(source, site.node.func.value)
            yield _replaced(site.node.func.value, f"{scaler}.scale({loss})")


def _scale_every_loss(source: Source, line: int) -> Iterator[Edit]:
    for site in source.of("backward"):
        yield from _scaled_backward(source, site.line)


def _step_by_scaler(source: Source, line: int) -> Iterator[Edit]:
    scaler, _ = _scaler(source)
    for site in _calls(source, line, "step"):
        if isinstance(site.node.func, ast.Attribute):
            yield _replaced(site.node, f"{scaler}.step({_segment(source, site.node.func.value)})")
            if not source.of("update"):
                yield from _after(_statement(source, site.node), f"{scaler}.update()")


def _cleared(source: Source, line: int) -> Iterator[Edit]:
    for site in _calls(source, line, "step"):
        if isinstance(site.node.func, ast.Attribute):
            by_scaler = source.owner(site) in source.scaling and site.node.args
            optimizer = site.node.args[0] if by_scaler else site.node.func.value
            yield from _after(_statement(source, site.node), f"{_segment(source, optimizer)}.zero_grad()")


def _adapting(source: Source, line: int) -> Iterator[Edit]:
    for site in _calls(source, line, "update"):
        for argument in site.node.args:
            yield _replaced(argument, "")


def _with_device(source: Source, line: int) -> Iterator[Edit]:
    """`torch.cuda.amp` as `torch.amp`, with the device as first argument."""
    old = "torch.cuda.amp"
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module == old and node.end_lineno is not None:
            text = _segment(source, node).replace(old, "torch.amp", 1)
            yield Edit((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset or 0), text)
    for site in source.calls:
        if site.name in (f"{old}.autocast", f"{old}.GradScaler"):
            yield _replaced(site.node, _device_call(source, site))


def _device_call(source: Source, site: CallSite) -> str:
    """A call of `torch.cuda.amp` as one of `torch.amp`, where `enabled` is no longer the first argument of autocast."""
    name = _segment(source, site.node.func).replace("cuda.amp", "amp")
    given = [_segment(source, each) for each in (*site.node.args, *site.node.keywords)]
    if given and given[0].strip("'\"") == "cuda":
        return f"{name}({', '.join(given)})"
    if site.method == "autocast" and site.node.args:
        given = [f"{key}={text}" for key, text in zip(_AUTOCAST, given, strict=False)][: len(site.node.args)]
        given += [_segment(source, each) for each in site.node.keywords]
    return f"{name}({', '.join([_CUDA, *given])})"


def _out_of_autocast(source: Source, line: int) -> Iterator[Edit]:
    """The backward pass, and what follows it in the region, moved behind the region."""
    statement = _at(source, line)
    for region, _ in source.autocasts:
        if statement in region.body[1:] and region.body[-1].end_lineno is not None:
            last = region.body[-1].end_lineno
            lines = lines_of(source.text)[line - 1 : last]
            moved = textwrap.indent(textwrap.dedent("".join(lines)), " " * region.col_offset)
            yield Edit((line, 0), (last, len(lines[-1].encode())), moved)


def _smallest(source: Source, line: int) -> Iterator[Edit]:
    for site in _calls(source, line, "masked_fill", "masked_fill_"):
        if len(site.node.args) > 1 and isinstance(site.node.func, ast.Attribute):
            tensor = _segment(source, site.node.func.value)
            yield _replaced(site.node.args[1], _LARGEST.format(tensor=tensor))


def _all_tf32_off(source: Source, line: int) -> Iterator[Edit]:
    yield from _after(_at(source, line), "torch.backends.cudnn.allow_tf32 = False")


def _waited_for(source: Source, line: int) -> Iterator[Edit]:
    """A wait before each reading of the clock in the function of the reading at the line."""
    scopes = {source.scope(site.node) for site in _calls(source, line) if site.name in _CLOCKS}
    read = [site for site in source.calls if site.name in _CLOCKS and source.scope(site.node) in scopes]
    found = (_statement(source, site.node) for site in read)
    for statement in {each.lineno: each for each in found if each is not None}.values():
        yield from _before(statement, _SYNCHRONIZE)


def _without_scaling(source: Source, line: int) -> Iterator[Edit]:
    for site in _calls(source, line, "GradScaler"):
        call = _segment(source, site.node)
        more = ", " if site.node.args or site.node.keywords else ""
        yield _replaced(site.node, f"{call.rstrip()[:-1].rstrip().rstrip(',')}{more}enabled=False)")


def _log_softmax(source: Source, line: int) -> Iterator[Edit]:
    """`log(softmax(x, dim))` as `log_softmax(x, dim)`."""
    for site in _calls(source, line, "log"):
        inner = site.node.args[0] if site.node.args else None
        if isinstance(inner, ast.Call) and source.name_of(inner.func).endswith(".softmax"):
            head, _, tail = _segment(source, inner).partition("softmax")
            yield _replaced(site.node, f"{head}log_softmax{tail}")


def _logits(source: Source, line: int) -> Iterator[Edit]:
    """The argument of a softmax that is itself the argument of a call, in its place."""
    for site in _calls(source, line):
        for inner in site.node.args[:1]:
            if isinstance(inner, ast.Call) and source.name_of(inner.func).endswith("softmax") and inner.args:
                yield _replaced(inner, _segment(source, inner.args[0]))


REWRITES: dict[str, Rewrite] = {
    "scaler-not-used": _scale_every_loss,
    "clip-before-unscale": _unscale_before,
    "norm-before-unscale": _unscale_earlier,
    "step-past-the-scaler": _step_by_scaler,
    "scaler-not-updated": _update_after,
    "scale-set-anew": _adapting,
    "loss-not-scaled": _scaled_backward,
    "backward-in-autocast": _out_of_autocast,
    "deprecated-amp": _with_device,
    "scaler-with-bf16": _without_scaling,
    "mask-beyond-fp16": _smallest,
    "gradients-not-cleared": _cleared,
    "tf32-in-fp32": _all_tf32_off,
    "time-of-launches": _waited_for,
    "log-of-probability": _log_softmax,
    "applied-twice": _logits,
}
