"""The energy of a study as finished cells: a row for each figure, a column for each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from precgui.hardware.energy import SENSOR_ERROR
from precgui.runs.report.group_table import LEVEL_WORD, Row
from precgui.runs.study.energy import EnergyPrice, GroupEnergy, study_energy
from precgui.runs.study.figures import RunFigures
from precgui.runs.study.groups import Study


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
        return f"The energy was not measured, because {'; '.join(self._reasons) or 'no run recorded it'}."

    @property
    def short_rows(self) -> list[tuple[str, ...]]:
        """The rows to stand below `why_not_measured`: without its reason in each cell, where all have the same one."""
        said = f", because {self._reasons[0]}" if len(self._reasons) == 1 and not self.is_measured else ""
        return [(title, *(cell.removesuffix(said) if said else cell for cell in cells)) for title, cells in self.rows]

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
        figure("idle power", "idle_w", _watts),
        figure("mean power of the run", "power_w", _watts),
        figure("energy per sample", "joules_per_sample", _joules),
        figure("energy per sample above idle", "net_joules_per_sample", _joules),
        row(f"energy saved, measured {LEVEL_WORD}, ± {100 * SENSOR_ERROR:.0f} % of the sensor", _saved),
        figure("energy saved, expected from the speed-up at equal power", "expected_saved", _share),
        row("energy saved, expected by guides", lambda group: ", ".join(group.guides) or "–"),
        figure("energy of a run", "run_j", _joules),
        figure(_loss_title(study), "to_loss_j", _joules),
    ]
    if any(group.limit_w is not None for group in groups):
        rows[:0] = [row("power limit", lambda group: "as it is" if group.limit_w is None else _watts(group.limit_w))]
        rows += [
            row(f"energy per sample against the largest limit {LEVEL_WORD}", lambda group: _beside(group, "energy")),
            row(f"step time against the largest limit {LEVEL_WORD}", lambda group: _beside(group, "time")),
        ]
    if price is not None:
        money = f" {price.currency}".rstrip()
        rows += [
            figure(f"cost of a run at {price} per kWh", "run_cost", lambda value: f"{value:.3g}{money}"),
            figure(f"cost of the {_loss_title(study)}", "to_loss_cost", lambda value: f"{value:.3g}{money}"),
        ]
    return EnergyTable(tuple(group.group for group in groups), tuple(rows), tuple(groups), price)


def _loss_title(study: Study) -> str:
    losses = {group.to_loss.loss for group in study.groups if group.to_loss is not None}
    loss = f"a validation loss of {next(iter(losses)):.4g}" if len(losses) == 1 else "the baseline's loss"
    return f"energy until {loss}"


def _cell(group: GroupEnergy, key: str, form: Callable[[float], str]) -> str:
    value, why = getattr(group, key), group.why.get(key, "")
    if value is not None:
        return form(value)
    return why if why == "baseline" else f"not measured, because {why or 'no run recorded it'}"


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
