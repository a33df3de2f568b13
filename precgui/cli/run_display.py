"""How a run is shown on the terminal while it trains, and reported at its end, wherever it trains."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from precgui.cli.console import HarmlessConsole
from precgui.cli.terminal import say
from precgui.events import NO_METRIC, Evaluated, Event, Incident, RunEnded, RunStarted, StepDone
from precgui.runs.figures import FIGURES
from precgui.runs.metric import ACCURACY, in_text, metric_of, value_text
from precgui.words import _, translated

_STYLE = {"info": "dim", "warning": "yellow", "error": "red"}
_NOTHING_KEPT = {
    "status": "failed",
    "steps": 0,
    "final": {"train_loss": None, "val_loss": None, "val_accuracy": None},
    **dict.fromkeys(
        ("time_s", "before_first_step_s", "step_s_median", "samples_per_s", "memory_peak_bytes", "energy_j")
    ),
    "skipped_steps": 0,
    "nonfinite_events": 0,
}
_MENTIONED = 0.05  # share of the time that passes before the first step
_MAX_PER_KIND = 3  # a run that is NaN for 10 000 steps says so three times


def tell(ended: RunEnded, fault: str, report: dict[str, Any], view: RunDisplay | None) -> int:
    """Print the report of a run and how it ended; `fault` says why its file is not whole. Returns the exit code."""
    status, message = ("failed", fault) if fault else (ended.status, ended.message)
    report |= {"status": status}
    if view is None:
        print(json.dumps(report, allow_nan=False))
    else:
        view.print_report(report)
    if status == "completed":
        return 0
    say(f"precgui: {translated(status)}: {translated(message)}", file=sys.stderr)
    if ended.details:
        say(ended.details, file=sys.stderr)
    return 1 if status == "failed" else 0


def interrupt() -> None:
    """End the work at once."""
    raise KeyboardInterrupt


def report(path: Path, precision: str) -> dict[str, Any]:
    """The summary read back from the file, so that the report matches the file. Empty when the file does not exist.

    The time of its step is kept, too, for estimates of later runs.
    """
    from precgui.runs.errors import RunFileError
    from precgui.runs.file.reader import open_run
    from precgui.runs.recorded_facts import saved_weights
    from precgui.runs.step_times import keep_step_time

    kept: dict[str, Any] = {}
    with suppress(RunFileError), open_run(path) as saved:
        kept = dict(saved.summary)
        if weights := saved_weights(saved):
            kept["weights"] = weights
        with suppress(OSError):
            keep_step_time(saved)
    return {"run": str(path), "precision": precision, **_NOTHING_KEPT, **kept}


class RunDisplay:
    """A progress bar, incidents as they come, a table at the end; all on stderr."""

    def __init__(self) -> None:
        self._console = HarmlessConsole(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task(_("starting the engine"), total=None)
        self._printed: dict[str, int] = {}
        self._metric = ACCURACY

    def __enter__(self) -> RunDisplay:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        """Show an event of the run."""
        match event:
            case RunStarted(total_steps=total, engine=engine):
                self._progress.update(
                    self._task,
                    total=total,
                    description=_("training on {device}").format(device=engine.get("device_name")),
                )
                self._metric = metric_of(engine)
            case StepDone(step=step, loss=loss):
                self._progress.update(self._task, completed=step, description=_("loss {loss:.4g}").format(loss=loss))
            case Evaluated(epoch=epoch, loss=loss, accuracy=accuracy):
                text = _("epoch {epoch}: validation {figures}")
                self._console.print(text.format(epoch=epoch, figures=self._validation(loss, accuracy)), highlight=False)
            case Incident(kind="note", message=message) if not self._progress.tasks[0].total:
                self._progress.update(self._task, description=escape(translated(message)))  # before the first step
            case Incident(kind=kind) if kind != "failure":  # which is the message of the end, told by the command
                self._show_incident(event)
            case _:
                pass

    def _validation(self, loss: float | None, value: float | None) -> str:
        if self._metric.name == NO_METRIC:
            return _("loss {loss}").format(loss=_number(loss))
        text = _("loss {loss}, {metric} {value}")
        metric = in_text(translated(self._metric.title))
        return text.format(loss=_number(loss), metric=metric, value=value_text(self._metric, value, "-"))

    def _show_incident(self, incident: Incident) -> None:
        count = self._printed[incident.kind] = self._printed.get(incident.kind, 0) + 1
        if count > _MAX_PER_KIND:
            return
        text = translated(incident.message)
        if incident.step:
            text = _("step {step}: {message}").format(step=incident.step, message=text)
        self._console.print(f"[{_STYLE[incident.severity]}]{escape(text)}[/]", highlight=False)
        if count == _MAX_PER_KIND:
            self._console.print(_("Further incidents of this kind are in the file only."), highlight=False)

    def print_report(self, report: dict[str, Any]) -> None:
        """Print the table at the end."""
        table = Table(show_header=False, box=None)
        final = report["final"]
        rows = {
            _("run"): report["run"],
            _("status"): translated(report["status"]),
            _("steps"): report["steps"],
            translated(FIGURES["train_loss"].in_words): _number(final["train_loss"]),
            _("validation"): self._validation(final["val_loss"], final["val_accuracy"]),
            translated(FIGURES["time_s"].in_words): _time(report),
            _("speed"): _("{rate} samples/s").format(rate=_number(report["samples_per_s"], ".0f")),
            _("skipped steps"): report["skipped_steps"],
            _("non-finite events"): report["nonfinite_events"],
            translated(FIGURES["memory_bytes"].in_words): _unit(report["memory_peak_bytes"], 2**20, "MiB"),
            _("energy"): _unit(report["energy_j"], 1, "J"),
            **({_("weights"): translated(report["weights"])} if "weights" in report else {}),
        }
        for name, value in rows.items():
            table.add_row(name, escape(str(value)))
        self._console.print(table)


def _number(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _time(report: Mapping[str, Any]) -> str:
    """The whole time; where much of it passed before the first step, that part by itself."""
    whole_s, before_s = report["time_s"], report["before_first_step_s"]
    text = f"{_number(whole_s, '.1f')} s"
    if whole_s is None or before_s is None or before_s < max(1.0, _MENTIONED * whole_s):
        return text
    sentence = _("{time}, {before_s:.1f} s of it before the first step (loading; on first use compiling, too)")
    return sentence.format(time=text, before_s=before_s)


def _unit(value: float | None, size: float, unit: str) -> str:
    return _("not measured") if value is None else f"{value / size:.1f} {unit}"


@contextmanager
def stop_on_signals(
    stop: Callable[[], None], interrupt: Callable[[], None], *, may_wait_at_term: bool = True
) -> Iterator[None]:
    """Ctrl-C and a polite kill end the run after the present step; a second Ctrl-C ends it at once.

    Without `may_wait_at_term` a polite kill interrupts at once, too.
    """

    def on_signal(number: int, _: FrameType | None) -> None:
        signal.signal(number, lambda *_: interrupt())  # also where `stop` does not return
        if number == signal.SIGTERM and not may_wait_at_term:
            interrupt()
        stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
