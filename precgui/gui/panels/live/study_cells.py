"""The cells of the grid of a study: a row a seed, a column an arm, each with the state of its run in words. No Qt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precgui.events import Metric
from precgui.gui.plots.signals import duration
from precgui.gui.study_reading import StudyGrid
from precgui.runs.metric import value_text
from precgui.sweeps.jobs import OVER
from precgui.sweeps.report import MemberRow, SweepDocument
from precgui.words import L_, _, paragraph, translated

_TWIN = L_("twin of {arm}")
TWIN_TEXT = L_("A rounding twin: the same run with each start weight moved to a neighbouring number.")
STARTS_TEXT = L_("The process that trains this run loads its libraries; a busy machine takes a minute or two for it.")
_QUEUED = {"waiting": L_("waiting"), "cut off": L_("cut off")}
_STATES = {
    "waiting": L_("waiting"),
    "skipped": L_("left out"),
    "given up": L_("given up"),
    "cut off": L_("cut off, runs again"),
}
_STATE_TEXTS = {
    "waiting": L_("This run has not begun yet."),
    "skipped": L_("This run is left out of the plan."),
    "given up": L_("Every run of this precision failed so far, so no more of them are begun."),
    "cut off": L_("This run was stopped or killed; it goes on from its checkpoint, or runs again from its start."),
}


@dataclass(frozen=True)
class GridCell:
    """`state` is the status of the member, or "starting"; `share` is how far it is (0 to 1)."""

    text: str
    state: str
    share: float
    tooltip: str
    member: MemberRow


@dataclass(frozen=True)
class GridTable:
    """Cells by row and column; where the plan has no such run there is none."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[int, int], GridCell]


def grid_table(grid: StudyGrid, starting_s: Mapping[str, float] | None = None) -> GridTable:
    """The grid with the warm-up first, then the blocks by seed, then rounds of timing.

    `starting_s` has the seconds since the engine of a run was started, see `StudyControl.starting_s`.
    """
    members = sorted(grid.document.members, key=lambda row: (_part(row), row.block))
    rows = list(dict.fromkeys(map(_row, members)))
    named = {_column(member) for member in members}
    columns = [name for arm in grid.arms for name in (arm, _TWIN.format(arm=arm)) if name in named]
    order = {name: place for place, name in enumerate(waiting_names(grid), 1)}
    starting = {name or next(iter(order), ""): seconds for name, seconds in (starting_s or {}).items()}
    cells = {
        (rows.index(_row(member)), columns.index(_column(member))): _cell(
            member, grid, order, starting.get(member.name)
        )
        for member in members
        if _column(member) in columns
    }
    return GridTable(tuple(rows), tuple(columns), cells)


def column_text(name: str) -> str:
    """The sentence for the column of an arm, or of its twins."""
    if name.startswith(_TWIN.format(arm="")):
        return translated(TWIN_TEXT)
    return _("The runs in {arm}, one for each seed.").format(arm=name)


def column_title(name: str) -> str:
    """The heading of the column of an arm, or of its twins."""
    before = _TWIN.format(arm="")
    return translated(_TWIN).format(arm=name.removeprefix(before)) if name.startswith(before) else name


def waiting_names(grid: StudyGrid) -> list[str]:
    """The runs that wait, in the order in which they will run."""
    return [member.name for member in grid.document.members if member.status in ("waiting", "cut off")]


def summary(grid: StudyGrid) -> str:
    """How far the study is, in a sentence."""
    document = grid.document
    failed = sum(member.status == "failed" for member in document.members)
    total = document.done + document.left
    sentences = [
        _("{done} of {total} runs done, {failed} of them failed.") if failed else _("{done} of {total} runs done.")
    ]
    if document.left and document.left_s is not None:
        sentences.append(_("About {time} left here."))
    left = duration(round(document.left_s or 0))
    return paragraph(*sentences).format(done=document.done, total=total, failed=failed, time=left)


def queued_jobs(document: SweepDocument) -> int:
    """How many jobs of a cluster, for runs that have not ended, are in its queue."""
    return len({member.job for member in document.members if member.job and not member.job.endswith(f": {OVER}")})


def seeds_to_next_verdict(grid: StudyGrid) -> int:
    """How many seeds more lead to the next number of seeds at which verdicts are made; 1 after the last."""
    return next((view - grid.seeds for view in grid.document.looks if view > grid.seeds), 1)


def seeds_text(grid: StudyGrid) -> str:
    """The numbers of seeds at which the study is judged, as text."""
    looks = _(" and ").join(str(view) for view in grid.document.looks)
    planned = _("{seeds} seeds are planned. Verdicts are made at {looks} seeds and nowhere else.")
    question = _("Seeds between them are shown, and not judged. How many more?")
    if grid.seeds >= max(grid.document.looks):
        question = _("Seeds beyond the last of these are shown, and not judged. How many more?")
    return f"{planned.format(seeds=grid.seeds, looks=looks)}\n{question}"


def _part(member: MemberRow) -> int:
    return {"warm-up": 0, "run": 1, "twin": 1}.get(member.kind, 2)


def _row(member: MemberRow) -> str:
    if member.kind == "warm-up":
        return _("Warm-up")
    text = _("Timing {block}") if member.kind == "timing" else _("Seed {seed}")
    return text.format(block=member.block, seed=member.seed)


def _column(member: MemberRow) -> str:
    return _TWIN.format(arm=member.arm) if member.kind == "twin" else member.arm


def _cell(member: MemberRow, grid: StudyGrid, order: Mapping[str, int], starting_s: float | None) -> GridCell:
    share, place = grid.shares.get(member.name, 0.0), order.get(member.name)
    if starting_s is not None and place is not None:
        text = _("engine starts, {time}").format(time=duration(round(starting_s)))
        return GridCell(text, "starting", share, "\n".join((member.name, translated(STARTS_TEXT))), member)
    text = _text(member, share, grid.metric)
    return GridCell(f"{text} ({place})" if place else text, member.status, share, _tooltip(member, place), member)


def _text(member: MemberRow, share: float, metric: Metric | None) -> str:
    match member.status:
        case "running":
            return _("running, {percent:.0f} %").format(percent=100 * share)
        case "failed":
            return _("failed: {why}").format(why=translated(member.message)) if member.message else _("failed")
        case "completed" if member.kind in ("warm-up", "timing"):
            return _("done")
        case "completed" if member.loss is None:
            return _("done: the loss is not finite")
        case "completed":
            value = value_text(metric, member.metric, "") if metric is not None else ""
            return (_("done: {value}") if value else _("done: loss {loss:.4g}")).format(value=value, loss=member.loss)
        case "waiting" | "cut off" if member.job:
            return _("{status}, {job}").format(status=translated(_QUEUED[member.status]), job=member.job)
        case status:
            return translated(_STATES[status])


def _tooltip(member: MemberRow, place: int | None) -> str:
    lines = [member.name]
    if member.status in _STATE_TEXTS:
        lines.append(translated(_STATE_TEXTS[member.status]))
    if place is not None:
        text = _("It is the next one.") if place == 1 else _("It is number {place} of those that wait.")
        lines.append(text.format(place=place))
    if member.kind == "twin":
        lines.append(translated(TWIN_TEXT))
    if member.kind == "warm-up":
        lines.append(_("The warm-up is not judged."))
    if member.job:
        lines.append(_("On the cluster it is {job}.").format(job=member.job))
    if member.message:
        lines.append(translated(member.message))
    if member.wall_s is not None:
        lines.append(_("It took {time}.").format(time=duration(member.wall_s)))
    return "\n".join(lines)
