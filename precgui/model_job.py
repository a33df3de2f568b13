"""The scan of a model from its files to a file that is kept, for the command line and for a child process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precgui.errors import SentenceError
from precgui.formats.checkpoints.contents import StoredModel, open_checkpoint
from precgui.formats.checkpoints.survey import TensorSurvey
from precgui.formats.weight_formats import DEFAULT, WeightFormat, weight_format
from precgui.runs.errors import RunFileError
from precgui.runs.models.model_file import read_model_file, write_model_file
from precgui.sentences import L_, Sentence, message_of

if TYPE_CHECKING:
    from precgui.process.child import StopToken

KEEP_S = 20.0  # between two writings of the file while the scan goes on
_MOST_WRITING = 20  # times as long as the last writing took: of 100 000 tensors it takes seconds


def scan_model(
    model: StoredModel, formats: Sequence[WeightFormat], output: Path | None, on_progress: Callable[[float], None], *,
    threads: int = 0, stopped: Callable[[], bool] = lambda: False,
) -> tuple[list[TensorSurvey], bool]:  # fmt: skip
    """Scan what an earlier scan in the file has not, and keep it on the way; also whether all is scanned.

    The surveys are in the order of the model. threads: 0 for as many as cores but one. on_progress gets the share that
    is done. Raises RunFileError for an output that holds something else, and what `scan` raises; the file is kept then.
    """
    from precgui.engine.survey.scan import scan

    surveys = _earlier(output, model, formats) if output is not None else []
    total = max(sum(tensor.size for tensor in model.tensors if not tensor.why_not), 1)
    done, due_s = sum(each.size for each in surveys), time.monotonic() + KEEP_S

    def emit(each: TensorSurvey) -> None:
        nonlocal done, due_s
        surveys.append(each)
        done += each.size
        on_progress(done / total)
        if output is not None and (begin_s := time.monotonic()) > due_s:
            write_model_file(output, model, formats, surveys)
            end_s = time.monotonic()
            due_s = end_s + max(KEEP_S, _MOST_WRITING * (end_s - begin_s))

    count = threads if threads > 0 else max((os.cpu_count() or 2) - 1, 1)
    names = {each.name for each in surveys}
    try:
        whole = scan(model.tensors, formats, emit, threads=count, stopped=stopped, done=names)
    finally:
        order = {tensor.name: place for place, tensor in enumerate(model.tensors)}
        surveys.sort(key=lambda each: order[each.name])
        if output is not None:
            write_model_file(output, model, formats, surveys)
    return surveys, whole


def _earlier(output: Path, model: StoredModel, formats: Sequence[WeightFormat]) -> list[TensorSurvey]:
    """The findings of an earlier scan of the same files in the same formats. Raises RunFileError for another file."""
    if not output.exists():
        return []
    kept = read_model_file(output)
    if kept is None or not kept.is_of(model, formats):
        raise RunFileError(
            Sentence(
                "{path} holds something else than a scan of this model in these formats; choose another name.",
                path=output,
            )
        )
    return list(kept.surveys)


def serve(emit: Callable[[Any], None], control: StopToken, *, path: str, output: str) -> None:
    """Task of a child process: scans the model at `path` in the usual formats and keeps the scan.

    Emits `{"kind": "progress", "share"}`, then `{"kind": "kept", "whole"}` or `{"kind": "fault", "message"}`.
    """
    formats = [weight_format(name) for name in DEFAULT]
    told = -1

    def progress(share: float) -> None:
        nonlocal told
        if (percent := int(100 * share)) > told:
            told = percent
            emit({"kind": "progress", "share": share})

    try:
        model = open_checkpoint(Path(path))
        _, whole = scan_model(model, formats, Path(output), progress, stopped=control.stopped)
    except (SentenceError, OSError, MemoryError) as error:
        emit({"kind": "fault", "message": message_of(error) or L_("The memory is full.")})
    else:
        emit({"kind": "kept", "whole": whole})
