"""Work in child processes that takes long, such as a search or a plan, for whoever shows that it goes on."""

from __future__ import annotations

from typing import cast

from PySide6.QtCore import QCoreApplication, QObject, Signal

from precgui.words import _


class GoingOn(QObject):
    """Titles of the works that go on, each with the last that it has said of itself, in the order of their begin."""

    changed = Signal()
    let_go = Signal(str)  # a sentence about a work that was stopped, and goes on at its place

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._works: dict[object, tuple[str, str]] = {}

    def tell(self, work: object, title: str, text: str = "") -> None:
        """Begin a work, or say how far it is."""
        self._works[work] = title, text
        self.changed.emit()

    def end(self, work: object, goes_on_at: str = "") -> None:
        """Forget a work that is over; `goes_on_at` is the place where it goes on, since no stop could reach it."""
        title, _text = self._works.pop(work, ("", ""))
        if title and goes_on_at:
            self.tell_goes_on(title, goes_on_at)
        if title:
            self.changed.emit()

    def tell_goes_on(self, title: str, place: str) -> None:
        """Say of a work, or of a run of a study, that it goes on at a place where no stop could reach it."""
        text = _("{title} goes on at {place} to its end: the link was lost, so that it could not be stopped there.")
        self.let_go.emit(text.format(title=title, place=place))

    @property
    def sentence(self) -> str:
        """Such as "Search of formats: 3 of 10 layers, and 1 more"; empty where nothing goes on."""
        if not self._works:
            return ""
        title, text = next(iter(self._works.values()))
        one = _("{title}: {text}").format(title=title, text=text) if text else _("{title} goes on").format(title=title)
        if len(self._works) == 1:
            return one
        return _("{work}, and {count} more").format(work=one, count=len(self._works) - 1)


def going_on() -> GoingOn:
    """The one GoingOn of the application; made at the first call."""
    app = cast(QCoreApplication, QCoreApplication.instance())
    found = app.findChild(GoingOn)
    return found if found is not None else GoingOn(app)
