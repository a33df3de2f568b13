"""The table of groups as finished cells: figures with their spread, comparisons with their interval, verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from precgui.events import Metric
from precgui.runs.figures import FIGURES, Figure, metric_figure
from precgui.runs.metric import decimals, signed, with_unit
from precgui.runs.study.pairs import NOT_MEASURED
from precgui.runs.study.result import BASELINE, LEVEL, Group, GroupMetric
from precgui.sentences import L_, Sentence, together

Cell = str
Row = tuple[str, tuple[Cell, ...]]
_LEVEL = f"{100 * LEVEL:.0f}"
TITLES = {
    "speedup": L_("Speed-up"), "memory_saved": L_("Memory saved"), "accuracy_lost": L_("Loss of the metric"),
    "tensor_use": L_("Tensor cores busy"), "energy_saved": L_("Energy saved"),
    "curve_distance": L_("Curve like the baseline's"), "failures": L_("Failures"),
}  # fmt: skip
_ROWS = ("val_loss", "step_s", "cpu_s", "data_share", "memory_bytes", "joules_per_sample")


@dataclass(frozen=True)
class GroupRow:
    """A row of cells, one for each group; `beside` says that it compares each group with its baseline."""

    title: str
    cells: tuple[Cell, ...]
    beside: bool = False


def with_level(title: str) -> Sentence:
    """The title of a row whose cells have intervals."""
    return Sentence("{title} ({level} % interval)", title=title, level=_LEVEL)


def speed_or_share(own: GroupMetric, figure: Figure) -> tuple[float, tuple[float, float] | None]:
    """The ratio as it is shown, with its interval: of times the speed-up, above 1 is faster; of memory and energy the
    share of the baseline's, below 1 is less. NaN where there is none."""
    if own.ratio is None:
        return math.nan, None
    if not figure.is_time:
        return own.ratio, own.ratio_ci95
    ci = own.ratio_ci95
    return 1 / own.ratio, (1 / ci[1], 1 / ci[0]) if ci else None


def group_rows(groups: Sequence[Group], metric: Metric, baseline: str = "") -> list[GroupRow]:
    """Rows of finished cells, one for each group: runs, metric, costs, each with its comparison, and verdicts.

    `baseline` is named in the titles, "it" where each group has its own.
    """

    def row(title: str, cell: Callable[[Group], str], *, beside: bool = False) -> GroupRow:
        return GroupRow(title, tuple(cell(group) for group in groups), beside)

    def rows_of(figure: Figure) -> Iterator[GroupRow]:
        title = figure.title if figure.key == "metric" else figure.in_words
        yield row(title, lambda g: _mean(g.metrics[figure.key], figure))
        if figure.compared_by:
            if figure.target == "speedup":
                label = Sentence("speed-up in {figure}", figure=title)
            else:
                label = _against(title, baseline)
            cell = _ratio if figure.compared_by == "ratio" else _difference
            yield row(with_level(label), lambda g: cell(g, figure), beside=True)

    ordered = [metric_figure(metric), *(FIGURES[key] for key in _ROWS)]
    results = [
        row(L_("runs that came through"), came_through),
        *(each for figure in ordered for each in rows_of(figure)),
        *_to_loss_rows(groups),
        *rows_of(FIGURES["time_s"]),
    ]
    targets = dict.fromkeys(target for group in groups for target in group.verdicts)
    return results + [
        GroupRow(
            Sentence("{target}: verdict", target=TITLES[target]),
            tuple(_verdict_cell(group, target) for group in groups),
        )
        for target in targets
    ]


def _against(title: str, baseline: str = "") -> Sentence:
    if baseline:
        return Sentence("{title} against {baseline}", title=title, baseline=baseline)
    return Sentence("{title} against it", title=title)


def came_through(group: Group) -> Sentence:
    """How many runs of a group came through."""
    return Sentence("{n} of {runs}", n=group.n, runs=group.n + group.failed)


def effect_rows(group: Group, metric: Metric) -> list[tuple[str, Cell]]:
    """The metric, time and memory of a group beside its baseline, each under its title."""
    own = metric_figure(metric)
    costs = [FIGURES[key] for key in ("step_s", "memory_bytes")]
    titles = {"step_s": L_("speed-up in step time"), "memory_bytes": L_("peak memory against it")}
    return [
        (_against(own.title), _difference(group, own)),
        *((titles[figure.key], _ratio(group, figure)) for figure in costs),
    ]


MATRIX_COLUMNS = (L_("settings"), L_("figure"))


@dataclass(frozen=True)
class SettingsMatrix:
    """Varied settings, such as models, down and precisions across: each row has the cell of one figure in each."""

    precisions: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]


def settings_matrix(groups: Sequence[Group], metric: Metric) -> SettingsMatrix | None:
    """The groups of a study that varies settings, each beside a baseline of its own; None for one that varies none."""
    of = {(settings_of(group), group.precision): group for group in groups}
    settings = list(dict.fromkeys(words for words, _ in of))
    precisions = tuple(dict.fromkeys(precision for _, precision in of))
    if len(settings) < 2 or len(precisions) < 2 or len(of) < len(groups):
        return None
    own = metric_figure(metric)
    figures: dict[str, Callable[[Group], Cell]] = {
        own.title: lambda group: _mean(group.metrics["metric"], own),
        with_level(Sentence("{title} against its baseline", title=own.title)): lambda group: _difference(group, own),
        L_("speed-up"): lambda group: _judged(group, "speedup"),
        L_("memory saved"): lambda group: _saving(group, "memory_bytes"),
        L_("largest batch, estimated"): _largest_batch,
        L_("energy saved"): lambda group: _saving(group, "joules_per_sample"),
        L_("runs that came through"): came_through,
    }
    rows = [
        (words, title, tuple(cell(of[words, name]) if (words, name) in of else "–" for name in precisions))
        for words in settings
        for title, cell in figures.items()
    ]
    return SettingsMatrix(precisions, tuple(rows))


def _largest_batch(group: Group) -> Cell:
    """The samples, and how many times those of the baseline."""
    own = group.metrics["largest_batch"]
    if own.mean is None or group.emulated:
        why = Sentence("not measurable: {why}", why=group.emulated)
        return L_("not measured") if own.mean is None else why
    samples = with_unit(f"{own.mean:.0f}", "samples")
    if own.ratio is None or group.baseline == group.group:
        return samples
    return together(samples, f"{own.ratio:.2f}x", between=", ")


def settings_of(group: Group) -> str:
    """The values of the varied settings in the name of a group; empty where there are none."""
    return group.group.removeprefix(group.precision).strip()


def _judged(group: Group, target: str) -> Cell:
    """The value of a verdict with its interval, by the clock that the study compares."""
    verdict = group.verdicts.get(target)
    if verdict is None:
        return BASELINE
    if verdict.value is None:
        return verdict.text
    ends = f" [{verdict.ci[0]:.2f}, {verdict.ci[1]:.2f}]" if verdict.ci is not None else ""
    return Sentence("{value}: {verdict}", value=f"{verdict.value:.2f}x{ends}", verdict=verdict.text)


def _saving(group: Group, key: str) -> Cell:
    """The share of the baseline's that is saved, in per cent."""
    own = group.metrics[key]
    if group.baseline == group.group:
        return _mean(own, FIGURES[key])
    if own.ratio is None:
        return _ratio(group, FIGURES[key])
    ends = [100 * (1 - end) for end in own.ratio_ci95 or ()]
    saved = f"{100 * (1 - own.ratio):.0f} %"
    return f"{saved} [{ends[1]:.0f}, {ends[0]:.0f}]" if ends else _once(saved, own)


def _once(value: str, own: GroupMetric) -> Cell:
    """A value with the remark that it is one measurement, where it is."""
    return Sentence("{value} ({remark})", value=value, remark=own.once) if own.once else value


def _to_loss_rows(groups: Sequence[Group]) -> list[GroupRow]:
    """When the runs reached the loss that each run of the baseline has reached."""
    losses = [group.to_loss.loss for group in groups if group.to_loss is not None]
    if not losses:
        return []
    own = Sentence("until a validation loss of {loss:.4g}", loss=losses[0])
    title = own if len(set(losses)) == 1 else L_("until the baseline's loss")
    return [GroupRow(title, tuple(_to_loss(group) for group in groups))]


def _to_loss(group: Group) -> str:
    reached = group.to_loss
    if reached is None:
        return L_("withheld")
    if reached.time_s is None:
        return reached.in_words
    if group.emulated:
        return Sentence("all {n} runs reached it; its time is not measurable: emulated here", n=reached.n)
    costs = [f"{reached.time_s:.1f} s"]
    costs += [] if reached.cpu_s is None else [Sentence("CPU time {time:.2f} s", time=reached.cpu_s)]
    costs += [] if reached.energy_j is None else [f"{reached.energy_j:.1f} J"]
    return Sentence("{costs} (median of {n})", costs=together(*costs, between=", "), n=reached.n)


def _mean(own: GroupMetric, figure: Figure) -> str:
    if own.mean is None:
        return L_("not measured")
    value, sd = figure.scale * own.mean, figure.scale * (own.sd or 0.0)
    digits = max(decimals(figure.digits, value), decimals(figure.digits, sd))
    spread = f" ± {sd:.{digits}f}" if own.sd is not None else ""
    number = figure.with_unit(f"{value:.{digits}f}{spread}")
    return Sentence("{value} ({remark})", value=number, remark=own.once or f"n = {own.n}")


def _difference(group: Group, figure: Figure) -> str:
    own = group.metrics[figure.key]
    if group.baseline == group.group or own.difference is None:
        return _not_compared(group, own)
    value, ci = figure.scale * own.difference, [figure.scale * end for end in own.difference_ci95 or ()]
    digits = decimals(figure.digits, value, ci)
    change = figure.difference_with_unit(signed(value, digits))
    if ci:
        interval = f"[{signed(ci[0], digits)}, {signed(ci[1], digits)}]"
        change = Sentence("{change} {interval}", change=change, interval=interval)
    else:
        change = Sentence("{change}, no interval", change=change)
    return Sentence("{change}, not more than rounding", change=change) if own.within_rounding else change


def _not_compared(group: Group, own: GroupMetric) -> str:
    if group.baseline == group.group:
        return BASELINE
    known = own.withheld not in ("", NOT_MEASURED)
    return Sentence("withheld: {why}", why=own.withheld) if known else L_("not measured")


def _ratio(group: Group, figure: Figure) -> str:
    own = group.metrics[figure.key]
    if group.baseline == group.group or own.ratio is None:
        return _not_compared(group, own)
    ratio, ci = speed_or_share(own, figure)
    digits = decimals(2, ratio - 1, ci or ())
    text = f"{ratio:.{digits}f}x"
    return f"{text} [{ci[0]:.{digits}f}, {ci[1]:.{digits}f}]" if ci else _once(text, own)


def _verdict_cell(group: Group, target: str) -> str:
    verdict = group.verdicts.get(target)
    return BASELINE if verdict is None else verdict.text
