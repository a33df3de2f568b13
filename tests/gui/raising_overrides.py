"""Each override of a Qt method in the window is made to raise, and Qt calls it. Run as a program of its own.

The exception is one that C code raises, in a bare object of the class. Prints the overrides that reported nothing;
where an exception leaves an override, Python 3.11 ends with SIGSEGV instead.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import shiboken6
from PySide6 import QtCore, QtGui, QtWidgets
from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSize, Qt, QUrl

import precgui.gui
from precgui.gui.override_guard import is_guarded, overrides

send = QtWidgets.QApplication.sendEvent
POINT = QPointF(5, 5)
LEFT, NONE = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
MIME = QtCore.QMimeData()


def classes() -> list[type]:
    """All classes of the window that derive from a Qt class."""
    for module in pkgutil.walk_packages(precgui.gui.__path__, "precgui.gui."):
        importlib.import_module(module.name)
    waiting, seen = [shiboken6.Object], set()
    while waiting:
        found = set(waiting.pop().__subclasses__()) - seen
        waiting += found
        seen |= found
    return sorted((cls for cls in seen if cls.__module__.startswith("precgui.gui")), key=str)


def mouse(kind: QEvent.Type) -> Callable[[], QEvent]:
    return lambda: QtGui.QMouseEvent(kind, POINT, POINT, POINT, LEFT, LEFT, NONE)


EVENTS: dict[str, Callable[[], QEvent]] = {
    "changeEvent": lambda: QEvent(QEvent.Type.FontChange),
    "closeEvent": QtGui.QCloseEvent,
    "contextMenuEvent": lambda: QtGui.QContextMenuEvent(
        QtGui.QContextMenuEvent.Reason.Mouse, QPoint(5, 5), QPoint(5, 5)
    ),
    "dragEnterEvent": lambda: QtGui.QDragEnterEvent(QPoint(5, 5), Qt.DropAction.CopyAction, MIME, LEFT, NONE),
    "event": lambda: QEvent(QEvent.Type.User),
    "focusInEvent": lambda: QtGui.QFocusEvent(QEvent.Type.FocusIn),
    "focusOutEvent": lambda: QtGui.QFocusEvent(QEvent.Type.FocusOut),
    "hideEvent": QtGui.QHideEvent,
    "keyPressEvent": lambda: QtGui.QKeyEvent(QEvent.Type.KeyPress, Qt.Key.Key_A, NONE),
    "leaveEvent": lambda: QEvent(QEvent.Type.Leave),
    "mouseMoveEvent": mouse(QEvent.Type.MouseMove),
    "mousePressEvent": mouse(QEvent.Type.MouseButtonPress),
    "mouseReleaseEvent": mouse(QEvent.Type.MouseButtonRelease),
    "resizeEvent": lambda: QtGui.QResizeEvent(QSize(9, 9), QSize(8, 8)),
    "showEvent": QtGui.QShowEvent,
    "viewportEvent": lambda: QEvent(QEvent.Type.Enter),
    "wheelEvent": lambda: QtGui.QWheelEvent(
        POINT, POINT, QPoint(0, 9), QPoint(0, 9), Qt.MouseButton.NoButton, NONE, Qt.ScrollPhase.NoScrollPhase, False
    ),
}


def call_from_qt(made: Any, name: str) -> None:
    """Let C++ call the virtual method `name`; a kind of override that nothing calls here is a KeyError."""
    if name in EVENTS and isinstance(made, QtWidgets.QGraphicsItem):
        scene = QtWidgets.QGraphicsScene()
        scene.addItem(made)
        kind = QtWidgets.QGraphicsSceneWheelEvent if name == "wheelEvent" else None
        scene.sendEvent(made, kind(QEvent.Type.GraphicsSceneWheel) if kind else EVENTS[name]())
    elif name in EVENTS:
        send(made, EVENTS[name]())
        if isinstance(made, QtWidgets.QAbstractScrollArea):
            send(made.viewport(), EVENTS[name]())
    elif isinstance(made, QtWidgets.QStyledItemDelegate):
        in_a_list(made).grab()
    elif isinstance(made, QtWidgets.QLayout):
        around = QtWidgets.QVBoxLayout()
        around.addLayout(made)
        around.hasHeightForWidth()
    elif isinstance(made, QtCore.QSortFilterProxyModel):
        asked_as_filter(made, name)
    elif isinstance(made, QtCore.QAbstractItemModel):
        asked_through_proxy(made, name)
    else:
        OTHERS[name](made)


def in_a_list(delegate: QtWidgets.QStyledItemDelegate) -> QtWidgets.QListView:
    view = QtWidgets.QListView()
    view.setModel(QtCore.QStringListModel(["a", "b"], view))
    view.setItemDelegate(delegate)
    view.resize(200, 200)
    return view


def asked_as_filter(model: QtCore.QSortFilterProxyModel, name: str) -> None:
    model.setSourceModel(QtCore.QStringListModel(["b", "a"], model))
    if name == "sort":
        through = QtCore.QIdentityProxyModel()
        through.setSourceModel(model)
        through.sort(0)
    else:
        model.rowCount()
        QtCore.QSortFilterProxyModel.sort(model, 0)


def asked_through_proxy(model: QtCore.QAbstractItemModel, name: str) -> None:
    through = QtCore.QIdentityProxyModel()
    through.setSourceModel(model)
    at = through.index(0, 0)
    calls: dict[str, Callable[[], object]] = {
        "columnCount": through.columnCount,
        "data": at.data,
        "flags": at.flags,
        "headerData": lambda: through.headerData(0, Qt.Orientation.Horizontal),
        "rowCount": through.rowCount,
        "setData": lambda: through.setData(at, 1),
        "sort": lambda: through.sort(0),
    }
    calls[name]()


def watch(watcher: QtCore.QObject) -> None:
    watched = QtCore.QObject()
    watched.installEventFilter(watcher)
    send(watched, QEvent(QEvent.Type.User))
    watched.removeEventFilter(watcher)


def lay_out(widget: QtWidgets.QWidget) -> None:
    around = QtWidgets.QWidget()
    layout = QtWidgets.QVBoxLayout(around)
    layout.addWidget(widget)
    widget.setVisible(True)
    for ask in (layout.sizeHint, layout.minimumSize, layout.hasHeightForWidth, lambda: layout.heightForWidth(100)):
        ask()


def render(item: QtWidgets.QGraphicsItem) -> None:
    scene = QtWidgets.QGraphicsScene()
    scene.setSceneRect(0, 0, 20, 20)
    scene.addItem(item)
    scene.itemsBoundingRect()
    QtWidgets.QGraphicsView(scene).grab()


def run_thread(thread: QtCore.QThread) -> None:
    thread.start()
    thread.wait()


def scroll(area: QtWidgets.QAbstractScrollArea) -> None:
    area.verticalScrollBar().setRange(0, 10)
    area.verticalScrollBar().setValue(5)


OTHERS: dict[str, Callable[[Any], object]] = {
    "accept": lambda dialog: QtCore.QMetaObject.invokeMethod(dialog, "accept"),
    "boundingRect": render,
    "createHandle": lambda splitter: splitter.addWidget(QtWidgets.QWidget()),
    "dragMoveEvent": lambda widget: QtWidgets.QWidget.event(
        widget, QtGui.QDragMoveEvent(QPoint(5, 5), Qt.DropAction.CopyAction, MIME, LEFT, NONE)
    ),
    "dropEvent": lambda widget: QtWidgets.QWidget.event(
        widget, QtGui.QDropEvent(POINT, Qt.DropAction.CopyAction, MIME, LEFT, NONE)
    ),
    "eventFilter": watch,
    "focusNextPrevChild": lambda widget: send(widget, QtGui.QKeyEvent(QEvent.Type.KeyPress, Qt.Key.Key_Tab, NONE)),
    "hasHeightForWidth": lay_out,
    "heightForWidth": lay_out,
    "loadResource": lambda browser: browser.document().resource(2, QUrl("x.png")),
    "minimumSizeHint": lay_out,
    "paint": render,
    "paintEvent": lambda widget: widget.grab(),
    "run": run_thread,
    "scrollContentsBy": scroll,
    "sizeHint": lay_out,
}


def bare(cls: type, broken: str) -> Any:
    """An object of a class without its own `__init__`; where Qt asks its size first, it answers."""
    sizes: dict[str, Any] = {}
    if issubclass(cls, QtWidgets.QGraphicsItem):
        sizes = {"boundingRect": lambda _: QRectF(0, 0, 9, 9), "itemChange": lambda _, __, value: value}
    elif issubclass(cls, QtCore.QAbstractTableModel):
        sizes = dict.fromkeys(("rowCount", "columnCount"), lambda _, __=None: 2)
        sizes["flags"] = lambda _, __: Qt.ItemFlag.ItemIsEnabled
    sizes.pop(broken, None)
    kind: Any = type(cls)(cls.__name__, (cls,), sizes)
    made = kind.__new__(kind)
    binding = next(base for base in cls.__mro__ if base.__module__.startswith("PySide6"))
    if binding is QtWidgets.QSplitterHandle:
        made.splitter = QtWidgets.QSplitter()  # lives as long as its handle
        binding.__init__(made, Qt.Orientation.Horizontal, made.splitter)
    else:
        binding.__init__(made)
    return made


def fails(*_: object, **__: object) -> None:
    int("x")


def report_of(cls: type, name: str, function: FunctionType) -> list[str]:
    """The exceptions that reach the hook when Qt calls the override, which fails."""
    reports: list[str] = []
    sys.excepthook = lambda kind, error, trace: reports.append(str(error))
    original = function.__wrapped__  # type: ignore[attr-defined]
    kept = original.__code__
    original.__code__ = fails.__code__.replace(co_freevars=kept.co_freevars)
    try:
        call_from_qt(bare(cls, name), name)
    finally:
        original.__code__ = kept
        sys.excepthook = sys.__excepthook__
    return reports


def main() -> None:
    app = QtWidgets.QApplication([])
    app.setQuitOnLastWindowClosed(False)
    silent, asked = [], 0
    for cls in classes():
        for name, function in list(overrides(cls)):
            if not is_guarded(function) or not function.__module__.startswith("precgui.gui"):
                continue
            asked += 1
            if not any("invalid literal" in text for text in report_of(cls, name, function)):
                silent.append(f"{cls.__module__}.{cls.__name__}.{name}")
    print(json.dumps({"asked": asked, "silent": silent}), flush=True)  # noqa: T201
    os._exit(0)  # bare objects are not fit for an orderly end


if __name__ == "__main__":
    main()
