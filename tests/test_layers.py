"""The rules of docs/architecture.md, "Who may import whom", checked on the source and in fresh interpreters."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.marked import MARKS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "precgui"

GROUND = {
    "backward_order",
    "catalogue",
    "checkpoint_files",
    "errors",
    "events",
    "examples",
    "citations",
    "sanitize",
    "paths",
    "safe_open",
    "sentence_keys",
    "sentences",
    "words",
}
MACHINE = GROUND | {"formats", "config", "hardware", "planner"}
# The rooms that each room may import, also inside functions. A room not named here does not exist.
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"formats", "engine", "runs", "record"},
    "__main__": {"cli"},
    "backward_order": set(),
    "catalogue": set(),
    "checkpoint_files": set(),
    "errors": set(),
    "events": set(),
    "paths": set(),
    "sanitize": {"sentences"},
    "sentence_keys": {"sanitize", "sentences", "words"},
    "sentences": set(),
    "translations": set(),
    "words": {"catalogue", "errors", "paths", "sentences", "translations"},
    "safe_open": {"paths", "sentences"},
    "examples": {"paths", "sentences"},
    "citations": {"paths", "sentences"},
    "formats": GROUND,
    "config": GROUND | {"formats"},
    "hardware": GROUND | {"formats"},
    "lint": GROUND,
    "planner": GROUND | {"formats", "config"},
    "engine": MACHINE | {"process"},
    "runs": MACHINE | {"process"},
    "record": MACHINE | {"engine", "runs"},
    "integrations": GROUND | {"config", "engine", "record"},
    "process": GROUND,
    "places": MACHINE | {"runs", "process"},
    "sweeps": MACHINE | {"runs", "process"},
    "job": MACHINE | {"engine", "runs", "process"},
    "model_job": MACHINE | {"engine", "runs", "process"},
    "profile_job": MACHINE | {"engine", "runs", "process"},
    "quantize_order": GROUND | {"formats", "config"},
    "quantize_job": MACHINE | {"engine", "runs", "process", "model_job", "quantize_order"},
    "export_job": MACHINE | {"engine", "runs"},
    "replay_job": MACHINE | {"engine", "runs", "process"},
    "gui": MACHINE | {"lint", "runs", "sweeps", "places"},
    "cli": MACHINE
    | {
        "lint",
        "engine",
        "runs",
        "sweeps",
        "job",
        "model_job",
        "profile_job",
        "quantize_order",
        "quantize_job",
        "export_job",
        "replay_job",
        "gui",
        "places",
    },
}
# Single doors: a module that may import a room which the rest of its room may not.
DOORS: dict[str, set[str]] = {
    "gui.workers.child_process": {"process"},
    "gui.workers.child_work": {"process"},
    "gui.workers.placed_run": {"process"},
}
# Where a library may be imported at all, and where only inside functions, so that it is not loaded at start-up.
LIBRARY_ROOMS: dict[str, set[str]] = {
    "PySide6": {"gui"},
    "shiboken6": {"gui"},
    "pyqtgraph": {"gui"},
    "h5py": {"runs"},
    "pynvml": {"hardware"},
    "torch": {"engine", "job", "record", "integrations", "hardware", "cli", "process"},
    "torchvision": {"engine", "job", "record", "hardware", "cli", "process"},
}
TORCH_ONLY_IN_FUNCTIONS = {"hardware", "cli", "process"}
ROOMS_ONLY_IN_FUNCTIONS = {("cli", "gui"), ("cli", "engine"), ("__init__", "engine"), ("__init__", "record")}
# Inside the window: the parts on the left never import those on the right.
INSIDE_GUI: dict[str, set[str]] = {
    "gui.panels": {"gui.shell", "gui.workers.child_process"},
    "gui.plots": {"gui.panels", "gui.shell", "gui.workers"},
    "gui.session": {"gui.panels", "gui.shell"},
    "gui.open_runs": {"gui.panels", "gui.shell", "gui.session", "gui.training_queue", "gui.workers"},
    "gui.requests": {"gui.panels", "gui.shell", "gui.session", "gui.training_queue", "gui.workers"},
    "gui.training_queue": {"gui.panels", "gui.shell", "gui.session"},
    "gui.workers": {"gui.panels", "gui.shell"},
    "gui.kit": {"gui.panels", "gui.shell", "gui.session", "gui.workers"},
    "gui.theme": {"gui.panels", "gui.shell", "gui.session", "gui.workers"},
}
NAMELESS_ROOMS = {"util", "utils", "helper", "helpers", "common", "shared", "misc"}
MOST_FUNCTION_LINES = 40
PRIVATE_TORCH = re.compile(r"torch(\.\w+)*\._(?!_)\w+(\.\w+)*")


@dataclass(frozen=True)
class Import:
    name: str
    line: int
    in_function: bool


def walked(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node of `tree`, and whether it stands in a function or under TYPE_CHECKING."""
    waiting = [(tree, False)]
    while waiting:
        node, lazy = waiting.pop()
        yield node, lazy
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        lazy = lazy or (isinstance(node, ast.If) and any(map(_is_type_checking, ast.walk(node.test))))
        waiting += [(child, lazy) for child in ast.iter_child_nodes(node)]


def imports(tree: ast.AST) -> list[Import]:
    """Every import below `tree`, also those inside functions, under TYPE_CHECKING and by name."""
    return [imported for node, lazy in walked(tree) for imported in _imports_of(node, lazy)]


def _imports_of(node: ast.AST, lazy: bool) -> list[Import]:
    return [Import(name, getattr(node, "lineno", 0), lazy) for name in _imported_names(node)]


def _is_type_checking(node: ast.AST) -> bool:
    return "TYPE_CHECKING" in (getattr(node, "id", ""), getattr(node, "attr", ""))


def _imported_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return [f"{module}.{alias.name}" for alias in names]
        case ast.ImportFrom(level=level):
            return [f"precgui.{'.' * level}relative"]
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            called = _attributes(function)
            return [name] if called in ("__import__", "import_module", "importlib.import_module") else []
    return []


@dataclass
class Source:
    """What the rules ask of a file. Its tree is not kept: those of all files are 300 MB."""

    imports: list[Import] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)  # name -> lines of its longest definition
    classes: list[str] = field(default_factory=list)  # of the module, public
    private_torch: list[str] = field(default_factory=list)


@functools.cache
def source(path: Path) -> Source:
    tree, result = parsed(path), Source()
    result.classes = [n.name for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
    for node, lazy in walked(tree):
        result.imports += _imports_of(node, lazy)
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1 - _lines_of_texts(node)
            result.functions[node.name] = max(lines, result.functions.get(node.name, 0))
        result.private_torch += filter(PRIVATE_TORCH.fullmatch, _names_of_torch(node))
    return result


def _lines_of_texts(function: ast.FunctionDef) -> int:
    """The lines of marked texts that take several: sentences are data, and the formatter gives each value a line."""
    waiting: list[ast.AST] = [function]
    lines = 0
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MARKS:
            taken = (node.end_lineno or node.lineno) - node.lineno + 1
            lines += taken if taken > 1 else 0
        else:
            waiting += ast.iter_child_nodes(node)
    return lines


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _names_of_torch(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return _imported_names(node)
    return [_attributes(node).replace("nn.modules", "torch.nn.modules")] if isinstance(node, ast.Attribute) else []


def faults(module: str, imported: Iterable[Import]) -> list[str]:
    """What is wrong with the imports of `module` (dotted, without `precgui.`), one sentence each."""
    return [f"{module}:{item.line} {sentence}" for item in imported if (sentence := _fault(module, item)) is not None]


def _fault(module: str, item: Import) -> str | None:
    room = module.partition(".")[0]
    top, _, inside = item.name.partition(".")
    if top != "precgui":
        return _library_fault(room, top, item.in_function)
    target = inside.partition(".")[0]
    if inside.startswith("."):
        return "imports relatively"
    if target not in MAY_IMPORT or target == room:
        return _inside_fault(module, inside)
    if target not in MAY_IMPORT[room] | DOORS.get(module, set()):
        return f"imports {item.name}: {room} may not know {target}"
    if (room, target) in ROOMS_ONLY_IN_FUNCTIONS and not item.in_function:
        return f"imports {item.name} at module level"
    return None


def _library_fault(room: str, library: str, in_function: bool) -> str | None:
    if library in LIBRARY_ROOMS and room not in LIBRARY_ROOMS[library]:
        return f"imports {library}: only {', '.join(sorted(LIBRARY_ROOMS[library]))} may"
    if library in ("torch", "torchvision") and room in TORCH_ONLY_IN_FUNCTIONS and not in_function:
        return f"imports {library} at module level"
    return None


def _inside_fault(module: str, target: str) -> str | None:
    own, other = module.split("."), target.split(".")
    if own[:2] == other[:2] == ["gui", "panels"] and _panel(own) != _panel(other):
        return f"imports {target}: panels meet in gui.session, they do not import one another"
    for part, forbidden in INSIDE_GUI.items():
        above = any(f"{target}.".startswith(f"{name}.") for name in forbidden)
        if above and own[:2] == part.split("."):
            return f"imports {target}: {part} is below it"
    return None


def _panel(parts: list[str]) -> str:
    """The name of the panel that a module belongs to: its folder in `panels/`, or its file.

    The tabs of Inspect that have a folder are panels of their own.
    """
    if parts[2:3] == ["inspect"] and len(parts) > 3 and PACKAGE.joinpath(*parts[:4]).is_dir():
        return ".".join(parts[2:4])
    return parts[2] if len(parts) > 2 else ""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def test_that_a_module_imports_only_what_its_room_may() -> None:
    assert [fault for path in modules() for fault in faults(dotted(path), source(path).imports)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.train", "import h5py"),
        ("engine.train", "from precgui.runs.file.writer import Writer"),
        ("runs.file.reader", "def f():\n    import torch"),
        ("runs.file.reader", "from precgui import engine"),
        ("formats.codec", "if TYPE_CHECKING:\n    import torch"),
        ("hardware.gpu", "import torch.cuda"),
        ("hardware.gpu", "try:\n    from torch import cuda\nexcept ImportError:\n    cuda = None"),
        ("cli.run", "from PySide6.QtCore import QObject"),
        ("cli.main", "from precgui.gui.shell.startup import open_window"),
        ("gui.panels.live", "from precgui.gui.panels.library.panel import LibraryPanel"),
        ("gui.panels.live", "from precgui.gui.panels import library"),
        ("gui.panels.live.chooser", "from precgui.gui.panels.setup.panel import SetupPanel"),
        ("gui.panels.inspect.scaler.panel", "from precgui.gui.panels.inspect.tensors.panel import TensorsPanel"),
        ("gui.panels.live", "import precgui.engine.train"),
        ("gui.plots.linked", "from precgui.gui.shell import window"),
        ("gui.session", "import importlib\nimportlib.import_module('torch')"),
        ("gui.session", "from precgui.job import run"),
        ("config", "from precgui.hardware import gpu"),
        ("gui.shell.window", "from precgui.process.child import StopToken"),
        ("gui.panels.live.panel", "from precgui.gui.workers.child_process import RunThread"),
        ("gui.kit.form", "from precgui.gui.session import Session"),
        ("process.child", "from precgui.job import Job"),
        ("events", "from . import config"),
        ("__init__", "from precgui.record import Recorder"),
    ],
)
def test_that_the_check_finds_a_planted_fault(module: str, source: str) -> None:
    assert len(faults(module, imports(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gui.workers.child_process", "from precgui.process.child import ChildTask"),
        ("cli.main", "def window():\n    from precgui.gui.shell.startup import open_window\n    return open_window()"),
        ("hardware.host", "def versions():\n    import torch\n    return torch.__version__"),
        ("gui.panels.live.panel", "from precgui.gui.panels.live.chooser import Chooser"),
        ("process.child", "def main():\n    importlib.import_module('torch')"),
        ("cli.main", "from precgui import __version__"),
        ("job", "from precgui.runs.file.writer import Writer\nfrom precgui.engine.train import train"),
    ],
)
def test_that_the_check_lets_the_allowed_pass(module: str, source: str) -> None:
    assert faults(module, imports(ast.parse(source))) == []


def test_that_every_room_has_its_rule() -> None:
    rooms = {dotted(path).partition(".")[0] for path in modules()}
    assert rooms - MAY_IMPORT.keys() == set()


def test_that_every_room_has_a_name_of_its_own() -> None:
    parts = {part for path in modules() for part in dotted(path).split(".")}
    assert parts & NAMELESS_ROOMS == set()


# Imported one after the other by one interpreter: a library that is not there then is not imported by one alone either.
LEFT_OUT: dict[str, list[str]] = {
    "precgui": ["torch", "PySide6", "h5py", "numpy"],
    "precgui.config": ["torch", "PySide6", "h5py", "numpy"],
    "precgui.planner.plan": ["torch", "PySide6", "numpy"],
    "precgui.cli.main": ["torch", "PySide6"],
    "precgui.cli.plan": ["torch", "PySide6"],
    "precgui.hardware.power": ["torch", "PySide6"],
    "precgui.runs.file.reader": ["torch", "PySide6"],
    "precgui.gui.shell.window": ["torch", "torchvision"],
    "precgui.gui.workers.child_process": ["torch", "torchvision"],
}
LOADED = f"""
import importlib, sys
for module, left_out in {LEFT_OUT}.items():
    importlib.import_module(module)
    print(*(f"{{module}}:{{name}}" for name in left_out if name in sys.modules))
"""


def test_that_an_import_leaves_heavy_libraries_out() -> None:
    result = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


# Libraries that a worker pays for when it collects tests, whichever it runs: imported inside the tests that use them.
HEAVY = {"torchao", "torchvision", "sklearn", "scipy", "lightning", "transformers"}


def test_that_tests_import_heavy_libraries_where_they_use_them() -> None:
    imported = [
        f"{path.relative_to(ROOT)}:{item.line} {item.name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if any(name in path.read_text(encoding="utf-8") for name in HEAVY)
        for item in imports(parsed(path))
        if item.name.partition(".")[0] in HEAVY and not item.in_function
    ]
    assert imported == []


def test_that_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules():
        for name in source(path).classes:
            homes.setdefault(name, []).append(dotted(path))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_that_imports_of_modules_have_no_circle() -> None:
    assert circle({dotted(path): source(path).imports for path in modules()}) == []


@pytest.mark.parametrize(
    "back",
    [
        "from precgui.engine.low import f",
        "def g():\n    from precgui.engine.low import f",
        "if TYPE_CHECKING:\n    from precgui.engine import low",
        "import importlib\nimportlib.import_module('precgui.engine.low')",
    ],
)
def test_that_a_circle_is_seen_wherever_an_import_stands(back: str) -> None:
    sources = {"engine.low": "from precgui.engine.middle import g", "engine.middle": "import precgui.engine.high"}
    imported = {name: imports(ast.parse(source)) for name, source in sources.items()}
    assert circle({**imported, "engine.high": []}) == []
    names = circle({**imported, "engine.high": imports(ast.parse(back))})
    assert set(names) == {"engine.low", "engine.middle", "engine.high"}


def circle(imported: Mapping[str, Iterable[Import]]) -> list[str]:
    """The modules of a circle of imports, if there is one; imports in functions and under TYPE_CHECKING count."""
    graph = {name: _imported_modules(name, items, imported.keys()) for name, items in imported.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def _imported_modules(module: str, imported: Iterable[Import], names: Collection[str]) -> set[str]:
    """The modules among `names` that a module of precgui imports, itself left out."""
    result = set()
    for item in imported:
        name = item.name.removeprefix("precgui.") if item.name.startswith("precgui.") else ""
        while name and name not in names:
            name = name.rpartition(".")[0]
        result.add(name)
    return result - {"", module}


def test_that_a_function_fits_on_a_screen() -> None:
    long = {
        f"{dotted(path)}.{name}": lines
        for path in modules()
        for name, lines in source(path).functions.items()
        if lines > MOST_FUNCTION_LINES
    }
    assert long == {}


def test_that_no_docstring_begins_with_what() -> None:
    beginning = {
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in modules()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.lstrip().startswith('"""What ')
    }
    assert beginning == set()


def test_that_a_script_can_carry_the_torch_form_of_rounding() -> None:
    waiting, carried, libraries = ["precgui.engine.quantize.torch_form"], set(), set()
    while waiting:
        name = waiting.pop()
        path = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if name.partition(".")[0] != "precgui":
            libraries.add(name.partition(".")[0])
        elif not path.is_file():
            waiting += [name.rpartition(".")[0]] * (name.count(".") > 1)  # a name in a module, or a package
        elif name not in carried:
            carried.add(name)
            waiting += [item.name for item in source(path).imports]
    assert libraries - set(sys.stdlib_module_names) == {"numpy", "torch"}
    assert carried == {
        f"precgui.{name}"
        for name in ("errors", "paths", "sentences", "engine.quantize.torch_form", "engine.quantize.plan",
                     "formats.model", "formats.registry", "formats.rounding")
    }  # fmt: skip


def test_that_the_tests_mirror_the_rooms() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    of_no_room = {Path("faults"), Path("gpu"), Path("pretended")}
    assert sorted(map(str, (folder for folder in folders - of_no_room if not (PACKAGE / folder).is_dir()))) == []


def test_that_tests_of_the_window_reach_what_a_user_sees_and_nothing_private() -> None:
    """By object name, text or public attribute; a test's own attributes and `os._exit` are none of the window's."""
    own = {"self", "os"}
    private = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for path in sorted((ROOT / "tests" / "gui").rglob("*.py"))
        if re.search(r"\._[^_]", path.read_text(encoding="utf-8"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if not (isinstance(node.value, ast.Name) and node.value.id in own)
    ]
    assert private == []


def _attributes(node: ast.expr) -> str:
    """`a.b.c` as it is written; ast.unparse takes a hundred times as long. Calls and items stand as "?"."""
    if isinstance(node, ast.Attribute):
        return f"{_attributes(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def test_that_private_parts_of_torch_are_used_in_one_file() -> None:
    used = {f"{path.relative_to(PACKAGE)}: {name}" for path in modules() for name in source(path).private_torch}
    allowed = ("engine/torch_private.py", "engine/profile/tracker.py: torch.ops.aten._to_copy")  # an operation's name
    assert {name for name in used if not name.startswith(allowed)} == set()
