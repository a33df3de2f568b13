"""A script as a syntax tree with what the rules ask of it: calls by name, scopes, loops, autocast regions, scalers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_ALIASES = {"F": "torch.nn.functional", "nn": "torch.nn", "amp": "torch.amp", "optim": "torch.optim", "th": "torch"}


@dataclass(frozen=True)
class CallSite:
    """One call. `name` is its dotted name with imports resolved, `owner` the expression before the last dot."""

    node: ast.Call
    name: str
    owner: str

    @property
    def method(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def line(self) -> int:
        return self.node.lineno


@dataclass
class Source:
    """A parsed script. Raises SyntaxError when it is made from text that is no Python."""

    text: str
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)
        self.parents: dict[ast.AST, ast.AST] = {
            child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)
        }
        self.imports = dict(_imports(self.tree))

    @cached_property
    def calls(self) -> list[CallSite]:
        """All calls in the order of their lines."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        sites = [CallSite(node, self.name_of(node.func), _owner(node.func)) for node in nodes]
        return sorted(sites, key=lambda site: (site.line, site.node.col_offset))

    def of(self, *methods: str) -> list[CallSite]:
        return [site for site in self.calls if site.method in methods]

    def name_of(self, node: ast.AST) -> str:
        """The dotted name of an expression, `torch.nn.functional.softmax` for `F.softmax`; '' for what has none."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, _ALIASES.get(node.id, node.id))
        if isinstance(node, ast.Attribute):
            return f"{self.name_of(node.value)}.{node.attr}"
        return ""

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that a node is in, or the module."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, Function):
                return node
        return self.tree

    def loop(self, node: ast.AST) -> ast.AST | None:
        """The innermost loop around a node, within its function."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.For | ast.While):
                return node
            if isinstance(node, Function):
                return None
        return None

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first, within its function."""
        while node in self.parents and not isinstance(node, Function):
            node = self.parents[node]
            yield node

    def inside(self, node: ast.AST) -> Iterator[CallSite]:
        """The calls below a node, those of nested functions left out."""
        own = self.scope(node) if not isinstance(node, Function | ast.Module) else node
        below = set(ast.walk(node))
        return (site for site in self.calls if site.node in below and self.scope(site.node) is own)

    @cached_property
    def autocast_names(self) -> dict[str, ast.Call]:
        """Variables that hold an autocast context, as in `ctx = nullcontext() if ... else autocast(...)`."""
        calls: dict[str, ast.Call] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and (call := self._autocast_in(node.value)) is not None:
                calls |= {_text(target): call for target in node.targets}
        return calls

    def _autocast_in(self, node: ast.AST) -> ast.Call | None:
        calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
        return next((call for call in calls if self.name_of(call.func).rpartition(".")[2] == "autocast"), None)

    def autocast_of(self, item: ast.withitem) -> ast.Call | None:
        """The call of autocast that a `with` enters, directly or by a variable."""
        return self._autocast_in(item.context_expr) or self.autocast_names.get(_text(item.context_expr))

    @cached_property
    def autocasts(self) -> list[tuple[ast.With | ast.AsyncWith, ast.Call]]:
        """Each `with autocast` and the call that made it."""
        withs = [node for node in ast.walk(self.tree) if isinstance(node, ast.With | ast.AsyncWith)]
        pairs = [(node, self.autocast_of(item)) for node in withs for item in node.items]
        return [(node, call) for node, call in pairs if call is not None]

    @cached_property
    def scalers(self) -> dict[str, ast.Call]:
        """Gradient scalers by the variable that holds them, as text (`scaler`, `self.scaler`)."""
        results: dict[str, ast.Call] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                calls = [each for each in ast.walk(node.value) if isinstance(each, ast.Call)]
                created = next((c for c in calls if self.name_of(c.func).rpartition(".")[2] == "GradScaler"), None)
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if created is not None:
                    results |= {_text(target): created for target in targets}
        return results

    @cached_property
    def scaling(self) -> list[str]:
        """The scalers by name, those that are arguments or made elsewhere, too: whatever X.scale(loss).backward() and
        X.step(optimizer) are called on."""
        backward = (site.node.func for site in self.of("backward"))
        inner = [f.value for f in backward if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Call)]
        scaled = {_owner(call.func) for call in inner if self.name_of(call.func).rpartition(".")[2] == "scale"}
        stepped = {site.owner for site in self.of("step") if site.node.args}
        return list(dict.fromkeys((*self.scalers, *sorted(scaled & stepped - {""}))))

    def assigned(self, node: ast.AST) -> set[str]:
        """The variables that get the value of a chain of calls which a node is part of: `net` of
        `net = Net().half().cuda()` for any call in it."""
        while isinstance(parent := self.parents.get(node), ast.Attribute | ast.Call):
            if isinstance(parent, ast.Call) and parent.func is not node:
                return set()
            node = parent
        if isinstance(parent, ast.Assign):
            return {_text(target) for target in parent.targets}
        return {_text(parent.target)} if isinstance(parent, ast.AnnAssign) else set()

    def repeats(self, node: ast.AST) -> bool:
        """Whether a node is in a loop, or in a function that this script calls in one."""
        if self.loop(node) is not None:
            return True
        own = self.scope(node)
        name = getattr(own, "name", "")
        called = (site for site in self.calls if name and site.method == name and self.scope(site.node) is not own)
        return any(self.loop(site.node) is not None for site in called)


def keyword(call: ast.Call, name: str, place: int = -1) -> ast.expr | None:
    """An argument by its name, or by its place."""
    named = next((each.value for each in call.keywords if each.arg == name), None)
    return named if named is not None or not 0 <= place < len(call.args) else call.args[place]


def number(node: ast.AST | None) -> float | None:
    """The value of a literal number, also a negative one, `float("-inf")` included."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    return None


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _owner(node: ast.AST) -> str:
    return _text(node.value) if isinstance(node, ast.Attribute) else ""


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    alias.name if alias.asname else alias.name.partition(".")[0],
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
