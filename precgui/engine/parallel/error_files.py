"""torch's error files: a rank leaves the cause of its end in one, for torchrun and for the launcher of precgui.

torchrun names the file of each process that it starts in TORCHELASTIC_ERROR_FILE, as for `record` of
`torch.distributed.elastic.multiprocessing.errors`, and reports the earliest one. Loads no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui.engine.errors import EngineError
from precgui.safe_open import read_text
from precgui.sentence_keys import key_of, sentence_of
from precgui.sentences import Sentence, first_line, message_of

COLLECTIVE = "collective"
VARIABLE, NAME = "TORCHELASTIC_ERROR_FILE", "error.json"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class RankFailure:
    """The exception that ended a rank. `kind`: "collective" where another rank may be the cause, "memory" or "error".

    `time_ns` is the time of the system at which it was raised.
    """

    kind: str
    message: str
    details: str = ""
    time_ns: int = 0


class LostRank(EngineError):
    """An exchange with other ranks failed: one of them is gone or does not answer, or has failed first."""


def failure_of(rank: int, error: BaseException) -> RankFailure:
    """The failure of a rank by an exception that is being handled."""
    now_ns = time.time_ns()
    if isinstance(error, LostRank):
        return RankFailure(COLLECTIVE, message_of(error), error.details, now_ns)
    if isinstance(error, EngineError):
        return RankFailure("error", message_of(error), error.details, now_ns)
    if isinstance(error, MemoryError):
        out_of_memory = Sentence("rank {rank}: {message}", rank=rank, message=first_line(error))
        return RankFailure("memory", out_of_memory, "", now_ns)
    message = f"rank {rank}: {type(error).__name__}: {first_line(error)}"
    return RankFailure("error", message, traceback.format_exc(), now_ns)


def write_failure(failure: RankFailure) -> None:
    """Leave it in the file that torchrun has named for this process; nothing outside of torchrun, or without room."""
    if not (path := os.environ.get(VARIABLE)):
        return
    extra = {
        "py_callstack": failure.details or failure.message, "timestamp": str(failure.time_ns // 1_000_000_000),
        "time_ns": failure.time_ns, "kind": failure.kind, "sentence": key_of(failure.message),
    }  # fmt: skip
    with contextlib.suppress(OSError):
        Path(path).write_text(json.dumps({"message": {"message": failure.message, "extraInfo": extra}}))


def read_failures(folder: Path) -> dict[int, RankFailure]:
    """The failures that ranks left below the folder of their outputs, by rank of this machine."""
    found = {}
    for file in folder.rglob(NAME):
        if file.parent.name.isdecimal() and (failure := _read(file)) is not None:
            found[int(file.parent.name)] = failure
    return found


def _read(file: Path) -> RankFailure | None:
    """None where nothing can be read, as of a process that ended while it wrote."""
    try:
        message: Mapping[str, Any] = json.loads(read_text(file, _MOST_BYTES))["message"]
        extra, text = message["extraInfo"], str(message["message"])
        details = str(extra["py_callstack"])
        time_ns = int(extra.get("time_ns") or 1_000_000_000 * int(extra["timestamp"]))
        shown = sentence_of(text, extra.get("sentence"))
        return RankFailure(str(extra.get("kind", "error")), shown, "" if details == text else details, time_ns)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
