"""Under the precisions of Run: what the machine of the run makes of each, and how long it will take, before Start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QWidget

from precgui.config import PRECISIONS, RunConfig
from precgui.config.doubts import doubts
from precgui.errors import SentenceError
from precgui.gui.answer import Answer, thread
from precgui.gui.kit.icons import pixmap
from precgui.gui.kit.plain_text import PlainLabel, RichLabel
from precgui.gui.theme import themes
from precgui.hardware import measured
from precgui.hardware.detect import Machine, detect
from precgui.hardware.device import Device
from precgui.places.machine import ask_machine, machine_asked
from precgui.places.settings import NamedPlace
from precgui.runs.outlook import WORDS, PrecisionOutlook, outlook, time_estimate
from precgui.runs.precision_advice import PrecisionAdvice, precision_advice
from precgui.runs.report.sixteen_bits import BF16, FP16
from precgui.runs.study.guide_claims import claims_of
from precgui.sanitize import one_line
from precgui.words import L_, _, error_text, translated

_ASKING = L_("Asking the machine...")
_ASKING_PLACE = L_("Asking {place} for its devices, which takes some seconds; Start does not wait for it.")
Known = tuple[Machine, list[dict[str, Any]]]


class OutlookText(QFrame):
    """Three lines, and one more on settings that may spoil the run. `known` comes when the machine has answered.

    `advice_requested(place)` and `precision_requested(name)` come when a link was clicked.
    """

    known = Signal()
    advice_requested = Signal(str)
    precision_requested = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "banner")
        self.place: NamedPlace | None = None  # None: this machine
        self._fault = ""
        self._machine: Machine | None = None
        self._results: list[dict[str, Any]] = []
        self._question = Answer(self, answered=self._take)
        self._precision, self._warns = "", False
        self._mark = PlainLabel(self)
        self.machine_text, self.time_text, self.advice_text = PlainLabel(self), PlainLabel(self), PlainLabel(self)
        self.doubt_text = PlainLabel(self)
        self.link = RichLabel(self)
        self.advice: PrecisionAdvice | None = None
        for text in (self.machine_text, self.time_text, self.advice_text, self.doubt_text):
            text.setWordWrap(True)
            text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.link.setTextInteractionFlags(
            Qt.TextInteractionFlag.LinksAccessibleByKeyboard | self.link.textInteractionFlags()
        )
        self.link.linkActivated.connect(self._follow)
        self.machine_text.setText(translated(_ASKING))
        grid = QGridLayout(self)
        grid.setContentsMargins(12, 8, 12, 8)
        grid.setHorizontalSpacing(8)
        grid.addWidget(self._mark, 0, 0, Qt.AlignmentFlag.AlignTop)
        grid.addWidget(self.machine_text, 0, 1)
        grid.addWidget(self.advice_text, 1, 1)
        grid.addWidget(self.link, 1, 2, Qt.AlignmentFlag.AlignTop)
        grid.addWidget(self.time_text, 2, 1, 1, 2)
        grid.addWidget(self.doubt_text, 3, 1, 1, 2)
        self.doubt_text.hide()
        grid.setColumnStretch(1, 1)
        themes().follow(self, self._recolour)
        self._recolour()

    def ask(self) -> None:
        """Ask driver, system and kept measurements, in a thread, or the place; `known` follows."""
        self._fault = ""
        if self.place is None:
            self._question.ask(thread(_ask), latest_only=True)
        elif (asked := machine_asked(self.place)) is not None:
            self._take((self.place, (asked.machine, asked.results)))
        else:
            self._question.ask(thread(_ask_there, self.place), latest_only=True)

    def set_place(self, place: NamedPlace | None) -> None:
        """The outlook is that of a place from now on, or that of this machine."""
        if place != self.place:
            self.place, self._machine, self._results = place, None, []
            self.ask()

    def _take(self, answer: tuple[NamedPlace | None, Known | str]) -> None:
        place, known = answer
        if place != self.place:
            return
        if isinstance(known, str):
            self._fault = known
        else:
            self._machine, self._results = known
        self.known.emit()

    @property
    def _place_name(self) -> str:
        return self.place.name if self.place is not None else ""

    @property
    def _waiting(self) -> str:
        name = self._place_name
        return self._fault or (translated(_ASKING_PLACE).format(place=name) if name else translated(_ASKING))

    @property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """The kept measurements, the newest first."""
        return self._results

    def device_of(self, config: RunConfig | None) -> Device | None:
        """The device on which a run of this config goes, as far as it is known without torch."""
        if self._machine is None:
            return None
        if config is not None and config.device != "auto":
            name = "cuda:0" if config.device == "cuda" else config.device
            return self._machine.device(name)
        return next((device for device in self._machine.devices if not device.problem), None)

    def levels(self, config: RunConfig | None) -> Mapping[str, PrecisionOutlook]:
        """The outlook of every precision on the device of the config; empty before the machine has answered."""
        device = self.device_of(config)
        return {} if device is None else {name: outlook(name, device, self._results) for name in PRECISIONS}

    def show_config(self, config: RunConfig | None) -> None:
        """Say what the machine makes of the precision of a config, and how long its run will take."""
        device = self.device_of(config)
        self._advise(config, device)
        self._doubt(config)
        if config is None or device is None:
            reported = (
                self._waiting if self._machine is None else _("The device of this run is not known.") if config else ""
            )
            self.machine_text.setText(reported)
            self.time_text.setText("")
            self._show_warning(warns=self.doubt_text.text() != "")
            return
        result = outlook(config.precision, device, self._results)
        self.machine_text.setText(translated(result.sentence))
        self.time_text.setText(translated(time_estimate(config, result.factor, self._place_name).sentence))
        self._show_warning(warns=result.level in ("slow", "emulated") or self.doubt_text.text() != "")

    def _advise(self, config: RunConfig | None, device: Device | None) -> None:
        """The precision that suits the task and model of the config on its device."""
        reported, self.advice = "", None
        if config is not None and device is not None:
            self.advice = precision_advice(config, device, self._results, self._place_name)
            reported = (
                translated(self.advice.sentence)
                if self.advice
                else _("No advice for this task; that for others is in Hardware.")
            )
        self.advice_text.setText(reported)
        self._show_links(config.precision if config is not None else "")

    def _show_links(self, precision: str) -> None:
        colour = themes().theme.accent
        count = len(claims_of(precision)) if precision else 0
        links = [
            ("why", _("Why")),
            *([("claims", _("Claims of guides ({count})").format(count=count))] if count else []),
        ]
        if precision in (FP16, BF16):
            links.append(("sixteen", _("FP16 or BF16 here")))
        if self.advice is not None and self.advice.precision != precision:
            links.insert(0, ("use", _("Use {precision}").format(precision=self.advice.precision)))
        self._precision = precision
        self.link.setText("&nbsp; ".join(f'<a href="{to}" style="color: {colour}">{text}</a>' for to, text in links))

    def _follow(self, link: str) -> None:
        if link == "claims":
            self.advice_requested.emit(f"compare/claims {self._precision}")
        elif link == "sixteen":
            self.advice_requested.emit("setup/study/fp16-or-bf16")
        elif self.advice is None:
            self.advice_requested.emit("hardware/advice")
        elif link == "use":
            self.precision_requested.emit(self.advice.precision)
        else:
            self.advice_requested.emit(f"hardware/advice/{self.advice.task}/{self.advice.size}")

    def _doubt(self, config: RunConfig | None) -> None:
        sentences = [translated(each) for each in doubts(config)] if config is not None else []
        self.doubt_text.setText("\n".join(sentences))
        self.doubt_text.setVisible(bool(sentences))

    def _show_warning(self, *, warns: bool) -> None:
        if warns != self._warns:
            self._warns = warns
            self.setProperty("severity", "warning" if warns else "info")
            self.style().polish(self)
            self._recolour()

    def _recolour(self) -> None:
        theme = themes().theme
        self._show_links(self._precision)
        drawing, colour = ("warning", theme.warning) if self._warns else ("info", theme.info)
        self._mark.setPixmap(pixmap(drawing, colour, 18, self.devicePixelRatioF()))


def word_of(outlook: PrecisionOutlook) -> str:
    """The word beside the name of a precision; nothing beside what is native, which is the usual case."""
    return "" if outlook.level == "native" else translated(WORDS[outlook.level])


def _ask() -> tuple[None, Known]:
    return None, (detect(), measured.kept())


def _ask_there(place: NamedPlace) -> tuple[NamedPlace, Known | str]:
    """The machine of a place, or the sentence why it did not answer."""
    try:
        asked = ask_machine(place)
    except SentenceError as error:
        return place, one_line(f"{error_text(error)}.", 400)
    return place, (asked.machine, asked.results)
