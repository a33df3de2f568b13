"""The names of the tasks that a place works on."""

from __future__ import annotations

import importlib
import inspect

import pytest

from precgui.places.tasks import TASKS, task_name
from precgui.process.child import RUN_TASK


def test_that_places_of_other_versions_know_the_same_names() -> None:
    older = {"plan", "search", "traffic", "assign", "replay", "layers", "twin", "profile", "export", "quantize"}
    assert older <= set(TASKS)


@pytest.mark.parametrize("task", [*TASKS.values(), RUN_TASK])
def test_that_each_task_is_a_function_of_a_child_process(task: str) -> None:
    room, _, function = task.partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(room), function)).parameters
    assert list(parameters)[:2] == ["emit", "control"]
    if task != RUN_TASK:
        assert TASKS[task_name(task)] == task
