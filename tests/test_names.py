"""Names of modules, classes, functions, attributes and variables say what they hold."""

from __future__ import annotations

import ast
import re

from tests.test_layers import dotted, modules, parsed

# Words that say too little of what a name holds: no variable, attribute, function, class or module has one as a part.
VAGUE_WORDS = {
    "settle",
    "settled",
    "rest",
    "look",
    "looked",
    "told",
    "found",
    "wanted",
    "seen",
    "beside",
    "shown",
    "made",
    "begun",
}
NAMES_OF_OTHERS = {"found_inf", "_FUNCTION_NOT_FOUND"}  # an argument of torch's optimizers; an error of NVML
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _defined(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.alias(asname=name):
            return name
    return None


def vague_names(tree: ast.Module) -> list[str]:
    """The names defined in a module that have a vague word as a part, with their lines."""
    names = [(node.lineno, name) for node in ast.walk(tree) if (name := _defined(node)) is not None]
    return [f"{line}: {name}" for line, name in sorted(names) if name not in NAMES_OF_OTHERS and is_vague(name)]


def is_vague(name: str) -> bool:
    return not VAGUE_WORDS.isdisjoint(_CAPITAL.sub("_", name).lower().split("_"))


def test_that_names_say_what_they_hold() -> None:
    vague = {dotted(path): vague_names(parsed(path)) for path in modules()}
    assert {name: places for name, places in vague.items() if places} == {}
    assert [name for name in vague if any(map(is_vague, name.split(".")))] == []


def test_that_the_check_finds_a_vague_name() -> None:
    source = (
        "def f(told):\n    found = [x for was_seen in told]\n    self.rest = Signal()\nclass NotTold:\n    beside: int"
    )
    assert vague_names(ast.parse(source)) == [
        "1: told",
        "2: found",
        "2: was_seen",
        "3: rest",
        "4: NotTold",
        "5: beside",
    ]
    assert vague_names(ast.parse("restored, found_inf = nearest, looks")) == []
