"""Parts of precgui's own source as they go into an exported script: definitions with all that they use."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

_ENGINE = "precgui.engine."
_OTHERS = ("torch", "torchvision", "numpy", "PIL")  # libraries that are not of the standard one
# modules beside the engine from which definitions are taken
_BESIDE = ("events", "formats.model", "formats.float_format", "formats.rounding")
# What a script takes instead: rounding in plain torch for the compiled kernels.
_INSTEAD = {"quantize.elements": "quantize.torch_form", "quantize.blocks": "quantize.torch_form"}
# Types that only precgui has, as a script without it writes them.
_TYPES = {"ScaleRule": "str", "RunConfig": "SimpleNamespace"}


@dataclass(frozen=True)
class _Module:
    text: str
    defined: dict[str, ast.stmt]
    foreign: list[str]  # import statements of other libraries
    borrowed: dict[str, tuple[str, str]]  # names from other modules of the engine


@dataclass
class ScriptSource:
    """Collects definitions, each once, after those that they use."""

    imports: list[str] = field(default_factory=list)
    _parts: dict[str, str] = field(default_factory=dict)
    _put: set[str] = field(default_factory=set)

    def take(self, module: str, *names: str) -> None:
        """Add top-level definitions of `precgui.engine.MODULE`, and what they use of the engine.

        Raises KeyError for a name that the module does not define, ValueError when two modules use one name for
        different things.
        """
        for name in names:
            self._add(module, name)

    def put(self, name: str, text: str, imports: Sequence[str] = ()) -> None:
        """Let `text` define a name instead of what precgui has; to be called before that is taken."""
        self._parts[name] = text
        self._put.add(name)
        self.imports += imports

    def _add(self, module: str, name: str) -> None:
        if name in self._put:
            return
        read = _read(module)
        if name not in read.defined:
            self._add(*read.borrowed[name])
            return
        part = _text(read.text, read.defined[name])
        name = _defines(read.defined[name])[0]  # of several names that are given values in one line
        if name in self._parts:
            if self._parts[name] != part:
                raise ValueError(f"{name} of {module} is another one than that which the script has already")
            return
        self._parts[name] = part  # before its parts, for the sake of recursion
        self.imports += read.foreign
        for used in _used(read.defined[name]):
            if used in read.defined or used in read.borrowed:
                self._add(module, used)
        self._parts[name] = self._parts.pop(name)

    def text(self) -> str:
        """The definitions, one after the other; constants without gaps."""
        text = ""
        for part in self._parts.values():
            gap = "\n" if text and _is_constant(part) and _is_constant(text.splitlines()[-1]) else "\n\n\n"
            text += part if not text else gap + part
        return text


def import_lines(imports: list[str], body: str) -> str:
    """The imports whose names occur in `body`, sorted, the standard library first."""
    plain: set[str] = set()
    members: dict[str, set[str]] = {}
    for statement in imports:
        node = ast.parse(statement).body[0]
        if isinstance(node, ast.Import):
            plain |= {ast.unparse(ast.Import([alias])) for alias in node.names if _occurs(alias, body)}
        elif isinstance(node, ast.ImportFrom) and node.module:
            used = {ast.unparse(alias) for alias in node.names if _occurs(alias, body)}
            members.setdefault(node.module, set()).update(used)
    lines = [
        *plain,
        *(f"from {module} import {', '.join(sorted(names))}" for module, names in members.items() if names),
    ]
    standard = {line for line in lines if line.split()[1].partition(".")[0] not in _OTHERS}
    others = set(lines) - standard
    return "\n".join([*sorted(standard, key=_order), "", *sorted(others, key=_order)]).strip()


def _order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def _occurs(alias: ast.alias, body: str) -> bool:
    return re.search(rf"\b{re.escape(alias.asname or alias.name.partition('.')[0])}\b", body) is not None


@cache
def _read(module: str) -> _Module:
    folder = resources.files("precgui.engine")
    if module in _BESIDE:
        folder = resources.files("precgui")
    path = folder / f"{module.replace('.', '/')}.py"
    if not path.is_file():
        path = folder / module.replace(".", "/") / "__init__.py"
    text = path.read_text(encoding="utf-8")
    found = _Module(text, {}, [], {})
    for node in ast.parse(text).body:
        found.defined.update(dict.fromkeys(_defines(node), node))
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and _is_foreign(node.module)):
            found.foreign.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(_ENGINE):
            source = str(node.module).removeprefix(_ENGINE)
            borrowed = {alias.asname or alias.name: (_INSTEAD.get(source, source), alias.name) for alias in node.names}
            found.borrowed.update(borrowed)
        elif isinstance(node, ast.ImportFrom) and str(node.module).removeprefix("precgui.") in _BESIDE:
            source = str(node.module).removeprefix("precgui.")
            found.borrowed.update({alias.asname or alias.name: (source, alias.name) for alias in node.names})
    return found


def _is_foreign(module: str | None) -> bool:
    return module != "__future__" and not str(module).startswith("precgui")


def _defines(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=[ast.Tuple(elts=names)]):
            return [name.id for name in names if isinstance(name, ast.Name)]
        case _:
            return []


def _used(node: ast.stmt) -> list[str]:
    """Every name that occurs in a definition, in order."""
    return list(dict.fromkeys(part.id for part in ast.walk(node) if isinstance(part, ast.Name)))


def _is_constant(part: str) -> bool:
    return "\n" not in part and re.match(r"\w+(, \w+)*(: [^=]+)? = ", part) is not None


def _text(text: str, node: ast.stmt) -> str:
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    part = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    for name, plain in _TYPES.items():
        part = re.sub(rf"\b{name}\b", plain, part)
    return re.sub(r"  # (type: ignore|noqa|fmt)\S*.*$", "", part, flags=re.MULTILINE)
