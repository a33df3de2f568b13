"""A guard around each Python override of a virtual Qt method, put there as its class is created.

An exception must not leave an override. On Python 3.11 one that C code has raised (`int("x")`, a NumPy ValueError) is
no object before a frame handles it, and Shiboken, which reads it as one, ends the process with SIGSEGV; even an object
that Shiboken keeps for the caller loses references when a second override runs meanwhile. So the guard hands each
exception to `sys.excepthook`, the door to the notices of the application, and Qt gets an answer.
"""

from __future__ import annotations

import functools
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import shiboken6

# Virtual methods without an answer; event handlers may answer False, "not handled".
_HANDLER = re.compile(r"paint|event|eventFilter|\w+Event(Filter)?")
_COMMANDS = {
    "QAbstractItemModel": {"sort"},
    "QAbstractScrollArea": {"scrollContentsBy"},
    "QDialog": {"accept", "done", "reject"},
    "QRunnable": {"run"},
    "QThread": {"run"},
    "QStyledItemDelegate": {"initStyleOption"},
}
# Virtual methods with an answer, which is that of the Qt class where the override fails.
_QUERIES = {
    "QAbstractItemModel": {"columnCount", "data", "flags", "headerData", "rowCount", "setData"},
    "QAbstractSpinBox": {"fixup", "stepEnabled", "validate"},
    "QGraphicsItem": {"boundingRect", "itemChange", "shape"},
    "QGraphicsWidget": {"sizeHint"},
    "QLayoutItem": {"hasHeightForWidth", "heightForWidth", "minimumSize", "sizeHint"},
    "QSortFilterProxyModel": {"filterAcceptsRow", "lessThan"},
    "QSplitter": {"createHandle"},
    "QStyledItemDelegate": {"createEditor", "displayText", "sizeHint"},
    "QTextEdit": {"loadResource"},
    "QWidget": {"focusNextPrevChild", "hasHeightForWidth", "heightForWidth", "minimumSizeHint", "sizeHint"},
}
_GUARDED = "__guarded_override__"


def guard_overrides() -> None:
    """Guard the overrides of all classes that derive from a Qt class and are created from now on, in any module."""
    if "__init_subclass__" not in vars(shiboken6.Object):
        shiboken6.Object.__init_subclass__ = classmethod(_guard_class)  # type: ignore[assignment]


def _guard_class(cls: Any, /, **arguments: object) -> None:
    super(shiboken6.Object, cls).__init_subclass__(**arguments)
    asked = _names(cls, _QUERIES)
    guarded = asked | _names(cls, _COMMANDS)
    for name, function in list(overrides(cls)):
        if (_HANDLER.fullmatch(name) or name in guarded) and not is_guarded(function):
            setattr(cls, name, _guarded(function, name if name in asked else ""))


def _names(cls: type, table: dict[str, set[str]]) -> set[str]:
    return set().union(*(table.get(base.__name__, set()) for base in cls.__mro__ if _is_binding(base)))


def overrides(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """The functions, also those of a mixin, that stand in the place of methods of the Qt classes of `cls`."""
    qt_names: set[str] = set().union(*(vars(base) for base in cls.__mro__ if _is_binding(base)))
    covered: set[str] = set()
    for base in cls.__mro__:
        if base is object or _is_binding(base):
            continue
        for name in (vars(base).keys() & qt_names) - covered:
            function = vars(base)[name]
            if isinstance(function, FunctionType) and not name.startswith("__"):
                yield name, function
        covered |= vars(base).keys()


@functools.cache
def _is_binding(cls: type) -> bool:
    """Whether a class is one that Shiboken has made of a C++ class."""
    return cls.__module__.partition(".")[0] in ("PySide6", "Shiboken")


def is_guarded(function: FunctionType) -> bool:
    """Whether no exception leaves this override."""
    return hasattr(function, _GUARDED)


def _guarded(function: FunctionType, query: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def guard(self: object, *arguments: Any, **named: Any) -> Any:
        try:
            return function(self, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - whatever an override raises goes to the hook
            _report(error)
        return _answer_of_qt(self, query, arguments) if query else False

    setattr(guard, _GUARDED, True)
    return guard


def _report(error: Exception) -> None:
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as second:  # noqa: BLE001 - nothing may leave
        sys.__excepthook__(type(second), second, second.__traceback__)
    traceback.clear_frames(error.__traceback__)  # a QPainter must not outlive its paintEvent


def _answer_of_qt(self: object, name: str, arguments: tuple[Any, ...]) -> Any:
    """The answer of the nearest Qt class; an empty one where that method is purely virtual."""
    method = next(vars(base)[name] for base in type(self).__mro__ if _is_binding(base) and name in vars(base))
    try:
        return method(self, *arguments)
    except Exception:  # noqa: BLE001 - NotImplementedError, or what Qt makes of odd arguments
        from PySide6.QtCore import QRectF

        return {"boundingRect": QRectF(), "columnCount": 0, "rowCount": 0}.get(name)
