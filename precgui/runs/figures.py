"""The figures of a run: one title, unit and scale for each, wherever it is shown, and how groups compare it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from precgui.events import Metric
from precgui.runs.metric import in_text, with_unit
from precgui.sentences import L_, Sentence

if TYPE_CHECKING:
    from precgui.runs.study.run_figures import RunFigures


@dataclass(frozen=True)
class Figure:
    """A figure and how it is shown: its value times `scale`, in `unit`, with at least so many `digits`.

    `key` is its name in JSON and in `Group.metrics`. Groups compare it by the difference from the baseline's or by the
    ratio to it, or do not. `target` names the verdict that judges it, "" for none.
    """

    key: str
    title: str
    unit: str
    scale: float
    better: Literal["lower", "higher"]
    value: Callable[[RunFigures], float | None]
    about: str
    digits: int = 2
    compared_by: Literal["difference", "ratio", ""] = ""
    target: str = ""

    @property
    def is_time(self) -> bool:
        """Whether it is a time of a step: its speed-up is the reciprocal of the ratio."""
        return self.target == "speedup"

    @property
    def in_words(self) -> str:
        """The title inside a sentence."""
        return in_text(self.title)

    @property
    def axis(self) -> str:
        """The title with the unit, as an axis or a choice has it."""
        return Sentence("{quantity} ({unit})", quantity=self.title, unit=self.unit) if self.unit else self.title

    @property
    def suffix(self) -> str:
        """The unit as it follows a number; of those that are no words."""
        return f" {self.unit}".rstrip()

    def with_unit(self, number: str) -> str:
        """A number before its unit."""
        return with_unit(number, self.unit)

    def difference_with_unit(self, number: str) -> str:
        """A difference before its unit: "points" for percentage points."""
        return with_unit(number, "points" if self.unit == "%" else self.unit)


def _metric_value(run: RunFigures) -> float | None:
    return run.metric_value


def metric_figure(metric: Metric) -> Figure:
    """The metric of a task as a figure."""
    share = metric.unit == "%"
    better: Literal["lower", "higher"] = "higher" if metric.higher_is_better else "lower"
    return Figure(
        "metric", metric.title, metric.unit, 100.0 if share else 1.0, better, _metric_value,
        metric.about, 2 if share else 4, "difference", "accuracy_lost",
    )  # fmt: skip


def study_figures(metric: Mapping[str, Any]) -> tuple[Figure, ...]:
    """The figures of a study with this metric, the metric first."""
    return metric_figure(Metric(**metric)), *FIGURES.values()


FIGURES = {
    figure.key: figure
    for figure in (
        Figure("val_loss", L_("Validation loss"), "", 1.0, "lower", lambda run: run.val_loss,
               L_("On the validation set"), 4, "difference"),
        Figure("train_loss", L_("Training loss, last epoch"), "", 1.0, "lower", lambda run: run.train_loss,
               L_("Mean of the last epoch, or of a shorter run"), 4, "difference"),
        Figure("step_s", L_("Step time"), "ms", 1e3, "lower", lambda run: run.step_s,
               L_("Median of a step, by the clock"), 2, "ratio", "speedup"),
        Figure("cpu_s", L_("CPU time"), "ms", 1e3, "lower", lambda run: run.cpu_s,
               L_("Median CPU time of the process in a step: it stands for the step where other programs are busy"), 2,
               "ratio", "speedup"),
        Figure("memory_bytes", L_("Peak memory"), "MiB", 2.0**-20, "lower", lambda run: run.memory_bytes,
               L_("Of the device's allocator; on a CPU of all tensors in one step"), 2, "ratio", "memory_saved"),
        Figure("joules_per_sample", L_("Energy per sample"), "mJ", 1e3, "lower", lambda run: run.joules_per_sample,
               L_("Of all sensors, over the run"), 3, "ratio", "energy_saved"),
        Figure("net_joules_per_sample", L_("Energy per sample above idle"), "mJ", 1e3, "lower",
               lambda run: run.net_joules_per_sample, L_("Less what the devices use while idle (power.idle_s)"), 3,
               "ratio"),
        Figure("power_w", L_("Mean power"), "W", 1.0, "lower", lambda run: run.power_w,
               L_("Of all sensors, over the run"), 1),
        Figure("largest_batch", L_("Largest batch, estimated"), L_("samples"), 1.0, "higher",
               lambda run: run.largest_batch, L_("That the memory of the device would take, from the measured step"), 0,
               "ratio"),
        Figure("data_share", L_("Wait for data"), "%", 100.0, "lower", lambda run: run.data_share,
               L_("Share of the time in which the step waits for its samples"), 1),
        Figure("tensor_use", L_("Tensor cores busy"), "%", 100.0, "higher", lambda run: run.tensor_use,
               L_("Share of the time in which they worked, by GPM"), 1, target="tensor_use"),
        Figure("time_s", L_("Run time"), "s", 1.0, "lower", lambda run: run.time_s,
               L_("From the start to the last step"), 1),
        Figure("model_bytes", L_("Model size"), "KiB", 2.0**-10, "lower", lambda run: run.model_bytes,
               L_("Of the trained model"), 1),
    )
}  # fmt: skip
COSTS = tuple(FIGURES[key] for key in ("cpu_s", "step_s", "memory_bytes", "joules_per_sample", "model_bytes"))
