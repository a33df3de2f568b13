"""The texts of the source for the tests of translations: which are marked, and which look like prose and are not."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

IMPORTED = re.compile(r"precgui\.(words|sentences)")
MARKS = ("_", "n_", "p_", "L_", "Sentence", "counted")
NOW = ("_", "n_", "p_")  # translate where they stand
TEXTS = {"n_": 2, "p_": 2, "counted": 2}  # how many of the arguments are texts; one of all others
PROSE = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}|^[A-Z][a-z]{2,}[:.]?$|^\w*&[A-Za-z]\w+$|\{\} (?!ulp)[a-z]{3,}")
TAG = re.compile(r"<\w[^<>]*(>|$)")
NO_PROSE = re.compile(r"^(Q[A-Z]\w+|#|<!DOCTYPE)|\{[^{}]+;|\{ [a-z-]+: |::|^\S+$(?<![:.a-z])")
# Works that a finding is taken from, which stay as they are published.
SOURCES = re.compile(
    r"^[A-Z][\w-]+( and [A-Z]\w+| et al\.)? \d{4}\b|\bissues? \d+|^(py)?torch(\.\w+)* .*documentation|^docs/"
)
# Names, keys and code, which are the same in every language.
NAMES = {
    " LoRA on {}", "e4m3fn (gradients e5m2) summed as on Hopper",
    "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, int[] least, int[] sums) -> Tensor",
    "and {} other settings ({})", "sixteen bits", "Byte", "CPU implementer", "CPU part", "Darwin", "Del", "Enter",
    "Esc", "Features", "Format", "Fusion", "Inf", "Intel", "Kahan", "Linux", "Neural accelerators", "Python",
    " summed in {}", "int{} weights, {} inputs", "{}, int{} weights", "tf32 or fp16",  # labels of layers, formats
    "Special", "Zen", "apt install", "code book", "cpu family", "data sheet", "dnf install", "does not hold here",
    "first block", "live poller", "model name", "None", "not decided", "not decided here", "one by one",
    "power sampler", "precgui, torch", "quiet nan", "signalling nan", "typed tensor", "normal with outliers",
    "Your own loop", "{} min", "Shiboken", "half ulp", "no bias", "cannot be told",
}  # fmt: skip
# Words of messages that are looked for, keys, and exported names.
KEYS = {
    "Blame", "Dropout", "Embedding", "Evidence", "Finding", "Inf", "No inf checks were recorded", "Optimizer",
    "Bool", "Char", "Double", "Float", "Half", "Int", "Long", "Short", "Recorder", "Storage", "Trash",
    "{} was killed by", "DeepSeek blocks",
    "Counterfactual", "Shadow", "Stage", "Table", "Visit", "emulated product", "second time",
    "precgui module: ", "precgui phase: ", "precgui step", "precgui warm-up", "signed char",
    "Accelerator", "Adam", "Adamax", "Identity", "Parameter", "Sequential", "Sigmoid", "Softmax", "Tanh", "Trainer",
    ", written to {name}: open that file to check it", ", left out: no Python that can be parsed",
    "{}\n\\ No newline at end of file\n", "log sigmoid", "log softmax", "read from outside by training", "Linear",
    "wrapped cast", "coarse rounding", "Telemetry", "Weight", "No available kernel", " does not have",
    "No viable backend for scaled_dot_product_attention", "does not have a deterministic implementation",
    "a tensor on meta", "the class {}",  # in errors of Python for who writes a loop
    "Expected to have finished reduction in the prior iteration", "can't allocate memory", ". Error code",
    "parameters and buffers", "Detector", "Gpt", "Lstm", "Recommender", "Tell",
    "Undecided", "cannot be told", "coarse cast", "out of memory", "precgui replay RUN.h5", "same dtype", "targets of",
}  # fmt: skip
CODE = re.compile(
    r'^(""")|^from \S+ import|^import torch$|^rounded\(Tensor'
    r"|^(with torch|tuple\[|scaler = |model = |precgui (run|compare|sweep) |argument \()"
    r"|^(make wheel |(\{\})?python3 -m pip |import sys; )"
    r"|^for step in |^( {4})+(configs = |for inputs in |if step|with torch)"
    r"|^<!DOCTYPE|^(compressed-tensors|torchao), "
    r"|^(recorder = precgui|def both_passes)"
    r"|arguments?( are required|s: | \(\?P)"
)
INTERNAL = {
    "ValueError",
    "TypeError",
    "RuntimeError",
    "AssertionError",
    "KeyError",
    "AttributeError",
    "NotImplementedError",
}
QUIET_CALLS = {
    "setObjectName",
    "setProperty",
    "compile",
    "property",
    "getattr",
    "setattr",
    "hasattr",
    "findChild",
    "sub",
    "fullmatch",
    "match",
    "search",
    "import_module",
    "cast",
    "TypeVar",
    "Literal",
    "getLogger",
    "warning",  # of a log, which stays English
    "split",
    "encode",
}


@dataclass(frozen=True)
class Call:
    name: str
    node: ast.Call
    in_function: bool
    in_text: bool  # in an f-string


def called_name(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", "") or getattr(function, "attr", "")


def calls(tree: ast.Module) -> Iterator[Call]:
    """Every call of a mark, whether it is made when a function runs, and whether it stands in an f-string."""
    waiting: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
    while waiting:
        node, inside, in_text = waiting.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MARKS:
            yield Call(node.func.id, node, inside, in_text)
        inside = inside or isinstance(node, ast.FunctionDef | ast.Lambda)
        in_text = in_text or isinstance(node, ast.JoinedStr)
        waiting += [(child, inside, in_text) for child in ast.iter_child_nodes(node)]


def texts(call: Call) -> list[ast.expr]:
    return call.node.args[: TEXTS.get(call.name, 1)]


@functools.cache
def marked_texts(path: Path) -> frozenset[str]:
    """The literals that a file marks."""
    source = path.read_text(encoding="utf-8")
    if not IMPORTED.search(source):
        return frozenset()
    found = (text for call in calls(ast.parse(source)) for text in texts(call))
    return frozenset(text.value for text in found if isinstance(text, ast.Constant))


def unmarked(path: Path) -> list[tuple[int, str]]:
    """Line and text of what looks like prose for people and is in no mark; docstrings and internal errors are not."""
    found: list[tuple[int, str]] = []
    _collect(ast.parse(path.read_text(encoding="utf-8")), found)
    return sorted(found)


def _collect(node: ast.AST, found: list[tuple[int, str]]) -> None:
    if isinstance(node, ast.Call):
        name = called_name(node)
        if name in MARKS or name in INTERNAL or name in QUIET_CALLS:
            for child in [] if name not in MARKS else [*node.args[TEXTS.get(name, 1) :], *node.keywords]:
                _collect(child, found)
            if not isinstance(node.func, ast.Name):
                _collect(node.func, found)
            return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
        return
    if isinstance(node, ast.AnnAssign):
        if node.value is not None:
            _collect(node.value, found)
        return
    if isinstance(node, ast.FunctionDef):
        for child in [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults, *node.body]:
            if child is not None:
                _collect(child, found)
        return
    if isinstance(node, ast.JoinedStr):
        text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        _note(node, text, found)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                _collect(part.value, found)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        _note(node, node.value, found)
        return
    for child in ast.iter_child_nodes(node):
        _collect(child, found)


def _note(node: ast.expr, text: str, found: list[tuple[int, str]]) -> None:
    prose = PROSE.search(TAG.sub(" ", text))
    plain = text.replace("{}", "0")  # braces that are left are those of style sheets
    no_prose = NO_PROSE.search(plain) or any(each.search(text) for each in (CODE, SOURCES))
    if text not in NAMES | KEYS and prose and not no_prose:
        found.append((node.lineno, text))
