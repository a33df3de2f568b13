"""A sweep as a study: its run files read into figures, with the arms, looks and baselines of its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from precgui.config import RunConfig
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.known_settings import flat
from precgui.runs.study.figures import figures_of
from precgui.runs.study.groups import make_study
from precgui.runs.study.members import with_detail
from precgui.runs.study.result import Study, StudyMember
from precgui.runs.study.run_figures import RunFigures, RunKind
from precgui.runs.verdict.interim_analyses import InterimAnalyses
from precgui.runs.verdict.targets import Targets
from precgui.sentences import L_, Sentence, message_of, without_stop
from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import TARGET_CHANGES, SweepFolder, read_targets
from precgui.sweeps.plan import Kind, Member
from precgui.sweeps.state import ENDED, MemberState, MemberStatus
from precgui.sweeps.target_changes import change_notes

# Of the settings of a member those that a run may change without being another one: where it ran and what it wrote.
_MAY_DIFFER = (
    "title",
    "device",
    "threads",
    "record",
    "qat.save_to",
    "adapter.save_to",
    "train.save",
    "train.checkpoint_every",
)
NOT_PLANNED = L_("not the planned run, which runs when this file is moved away")
_UNENDED: dict[MemberStatus, str] = {
    "cut off": L_("it is cut off and runs again"),
    "running": L_("it goes on"),
    "skipped": L_("it was taken out of the plan"),
    "given up": L_("its arm was given up after failures"),
}
_KINDS: dict[Kind, RunKind] = {"run": "run", "twin": "twin", "timing": "timing"}


class NoEndedRun(SweepError):
    """Nothing of the sweep can be judged yet."""


@dataclass
class SweepReader:
    """Reads each run of a sweep once, also when it is asked again while the sweep goes on."""

    folder: SweepFolder
    _known: dict[Path, tuple[MemberState, RunFigures]] = field(default_factory=dict)

    def figures(self, on_note: Callable[[str], None] = lambda note: None) -> list[RunFigures]:
        """The figures of the runs that have ended, in the order of the plan, without the warm-up and killed ones."""
        results = []
        for state in self.folder.states():
            if state.member.kind == "warm-up" or state.status not in ENDED or state.was_killed:
                continue
            known = self._known.get(state.path)
            if known is None or known[0] is not state:  # the folder keeps the state of a file that has not changed
                try:
                    figures = _read(state.path, state.member, self.folder.config_of(state.member))
                except RunFileError as error:
                    on_note(message_of(error))
                    continue
                known = self._known[state.path] = state, figures
            results.append(known[1])
        return results

    def _without_figures(self) -> list[StudyMember]:
        """Members of the plan that have begun or were given up, and have no figures."""
        return [
            StudyMember(
                each.member.name, each.member.arm, _KINDS[each.member.kind], each.member.precision, each.member.seed,
                "", False, _why_unended(each),
            )
            for each in self.folder.states() if each.member.kind != "warm-up" and each.status in _UNENDED
        ]  # fmt: skip

    def study(self, *, baseline: str = "", targets: Targets | None = None) -> Study:
        """The judged study of what has ended so far, by the targets of the sweep where no others are given.

        Raises SweepError.
        """
        figures = self.figures()
        if not figures:
            raise NoEndedRun(Sentence("no run of {study} has ended yet", study=self.folder.path.name))
        try:
            study = make_study(
                sorted(figures, key=lambda run: (self._place(run.group), run.order)),
                baseline=baseline,
                targets=read_targets(self.folder.path) if targets is None else targets,
                looks=InterimAnalyses(tuple(self.folder.spec.looks)),
                baseline_of=self._baselines(),
            )
        except ValueError as error:
            raise SweepError(*error.args) from None
        places = {member.name: place for place, member in enumerate(self.folder.plan.members)}
        members = sorted([*study.members, *self._without_figures()], key=lambda member: places[member.run])
        own = read_targets(self.folder.path)
        self.folder.note_edited_targets()
        notes = change_notes(self.folder.path / TARGET_CHANGES, own, self.folder.ended_runs())
        if targets is not None and targets != own:
            notes.append(L_("The verdicts are by other targets than those of the study, which its targets.toml holds."))
        return replace(study, members=members, notes=[*study.notes, *notes])

    def _place(self, group: str) -> int:
        return [arm.name for arm in self.folder.spec.arms()].index(group)

    def _baselines(self) -> dict[str, str]:
        """The baseline of each arm: same values of the varied fields, in the baseline's precision; with one precision
        the first values."""
        spec = self.folder.spec
        own, first = {arm.settings: arm.name for arm in spec.baselines()}, spec.baselines()[0].name
        return {arm.name: own.get(arm.settings, first) for arm in spec.arms()}


def _read(path: Path, member: Member, planned: RunConfig) -> RunFigures:
    with open_run(path) as run:
        figures = figures_of(run, member.name, group=member.arm, kind=_KINDS[member.kind], order=member.block)
        return replace(figures, refused=figures.refused or _unlike_plan(run.config, planned))


def _why_unended(state: MemberState) -> str:
    reason = _UNENDED[state.status]
    return with_detail(reason, without_stop(state.message)) if state.status == "cut off" and state.message else reason


def _unlike_plan(own: RunConfig, planned: RunConfig) -> str:
    """Why a file is not that of the run that was planned in its place; empty where it is."""
    own_settings, requested = (flat(config.model_dump()) for config in (own, planned))
    differing = [
        key for key, value in requested.items() if own_settings[key] != value and not key.startswith(_MAY_DIFFER)
    ]
    if not differing:
        return ""
    key = next((name for name in ("seed", "precision") if name in differing), differing[0])
    values = {"own": own_settings[key], "planned": requested[key]}
    return with_detail(NOT_PLANNED, Sentence("its {key} is {own} and not {planned}", key=key, **values))
