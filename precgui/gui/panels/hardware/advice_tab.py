"""The Advice tab: which precision to use for a task on a device, with the decision tree drawn and the path marked."""

from __future__ import annotations

from html import escape

from PySide6.QtWidgets import (
    QComboBox,
    QFormLayout,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from precgui.config import RECIPES, ConfigError, RunConfig, build
from precgui.gui.kit.answer_label import AnswerLabel
from precgui.gui.kit.measures import fixed_font
from precgui.gui.panels.hardware.cards import label, scrolled
from precgui.gui.panels.hardware.decision_tree import TreeView
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.hardware.advice import SIZES, START, TASKS, TREE, Advice, Situation, Step, advise
from precgui.hardware.datasheet import datasheet_devices
from precgui.hardware.device import Device
from precgui.hardware.tables import autocast_operations, autocast_source
from precgui.planner.plan import device_bytes
from precgui.runs.inference_advice import NO_FORMAT, RUN_PRECISION, InferenceQuestion, advise_inference
from precgui.runs.inference_advice import START as INFERENCE_START
from precgui.runs.inference_advice import TREE as INFERENCE_TREE
from precgui.runs.model_memory import MOST_PARAMETERS, parameter_count, training_sentence
from precgui.words import L_, _, error_text, paragraph, translated

_USE, _USE_THEN = L_("Use {precision}"), L_("Use {precision}, then try {then}")
TRAINING, INFERENCE = L_("Training"), L_("Inference")
# A recipe that stands for each task; a person changes it in Run.
_RECIPES = {
    "classification": "digits-quick", "detection": "detection-quick", "segmentation": "segmentation-quick",
    "transformer": "gpt-quick", "rnn": "lstm-quick", "rl": "cartpole-quick", "gan": "gan-quick",
}  # fmt: skip


class AdviceTab(QWidget):
    """The questions on the left, the answer below them, the tree on the right."""

    def __init__(self, model: HardwareModel) -> None:
        super().__init__()
        self._model = model
        self.purpose, self.device, self.task, self.model_size = QComboBox(), QComboBox(), QComboBox(), QComboBox()
        self.parameters, self.memory_size = QLineEdit(), QLineEdit()
        self.memory = label("")
        self.run_button = QPushButton(_("Open in Run"))
        self.claims_button = QPushButton(_("Claims"))
        self.sixteen_bits_button = QPushButton(_("FP16 or BF16"))
        self.answer = AnswerLabel()
        self.reason = label("")
        self.watch = label("")
        self.path = label("", "muted", rich=True)
        self.code = QPlainTextEdit()
        self.autocast = label(_autocast_text(), "muted")
        self.tree = TreeView()
        self.advice: Advice | None = None
        self._chosen = False  # a person has chosen the device
        self._fill()
        self._lay_out()
        for box in (self.purpose, self.device, self.task, self.model_size):
            box.currentIndexChanged.connect(self._ask)
        for line in (self.parameters, self.memory_size):
            line.textChanged.connect(self._ask)
        self.run_button.clicked.connect(lambda _: self.open_in_run())
        self.claims_button.clicked.connect(lambda _: model.claims_requested.emit(self.run_precision))
        self.sixteen_bits_button.clicked.connect(lambda _: self.open_sixteen_bits())
        self.device.activated.connect(self._keep_choice)
        model.machine_changed.connect(self._fill_devices)
        model.results_changed.connect(self._ask)
        self._fill_devices()

    def _fill(self) -> None:
        for box, words in ((self.task, TASKS), (self.model_size, SIZES)):
            for key, text in words.items():
                box.addItem(translated(text), key)
        for text in (TRAINING, INFERENCE):
            self.purpose.addItem(translated(text), text)
        self.parameters.setPlaceholderText(_("millions, such as 124, or 7B; may stay empty"))
        self.memory_size.setPlaceholderText(_("that of the device; or such as 24GB"))
        self.run_button.setToolTip(_("Set up a run of this task in this precision"))
        self.claims_button.setToolTip(_("Claims of guides about this precision, beside what was measured here"))
        self.sixteen_bits_button.setToolTip(
            _("Set up short runs of this task in fp32, fp16-amp and bf16-amp that decide")
        )
        self.model_size.setCurrentIndex(list(SIZES).index("large"))
        self.code.setReadOnly(True)
        self.code.setAccessibleName(_("Training step in torch"))
        self.code.setFont(fixed_font())

    def _lay_out(self) -> None:
        form = QFormLayout()
        form.setRowWrapPolicy(QFormLayout.RowWrapPolicy.WrapAllRows)  # the longest choice needs the whole width
        for title, box in (
            (_("For"), self.purpose), (_("Device"), self.device), (_("Task"), self.task), (_("Model"), self.model_size),
        ):  # fmt: skip
            box.setAccessibleName(title)
            box.setMinimumContentsLength(18)
            box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
            form.addRow(title, box)
        for title, line in ((_("Parameters"), self.parameters), (_("Memory"), self.memory_size)):
            line.setAccessibleName(title)
            form.addRow(title, line)
        buttons = QHBoxLayout()
        buttons.addWidget(self.run_button)
        buttons.addWidget(self.claims_button)
        buttons.addWidget(self.sixteen_bits_button)
        buttons.addStretch(1)
        left = QWidget()
        column = QVBoxLayout(left)
        column.setContentsMargins(4, 12, 12, 4)
        column.setSpacing(8)
        column.addLayout(form)
        column.addWidget(self.answer)
        column.addLayout(buttons)
        for widget in (self.reason, self.memory, self.path, self.watch, label(_("In torch"), "heading"), self.code):
            column.addWidget(widget)
        column.addWidget(self.autocast)
        column.addStretch(1)
        split = QSplitter()
        split.addWidget(scrolled(left))
        split.addWidget(scrolled(self.tree))
        split.setStretchFactor(1, 1)
        split.setSizes([385, 845])
        outer = QHBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(split)

    def _fill_devices(self) -> None:
        """The machine's devices first, then every card of the table; the choice is kept."""
        chosen = self.device.currentData() if self._chosen else None
        self.device.blockSignals(True)
        self.device.clear()
        best = self._model.best()
        for device in [*self._model.devices, *datasheet_devices()]:
            self.device.addItem(
                device.name if not device.id.startswith("card:") else _("Card: {name}").format(name=device.name),
                device.id,
            )
        requested = chosen or (best.id if best else None)
        self.device.setCurrentIndex(max(0, self.device.findData(requested)))
        self.device.blockSignals(False)
        self._ask()

    def ask_for(self, task: str, size: str) -> None:
        """Show the advice for a task and a size of model, keys of `TASKS` and `SIZES`."""
        for box, key in ((self.task, task), (self.model_size, size)):
            box.setCurrentIndex(max(0, box.findData(key)))

    def _keep_choice(self) -> None:
        self._chosen = True

    def _ask(self) -> None:
        device = self._model.find(self.device.currentData() or "")
        if device is None:
            return
        training = self.purpose.currentData() == TRAINING
        memory_bytes, parameters = self._memory_bytes(device), self._parameters()
        if training:
            size, gain = self.model_size.currentData(), self._model.gain_of(device)
            self.tree.show_tree(TREE, START)
            self._show(device, advise(Situation(device, self.task.currentData(), size, gain)))
        else:
            self.tree.show_tree(INFERENCE_TREE, INFERENCE_START)
            self._show(device, advise_inference(InferenceQuestion(device, parameters, memory_bytes)))
        for part in (self.task, self.model_size, self.sixteen_bits_button):
            part.setEnabled(training)
        self._show_memory(parameters, memory_bytes, training)

    def _parameters(self) -> int | None:
        text = self.parameters.text().strip()
        try:
            return parameter_count(text if text[-1:].isalpha() else f"{text}M")
        except ValueError:
            return None

    def _memory_bytes(self, device: Device) -> int | None:
        """The memory that was typed, else that of the device, in bytes."""
        try:
            return device_bytes(self.memory_size.text())
        except ValueError:
            return device.memory_bytes if isinstance(device.memory_bytes, int) else None

    def _show_memory(self, parameters: int | None, memory_bytes: int | None, training: bool) -> None:
        """Whether the model fits, or which of the two texts is not understood."""
        faults = []
        if self.parameters.text().strip() and parameters is None:
            text = _("Parameters: write millions, such as 124, or 7B, up to {most:g}B.")
            faults.append(text.format(most=MOST_PARAMETERS / 1e9))
        if self.memory_size.text().strip():
            try:
                device_bytes(self.memory_size.text())
            except ValueError as error:
                faults.append(_("Memory: {error}.").format(error=error_text(error)))
        text = paragraph(*faults)
        if not faults and parameters is not None and training:
            assert self.advice is not None
            text = training_sentence(parameters, self.advice.precision, memory_bytes)
        self.memory.setText(translated(text))
        self.memory.setVisible(bool(text))

    @property
    def run_precision(self) -> str:
        """The precision of a run for what is advised; of inference the one that trains for it."""
        precision = self.advice.precision if self.advice is not None else "fp32"
        return RUN_PRECISION.get(precision, precision)

    def open_in_run(self) -> None:
        """Put a recipe for the task into the form of Run, in the advised precision."""
        if (config := self._recipe(self.run_precision)) is not None:
            self._model.run_requested.emit(config, self._source)

    def open_sixteen_bits(self) -> None:
        """Put the study that decides between FP16 and BF16 for this task into Run."""
        if (config := self._recipe("bf16-amp")) is not None:
            self._model.sixteen_bits_requested.emit(config, self._source)

    @property
    def _source(self) -> str:
        return _("the advice for {task}").format(task=translated(TASKS[self.task.currentData()]))

    def _recipe(self, precision: str) -> RunConfig | None:
        """A recipe for the task in a precision; None, with the reason shown, where there is none."""
        tree = RECIPES[_RECIPES[self.task.currentData()]][1].model_dump() | {"precision": precision}
        try:
            return build(tree)
        except ConfigError as error:
            self.memory.setText(
                _("There is no run of this task in {precision}: {error}.").format(
                    precision=precision, error=error_text(error)
                )
            )
            self.memory.show()
            return None

    def _show(self, device: Device, advice: Advice) -> None:
        self.advice = advice
        fits = advice.precision != NO_FORMAT
        answer = _("No format fits into this memory") if not fits else translated(_USE_THEN if advice.then else _USE)
        self.answer.setText(answer.format(precision=advice.precision, then=advice.then))
        for button in (self.run_button, self.claims_button):
            button.setEnabled(fits)
        self.reason.setText(translated(advice.reason))
        steps = map(_step_html, advice.path)
        self.path.setText("<br><br>".join(steps))
        self.watch.setText("\n".join((_("Watch:"), *(f"•  {translated(line)}" for line in advice.watch))))
        self.watch.setVisible(bool(advice.watch))
        self.code.setPlainText(advice.code)
        self.code.setFixedHeight((advice.code.count("\n") + 3) * self.code.fontMetrics().lineSpacing())
        self.autocast.setVisible(device.kind == "cuda" and advice.precision.endswith("-amp"))
        self.tree.show_path(advice)


def _step_html(step: Step) -> str:
    question, answer, why = (escape(translated(text)) for text in (step.question, step.answer, step.why))
    return f"{question} <b>{answer}</b><br>{why}"


def _autocast_text() -> str:
    """The operations that autocast leaves alone, from the table."""
    lists = autocast_operations()
    known = [name for name in ("layer_norm", "exp", "log", "norm", "nll_loss", "mse_loss") if name in lists["fp32"]]
    return _(
        "On CUDA, autocast runs {count} operations in the low precision (matrix products and "
        "convolutions), and keeps {kept} in FP32, among them {known}. Source: {source}"
    ).format(
        count=len(lists["lower_precision"]),
        kept=len(lists["fp32"]),
        known=", ".join(known),
        source=autocast_source(),
    )
