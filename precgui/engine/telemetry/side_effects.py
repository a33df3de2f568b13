"""Whether calling the modules of a class again may change anything outside them, judged from the code of their methods.

Code is only read. Modules of known libraries are trusted. In other classes every global name, and every name that a
closure holds, must be a known library, a plain value, or a function or class for which the same is true; else the
answer is that it may.
"""

from __future__ import annotations

import builtins
import dis
import enum
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch

from precgui.engine.torch_private import operation_types
from precgui.sentences import Sentence

_KNOWN = {
    "torch", "torchvision", "torchaudio", "transformers", "timm", "diffusers", "peft", "einops", "torch_geometric",
    "numpy", "math", "cmath", "functools", "itertools", "operator", "collections", "typing", "types", "dataclasses",
    "enum", "abc", "copy", "contextlib", "numbers", "precgui", "builtins", "random", "warnings", "inspect", "string",
}  # fmt: skip
_BUILTINS_WITH_EFFECTS = {"open", "input", "exec", "eval", "next", "globals", "locals", "vars", "compile", "__import__"}
_VALUES = (
    int, float, complex, str, bytes, bool, type(None), type(Ellipsis), range, slice, enum.Enum,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip
_FUNCTIONS = (
    types.BuiltinFunctionType, types.MethodDescriptorType, np.ufunc, *operation_types,
)  # fmt: skip


@cache
def side_effect(kind: Any) -> str:
    """Why calling a module of the class `kind` again may change something outside it; '' if it may not."""
    return _of_class(kind, set())


def _of_class(kind: type, visited: set[Any]) -> str:
    for each in kind.__mro__:
        if _is_known(each.__module__) or each in visited:
            continue
        visited.add(each)
        for name, member in vars(each).items():
            if result := _of_member(each, name, member, visited):
                return result
    return ""


def _of_member(kind: type, name: str, member: Any, visited: set[Any]) -> str:
    if isinstance(member, property):
        parts: list[Any] = [member.fget, member.fset]
    else:
        parts = [member.__func__] if isinstance(member, (staticmethod, classmethod)) else [member]
    for part in parts:
        if isinstance(part, types.FunctionType):
            if result := _of_function(part, visited):
                return result
        elif not name.startswith("__") and isinstance(part, (list, dict, set, Iterator)):
            return Sentence("{name} is shared by all its objects", name=f"{kind.__name__}.{name}")
    return ""


def _of_function(function: types.FunctionType, visited: set[Any]) -> str:
    if function.__name__ == "__init__" or function in visited or _is_known(function.__module__):
        return ""  # a module is not made anew
    visited.add(function)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if result := _of_value(name, _content(cell), visited):
            return result
    for code in _codes(function.__code__):
        if result := _of_code(code, function, visited):
            return result
    return ""


def _of_code(code: types.CodeType, function: types.FunctionType, visited: set[Any]) -> str:
    sets_attributes, before = False, ""
    changed_class = ""
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, str(instruction.argval)
        if operation in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
            operation == "STORE_DEREF" and name in function.__code__.co_freevars
        ):
            return Sentence(
                "{function} may change {name}, which lies outside the model", function=function.__qualname__, name=name
            )
        if operation == "IMPORT_NAME" and not _is_known(name):
            return Sentence("{function} imports {name}", function=function.__qualname__, name=name)
        sets_attributes |= operation == "STORE_ATTR"
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            if result := _of_name(name, function, visited):
                return result
            if before != "super" and (name == "type" or isinstance(function.__globals__.get(name), type)):
                changed_class = name
            before = name
    if sets_attributes and changed_class and not _is_known(_module_of(function.__globals__.get(changed_class))):
        return Sentence("{function} may change the class {name}", function=function.__qualname__, name=changed_class)
    return ""


def _of_name(name: str, function: types.FunctionType, visited: set[Any]) -> str:
    if name in function.__globals__:
        return _of_value(name, function.__globals__[name], visited)
    if name in _BUILTINS_WITH_EFFECTS:
        return Sentence("{function} calls {name}()", function=function.__qualname__, name=name)
    if hasattr(builtins, name):
        return ""
    return Sentence("{function} uses the unknown name {name}", function=function.__qualname__, name=name)


def _of_value(name: str, value: Any, visited: set[Any]) -> str:
    if isinstance(value, types.ModuleType):
        return "" if _is_known(value.__name__) else Sentence("it uses the library {name}", name=value.__name__)
    if isinstance(value, type):
        return _of_class(value, visited)
    if isinstance(value, types.FunctionType):
        return _of_function(value, visited)
    if isinstance(value, (tuple, frozenset)):
        return next((result for each in value if (result := _of_value(name, each, visited))), "")
    if isinstance(value, (*_VALUES, *_FUNCTIONS)):
        return ""
    return Sentence("it uses {name}, an object of class {type} outside the model", name=name, type=type(value).__name__)


def _is_known(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _KNOWN


def _module_of(value: Any) -> str:
    return value.__module__ if isinstance(value, type) else ""


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty still
        return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
