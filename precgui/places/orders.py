"""The orders for runs at a place: a config, and code of the user's own only with their consent."""

from __future__ import annotations

import hashlib
from pathlib import Path

from precgui.config import RunConfig, is_own_task
from precgui.errors import SentenceError
from precgui.places.jobs import is_file_name, task_file
from precgui.places.messages import SentFile, StartRun
from precgui.safe_open import open_regular
from precgui.sentences import Sentence

MOST_CODE_BYTES = 4 << 20
MOST_SENT_BYTES = 32 << 20  # of all files of an order; a frame holds 64 MiB


class CodeError(SentenceError):
    """Code of the user's own cannot be sent, or may not."""


def run_order(config: RunConfig, run_id: str, place: str, *, may_send_code: bool) -> StartRun:
    """The order that trains `config`. Raises CodeError."""
    code = own_code(config)
    if code is None and is_own_task(config.task):
        module, _, function = config.task.rpartition(":")
        raise CodeError(
            Sentence(
                "the task {task} of a module cannot be used at a place; give its file, such as "
                "{module}.py:{function}, and --own-code",
                task=config.task,
                module=module.rpartition(".")[2],
                function=function,
            )
        )
    if code is None:
        return StartRun(run_id, config.model_dump(mode="json"), place)
    if not may_send_code:
        raise CodeError(
            Sentence(
                "this run needs the code {task} (SHA-256 {sha256}...), which is sent to {place} and runs there only "
                "with your consent; --own-code gives it",
                task=task_file(config.task),
                sha256=code.sha256[:16],
                place=place,
            )
        )
    tree = config.model_dump(mode="json")
    tree["task"] = f"{code.name}:{config.task.rpartition(':')[2]}"
    return StartRun(run_id, tree, place, (code,))


def own_code(config: RunConfig) -> SentFile | None:
    """The file of the task of one's own; None where the task is one of precgui, or of a module. Raises CodeError."""
    name = task_file(config.task)
    if not is_own_task(config.task) or not name:
        return None
    return sent_file(Path(name).expanduser())


def sent_file(path: Path, most_bytes: int = MOST_CODE_BYTES) -> SentFile:
    """Raises CodeError."""
    try:
        with open_regular(path) as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise CodeError(
            Sentence(
                "{path} cannot be read: {reason}; correct the task",
                path=path,
                reason=error.strerror,
            )
        ) from None
    if len(content) > most_bytes:
        raise CodeError(
            Sentence(
                "{path} is larger than {most} MiB; only one file of code is sent",
                path=path,
                most=most_bytes >> 20,
            )
        )
    if not is_file_name(path.name):
        raise CodeError(
            Sentence(
                "{name} cannot be sent; give it a name of letters, digits, `_`, `.` and `-`",
                name=path.name,
            )
        )
    return SentFile(path.name, hashlib.sha256(content).hexdigest(), content)
