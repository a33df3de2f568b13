"""In which facts runs or groups differ: machines first, then libraries, then settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from precgui.runs.known_settings import NOT_KNOWN, flat, settings_by_path
from precgui.runs.run import Run
from precgui.sentences import L_, Sentence

Part = Literal["machine", "libraries", "settings"]
PARTS: tuple[Part, ...] = ("machine", "libraries", "settings")
PART_WORDS = (L_("machine"), L_("libraries"), L_("settings"))
NOT_RECORDED = L_("not recorded")
# Of the machine; what else a file says of it moves from run to run.
_MACHINE = ("host", "os", "cpu.name", "cpu.usable_cores", "memory_bytes", "nvidia_driver")
_OF_EACH_RUN = ("title",)


@dataclass(frozen=True)
class ComparedFacts:
    """The facts of one run or group as flat tables, by part."""

    name: str
    parts: Mapping[Part, Mapping[str, Any]]


@dataclass(frozen=True)
class DifferenceRow:
    """One fact that is not the same everywhere; `values` in the order of what is compared."""

    part: Part
    fact: str
    values: tuple[str, ...]


def facts_of(run: Run, name: str) -> ComparedFacts:
    """The facts of a run."""
    environment = run.environment
    libraries = environment.get("libraries")
    versions = {"precgui": environment.get("precgui"), "python": environment.get("python")}
    return ComparedFacts(
        name,
        {
            "machine": machine_facts(run.machine, environment.get("device_name"), environment.get("threads")),
            "libraries": versions | (dict(libraries) if isinstance(libraries, Mapping) else {}),
            "settings": settings_by_path(run),
        },
    )


def machine_facts(machine: Mapping[str, Any], device: Any, threads: Any) -> dict[str, Any]:
    """The facts that decide times and rounding: host, system, processor, memory, device, threads."""
    known = flat(machine)
    return {"device": device, "threads": threads, **{name: known.get(name) for name in _MACHINE}}


class KeptFacts:
    """The facts of runs that have ended, for as long as the same runs are compared."""

    def __init__(self) -> None:
        self._facts: dict[str, ComparedFacts] = {}

    def of(self, runs: Mapping[str, tuple[Run, str]]) -> list[ComparedFacts]:
        """The facts of runs and their names by a key of each; those of runs that go on are read anew."""
        facts = {
            key: replace(self._facts[key], name=name) if key in self._facts else facts_of(run, name)
            for key, (run, name) in runs.items()
        }
        self._facts = {key: each for key, each in facts.items() if runs[key][0].status != "running"}
        return list(facts.values())


def differing(compared: Sequence[ComparedFacts], parts: Sequence[Part] = PARTS) -> list[DifferenceRow]:
    """The facts of some parts that are not the same everywhere, machines first; none for fewer than two."""
    rows = []
    for part in parts:
        tables = [each.parts.get(part, {}) for each in compared]
        absent = NOT_KNOWN if part == "settings" else None
        for fact in dict.fromkeys(key for table in tables for key in table if key not in _OF_EACH_RUN):
            values = tuple(_text(table.get(fact, absent)) for table in tables)
            if len(set(values) - {NOT_KNOWN}) > 1:
                rows.append(DifferenceRow(part, fact, values))
    return rows


def machine_sentence(rows: Sequence[DifferenceRow]) -> str:
    """A sentence that the runs are of several machines, with their differences; empty where none is recorded."""
    own = [(row.fact, dict.fromkeys(row.values)) for row in rows if row.part == "machine"]
    facts = "; ".join(f"{fact}: {', '.join(values)}" for fact, values in own if len({*values} - {NOT_RECORDED}) > 1)
    if not facts:
        return ""
    return Sentence(
        "These were not run under equal conditions ({facts}): times, memory and energy say as much of that.",
        facts=facts,
    )


def _text(value: Any) -> str:
    if value is None or value == "":
        return NOT_RECORDED
    return ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
