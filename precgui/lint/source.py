"""A script as a syntax tree with an index: calls by name, scopes, loops, variables, autocast regions, scalers."""

from __future__ import annotations

import ast
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from precgui.events import Severity
from precgui.lint.arguments import keyword
from precgui.lint.variables import NO_TEXT, SHARED_NODES, Variable, VariableTable, path_text

Mistakes = Iterator[tuple[int, Severity, str, str]]
T = TypeVar("T")
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_ALIASES = {"F": "torch.nn.functional", "nn": "torch.nn", "amp": "torch.amp", "optim": "torch.optim", "th": "torch"}
_MOST_PARTS = 32  # of a dotted name; longer ones are no names of torch
_MOST_ABOVE = 256  # nodes around a node
_MOST_SCALERS = 16  # of one script, each with so many calls that make it; more are no script that trains
_MOST_KEYS = 64  # nodes of a condition that tell it from another


@dataclass(frozen=True)
class CallSite:
    """One call. `name` is its dotted name with imports resolved, `owner` the text before the last dot."""

    node: ast.Call
    name: str
    owner: str
    place: int

    @property
    def method(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def line(self) -> int:
        return self.node.lineno


@dataclass
class Source:
    """A parsed script. Raises SyntaxError when it is made from text that is no Python.

    Every node has a place, its number in the order of the text; the nodes below it have the places up to `end`.
    All look-ups are linear in the length of the text or better.
    """

    text: str
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an escape that Python deprecates is not our subject
            self.tree = ast.parse(self.text)
        self._number_nodes()
        self.imports = dict(_imports(self.nodes))

    def _number_nodes(self) -> None:
        self.nodes: list[ast.AST] = []
        self.places: dict[ast.AST, int] = {}
        self._parents: list[int] = []
        self._scopes: list[int] = []
        self._loops: list[int] = []
        stack: list[tuple[ast.AST, int]] = [(self.tree, -1)]
        while stack:
            node, parent = stack.pop()
            place = len(self.nodes)
            self.places[node] = place
            self.nodes.append(node)
            self._parents.append(parent)
            above = self.nodes[parent] if parent >= 0 else self.tree
            self._scopes.append(parent if isinstance(above, Function) else self._scopes[parent] if parent >= 0 else 0)
            inherited = self._loops[parent] if parent >= 0 else -1
            starts = isinstance(above, ast.For | ast.While | ast.AsyncFor)
            self._loops.append(parent if starts else -1 if isinstance(above, Function) else inherited)
            below = [each for each in ast.iter_child_nodes(node) if not isinstance(each, SHARED_NODES)]
            stack.extend((each, place) for each in reversed(below))
        self._ends = list(range(len(self.nodes)))
        for place in range(len(self.nodes) - 1, 0, -1):
            parent = self._parents[place]
            self._ends[parent] = max(self._ends[parent], self._ends[place])

    def parent(self, node: ast.AST) -> ast.AST | None:
        above = self._parents[self.places[node]]
        return self.nodes[above] if above >= 0 else None

    def end(self, node: ast.AST) -> int:
        """The last place below a node."""
        return self._ends[self.places[node]]

    def contains(self, node: ast.AST, place: int) -> bool:
        return self.places[node] <= place <= self.end(node)

    def walk(self, node: ast.AST) -> list[ast.AST]:
        """A node and the nodes below it, in the order of the text."""
        return self.nodes[self.places[node] : self.end(node) + 1]

    @cached_property
    def calls(self) -> list[CallSite]:
        """All calls in the order of the text."""
        return [
            CallSite(node, self.name_of(node.func), _owner(node.func), place)
            for place, node in enumerate(self.nodes) if isinstance(node, ast.Call)
        ]  # fmt: skip

    @cached_property
    def _calls_by_method(self) -> dict[str, list[CallSite]]:
        groups: dict[str, list[CallSite]] = {}
        for site in self.calls:
            groups.setdefault(site.method, []).append(site)
        return groups

    @cached_property
    def _calls_by_scope(self) -> dict[ast.AST, list[CallSite]]:
        groups: dict[ast.AST, list[CallSite]] = {}
        for site in self.calls:
            groups.setdefault(self.scope(site.node), []).append(site)
        return groups

    @cached_property
    def _calls_by_variable(self) -> dict[Variable, list[CallSite]]:
        groups: dict[Variable, list[CallSite]] = {}
        for site in self.calls:
            if (variable := self.owner(site)) is not None:
                groups.setdefault(variable, []).append(site)
        return groups

    def of(self, *methods: str) -> list[CallSite]:
        groups = [self._calls_by_method.get(each, []) for each in methods]
        return groups[0] if len(groups) == 1 else sorted((s for g in groups for s in g), key=lambda site: site.place)

    @cached_property
    def _named_calls(self) -> dict[tuple[str, str], list[CallSite]]:
        groups: dict[tuple[str, str], list[CallSite]] = {}
        for site in self.calls:
            groups.setdefault((site.owner.rpartition(".")[2], site.method), []).append(site)
        return groups

    def named_calls(self, last_part: str, method: str) -> list[CallSite]:
        """Calls of a method on whatever has a name, in any scope: for statements that something is missing."""
        return self._named_calls.get((last_part, method), [])

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value that is computed once for a script."""
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    @cached_property
    def _cache(self) -> dict[Hashable, Any]:
        return {}

    @cached_property
    def looped_functions(self) -> set[str]:
        """Names that are called in a loop."""
        return {site.method for site in self.calls if self.loop(site.node) is not None}

    def next_in_scope(self, node: ast.AST, method: str) -> CallSite | None:
        """The next call of a method after a node, in the same function."""
        sites = self._calls_by_scope_and_method.get((self.scope(node), method), [])
        index = bisect_right(sites, self.places[node], key=lambda site: site.place)
        return sites[index] if index < len(sites) else None

    def previous_in_scope(self, node: ast.AST, method: str) -> CallSite | None:
        """The last call of a method before a node, in the same function."""
        sites = self._calls_by_scope_and_method.get((self.scope(node), method), [])
        index = bisect_left(sites, self.places[node], key=lambda site: site.place)
        return sites[index - 1] if index else None

    @cached_property
    def _calls_by_scope_and_method(self) -> dict[tuple[ast.AST, str], list[CallSite]]:
        groups: dict[tuple[ast.AST, str], list[CallSite]] = {}
        for site in self.calls:
            groups.setdefault((self.scope(site.node), site.method), []).append(site)
        return groups

    def in_scope(self, scope: ast.AST, method: str) -> list[CallSite]:
        return self._calls_by_scope_and_method.get((scope, method), [])

    def between(self, scope: ast.AST, first: int, last: int) -> list[CallSite]:
        """The calls of a function that lie wholly between two places."""
        sites = self._calls_by_scope.get(scope, [])
        start = bisect_right(sites, first, key=lambda site: site.place)
        stop = bisect_left(sites, last, key=lambda site: site.place)
        return [site for site in sites[start:stop] if self.end(site.node) < last]

    def calls_of(self, variable: Variable, *methods: str) -> list[CallSite]:
        """The calls of methods of one object, `variable.method(...)`."""
        return [site for site in self._calls_by_variable.get(variable, []) if site.method in methods]

    def owner(self, site: CallSite) -> Variable | None:
        """The variable that a method is called on."""
        return self.variable(site.node.func.value) if isinstance(site.node.func, ast.Attribute) else None

    def name_of(self, node: ast.AST) -> str:
        """The dotted name of an expression, `torch.nn.functional.softmax` for `F.softmax`; '' for what has none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and len(parts) < _MOST_PARTS:
            parts.append(node.attr)
            node = node.value
        root = self.imports.get(node.id, _ALIASES.get(node.id, node.id)) if isinstance(node, ast.Name) else ""
        return ".".join([root, *reversed(parts)])

    def text_of(self, node: ast.AST) -> str:
        """The text of a string, or the dotted name of another expression, where either may be given."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        return self.name_of(node)

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that a node is in, or the module."""
        return self.nodes[self._scopes[self.places[node]]]

    def loop(self, node: ast.AST) -> ast.AST | None:
        """The innermost loop around a node, within its function."""
        place = self._loops[self.places[node]]
        return self.nodes[place] if place >= 0 else None

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first, within its function."""
        for _ in range(_MOST_ABOVE):
            parent = self.parent(node)
            if isinstance(node, Function) or parent is None:
                return
            node = parent
            yield node

    def inside(self, node: ast.AST) -> Iterator[CallSite]:
        """The calls below a node, those of nested functions left out."""
        own = node if isinstance(node, Function | ast.Module) else self.scope(node)
        sites = self._calls_by_scope.get(own, [])
        first = bisect_left(sites, self.places[node], key=lambda site: site.place)
        return iter(sites[first : bisect_right(sites, self.end(node), key=lambda site: site.place)])

    @cached_property
    def variables(self) -> VariableTable:
        return VariableTable(self.nodes, self.scope, self.parent)

    def variable(self, node: ast.AST) -> Variable | None:
        """The variable that an expression names (`net`, `self.net`, `nets[0]`), told apart by scope."""
        return self.variables.variable(node, self.scope(node))

    def conditions(self, node: ast.AST) -> dict[tuple[str, ...], bool]:
        """The tests of the `if` statements around a node, each with whether it must be true here."""
        tests: dict[tuple[str, ...], bool] = {}
        below = node
        for each in self.above(node):
            if isinstance(each, ast.If | ast.IfExp) and below is not each.test:
                body = each.body if isinstance(each.body, list) else [each.body]
                key, positive = self._key(each.test)
                tests.setdefault(key, positive is (below in body))
            below = each
        return tests

    def _key(self, test: ast.AST) -> tuple[tuple[str, ...], bool]:
        positive = True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, positive = test.operand, not positive
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot | ast.NotEq):
            positive = not positive
        parts = []
        for node in self.walk(test)[:_MOST_KEYS]:
            own = getattr(node, "id", getattr(node, "attr", getattr(node, "value", "")))
            parts.append(f"{type(node).__name__} {own if isinstance(own, str | int | None) else ''}"[:80])
        return tuple(parts), positive

    def excludes(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether two nodes never both run: branches of one test, or one leaves before the other."""
        first, second = sorted((one, other), key=lambda node: self.places[node])
        if self.scope(one) is not self.scope(other):
            return False
        ours, theirs = self.conditions(first), self.conditions(second)
        if any(theirs.get(test, positive) is not positive for test, positive in ours.items()):
            return True
        for each in self.above(first):
            if isinstance(each, ast.If) and not self.contains(each, self.places[second]):
                branch = each.body if self.contains(each.body[-1], self.places[first]) or any(
                    self.contains(part, self.places[first]) for part in each.body) else each.orelse  # fmt: skip
                if branch and isinstance(branch[-1], ast.Return | ast.Continue | ast.Break | ast.Raise):
                    return True
        return False

    @cached_property
    def _autocasts_by_text(self) -> dict[str, ast.Call]:
        """Variables that hold an autocast context, as in `ctx = nullcontext() if ... else autocast(...)`."""
        calls: dict[str, ast.Call] = {}
        for site in self.of("autocast"):
            node: ast.AST | None = site.node
            while isinstance(node, ast.expr):
                node = self.parent(node)
            if isinstance(node, ast.Assign) and not isinstance(self.scope(site.node), ast.Lambda):
                calls |= {text: site.node for target in node.targets if (text := path_text(target)) != NO_TEXT}
        return calls

    @cached_property
    def autocasts(self) -> list[tuple[ast.With | ast.AsyncWith, ast.Call]]:
        """Each `with autocast` and the call that made it, directly or by a variable."""
        pairs = []
        for node in self.nodes:
            for item in node.items if isinstance(node, ast.With | ast.AsyncWith) else ():
                calls = (each for each in self.walk(item.context_expr) if isinstance(each, ast.Call))
                direct = next(
                    (call for call in calls if self.name_of(call.func).rpartition(".")[2] == "autocast"), None
                )
                call = direct or self._autocasts_by_text.get(path_text(item.context_expr))
                if call is not None and isinstance(node, ast.With | ast.AsyncWith):
                    pairs.append((node, call))
        return pairs

    @cached_property
    def scalers(self) -> dict[Variable, list[ast.Call]]:
        """Gradient scalers by the variable that holds them, with the calls that make them."""
        results: dict[Variable, list[ast.Call]] = {}
        for site in self.of("GradScaler")[: _MOST_SCALERS**2]:
            node: ast.AST | None = site.node
            while isinstance(node, ast.expr):
                node = self.parent(node)
            targets = (
                [self._partner(site.node, each, node.value) for each in node.targets]
                if isinstance(node, ast.Assign)
                else []
            )
            for target in [node.target] if isinstance(node, ast.AnnAssign) else targets:
                if (variable := self.variable(target)) is not None:
                    results.setdefault(variable, []).append(site.node)
        return {name: results[name][:_MOST_SCALERS] for name in list(results)[:_MOST_SCALERS]}

    def _partner(self, part: ast.expr, target: ast.expr, value: ast.expr) -> ast.expr:
        """The target of a part of a value: `b` for the second element in `a, b = f(), g()`."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = zip(target.elts, value.elts, strict=True)
            return next((own for own, each in pairs if self.contains(each, self.places[part])), target)
        return target

    @cached_property
    def scaling(self) -> list[Variable]:
        """The scalers, those that are arguments or are created elsewhere, too: each X of X.scale(loss).backward() with
        X.step(optimizer). One that is disabled is none."""
        scaled = {self.variable(call.func.value) for call in map(scaled_loss, self.of("backward"))
                  if call is not None and isinstance(call.func, ast.Attribute)}  # fmt: skip
        stepped = {self.owner(site) for site in self.of("step") if site.node.args}
        others = sorted((each for each in scaled & stepped if each), key=lambda each: each.text)
        names = dict.fromkeys((*self.scalers, *others))
        return [each for each in names if each.last_part not in self.disabled_scalers][:_MOST_SCALERS]

    @cached_property
    def disabled_scalers(self) -> set[str]:
        """Last parts of the names of scalers that are created with `enabled=False` anywhere in the script."""
        return {name.last_part for name, calls in self.scalers.items() if any(is_disabled(self, c) for c in calls)}

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes of the script by name."""
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The functions and methods of the script by name, those left out of whose name there are several."""
        groups: dict[str, list[ast.FunctionDef]] = {}
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef):
                groups.setdefault(node.name, []).append(node)
        return {name: group[0] for name, group in groups.items() if len(group) == 1}

    def repeats(self, node: ast.AST) -> bool:
        """Whether a node is in a loop, or in a function that this script calls in one."""
        if self.loop(node) is not None:
            return True
        return getattr(self.scope(node), "name", "") in self.looped_functions


def scaled_loss(site: CallSite) -> ast.Call | None:
    """The `scaler.scale(loss)` of `scaler.scale(loss).backward()`."""
    inner = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
    is_scaled = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "scale"
    return inner if is_scaled and isinstance(inner, ast.Call) else None


def is_disabled(source: Source, call: ast.Call) -> bool:
    """Whether a scaler or autocast has `enabled=False`, written out or by a variable that is always False."""
    named = keyword(call, "enabled")
    first = call.args[0] if call.args else None  # of torch.cuda.amp.autocast and of a GradScaler that is older
    given = first if named is None and isinstance(first, ast.Constant) and first.value is False else named
    if given is not None and not isinstance(given, ast.Constant):
        variable = source.variable(given)
        values = source.variables.values(variable) if variable is not None else []
        return 0 < len(values) < _MOST_SCALERS and all(
            isinstance(each, ast.Constant) and not each.value for each in values
        )
    return isinstance(given, ast.Constant) and not given.value


def _owner(node: ast.AST) -> str:
    return path_text(node.value) if isinstance(node, ast.Attribute) else ""


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    alias.name if alias.asname else alias.name.partition(".")[0],
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
