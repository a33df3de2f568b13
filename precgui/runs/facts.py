"""All that is recorded of a run besides its curves, as groups of names and values for a person to read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from precgui.config.tree import RunConfig
from precgui.events import Metric
from precgui.runs.caveats import (
    MEMORY_CAVEAT,
    arithmetic_of,
    as_sentence,
    cost_above_budget,
    marked,
    record_share,
    run_notes,
)
from precgui.runs.figures import FIGURES
from precgui.runs.known_settings import NOT_KNOWN, flat, is_given, observed_settings
from precgui.runs.metric import value_text
from precgui.runs.recorded_facts import breaks_sentence, rows_of
from precgui.runs.run import Run
from precgui.runs.summary import summarise
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence, as_given, kept_text, together, without_stop

NOT_MEASURED = "not measured"
_LONGEST = 400  # characters of a value from a file
_SHORT_GROUPS = 12  # facts up to which a group is shown open


@dataclass(frozen=True)
class RunFact:
    """A name and its value as text. `changed`: a setting that is not at its default. `facts`: what it consists of."""

    name: str
    value: str = ""
    hint: str = ""
    changed: bool = False
    facts: tuple[RunFact, ...] = ()


@dataclass(frozen=True)
class FactGroup:
    """Facts under one heading. `open`: shown without being asked for, as the answer or since it is short."""

    title: str
    facts: tuple[RunFact, ...]
    is_answer: bool = False

    @property
    def open(self) -> bool:
        return self.is_answer or len(self.facts) <= _SHORT_GROUPS


def run_facts(run: Run) -> tuple[FactGroup, ...]:
    """The groups that hold something, the most asked for first."""
    environment = run.environment
    groups = (
        FactGroup(L_("Result"), tuple(_result(run)), is_answer=True),
        FactGroup(L_("Notes of the engine"), tuple(_notes(run))),
        FactGroup(L_("Changes of the precision"), tuple(_precision_changes(environment.get("precision_changes")))),
        FactGroup(L_("Settings"), tuple(settings(run.config, observed_settings(run)))),
        FactGroup(L_("Formats counted in the first step"), tuple(_census(environment.get("census")))),
        *_later_census(environment.get("precision_changes")),
        FactGroup(_certificate_title(environment), tuple(_certificate(environment.get("certificate")))),
        *_later_certificates(environment.get("precision_changes")),
        FactGroup(L_("Memory of one step"), tuple(_memory(environment.get("memory")))),
        FactGroup(L_("Data"), _tree(environment.get("data"))),
        FactGroup(L_("Machine"), _tree(run.machine)),
        FactGroup(L_("Sensors"), tuple(_sensors(environment.get("power_sensors")))),
        FactGroup(L_("Record of tensors"), _tree(environment.get("record"))),
        FactGroup(L_("Environment"), _tree({k: v for k, v in environment.items() if k not in _OF_THEIR_OWN})),
        FactGroup(L_("File"), tuple(_file(run))),
    )
    return tuple(group for group in groups if group.facts)


_OF_THEIR_OWN = {
    "notes", "census", "certificate", "memory", "data", "power_sensors", "record", "metric",
    "precision_changes",
}  # fmt: skip


# Result ----------------------------------------------------------------------------------------------------


def _result(run: Run) -> Iterator[RunFact]:
    """The summary with its units; why a figure is missing stands in its place."""
    summary = summarise(run)
    final, metric = summary["final"], Metric(**summary["metric"])
    last = getattr(run, "message", "")
    yield RunFact(
        L_("Status"), Sentence("{state}: {reason}", state=str(run.status), reason=last) if last else str(run.status)
    )
    if run.total_steps and summary["steps"] < run.total_steps:
        yield RunFact(L_("Steps"), Sentence("{done} of {total}", done=summary["steps"], total=run.total_steps))
    else:
        yield RunFact(L_("Steps"), str(summary["steps"]))
    window = min(max(run.steps_per_epoch, 1), max(summary["steps"], 1))
    mean = Sentence("Training loss, mean of the last {steps} steps", steps=window)
    yield RunFact(mean if window > 1 else L_("Training loss, last step"), _number(final["train_loss"]))
    yield RunFact(L_("Validation loss"), _number(final["val_loss"]))
    yield RunFact(metric.title, value_text(metric, final["val_accuracy"], NOT_MEASURED), metric.about)
    yield from _costs(run, summary)
    yield RunFact(L_("Steps skipped"), _count(summary["skipped_steps"]), L_("Inf or NaN in the gradients"))
    yield RunFact(L_("Events of NaN or Inf"), _count(summary["nonfinite_events"]))


def _costs(run: Run, summary: Mapping[str, Any]) -> Iterator[RunFact]:
    how = arithmetic_of(run)
    speed = how.caveat
    memory = "" if how.memory_counts else MEMORY_CAVEAT
    yield RunFact(FIGURES["time_s"].title, marked(_with_unit(summary["time_s"], "s"), how.arithmetic), speed)
    yield RunFact(FIGURES["step_s"].title, marked(seconds_text(summary["step_s_median"]), how.arithmetic), speed)
    yield RunFact(L_("Throughput"), marked(_with_unit(summary["samples_per_s"], "samples/s"), how.arithmetic), speed)
    peak = bytes_text(summary["memory_peak_bytes"])
    emulated = Sentence("{value} (emulated)", value=peak)
    yield RunFact(FIGURES["memory_bytes"].title, peak if how.memory_counts else emulated, memory)
    if sentence := breaks_sentence(run):
        yield RunFact(L_("Broken off"), as_sentence(sentence))
    yield from _record_cost(run)
    reason = _why_no_energy(run.environment.get("power_sensors"))
    yield RunFact(L_("Energy"), _with_unit(summary["energy_j"], "J") if summary["energy_j"] else reason)


def _record_cost(run: Run) -> Iterator[RunFact]:
    share = record_share(run)
    if share is not None:
        hint = L_(
            "As the recorder accounts for measurements; hooks, events and the file come on top (docs/recording.md)"
        )
        yield RunFact(
            L_("Measuring tensors took"),
            Sentence("{share:.2g} % of the time of the steps, or more", share=100 * share),
            hint,
        )
    if above := cost_above_budget(run):
        yield RunFact(L_("Cost of the record"), above)


def _why_no_energy(sensors: object) -> str:
    if not isinstance(sensors, list):
        return NOT_MEASURED
    reasons = [s.get("reason") for s in sensors if isinstance(s, Mapping) and not s.get("found")]
    text = together(*(without_stop(reason) for reason in reasons if isinstance(reason, str)), between="; ")
    return Sentence("{state}: {reason}", state=NOT_MEASURED, reason=text) if text else NOT_MEASURED


def _notes(run: Run) -> Iterator[RunFact]:
    for number, note in enumerate(run_notes(run), 1):
        yield RunFact(Sentence("Note {number}", number=number), as_sentence(note))


# Settings --------------------------------------------------------------------------------------------------


def settings(config: RunConfig, observed: Mapping[str, Any] | None = None) -> Iterator[RunFact]:
    """Every setting by its title, with what differs from the defaults marked; sections hold their own.

    `observed`, for a recorded loop: see `observed_settings`; what is known is there, and how many settings are not.
    """
    facts = tuple(_section(config, RunConfig(), "", observed))
    known = flat(config.model_dump())
    yield from facts if observed is None else _known(facts)
    for path, value in (observed or {}).items():
        if path not in known:
            yield RunFact(path, setting_text(value), Sentence("{setting}: observed in the loop", setting=path))
    if observed is not None and (count := _unknown(facts)):
        yield RunFact(
            L_("All others"),
            NOT_KNOWN,
            Sentence("{count} settings of precgui, which the recorder cannot see in a loop of your own", count=count),
        )


def _known(facts: Iterable[RunFact]) -> Iterator[RunFact]:
    """Facts without those that are not known, and without sections that hold nothing else."""
    for fact in facts:
        if fact.value != NOT_KNOWN:
            yield replace(fact, facts=tuple(_known(fact.facts)))


def _unknown(facts: Iterable[RunFact]) -> int:
    return sum(_unknown(fact.facts) if fact.facts else fact.value == NOT_KNOWN for fact in facts)


def _section(
    section: BaseModel, default: BaseModel, prefix: str, observed: Mapping[str, Any] | None
) -> Iterator[RunFact]:
    for name, info in type(section).model_fields.items():
        value, usual, path = getattr(section, name), getattr(default, name), f"{prefix}{name}"
        title = info.title or name
        if isinstance(value, BaseModel):
            inside = tuple(_section(value, usual, f"{path}.", observed))
            count = sum(fact.changed for fact in inside)
            reported = Sentence("{count} changed", count=count) if count else L_("as by default")
            if observed is not None and not is_given(path):
                known = sum(fact.value != NOT_KNOWN for fact in inside)
                reported = Sentence("{count} observed", count=known) if known else NOT_KNOWN
            yield RunFact(title, reported, path, bool(count), inside)
        elif observed is not None and not is_given(path):
            text = setting_text(observed[path]) if path in observed else NOT_KNOWN
            yield RunFact(title, text, Sentence("{name}: {value}", name=path, value=info.description or ""))
        else:
            hint = Sentence("{name}: {value}", name=path, value=info.description or "")
            yield RunFact(title, setting_text(value), hint, value != usual)


def setting_text(value: object) -> str:
    """A setting as one reads it: yes and no, an empty one as a dash."""
    if value is None or value == "" or value == []:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


# Environment -----------------------------------------------------------------------------------------------


def _precision_changes(changes: object) -> Iterator[RunFact]:
    """The precision that each step of a schedule went on in, with the trigger that was reached."""
    for change in rows_of(changes):
        name, trigger = plain_text(change.get("precision")), plain_text(change.get("trigger"))
        yield RunFact(
            Sentence("From step {step}", step=plain_text(change.get("step"))),
            Sentence("{name} ({trigger})", name=name, trigger=trigger),
        )


def _later_census(changes: object) -> Iterator[FactGroup]:
    """A group for the first step in each further precision of a schedule."""
    for change in rows_of(changes):
        title = Sentence(
            "Formats counted in step {step}, {precision}",
            step=plain_text(change.get("step")),
            precision=plain_text(change.get("precision")),
        )
        yield FactGroup(title, tuple(_census(change.get("census"))))


def _census(census: object) -> Iterator[RunFact]:
    """Shares of the multiplications by format, then by module and operation; read from the file, so nothing is sure."""
    if not isinstance(census, Mapping):
        return
    shares = census.get("formats")
    if isinstance(shares, Mapping):
        for name, share in shares.items():
            yield RunFact(Sentence("Multiplied in {format}", format=name), _share(share))
    if isinstance(flops := census.get("flops"), int | float):
        yield RunFact(L_("Operations of the products of one step"), f"{flops:.4g}")
    modules, operations = census.get("modules"), census.get("operations")
    if isinstance(modules, Mapping) and modules:
        inside = tuple(RunFact(as_given(str(name)), _module(own)) for name, own in modules.items())
        yield RunFact(L_("By module"), f"{len(inside)}", facts=inside)
    if isinstance(operations, Mapping) and operations:
        inside = tuple(RunFact(as_given(str(name)), _calls(own)) for name, own in operations.items())
        yield RunFact(L_("By operation"), f"{len(inside)}", facts=inside)


def _module(own: object) -> str:
    if not isinstance(own, Mapping):
        return plain_text(own)
    formats = ", ".join(f"{name} {_share(part)}" for name, part in own.items() if name != "share")
    return Sentence("{share} of the products: {formats}", share=_share(own.get("share")), formats=formats)


def _calls(own: object) -> str:
    if not isinstance(own, Mapping):
        return plain_text(own)
    parts = (Sentence("{count} in {format}", count=count, format=name) for name, count in own.items())
    return together(*parts, between=", ")


def _certificate_title(environment: Mapping[str, Any]) -> str:
    """The certificate of the start holds for the steps before the first change of the precision."""
    changes = environment.get("precision_changes")
    first = changes[0] if isinstance(changes, list | tuple) and changes else None
    if not isinstance(first, Mapping) or not isinstance(first.get("certificate"), Mapping):
        return L_("Arithmetic as tried on the device")
    return Sentence("Arithmetic as tried on the device before step {step}", step=plain_text(first.get("step")))


def _later_certificates(changes: object) -> Iterator[FactGroup]:
    """A certificate for each further precision of a schedule."""
    for change in rows_of(changes):
        title = Sentence(
            "Arithmetic as tried on the device from step {step} on, {precision}",
            step=plain_text(change.get("step")),
            precision=plain_text(change.get("precision")),
        )
        yield FactGroup(title, tuple(_certificate(change.get("certificate"))))


def _certificate(certificate: object) -> Iterator[RunFact]:
    """The error of a matrix product in each format, measured before the steps that it is of, and torch's switches."""
    if not isinstance(certificate, Mapping):
        return
    errors, size = certificate.get("gemm_error"), certificate.get("gemm_size")
    hint = Sentence(
        "Relative error against FP64 of a product of {size} x {size}, measured before the first of these steps",
        size=size,
    )
    for name, error in errors.items() if isinstance(errors, Mapping) else ():
        yield RunFact(Sentence("Error of a product in {format}", format=name), _number(error), hint)
    yield RunFact(L_("FP32 products are computed in"), plain_text(certificate.get("fp32_products")))
    for key, title in (("switches", L_("Switches of torch")), ("environment", L_("Environment variables"))):
        if inside := _tree(certificate.get(key)):
            yield RunFact(title, f"{len(inside)}", facts=inside)


_MEMORY = {
    "peak_bytes": L_("Peak"), "weights_bytes": L_("Weights"), "optimizer_bytes": L_("Optimizer state"),
    "average_bytes": L_("Average of the weights"), "batch_bytes": L_("Batch"),
    "step_bytes": L_("The rest of the step: activations, gradients, temporaries"),
}  # fmt: skip


def _memory(memory: object) -> Iterator[RunFact]:
    if not isinstance(memory, Mapping):
        return
    for key, title in _MEMORY.items():
        if isinstance(memory.get(key), int):
            yield RunFact(title, bytes_text(memory[key]))
    for key in ("measured_by", "step"):
        if key in memory:
            yield RunFact({"measured_by": L_("Measured by"), "step": L_("In step")}[key], plain_text(memory[key]))


def _sensors(sensors: object) -> Iterator[RunFact]:
    for sensor in sensors if isinstance(sensors, list) else ():
        if isinstance(sensor, Mapping):
            reason = plain_text(sensor.get("reason") or "")
            yield RunFact(
                plain_text(sensor.get("name")),
                L_("read") if sensor.get("found") else Sentence("not read: {why}", why=reason),
            )


def _file(run: Run) -> Iterator[RunFact]:
    yield RunFact(L_("Path"), str(run.path) if run.path else L_("not saved"))
    yield RunFact(L_("Created"), run.created or NOT_MEASURED)
    yield RunFact(L_("Run id"), run.run_id)
    for note in getattr(run, "notes", ()):
        yield RunFact(L_("Odd in the file"), str(note))


def _tree(document: object) -> tuple[RunFact, ...]:
    """A JSON document as facts; what is nested lies inside."""
    if not isinstance(document, Mapping):
        return ()
    facts = []
    for key, value in document.items():
        inside = _tree(value) if isinstance(value, Mapping) else ()
        reported = "" if inside else bytes_text(value) if _is_bytes(key, value) else plain_text(value)
        facts.append(RunFact(as_given(_key_text(str(key))), reported, facts=inside))
    return tuple(facts)


def _key_text(key: str) -> str:
    """A key of the record as words; the name of a switch of torch stays as it is written in code."""
    return key if re.search(r"[.()]", key) else key.removesuffix("_bytes").replace("_", " ")


def _is_bytes(key: object, value: object) -> bool:
    return str(key).endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool)


# Values as text --------------------------------------------------------------------------------------------


def plain_text(value: object) -> str:
    """A value of a document in one line of bounded length."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(plain_text(each) for each in value[:50]) or "–"
    return one_line(kept_text(value), _LONGEST) or "–"


def seconds_text(seconds: float | None) -> str:
    """A time from microseconds to hours with three digits."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_MEASURED
    if seconds < 1:
        return f"{1e6 * seconds:.3g} µs" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 120 else f"{minutes / 60:.3g} h"


def wait_text(seconds: float) -> str:
    """A time to wait, as precise as an estimate is: from a minute and a half on in whole minutes."""
    if seconds < 10:
        return seconds_text(float(f"{seconds:.1g}"))
    return seconds_text(round(seconds) if seconds < 90 else 60 * round(seconds / 60))


def bytes_text(count: int | float | None) -> str:
    """Bytes in the largest binary unit in which they are at least one."""
    if count is None:
        return NOT_MEASURED
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.4g} {units[0]}"


def _number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain_text(value) if isinstance(value, str) else NOT_MEASURED
    return f"{value:.4g}" if math.isfinite(value) else "NaN"


def _share(value: object) -> str:
    return f"{100 * value:.3g} %" if isinstance(value, int | float) else plain_text(value)


def _count(value: int | None) -> str:
    return NOT_MEASURED if value is None else str(value)


def _with_unit(value: float | None, unit: str) -> str:
    return NOT_MEASURED if value is None else f"{value:.4g} {unit}"


def date_text(created: str) -> str:
    """An ISO moment in local time; the text itself where it is none, "–" for an empty one."""
    try:
        return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return created or "–"
