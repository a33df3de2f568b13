"""Run > Existing model: the cost of formats for a trained model, measured in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QFileDialog, QGridLayout, QLineEdit, QWidget

from precgui.formats.checkpoints.contents import SUFFIXES
from precgui.gui.answer import Answer, child
from precgui.gui.kit.consent import Consent
from precgui.gui.kit.parts import button, column, label, named, row
from precgui.gui.model_scans import SUFFIX
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.models.effects import ROUNDED

TASK = "precgui.quantize_job:serve"
METHODS = {"rtn": "Round to nearest", "gptq": "GPTQ", "awq": "AWQ", "smooth": "SmoothQuant"}
FORMATS = "int8/row, e4m3fn/row, int4/128, mxfp4, nvfp4"
_MEASURE, _STOP = "Measure", "Stop"
_ABOUT = (
    "Rounds the linear and convolutional layers of a trained model to each format and measures the rise of its "
    "held-out loss with the noise of the data. The model and its data come from a task; files that train.save_to wrote "
    "name theirs."
)
_NO_MODEL = "Choose the weights of a model, or a run."


class ExistingModel(QWidget):
    """`kept` carries the file of a measurement that is done."""

    kept = Signal(object)  # Path

    def __init__(self, session: Session, consent: Consent, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session, self._consent = session, consent
        self.source, self.task, self.formats, self.budget = (QLineEdit() for _ in range(4))
        self.methods = {name: QCheckBox(title) for name, title in METHODS.items()}
        self.rounded = {name: QCheckBox(title.capitalize()) for name, title in ROUNDED.items()}
        self.answer = label(_ABOUT, "muted", selectable=True)
        self.start_button = button(_MEASURE, self.toggle, "Measure in a process of its own", kind="primary")
        self.file_button = button("File...", lambda: self.ask(folder=False), "Weights of a model, or a run")
        self.folder_button = button("Folder...", lambda: self.ask(folder=True), "A folder with weights")
        self._work = Answer(self, progress=self.take, failed=self._fail, ended=self._end, title="Measuring a model")
        self._lay_out()

    def _lay_out(self) -> None:
        self.formats.setText(FORMATS)
        self.methods["rtn"].setChecked(True)
        for box in self.rounded.values():
            box.setChecked(True)
        for part, name, hint in (
            (self.source, "Weights of a model, or a run", "model.safetensors, a folder, run.h5, or hf:FOLDER"),
            (self.task, "Task", "a recipe, CONFIG.toml or FILE.py:FUNCTION; empty: as the file says"),
            (self.formats, "Formats, commas between them", FORMATS),
            (self.budget, "Budget of a plan", "bits=4.5, bytes=1000000 or loss=0.01; empty: no plan"),
        ):
            part.setAccessibleName(name)
            part.setPlaceholderText(hint)
        grid = QGridLayout()
        grid.setHorizontalSpacing(12)
        lines = (("&Model", self.source), ("&Task", self.task), ("&Formats", self.formats), ("&Budget", self.budget))
        for place, (text, part) in enumerate(lines):
            grid.addWidget(named(text, part), place, 0)
            grid.addWidget(part, place, 1)
        grid.addLayout(row(self.file_button, self.folder_button), 0, 2)
        for place, (text, boxes) in enumerate((("Methods", self.methods), ("Rounded", self.rounded)), len(lines)):
            grid.addWidget(label(text), place, 0)
            grid.addLayout(row(*boxes.values(), 1, spacing=16), place, 1)
        column(grid, row(self.start_button, 1), self.answer, 1, spacing=12, on=self)

    def ask(self, *, folder: bool) -> QFileDialog:
        """Ask for a model."""
        kinds = " ".join(f"*{suffix}" for suffix in (*SUFFIXES, ".h5"))
        dialog = QFileDialog(self, "Choose a model", str(Path.home()), f"Models and runs ({kinds})")
        themes().dress(dialog)
        dialog.setFileMode(QFileDialog.FileMode.Directory if folder else QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(self.source.setText)
        dialog.open()
        return dialog

    def order(self) -> dict[str, Any]:
        """The request as `precgui quantize` takes it."""
        return {
            "source": self.source.text().strip(), "task": self.task.text().strip(),
            "formats": [name.strip() for name in self.formats.text().split(",") if name.strip()],
            "methods": [name for name, box in self.methods.items() if box.isChecked()],
            "rounded": [name for name, box in self.rounded.items() if box.isChecked()],
            "budget": self.budget.text().strip(),
        }  # fmt: skip

    def toggle(self) -> None:
        """Begin to measure, or stop. Code of a task file runs after consent only."""
        if self._work.busy:
            self._work.cancel()
            return
        order = self.order()
        if not order["source"]:
            self.answer.setText(_NO_MODEL)
            self.source.setFocus()
            return
        is_code = ".py:" in order["task"]
        self._consent.before([order["task"]] if is_code else [], lambda: self._start(order))

    def _start(self, order: dict[str, Any]) -> None:
        source = order["source"].removeprefix("hf:").rstrip("/")
        output = self._session.folder / f"{Path(source).stem or 'model'}{SUFFIX}"
        self.answer.setText("Loading the model ...")
        self._work.ask(child(TASK, {"order": order, "output": str(output)}))
        self.start_button.setText(_STOP)

    def take(self, event: Mapping[str, Any]) -> None:
        """Follow a measurement."""
        if event["kind"] == "told":
            self.answer.setText(str(event["message"]))
        elif event["kind"] == "row":
            values = event["row"]
            name = f"{values.get('name', '')} {values['format']}".strip()
            self.answer.setText(f"Measured: {name}")
        elif event["kind"] == "kept":
            self.answer.setText(f"Kept in {event['file']}.")
            self.kept.emit(Path(event["file"]))

    def _fail(self, sentence: str) -> None:
        self.answer.setText(sentence)

    def _end(self, death: str) -> None:
        self.start_button.setText(_MEASURE)
        if death:
            self.answer.setText(death)
