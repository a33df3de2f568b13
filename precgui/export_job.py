"""A run written for other tools by the engine, from its file to new files, for the command line and a child process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from precgui.errors import SentenceError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.sentences import L_, Sentence, message_of

KINDS = ("script", "weights", "pt2")


class ExportError(SentenceError):
    """The run has nothing of this kind to be written."""


def export_run(saved: SavedRun, kind: str, target: Path, of: str = "last", *, own_code: bool = False) -> list[Path]:
    """Write one of KINDS; returns the new files and folders. `of` says which weights. Raises SentenceError."""
    if kind == "script":
        from precgui.engine.export.script import write_script

        return write_script(saved.config, saved.environment, target)
    if kind == "weights":
        from precgui.engine.export.weights import write_run_weights
        from precgui.runs.recorded_facts import weights_sources

        places = {name: Path(path) if path else None for name, path in weights_sources(saved).items()}
        return write_run_weights(places["checkpoint"], places["saved"], saved.run_id, target, of)
    return _program(saved, target, own_code=own_code)


def _program(saved: SavedRun, target: Path, *, own_code: bool) -> list[Path]:
    from precgui.runs.quantised_model import integer_model

    model, file = integer_model(saved), saved.path
    if model is None:
        raise ExportError(
            Sentence("{file} has no integer model; train in int8-qat to int1-qat with qat.save_to = auto", file=file)
        )
    if model.file is None and model.kept:
        raise ExportError(Sentence("the integer model of {file} is no longer where it was written", file=file))
    if model.file is None:
        raise ExportError(Sentence("the integer model of {file} was not kept; set qat.save_to = auto", file=file))
    from precgui.engine.qat.pt2 import write_program

    return write_program(model.file, target, own_code=own_code)


def serve(
    emit: Callable[[Any], None], control: object, *, path: str, kind: str, target: str, of: str = "last",
    own_code: bool = False,
) -> None:  # fmt: skip
    """Task of a child process: emits `{"kind": "written", "files"}` or `{"kind": "fault", "message"}`."""
    try:
        with open_run(Path(path)) as saved:
            written = export_run(saved, kind, Path(target), of, own_code=own_code)
    except (SentenceError, OSError, MemoryError) as error:
        emit({"kind": "fault", "message": message_of(error) or L_("The memory is full.")})
    else:
        emit({"kind": "written", "files": [str(each) for each in written]})
