"""The tabs of Inspect as data: a new view of one run is one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from precgui.gui.requests import TensorPlace
from precgui.runs.models.model_file import holds_scan
from precgui.runs.run import Run
from precgui.words import L_


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


_RUNS_ONLY = L_("Runs have this: a stored model has no steps")


def _has_steps(run: Run) -> bool:
    return not holds_scan(run)


TABS: tuple[TabSpec, ...] = (
    TabSpec(
        "overview",
        L_("Overview"),
        "overview:OverviewTab",
        L_("settings, results, environment, arithmetic, notes"),
    ),
    TabSpec(
        "tensors",
        L_("Tensors"),
        "tensors.panel:TensorsPanel",
        L_("exponents of tensors, and the effect of another format"),
    ),
    TabSpec(
        "formats",
        L_("Formats"),
        "model.formats_tab:FormatsTab",
        L_("every tensor of a scanned model in every format"),
        holds_scan,
        L_("Models have this: Runs > Scan a model, or precgui model DIR --scan -o MODEL.h5"),
    ),
    TabSpec(
        "scaler",
        L_("Loss scale"),
        "scaler.panel:ScalerTab",
        L_("other policies of the loss scaler over these gradients"),
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "step",
        L_("Step"),
        "step.step_tab:StepTab",
        L_("operations of a replayed step with their formats, ranges and errors, and its casts"),
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "error",
        L_("Error"),
        "shadow.error_views:ErrorViews",
        L_("steps beside FP64: the line that makes the error of the gradient, the error of each layer, branches"),
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "time",
        L_("Time"),
        "speedup.time_views:TimeViews",
        L_("where the time of a step goes, what BF16 or FP16 gained, and ranks"),
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "memory",
        L_("Memory"),
        "speedup.memory_tab:MemoryTab",
        L_("the peak of a step by part, module and moment"),
        _has_steps,
        _RUNS_ONLY,
    ),
    TabSpec(
        "checklist",
        L_("Check list"),
        "check_list_tab:CheckListTab",
        L_("what guides on mixed precision ask of a run, each line measured from its file"),
        _has_steps,
        _RUNS_ONLY,
    ),
)
