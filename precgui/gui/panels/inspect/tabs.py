"""The tabs of Inspect as data: a new view of one run is one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from precgui.gui.requests import TensorPlace
from precgui.runs.models.model_file import holds_scan
from precgui.runs.run import Run


class RunView(Protocol):
    """A tab: a widget made with `(session)` that shows one run, or nothing for None. It follows the run by itself."""

    def show_run(self, key: str | None) -> None: ...


class TensorView(RunView, Protocol):
    """The tab that shows single tensors."""

    def show_tensor(self, place: TensorPlace) -> None: ...


@dataclass(frozen=True)
class TabSpec:
    """`place` is `module:Class` below `gui.panels.inspect`, imported when the tab is first shown.

    `shows(run)` says whether there is something to show; it is asked often and must be quick. Where it is False the
    tab is greyed, and `absent` says why in its tool tip.
    """

    id: str
    title: str
    place: str
    hint: str
    shows: Callable[[Run], bool] = lambda run: True
    absent: str = ""


_RUNS_ONLY = "Runs have this: a stored model has no steps"


def _has_steps(run: Run) -> bool:
    return not holds_scan(run)


TABS: tuple[TabSpec, ...] = (
    TabSpec(
        "overview",
        "Overview",
        "overview:OverviewTab",
        "settings, results, environment, arithmetic, notes",
    ),
    TabSpec(
        "tensors", "Tensors", "tensors.panel:TensorsPanel", "exponents of tensors, and the effect of another format"
    ),
    TabSpec(
        "formats",
        "Formats",
        "model.formats_tab:FormatsTab",
        "every tensor of a scanned model in every format",
        holds_scan,
        "Models have this: Runs > Scan a model, or precgui model DIR --scan -o MODEL.h5",
    ),
    TabSpec(
        "scaler",
        "Loss scale",
        "scaler.panel:ScalerTab",
        "other policies of the loss scaler over these gradients",
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "step",
        "Step",
        "step.step_tab:StepTab",
        "operations of a replayed step with their formats, ranges and errors, and its casts",
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "error",
        "Error",
        "shadow.error_views:ErrorViews",
        "steps beside FP64: the line that makes the error of the gradient, the error of each layer, branches",
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "time",
        "Time",
        "speedup.time_views:TimeViews",
        "where the time of a step goes, what BF16 or FP16 gained, and ranks",
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "memory",
        "Memory",
        "speedup.memory_tab:MemoryTab",
        "the peak of a step by part, module and moment",
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "checklist",
        "Check list",
        "check_list_tab:CheckListTab",
        "what guides on mixed precision ask of a run, each line measured from its file",
        _has_steps,
        _RUNS_ONLY,
    ),
)
