"""Run > Existing model: the cost of formats for a trained model, measured in a child process or at a place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QFileDialog, QGridLayout, QLineEdit, QWidget

from precgui.errors import SentenceError
from precgui.formats.checkpoints.suffixes import SUFFIXES
from precgui.gui.answer import Answer, child
from precgui.gui.kit.consent import Consent
from precgui.gui.kit.file_dialogs import ask_for_file, ask_for_folder, ask_for_new_file
from precgui.gui.kit.parts import button, column, label, named, row
from precgui.gui.kit.wrapping_row import WrappingRow
from precgui.gui.model_scans import SUFFIX
from precgui.gui.session import Session
from precgui.gui.where import Where
from precgui.places.models import quantize_there
from precgui.places.placed_task import TaskPlace
from precgui.places.tasks import TASKS
from precgui.runs.models.effects import ROUNDED
from precgui.words import L_, _, error_text, recased, translated

METHODS = {"rtn": L_("Round to nearest"), "gptq": "GPTQ", "awq": "AWQ", "smooth": "SmoothQuant"}
FORMATS = L_("int8/row, e4m3fn/row, int4/128, mxfp4, nvfp4")
TARGETS = {"": L_("No file"), "vllm": L_("vLLM, transformers"), "torchao": "torchao", "gguf": "GGUF (llama.cpp)"}
_MEASURE, _STOP = L_("Measure"), L_("Stop")
_ABOUT = L_(
    "Rounds the linear and convolutional layers of a trained model to each format and measures the rise of its "
    "held-out loss with the noise of the data. The model and its data come from a task; files that train.save_to wrote "
    "name theirs."
)
_PURPOSE = L_("Where the model is measured")
_NO_MODEL = L_("Choose the weights of a model, or a run.")
_NO_PLACE = L_("Choose where the quantised model is written.")
_WRITTEN = {
    "equal": L_("Written as {place}; read back by {reader}: every number of the layers is the one that was measured."),
    "different": L_("Written as {place}; read back, some numbers differ from those that were measured."),
}


class ExistingModel(QWidget):
    """`kept` carries the file of a measurement that is done."""

    kept = Signal(object)  # Path

    def __init__(self, session: Session, consent: Consent, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session, self._consent = session, consent
        self.source, self.task, self.formats, self.budget, self.place = (QLineEdit() for _line in range(5))
        self.target = QComboBox()
        self.methods = {name: QCheckBox(translated(title)) for name, title in METHODS.items()}
        self.rounded = {name: QCheckBox(translated(recased(title, "upper"))) for name, title in ROUNDED.items()}
        self.answer = label(translated(_ABOUT), "muted", selectable=True)
        self.start_button = button(
            translated(_MEASURE), self.toggle, _("Measure in a process of its own"), kind="primary"
        )
        self.file_button = button(_("File..."), lambda: self.ask(folder=False), _("Weights of a model, or a run"))
        self.folder_button = button(_("Folder..."), lambda: self.ask(folder=True), _("A folder with weights"))
        self._work = Answer(self, progress=self.take, failed=self._fail, ended=self._end, title=_("Measuring a model"))
        self.where = Where(self, purpose=_PURPOSE)
        self.place_button = button(_("Place..."), self.ask_place, _("A new folder, or a new file of GGUF"))
        self._lay_out()
        self.target.currentIndexChanged.connect(self._suggest_place)
        self._suggest_place()

    def _lay_out(self) -> None:
        self.formats.setText(FORMATS)
        self.methods["rtn"].setChecked(True)
        for box in self.rounded.values():
            box.setChecked(True)
        for part, name, hint in (
            (self.source, _("Weights of a model, or a run"), _("model.safetensors, a folder, run.h5, or hf:FOLDER")),
            (self.task, _("Task"), _("a recipe, CONFIG.toml or FILE.py:FUNCTION; empty: as the file says")),
            (self.formats, _("Formats, commas between them"), FORMATS),
            (self.budget, _("Budget of a plan"), _("bits=4.5, bytes=1000000 or loss=0.01; empty: no plan")),
            (self.place, _("Where the quantised model is written"), _("a new folder, or FILE.gguf")),
        ):
            part.setAccessibleName(name)
            part.setPlaceholderText(hint)
        for name, title in TARGETS.items():
            self.target.addItem(translated(title), name)
        self.target.setAccessibleName(_("Who reads the quantised model"))
        grid = QGridLayout()
        grid.setHorizontalSpacing(8)
        source = WrappingRow([self.source, self.file_button, self.folder_button], fills=self.source)
        place_row = WrappingRow([self.target, self.place, self.place_button], fills=self.place)
        lines = (
            (_("&Model"), self.source, source),
            (_("&Task"), self.task, self.task),
            (_("&Formats"), self.formats, self.formats),
            (_("&Budget"), self.budget, self.budget),
            (_("&Write for"), self.target, place_row),
        )
        for place, (text, field, shown) in enumerate(lines):
            caption = named(text, field)
            caption.setMinimumHeight(field.sizeHint().height())  # beside the first line, where the row has two
            grid.addWidget(caption, place, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(shown, place, 1)
        for place, (text, boxes) in enumerate(
            ((_("Methods"), self.methods), (_("Rounded"), self.rounded)), len(lines) + 1
        ):
            grid.addWidget(label(text), place, 0)
            grid.addLayout(row(*boxes.values(), 1, spacing=16), place, 1)
        column(grid, row(self.start_button, self.where, 1), self.answer, 1, spacing=12, on=self)

    def ask(self, *, folder: bool) -> QFileDialog:
        """Ask for a model."""
        kinds = " ".join(f"*{suffix}" for suffix in (*SUFFIXES, ".h5"))
        title, then = _("Choose a model"), lambda path: self.source.setText(str(path))
        if folder:
            return ask_for_folder(self, title, Path.home(), then)
        return ask_for_file(self, title, Path.home(), _("Models and runs ({kinds})").format(kinds=kinds), then)

    def ask_place(self) -> QFileDialog:
        """Ask where the quantised model is written."""
        start = self.place.text() or self._session.folder
        return ask_for_new_file(self, _("Choose a new name"), start, "", lambda path: self.place.setText(str(path)))

    def _suggest_place(self) -> None:
        """A target needs a place; the first one that comes to mind is beside the runs."""
        target = str(self.target.currentData())
        self.place.setEnabled(bool(target))
        self.place_button.setEnabled(bool(target))
        end = ".gguf" if target == "gguf" else f"-{target}"
        self.place.setText(str(self._session.folder / f"{self._stem()}{end}") if target else "")

    def _stem(self) -> str:
        return Path(self.source.text().strip().removeprefix("hf:").rstrip("/")).stem or "model"

    def order(self) -> dict[str, Any]:
        """The request as `precgui quantize` takes it."""
        return {
            "source": self.source.text().strip(), "task": self.task.text().strip(),
            "formats": [name.strip() for name in self.formats.text().split(",") if name.strip()],
            "methods": [name for name, box in self.methods.items() if box.isChecked()],
            "rounded": [name for name, box in self.rounded.items() if box.isChecked()],
            "budget": self.budget.text().strip(), "target": str(self.target.currentData()),
            "folder": self.place.text().strip(),
        }  # fmt: skip

    def toggle(self) -> None:
        """Begin to measure, or stop. Code of a task file runs after consent only."""
        if self._work.busy:
            self._work.cancel()
            return
        order = self.order()
        if order["target"] and not order["folder"]:
            self.answer.setText(translated(_NO_PLACE))
            self.place.setFocus()
            return
        if not order["source"]:
            self.answer.setText(translated(_NO_MODEL))
            self.source.setFocus()
            return
        is_code = ".py:" in order["task"]
        self._consent.before([order["task"]] if is_code else [], lambda: self._start(order), self.where.name)

    def _start(self, order: dict[str, Any]) -> None:
        output = self._session.folder / f"{self._stem()}{SUFFIX}"
        there: TaskPlace | None = None
        if (place := self.where.place) is not None:
            try:
                there, order, output = quantize_there(place, order, output)
            except (SentenceError, OSError) as error:
                self.answer.setText(_("{error}.").format(error=error_text(error)))
                return
        self.answer.setText(_("Loading the model ..."))
        self._work.ask(child(TASKS["quantize"], {"order": order, "output": str(output)}, there))
        self.start_button.setText(translated(_STOP))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.where.read()

    def take(self, event: Mapping[str, Any]) -> None:
        """Follow a measurement."""
        if event["kind"] == "told":
            self.answer.setText(translated(event["message"]))
        elif event["kind"] == "row":
            values = event["row"]
            name = f"{values.get('name', '')} {values['format']}".strip()
            self.answer.setText(_("Measured: {name}").format(name=name))
        elif event["kind"] == "kept":
            written = _WRITTEN.get(event["read_back"], "")
            place = translated(written).format(place=self.place.text().strip(), reader=event["read_back_by"])
            self.answer.setText(_("Kept in {file}. {written}").format(file=event["file"], written=place).rstrip())
            self.kept.emit(Path(event["file"]))

    def _fail(self, sentence: str) -> None:
        self.answer.setText(sentence)

    def _end(self, death: str) -> None:
        self.start_button.setText(translated(_MEASURE))
        if death:
            self.answer.setText(death)
