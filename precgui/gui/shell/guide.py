"""Leads through the steps of a path: a call-out at each, which goes on when the person has done what it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from PySide6.QtCore import QObject, QPoint, QRect, Qt, QTimer
from PySide6.QtWidgets import QScrollArea, QWidget

from precgui.gui.settings import Settings
from precgui.words import _, paragraph

if TYPE_CHECKING:
    from precgui.gui.panels.hardware.panel import HardwarePanel
    from precgui.gui.shell.call_out import CallOut
    from precgui.gui.shell.first_run_sheet import FirstRunSheet
    from precgui.gui.shell.guided_path import FirstPath, GuidedSetup, GuidedWindow

LOOK_MS = 150  # between two looks at the window: is the step done, where is its target now


class Guide(QObject):
    """`sheet` is the sheet while it is shown, `path` what is followed, `target` the part that was last pointed at."""

    def __init__(self, window: GuidedWindow, widget: QWidget, centre: QWidget, settings: Settings) -> None:
        """`widget` is the window as a widget, `centre` the part of it that the sheet covers."""
        super().__init__(widget)
        self._window, self._widget, self._centre, self._settings = window, widget, centre, settings
        self.sheet: FirstRunSheet | None = None
        self.call_out: CallOut | None = None
        self.path: FirstPath | None = None
        self.at = 0
        self._is_done: Callable[[], bool] = lambda: False
        self.target: QWidget | None = None
        self._places: list[QRect | None] = []  # of the target and what the step is about, in their pages
        self._size = widget.size()  # another one may have scrolled the target away
        self._looks = QTimer(self, interval=LOOK_MS)
        self._looks.timeout.connect(self._look)

    def open(self) -> None:
        """Show the sheet, in the place of a path that is followed."""
        self.end()
        if self.sheet is not None or self._window.session is None:
            return
        from precgui.gui.shell.first_paths import PATHS  # not before the first paint
        from precgui.gui.shell.first_run_sheet import FirstRunSheet

        self.sheet = sheet = FirstRunSheet(PATHS, self._centre)
        sheet.chosen.connect(self.follow)
        sheet.closed.connect(self._skip)
        sheet.recipe_requested.connect(self._choose_recipe)
        sheet.precision.measure_requested.connect(self._measure)
        outlook = self._setup().outlook
        outlook.known.connect(self._show_machine)
        if outlook.device_of(None) is None:
            outlook.ask()
        self._show_machine()
        sheet.open()

    def _setup(self) -> GuidedSetup:
        from precgui.gui.shell.guided_path import setup_of

        return setup_of(self._window)

    def _show_machine(self) -> None:
        """Show the advice and the outlook of this machine, as far as it has answered."""
        outlook = self._setup().outlook
        if self.sheet is not None:
            if (device := outlook.device_of(None)) is not None:
                self.sheet.precision.show_machine(device, outlook.results)
            self.sheet.show_advice(paragraph(self._subject(), outlook.advice_text.text()) if outlook.advice else "")

    def _subject(self) -> str:
        """A sentence that names the model of the advice: that of Run, where the sheet does not tell."""
        from precgui.config import DEFAULT_RECIPE, RECIPES  # not before the first paint

        setup = self._setup()
        config = setup.form.value()
        assert config is not None  # or there is no advice
        example = RECIPES[DEFAULT_RECIPE][1]
        if (config.task, config.model) == (example.task, example.model):
            return _("Run holds a small bundled example, {recipe}.").format(recipe=DEFAULT_RECIPE)
        return _("Run holds {title}.").format(title=config.display_title)

    def _choose_recipe(self) -> None:
        """Choose what is trained by its picture; the sheet stays where nothing is chosen."""
        from precgui.gui.panels.setup.recipe_gallery import RecipeGallery
        from precgui.gui.shell.precision_paths import precision_path

        gallery = RecipeGallery(self._setup().source, self._widget)
        gallery.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        gallery.chosen.connect(lambda name: self.follow(precision_path(name)))
        gallery.open()

    def _measure(self) -> None:
        """Measure FP32 and BF16 as Hardware > Measured does, and show the rates on the sheet."""
        if (sheet := self.sheet) is None:
            return
        tab = cast("HardwarePanel", self._window.host.load("hardware")).measured()
        sheet.precision.show_progress(0, 0)
        tab.moved.connect(sheet.precision.show_progress)
        tab.over.connect(sheet.precision.show_end)
        tab.kept.connect(self._setup().outlook.ask)
        tab.start_rates()
        if tab.is_waiting:
            sheet.precision.show_end(tab.message.text())

    def _skip(self) -> None:
        self._close_sheet()
        self._window.navigation.buttons[self._window.host.current].setFocus(Qt.FocusReason.OtherFocusReason)

    def _close_sheet(self) -> None:
        self._settings["first_run/seen"] = True
        if (sheet := self.sheet) is not None:
            self.sheet = None
            sheet.hide()
            sheet.deleteLater()

    def follow(self, path: FirstPath) -> None:
        """Begin a path at its first step."""
        self._close_sheet()
        self.path, self.at = path, 0
        from precgui.gui.shell.call_out import CallOut

        self.call_out = CallOut(self._widget)
        self.call_out.passed.connect(self._next)
        self.call_out.returned.connect(self._return)
        self.call_out.ended.connect(self.end)
        path.begin(self._window)
        self._begin_step()
        self._looks.start()

    def end(self) -> None:
        """Follow no path any more."""
        self._looks.stop()
        self.path = self.target = None
        if (call_out := self.call_out) is not None:
            self.call_out = None
            for part in (call_out.frame, call_out):
                part.hide()
                part.deleteLater()

    def _begin_step(self) -> None:
        assert self.path is not None
        step = self.path.steps[self.at]
        self.target = None
        self._is_done = step.watch(self._window)
        self._point()

    def _next(self) -> None:
        if self.path is None:
            return
        if self.at + 1 == len(self.path.steps):
            closing = self.path.end
            self.end()
            closing(self._window)
            return
        self.at += 1
        self._begin_step()

    def _return(self) -> None:
        if self.path is not None:
            self.path.steps[self.at].show(self._window)
            self.target = None
            self._point()

    def _look(self) -> None:
        if self._is_done():
            self._next()
        else:
            self._point()

    def _point(self) -> None:
        if self.path is None or self.call_out is None:
            return
        step = self.path.steps[self.at]
        target = step.target(self._window)
        if self._widget.size() != self._size:
            self._size, self.target = self._widget.size(), None
        about = step.about(self._window)
        if target is not None and target.isVisible():
            shown = [target, *(part for part in about if part.isVisible())]
            is_new, places = target is not self.target, [_place_in_page(part) for part in shown]
            if is_new or places != self._places:  # the page may be laid out anew after it was scrolled to its target
                self.target, self._places = target, places
                for part in reversed(shown):  # where there is no room for all, the target, then the first of the others
                    _bring_into_view(part)
            if is_new and target.focusPolicy() & Qt.FocusPolicy.TabFocus and target.isEnabled():
                target.setFocus(Qt.FocusReason.OtherFocusReason)
        head = _("Step {step} of {steps}").format(step=self.at + 1, steps=len(self.path.steps))
        self.call_out.tell(head, step.text(self._window))
        self.call_out.point_at(target, about)


def _place_in_page(part: QWidget) -> QRect | None:
    """The place of a part in the page that scrolls; None where none does."""
    parent = part.parentWidget()
    while parent is not None and not isinstance(parent, QScrollArea):
        parent = parent.parentWidget()
    page = parent.widget() if parent is not None else None
    return QRect(part.mapTo(page, QPoint()), part.size()) if page is not None else None


def _bring_into_view(part: QWidget) -> None:
    parent = part.parentWidget()
    while parent is not None:
        if isinstance(parent, QScrollArea):
            parent.ensureWidgetVisible(part)
        parent = parent.parentWidget()
