"""Tasks of the engine that a place works on for a window: their names, and their events as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from precgui.sanitize import sanitize_tree
from precgui.sentence_keys import restored, with_keys

TASK = "task"  # the first word of the order for one; the second is a key of TASKS
ARGUMENTS = "precgui-arguments.json"  # the file with its arguments, which is sent with the order
TASKS = {  # the keys go over the wire; what stands behind them may move
    "plan": "precgui.engine.profile.planning:serve",
    "search": "precgui.engine.profile.search:serve",
    "traffic": "precgui.engine.parallel.forecast:serve",
    "assign": "precgui.engine.assignment.serving:serve",
    "replay": "precgui.replay_job:serve_replay",
    "layers": "precgui.replay_job:serve_layers",
    "twin": "precgui.replay_job:serve_twin",
    "profile": "precgui.profile_job:serve_profile",
    "export": "precgui.export_job:serve",
    "quantize": "precgui.quantize_job:serve",
}


def task_name(task: str) -> str:
    """The name of a task "module:function" of precgui in an order. Raises KeyError for one that no place works on."""
    return {task: name for name, task in TASKS.items()}[task]


def arguments_bytes(arguments: Mapping[str, Any], makes: Sequence[str]) -> bytes:
    """The content of `ARGUMENTS`; `makes` are the names of files and folders that the task makes."""
    return json.dumps({"arguments": arguments, "makes": makes}, default=_plain).encode()


def event_line(event: Any) -> str:
    """An event as one line; its sentences keep their keys beside the English text."""
    return json.dumps(with_keys(event), default=_plain) + "\n"


def _plain(value: Any) -> Any:
    """A number of numpy, or a path, as JSON has it."""
    return value.item() if hasattr(value, "item") else str(value)


def event_of(line: str) -> dict[str, Any]:
    """The event of such a line of another machine, its texts harmless. Raises ValueError, RecursionError."""
    event = sanitize_tree(json.loads(line))
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        raise ValueError(line)
    return restored(event)


def with_texts(tree: Any, texts: Mapping[str, str]) -> Any:
    """A JSON value in which each text that is a key of `texts`, such as a path, is replaced."""
    if isinstance(tree, str):
        return texts.get(tree, tree)
    if isinstance(tree, Mapping):
        return {key: with_texts(value, texts) for key, value in tree.items()}
    if isinstance(tree, Sequence) and not isinstance(tree, bytes):
        return [with_texts(value, texts) for value in tree]
    return tree
