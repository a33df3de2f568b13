"""The energy of a study as finished cells: a row for each figure, a column for each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from precgui.hardware.energy import SENSOR_ERROR
from precgui.runs.report.group_table import Row, with_level
from precgui.runs.study.energy import EnergyPrice, GroupEnergy, study_energy
from precgui.runs.study.result import BASELINE, LEVEL, Study
from precgui.runs.study.run_figures import RunFigures
from precgui.sentences import L_, Sentence, together

_NOT_RECORDED = L_("no run recorded it")


@dataclass(frozen=True)
class EnergyTable:
    """`groups` are the numbers of `rows`, whose cells stand for the groups `columns`; `price` is None for none."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    groups: tuple[GroupEnergy, ...]
    price: EnergyPrice | None

    @property
    def is_measured(self) -> bool:
        """Whether the energy of one group at least is known."""
        return any(group.run_j is not None for group in self.groups)

    @property
    def why_not_measured(self) -> str:
        """A sentence on a study whose energy was not measured at all."""
        why = together(*self._reasons, between="; ") or _NOT_RECORDED
        return Sentence("The energy was not measured, because {why}.", why=why)

    @property
    def short_rows(self) -> list[tuple[str, ...]]:
        """The rows to stand below `why_not_measured`: without its reason in each cell, where all have the same one."""
        said = _not_measured(self._reasons[0]) if len(self._reasons) == 1 and not self.is_measured else ""
        short = L_("not measured")
        return [(title, *(short if cell == said else cell for cell in cells)) for title, cells in self.rows]

    @property
    def _reasons(self) -> list[str]:
        return [why for why in dict.fromkeys(group.why.get("run_j", "") for group in self.groups) if why]


def energy_table(study: Study, runs: Sequence[RunFigures], price: EnergyPrice | None = None) -> EnergyTable:
    """The table of a study; every figure that was not measured says why."""
    groups = study_energy(study, runs, price)

    def row(title: str, cell: Callable[[GroupEnergy], str]) -> Row:
        return title, tuple(cell(group) for group in groups)

    def figure(title: str, key: str, form: Callable[[float], str]) -> Row:
        return row(title, lambda group: _cell(group, key, form))

    rows = [
        figure(L_("idle power"), "idle_w", _watts),
        figure(L_("mean power of the run"), "power_w", _watts),
        figure(L_("energy per sample"), "joules_per_sample", _joules),
        figure(L_("energy per sample above idle"), "net_joules_per_sample", _joules),
        row(
            Sentence(
                "energy saved, measured ({level:.0f} % interval), ± {error:.0f} % of the sensor",
                level=100 * LEVEL,
                error=100 * SENSOR_ERROR,
            ),
            _saved,
        ),
        figure(L_("energy saved, expected from the speed-up at equal power"), "expected_saved", _share),
        row(L_("energy saved, expected by guides"), lambda group: together(*group.guides, between=", ") or "–"),
        figure(L_("energy of a run"), "run_j", _joules),
        figure(_loss_title(study), "to_loss_j", _joules),
    ]
    if any(group.limit_w is not None for group in groups):
        rows[:0] = [
            row(L_("power limit"), lambda group: L_("as it is") if group.limit_w is None else _watts(group.limit_w))
        ]
        rows += [
            row(with_level(L_("energy per sample against the largest limit")), lambda group: _beside(group, "energy")),
            row(with_level(L_("step time against the largest limit")), lambda group: _beside(group, "time")),
        ]
    if price is not None:
        rows += [figure(title, key, lambda costs: _money(costs, price)) for key, title in _cost_titles(study, price)]
    return EnergyTable(tuple(group.group for group in groups), tuple(rows), tuple(groups), price)


def _cost_titles(study: Study, price: EnergyPrice) -> list[tuple[str, str]]:
    return [
        ("run_cost", Sentence("cost of a run at {price} per kWh", price=str(price))),
        ("to_loss_cost", Sentence("cost of the {energy}", energy=_loss_title(study))),
    ]


def _money(costs: float, price: EnergyPrice) -> str:
    return f"{costs:.3g} {price.currency}".rstrip()


def _loss_title(study: Study) -> str:
    losses = {group.to_loss.loss for group in study.groups if group.to_loss is not None}
    if len(losses) == 1:
        return Sentence("energy until a validation loss of {loss:.4g}", loss=next(iter(losses)))
    return L_("energy until the baseline's loss")


def _cell(group: GroupEnergy, key: str, form: Callable[[float], str]) -> str:
    value, why = getattr(group, key), group.why.get(key, "")
    if value is not None:
        return form(value)
    return why if why == BASELINE else _not_measured(why or _NOT_RECORDED)


def _not_measured(why: str) -> Sentence:
    return Sentence("not measured, because {why}", why=why)


def _saved(group: GroupEnergy) -> str:
    ends = group.saved_ci95
    interval = f" [{_share(ends[0])}, {_share(ends[1])}]" if ends is not None else ""
    return _cell(group, "saved", lambda value: f"{_share(value)}{interval}")


def _beside(group: GroupEnergy, what: str) -> str:
    ratio = group.beside_limit
    value = None if ratio is None else getattr(ratio, what)
    if ratio is None or value is None:
        return "–"
    ends = getattr(ratio, f"{what}_ci95")
    return f"{value:.3f}x" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")


def _watts(watts: float) -> str:
    return f"{watts:.4g} W"


def _joules(joules: float) -> str:
    """In the unit in which the number is at least one, up to watt-hours."""
    if abs(joules) >= 3600:
        return f"{joules / 3600:.4g} Wh"
    return f"{joules:.4g} J" if abs(joules) >= 1 else f"{1e3 * joules:.4g} mJ"


def _share(share: float) -> str:
    return f"{100 * share:z.1f} %"
