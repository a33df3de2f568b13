"""A run written for other tools from the window: CSV, TensorBoard, a PyTorch script, an HTML page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QMenu, QWidget

from precgui.config.new_places import package_name
from precgui.config.precision_traits import traits
from precgui.gui.answer import Answer, child, thread
from precgui.gui.kit.file_dialogs import ask_for_folder, ask_for_new_file
from precgui.gui.open_run import OpenRun, Problem
from precgui.gui.run_task import at_run
from precgui.gui.session import Session
from precgui.places.tasks import TASKS
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.words import L_, _, error_text, translated, wording

_OF = {"weights": "last", "average": "average", "master": "master"}  # kinds of export that write weights


@dataclass(frozen=True)
class ExportKind:
    """`suffix` of the file that is asked for; empty: a folder is asked for."""

    id: str
    text: str
    suffix: str = ""
    files: str = ""


KINDS = (
    ExportKind("csv", L_("Tables as CSV...")),
    ExportKind("tensorboard", L_("TensorBoard events...")),
    ExportKind("script", L_("PyTorch script..."), "py", "Python (*.py)"),
    ExportKind("weights", L_("Weights..."), "safetensors", L_("Tensors (*.safetensors)")),
    ExportKind("average", L_("Moving average of the weights..."), "safetensors", L_("Tensors (*.safetensors)")),
    ExportKind("master", L_("FP32 master weights..."), "safetensors", L_("Tensors (*.safetensors)")),
    ExportKind("html", L_("Page to read (HTML)..."), "html", "HTML (*.html)"),
)


class Exports(QObject):
    """Asks where to write, writes in a thread, in a child process or at the place of the run, and reports it."""

    def __init__(self, session: Session, panel: QWidget) -> None:
        super().__init__(panel)
        self._writing = Answer(self, answered=self._report)
        self._scripts = Answer(
            self, progress=lambda event: self._report(event["files"]), failed=self._report, ended=self._on_ended,
            title=_("Export of a run"),
        )  # fmt: skip
        self._session, self._panel = session, panel
        self.menu = QMenu(panel)

    def fill(self, opened: OpenRun | None) -> None:
        """Offer the exports that are possible for this run."""
        self.menu.clear()
        for kind in KINDS:
            if kind.id in _OF and opened is not None and not _may_have(kind.id, opened):
                continue
            action = self.menu.addAction(translated(kind.text))
            action.setEnabled(opened is not None and not why_not(opened))
            if opened is not None:
                action.triggered.connect(partial(self.ask, kind, opened))
        if opened is not None and (reason := why_not(opened)):
            self.menu.addSeparator()
            self.menu.addAction(reason).setEnabled(False)

    def ask(self, kind: ExportKind, opened: OpenRun) -> None:
        """Ask where to write, then write."""
        path = opened.run.path
        assert path is not None
        title, write = translated(kind.text).removesuffix("..."), partial(self.write, kind, opened)
        if not kind.suffix:
            ask_for_folder(self._panel, title, path.parent, write)
            return
        ask_for_new_file(
            self._panel, title, path.parent, translated(kind.files), write, suffix=kind.suffix,
            name=f"{path.stem}.{kind.suffix}", replaces=False,
        )  # fmt: skip

    def write(self, kind: ExportKind, opened: OpenRun, place: Path) -> None:
        """Write the run there; the notice that follows names the files or the fault."""
        path = opened.run.path
        assert path is not None
        if kind.id == "script" or kind.id in _OF:
            self._write_by_engine(kind, opened, path, place)
            return
        self._writing.ask(thread(_written, kind.id, path, place))

    def _write_by_engine(self, kind: ExportKind, opened: OpenRun, path: Path, place: Path) -> None:
        """In a child process, or at the place of the run: its checkpoints are there."""
        homes = [place]
        if kind.id == "script":
            homes.append(place.with_name(package_name(place)))
        elif opened.run.config.adapter.kind != "none" and place.suffix == ".safetensors":
            homes = [place := place.with_suffix(".adapter")]  # a folder, as PEFT has them
        arguments = {"path": str(path), "target": str(place), "of": _OF.get(kind.id, "last")}
        arguments["kind"] = "script" if kind.id == "script" else "weights"
        self._scripts.ask(child(TASKS["export"], arguments, at_run(opened.run, *homes)))

    def _on_ended(self, fault: str) -> None:
        if fault:
            self._report(_("Nothing was written: {why}").format(why=fault))

    def _report(self, answer: object) -> None:
        if isinstance(answer, str):
            self._session.notice.emit(Problem(translated(answer)))
        elif isinstance(answer, list):
            names = [str(name) for name in answer]
            more = len(names) - 1
            text = _("Written: {file} and {count} more")
            reported = (text if more else _("Written: {file}")).format(file=names[0], count=more)
            self._session.notice.emit(Problem(reported, "\n".join(names), "info", Path(names[0])))


def _may_have(kind: str, opened: OpenRun) -> bool:
    """Whether the settings of a run are such that it has these weights."""
    config = opened.run.config
    if kind == "average":
        return config.train.ema_decay is not None
    return kind == "weights" or (
        traits(config.precision).may_have_master_weights and config.precision_options.master_weights
    )


def why_not(opened: OpenRun) -> str:
    """Why a run cannot be exported now; empty when it can."""
    if opened.run.path is None or opened.run.path.suffix != ".h5":
        return _("Only run files of precgui can be exported.")
    if opened.run.status == "running":
        return _("The run is still being written; export it when it has ended.")
    return ""


def _written(kind: str, path: Path, place: Path) -> list[str] | str:
    """The files that were written, or the sentence why there are none."""
    try:
        with open_run(path) as run:
            return [str(file) for file in _writer(kind)(run, place)]
    except RunFileError as error:
        return error_text(error)


def _writer(kind: str) -> Callable[[Any, Path], list[Path]]:
    if kind == "csv":
        from precgui.runs.csv_export import export_csv

        return export_csv
    if kind == "tensorboard":
        from precgui.runs.tensorboard.export import export_events

        return export_events
    from precgui.runs.page import write_page

    return partial(write_page, wording=wording())
