"""The end of a run that was trained in this window: its result in one line, and the next thing to do."""

from __future__ import annotations

from PySide6.QtWidgets import QFrame, QWidget

from precgui.config import OWN_LOOP, ConfigError, RunConfig, build, is_own_task
from precgui.events import Metric
from precgui.gui.broken_runs import BrokenRuns, may_go_on
from precgui.gui.kit.answer_label import AnswerLabel
from precgui.gui.kit.parts import button, column, row
from precgui.gui.open_run import OpenRun, Problem
from precgui.gui.session import Session
from precgui.runs.facts import seconds_text
from precgui.runs.live import LiveRun
from precgui.runs.metric import in_text, value_text
from precgui.runs.outcome import outcome, outcome_sentence
from precgui.runs.summary import summarise
from precgui.words import _, error_text, translated

BASELINE, OTHER = "fp32", "bf16-amp"  # the precision that is trained next beside another one, and beside FP32


class EndCard(QFrame):
    """Shown for the current run once it has ended, until it is closed by hand."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._closed: set[str] = set()
        self._key = ""
        self.setProperty("kind", "card")
        self.text = AnswerLabel()
        self.compare = button(_("Compare"), self._compare, _("Both runs side by side"), kind="primary")
        self.other = button("", self._train_other, _("The same training in another precision; Compare opens with both"))
        self.go_on = button(
            _("Go on"), self._go_on, _("From its last checkpoint, here or at its place, to its last step")
        )
        self.broken_runs = BrokenRuns(session, self)
        self.diagnose = button(_("Diagnose"), self._diagnose, _("Whether the run is healthy, and if not why"))
        self.close_button = button(_("Close"), self._close, _("Hide this line"))
        parts = (self.go_on, self.compare, self.other, self.diagnose, self.close_button)
        column(self.text, row(*parts, 1), margins=(12, 8, 12, 8), on=self)
        self.hide()

    def refresh(self) -> None:
        """Show the end of the current run, if it was trained here and has ended."""
        opened = self._session.runs.get(self._session.runs.current or "")
        run = opened.run if opened is not None else None
        is_over = isinstance(run, LiveRun) and run.status != "running" and opened is not None
        if opened is None or not is_over or opened.key in self._closed:
            self.hide()
            return
        self._key = opened.key
        self.text.setText(end_text(opened))
        partner = self._partner()
        self.compare.setVisible(partner is not None)
        self.other.setVisible(partner is None and opened.run.config.task != OWN_LOOP)
        path, status = opened.run.path, opened.run.status
        place = str(opened.run.environment.get("place") or "")
        self.go_on.setVisible(path is not None and may_go_on(path, status, place) and not self._session.is_busy)
        other = self._other_precision(opened.run.config)
        self.other.setText(_("Run {precision} too").format(precision=other))
        self.other.setEnabled(not self._session.is_busy)
        self.show()

    def _partner(self) -> OpenRun | None:
        """Another open run of the same task and model in another precision."""
        own = self._session.runs[self._key].run.config
        others = (each for key, each in self._session.runs.items() if key != self._key)
        configs = [(each, each.run.config) for each in others]
        return next(
            (e for e, c in configs if (c.task, c.model) == (own.task, own.model) and c.precision != own.precision), None
        )

    def _other_precision(self, config: RunConfig) -> str:
        return OTHER if config.precision == BASELINE else BASELINE

    def _compare(self) -> None:
        if (partner := self._partner()) is not None:
            own = self._session.runs[self._key].run.config
            pair = (self._key, partner.key) if own.precision == BASELINE else (partner.key, self._key)
            self._session.requests.compare(*pair)

    def _go_on(self) -> None:
        if (path := self._session.runs[self._key].run.path) is not None:
            self.broken_runs.go_on(path)

    def _train_other(self) -> None:
        own = self._session.runs[self._key]
        tree = {**own.run.config.model_dump(), "precision": self._other_precision(own.run.config), "title": ""}
        try:
            config = build(tree)
        except ConfigError as error:
            text = _("These settings do not suit {precision}: {error}")
            problem = Problem(text.format(precision=tree["precision"], error=error_text(error)))
            self._session.notice.emit(problem)
            return
        if is_own_task(config.task):  # its code runs after a question that Run asks
            self._session.requests.set_up(config, own.name)
        else:
            self._session.training.try_fix(config, self._key)

    def _diagnose(self) -> None:
        self._session.requests.go(f"diagnose/{self._key}")

    def _close(self) -> None:
        self._closed.add(self._key)
        self.hide()


def end_text(opened: OpenRun) -> str:
    """How a run has ended, with its metric and time, such as "fp32 completed: accuracy 99.16 % in 25.1 s"."""
    figures = summarise(opened.run)
    how = outcome(opened.run.status, {**figures, **figures["final"]})
    metric = Metric(**figures["metric"])
    value = value_text(metric, figures["final"]["val_accuracy"], "")
    shown, time = translated(outcome_sentence(how)), translated(seconds_text(figures["time_s"]))
    if not value:
        return _("{run} {outcome}: in {time}.").format(run=opened.name, outcome=shown, time=time)
    text = _("{run} {outcome}: {metric} {value} in {time}.")
    name = in_text(translated(metric.title))
    return text.format(run=opened.name, outcome=shown, metric=name, value=value, time=time)
