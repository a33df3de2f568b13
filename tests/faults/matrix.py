"""Planted faults and healthy trainings, each run and judged: what the diagnosis gets right."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import precgui
from precgui.runs.diagnosis import Diagnosis, Finding, examine
from tests.faults.plants import Plant
from tests.faults.training import Progress, Setting, progress, train

HARM = 0.1  # of what the twin has learned


@dataclass(frozen=True)
class Case:
    """A training that was diagnosed. `plant` is None for a healthy one; `harm` is the share of the fall of the twin's
    loss that is missing, measured on data that neither has seen."""

    name: str
    plant: Plant | None
    harm: float
    diagnosis: Diagnosis

    @property
    def harmful(self) -> bool:
        return self.plant is not None and self.harm > HARM

    @property
    def hits(self) -> list[Finding]:
        """The problems that name the fault, in the right module."""
        plant = self.plant
        if plant is None:
            return []
        return [
            found
            for found in self.diagnosis.problems
            if found.rule in plant.rules
            and any(name.startswith(plant.module) for name in (found.module, *found.tensors, ""))
        ]

    @property
    def right(self) -> bool:
        return bool(self.hits) if self.harmful else not self.diagnosis.problems

    @property
    def wrong_blame(self) -> bool:
        """Whether a finding that names the fault decides wrongly whether precision is to blame."""
        return self.plant is not None and any(
            found.precision_is_to_blame not in (None, self.plant.blame) for found in self.hits
        )


def judge_plant(folder: Path, plant: Plant) -> Case:
    """Train with the fault and, where the loss stays finite, without; diagnose the first."""
    name = plant.name.replace(" ", "_").replace("/", "-")
    faulty = train(folder / f"{name}.h5", plant.setting)
    with precgui.open_run(faulty.path) as run:
        is_finite = math.isfinite(faulty.final) and math.isfinite(run.series("loss")[1][-1])
        diagnosis = examine(run)
    return Case(plant.name, plant, harm(faulty, progress(plant.twin)) if is_finite else 1.0, diagnosis)


def judge_healthy(folder: Path, name: str, setting: Setting) -> Case:
    outcome = train(folder / f"{name.replace(' ', '_').replace('/', '-')}.h5", setting)
    with precgui.open_run(outcome.path) as run:
        return Case(name, None, 0.0, examine(run))


def harm(faulty: Progress, twin: Progress) -> float:
    """The share of the twin's progress that is missing from a training whose loss is finite."""
    return (faulty.final - twin.final) / max(twin.initial - twin.final, 1e-9)


def table(cases: Iterable[Case]) -> str:
    """The confusion matrix and the cases that went wrong."""
    known = list(cases)
    harmful = [case for case in known if case.harmful]
    weak = [case for case in known if case.plant is not None and not case.harmful]
    healthy = [case for case in known if case.plant is None]
    errors = [case for case in healthy if any(found.severity == "error" for found in case.diagnosis.findings)]
    decided = [found for case in harmful for found in case.hits if found.precision_is_to_blame is not None]
    blamed = [case for case in harmful if case.wrong_blame]
    lines = [
        f"{'':34} problem told   silent",
        _row(
            "harmful faults",
            len([case for case in harmful if case.right]),
            len([case for case in harmful if not case.right]),
        ),
        _row("planted, but without harm", len([c for c in weak if not c.right]), len([c for c in weak if c.right])),
        _row("healthy trainings", len([c for c in healthy if not c.right]), len([c for c in healthy if c.right])),
        f"of the healthy ones with an error: {len(errors)}",
        f"'precision is to blame' decided in {len(decided)} findings on harmful faults, wrong in {len(blamed)} "
        f"trainings",
        *[
            f"WRONG {case.name} (harm {case.harm:.2f}): {_told(case)}"
            for case in known
            if not case.right or case.wrong_blame
        ],
    ]
    return "\n".join(lines)


def _row(name: str, told: int, silent: int) -> str:
    return f"{name:34} {told:12} {silent:8}"


def _told(case: Case) -> str:
    found = [
        f"{f.rule} ({f.severity}, {f.module or 'whole model'}, {f.precision_is_to_blame})"
        for f in case.diagnosis.findings
    ]
    return ", ".join(found) or "nothing"
