"""A study as plain data for JSON and windows: its members, and groups with statistics and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precgui.runs.study.run_figures import RunKind
from precgui.runs.verdict.judge import Verdict
from precgui.sentences import L_, Sentence

LEVEL = 0.95
BASELINE = L_("baseline")  # in a cell of the baseline itself


@dataclass(frozen=True)
class StudyMember:
    """One run of a study, and whether it is used; `why` says why it is not, or how a used one failed."""

    run: str
    group: str
    kind: RunKind
    precision: str
    seed: int
    run_id: str
    used: bool
    why: str = ""

    @property
    def use(self) -> str:
        """Whether it is used, in words."""
        return L_("left out") if not self.used else L_("used, failed") if self.why else L_("used")


@dataclass(frozen=True)
class LossReached:
    """How many of `n` runs of a group reached a validation loss of `loss` or less. Medians only where all of them did.

    `time_s` is by the clock from the begin of the first step, so that start-up is left out; `cpu_s` is the CPU time of
    the steps until then; `energy_j` counts the mean energy of a sample.
    """

    loss: float
    reached: int
    n: int
    time_s: float | None = None
    cpu_s: float | None = None
    energy_j: float | None = None

    @property
    def in_words(self) -> Sentence:
        """How many runs reached the loss of the baseline."""
        return Sentence("{reached} of {n} runs reached it", reached=self.reached, n=self.n)


@dataclass(frozen=True)
class GroupMetric:
    """One figure of a group. `mean`, `sd` and `ci95` are over the runs that came through, `n` of them.

    `difference` is to the baseline, paired by seed; `ratio` in its place for times, memory and energy. `p_holm` is
    that of "no difference", adjusted for the number of arms. `withheld` says why there is neither. `once` says that the
    figure is one measurement, however many runs there are, such as the memory of one step. `cut` says that `ci95` ends
    where the figure cannot go on: a share at 0 or 1, a time or a size at 0.
    """

    n: int
    mean: float | None
    sd: float | None = None
    ci95: tuple[float, float] | None = None
    difference: float | None = None
    difference_ci95: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    p_holm: float | None = None
    within_rounding: bool | None = None
    withheld: str = ""
    once: str = ""
    cut: bool = False


@dataclass(frozen=True)
class Group:
    """One arm. `seeds` are those of runs that came through; `success` is the share of failures in words."""

    group: str
    precision: str
    baseline: str
    n: int
    seeds: list[int]
    runs: list[str]
    failed: int
    success: str
    emulated: str
    metrics: dict[str, GroupMetric]
    verdicts: dict[str, Verdict]
    to_loss: LossReached | None = None


@dataclass(frozen=True)
class TwinFloor:
    """How far runs are from themselves when their start weights move by one ulp: `largest` over `n` twins."""

    n: int
    largest: dict[str, float]
    text: str


@dataclass(frozen=True)
class Study:
    """Groups in the order of the plan, the baselines among them; `notes` say how times were taken, and such.

    `paired` holds the single values of each group and figure, by seed, or by round where times were taken in rounds;
    `grain` is the smallest step of the metric. `members` has every run, also those that are left out, with the reason.
    """

    groups: list[Group]
    twin: TwinFloor
    looks: tuple[int, ...]
    metric: Mapping[str, Any]
    notes: list[str]
    answer: str = ""
    paired: Mapping[str, Mapping[str, Mapping[int, float]]] = field(default_factory=dict)
    grain: float = 0.0
    members: Sequence[StudyMember] = ()

    @property
    def precisions(self) -> dict[str, str]:
        """The precision of each group, by its name."""
        return {group.group: group.precision for group in self.groups}
