"""Which runs a study uses: each once, one for each arm and seed, whole, as planned; the others with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from precgui.runs.study.result import StudyMember
from precgui.runs.study.run_figures import ENDED, RunFigures
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence, counted

_FEWEST_OF_A_USUAL = 3  # runs of an arm, below which none can be called the odd one
_NAMED = 12  # runs in a sentence; more are a number


def chosen_members(runs: Sequence[RunFigures]) -> tuple[list[RunFigures], list[StudyMember]]:
    """The runs that count, in their order, and a row for every run.

    Left out are, in this order: runs that are refused already (damaged, not as planned), copies of a run that is there
    (the same run id), runs that did not end by themselves, all but the newest run of an arm and seed, and runs whose
    steps or batch are not those of most runs of their arm.
    """
    why: dict[int, str] = {place: run.refused for place, run in enumerate(runs) if run.refused}
    for reasons in (_copies, _unended, _older, _odd):
        left = {place: run for place, run in enumerate(runs) if place not in why}
        why |= reasons(left)
    members = [
        StudyMember(
            run.name, run.group, run.kind, run.precision, run.seed, run.run_id, place not in why,
            why.get(place, run.why_failed),
        )
        for place, run in enumerate(runs)
    ]  # fmt: skip
    return [run for place, run in enumerate(runs) if place not in why], members


def _copies(runs: Mapping[int, RunFigures]) -> dict[int, str]:
    first: dict[str, str] = {}
    result: dict[int, str] = {}
    for place, run in runs.items():
        if run.run_id and first.setdefault(run.run_id, run.name) != run.name:
            result[place] = Sentence("a copy of {run}, which is the same run", run=first[run.run_id])
    return result


def _unended(runs: Mapping[int, RunFigures]) -> dict[int, str]:
    return {place: run.why_failed or L_("it did not end") for place, run in runs.items() if run.status not in ENDED}


def _older(runs: Mapping[int, RunFigures]) -> dict[int, str]:
    """All but the newest run of each arm and seed, or of each round of timing."""
    newest: dict[tuple[object, ...], int] = {}
    for place, run in runs.items():
        key = (run.group, run.kind, run.order if run.kind == "timing" else run.seed)
        if key not in newest or run.created >= runs[newest[key]].created:
            newest[key] = place
    kept = set(newest.values())
    return {
        place: with_detail(
            Sentence("seed {seed} ran again", seed=run.seed),
            Sentence("a newer run of {group} with this seed is used", group=run.group),
        )
        for place, run in runs.items()
        if place not in kept
    }


def _odd(runs: Mapping[int, RunFigures]) -> dict[int, str]:
    """Runs that came through with other steps or another batch than most of their arm."""
    result: dict[int, str] = {}
    for group in dict.fromkeys(run.group for run in runs.values()):
        own = {place: run for place, run in runs.items() if run.group == group and run.kind != "timing"}
        whole = {place: (run.work.steps, run.work.samples_per_step) for place, run in own.items() if run.came_through}
        if len(whole) < _FEWEST_OF_A_USUAL:
            continue
        usual, count = Counter(whole.values()).most_common(1)[0]
        if 2 * count > len(whole):
            result |= {place: _unlike(work, usual) for place, work in whole.items() if work != usual}
    return result


def _unlike(work: tuple[int, int], usual: tuple[int, int]) -> str:
    if work[0] != usual[0]:
        return Sentence("{steps} steps, most runs of its arm have {usual}", steps=work[0], usual=usual[0])
    return Sentence("{samples} samples a step, most runs of its arm have {usual}", samples=work[1], usual=usual[1])


def with_detail(reason: str, detail: str) -> Sentence:
    """Why a run is not used: a reason that several can have, and what is so in this one."""
    return Sentence("{reason}: {detail}", reason=reason, detail=detail)


def _parts(why: str) -> tuple[str, str]:
    """The reason and the detail of `with_detail`, also of an English text; the detail may be empty."""
    if isinstance(why, Sentence):
        return (why.values["reason"], why.values["detail"]) if "detail" in why.values else (why, "")
    reason, _, detail = why.partition(": ")
    return reason, detail.rstrip(".")


def member_notes(members: Iterable[StudyMember]) -> list[str]:
    """One sentence for each reason for which runs are left out or count as failed, with their number and names."""
    reasons: dict[tuple[bool, str], list[str]] = {}
    for member in members:
        if member.why:
            reason, detail = _parts(member.why)
            named = Sentence("{run}: {detail}", run=member.run, detail=detail) if detail else member.run
            reasons.setdefault((member.used, reason), []).append(named)
    return [_note(used, reason, names) for (used, reason), names in reasons.items()]


def _note(used: bool, reason: str, names: Sequence[str]) -> str:
    if used:
        return counted(
            "{count} run counts as failed, since {reason} ({names}).",
            "{count} runs count as failed, since {reason} ({names}).",
            len(names),
            reason=reason,
            names=some_names(names, _NAMED),
        )
    return counted(
        "{count} run is left out: {reason} ({names}).",
        "{count} runs are left out: {reason} ({names}).",
        len(names),
        reason=reason,
        names=some_names(names, _NAMED),
    )
