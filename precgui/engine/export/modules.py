"""Modules of precgui, copied into a package of their own that a script imports instead."""

from __future__ import annotations

import ast
import re
import shutil
from functools import lru_cache
from pathlib import Path

from precgui import paths

_PACKAGE = Path(paths.__file__).parent
# Modules copied in place of others: compiled kernels need more than torch.
_INSTEAD = {
    "precgui.engine.quantize.elements": "precgui.engine.quantize.torch_form",
    "precgui.engine.quantize.blocks": "precgui.engine.quantize.torch_form",
    "precgui.engine.emulation.fused_fp8": "precgui.engine.emulation.fp8_cast",
}
_RESOURCES = {
    "precgui.formats.registry": Path("facts/formats.json"),
    "precgui.engine.tasks.images": Path("data/digits.npz"),
}


def copied(text: str, folder: Path) -> str:
    """Copy what `text` imports of precgui into a new package `folder`; returns the text with these imports.

    Only imports at the top of a module are followed: what a function imports is not needed to train. Raises OSError
    where the folder cannot be written, FileExistsError where it is there.
    """
    needed = _needed(text)
    folder.mkdir()
    for module in needed:
        source, target = _file(module), folder / _file(module).relative_to(_PACKAGE)
        for package in (p for p in target.parents if p.is_relative_to(folder)):
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").touch()
        target.write_text(_renamed(source.read_text(encoding="utf-8"), folder.name), encoding="utf-8")
        if resource := _RESOURCES.get(module):
            place = folder / "resources" / resource
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(paths.resources() / resource, place)
    return _renamed(text, folder.name)


def _needed(text: str) -> set[str]:
    """The modules that `text` imports, and what they import."""
    results: set[str] = set()
    waiting = list(_imported(text))
    while waiting:
        module = waiting.pop()
        if module not in results:
            results.add(module)
            waiting += _imported(_file(module).read_text(encoding="utf-8"))
    return results


@lru_cache(256)
def _imported(text: str) -> tuple[str, ...]:
    """The modules of precgui that `text` imports at its top; parsing a module takes longer than copying it."""
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    modules = [
        inner if _is_module(inner := f"{node.module}.{alias.name}") else str(node.module)
        for node in imports if str(node.module).partition(".")[0] == "precgui"
        for alias in node.names
    ]  # fmt: skip
    return tuple(_INSTEAD.get(module, module) for module in modules)


def _path(module: str) -> Path:
    return _PACKAGE.joinpath(*module.split(".")[1:])


def _is_module(name: str) -> bool:
    return _path(name).is_dir() or _path(name).with_suffix(".py").is_file()


def _file(module: str) -> Path:
    path = _path(module)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _renamed(text: str, package: str) -> str:
    for module, other in _INSTEAD.items():
        text = text.replace(f"from {module} import", f"from {other} import")
    return re.sub(r"^( *from )precgui\b", rf"\1{package}", text, flags=re.MULTILINE)
