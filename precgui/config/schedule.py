"""`precision_schedule`: precisions that follow the first one during training, each with its trigger."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from precgui.config.names import check_precision
from precgui.config.precision_traits import traits
from precgui.config.section import as_pairs
from precgui.formats.model import FloatFormat
from precgui.formats.registry import blocks, get
from precgui.sentences import L_, Sentence

Trigger = Literal["step", "share", "plateau", "underflow"]
_EXAMPLE = "step:100=bf16-amp"
_REPEATED = re.compile(r"\s*#\s*\d+\s*$")  # keeps equal triggers apart in a table
_FORM = "trigger:number=precision"
_IN_ORDER = {
    "step": L_("the steps of a schedule follow one another, so each must be above the one before"),
    "share": L_("the shares of a schedule follow one another, so each must be above the one before"),
}
_TRIGGERS = {
    "step": L_("a whole number of 2 or more, the step from which the precision holds"),
    "share": L_("between 0 and 1, the share of the run after which it holds"),
    "plateau": L_("a whole number of 2 or more, the steps over which the mean loss no longer falls by 1 %"),
    "underflow": L_("between 0 and 1, the share of the gradients below the normal numbers of the format before"),
}


@dataclass(frozen=True)
class PrecisionChange:
    """The precision that follows once its trigger is reached; `number` is a step, a count of steps, or a share."""

    trigger: Trigger
    number: float
    precision: str

    @property
    def text(self) -> str:
        """The trigger as a config writes it."""
        return f"{self.trigger}:{self.number:g}"


def _change(key: str, precision: str) -> PrecisionChange:
    trigger, colon, text = (part.strip() for part in _REPEATED.sub("", key).partition(":"))
    if trigger not in _TRIGGERS or not colon:
        raise ValueError(
            Sentence(
                "{key!r} is no trigger; use step:N, share:X, plateau:N or underflow:X, such as {example}",
                key=key,
                example=_EXAMPLE,
            )
        )
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    whole = trigger in ("step", "plateau")
    if not (2 <= number <= 1e9 and number == int(number) if whole else 0 < number < 1):
        raise ValueError(
            Sentence("{text!r} of {trigger} is not {meaning}", text=text, trigger=trigger, meaning=_TRIGGERS[trigger])
        )
    return PrecisionChange(trigger, number, check_precision(precision))  # type: ignore[arg-type]


def _as_schedule(value: Any) -> Any:
    return _keyed(as_pairs(value, _FORM, _EXAMPLE)) if isinstance(value, str) else value


def _keyed(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A table of triggers and precisions; a trigger that comes again is `plateau:50#2`, then `plateau:50#3`."""
    table: dict[str, str] = {}
    for given, precision in pairs:
        trigger, count = _REPEATED.sub("", given), 1
        key = trigger
        while key in table:
            count += 1
            key = f"{trigger}#{count}"
        table[key] = precision
    return table


def _check_changes(table: dict[str, str]) -> dict[str, str]:
    changes = [_change(key, precision) for key, precision in table.items()]
    for trigger in _IN_ORDER:
        numbers = [change.number for change in changes if change.trigger == trigger]
        if numbers != sorted(set(numbers)):
            raise ValueError(_IN_ORDER[trigger])
    return _keyed((change.text, change.precision) for change in changes)


PrecisionSchedule = Annotated[dict[str, str], BeforeValidator(_as_schedule), AfterValidator(_check_changes)]


def changes_of(table: Mapping[str, str]) -> list[PrecisionChange]:
    """The changes of a checked schedule, in their order: each waits until the one before has happened."""
    return [_change(key, precision) for key, precision in table.items()]


def check_schedule(table: Mapping[str, str], known: Mapping[str, Any]) -> None:
    """Raises ValueError where a schedule does not go with other settings; `known` holds them by name."""
    if not table or "precision" not in known:
        return
    before, parallel = known["precision"], known.get("parallel")
    _check_storage(before)
    for change in changes_of(table):
        _check_change(change, before, parallel)
        before = change.precision
    if parallel is not None and parallel.strategy == "fsdp":
        raise ValueError(
            L_("precision_schedule does not go with shards of weights; set parallel.strategy to ddp or none")
        )
    for section, field, neutral in (
        ("train", "compile", False), ("train", "checkpointing", False), ("precision_options", "updates", None),
        ("pruning", "method", "none"), ("adapter", "kind", "none"),
    ):  # fmt: skip
        if section in known and getattr(known[section], field) != neutral:
            setting = str(neutral).lower() if neutral is not None else "empty"
            raise ValueError(
                Sentence(
                    "precision_schedule does not go with {section}.{field}; set that to {setting}",
                    section=section,
                    field=field,
                    setting=setting,
                )
            )


def _check_change(change: PrecisionChange, before: str, parallel: Any) -> None:
    """Raises ValueError where one change does not follow the precision before it, or does not go with ranks."""
    _check_storage(change.precision)
    if change.trigger == "underflow" and gradient_floor(before) is None:
        raise ValueError(
            Sentence(
                "{text} cannot be measured in {before}, whose gradients have no format of a fixed range; "
                "it follows fp16-amp or emulated:FORMAT",
                text=change.text,
                before=before,
            )
        )
    if change.trigger == "plateau" and parallel is not None and parallel.strategy != "none":
        raise ValueError(
            Sentence(
                "{text} follows the loss, of which each rank sees that of its own part; use step, share or "
                "underflow, or set parallel.strategy = none",
                text=change.text,
            )
        )
    if parallel is not None and parallel.strategy == "ddp" and (reason := traits(change.precision).not_replicated):
        raise ValueError(
            Sentence(
                "{precision} does not work with strategy ddp: {reason}; choose another precision",
                precision=change.precision,
                reason=reason,
            )
        )


def _check_storage(precision: str) -> None:
    row = traits(precision)
    if row.storage != "fp32":
        raise ValueError(
            Sentence(
                "{precision} stores weights in {storage}, so a change would touch weights and optimizer state; use "
                "precisions with FP32 weights, such as fp32, bf16-amp, fp16-amp or emulated:FORMAT",
                precision=precision, storage=row.storage,
            )
        )  # fmt: skip
    if row.weight_bits is not None:
        raise ValueError(
            Sentence(
                "{precision} learns the ranges of its integers, so a change would touch weights and optimizer state; "
                "use precisions with FP32 weights, such as fp32, bf16-amp, fp16-amp or emulated:FORMAT",
                precision=precision,
            )
        )


def gradient_floor(precision: str) -> float | None:
    """The smallest normal number of the format of gradients; None where ranges are scaled or shared by blocks."""
    name = traits(precision).gradient_operand
    fmt = None if precision == "fp8" or name in blocks() else get(name)
    smallest = fmt.min_normal if isinstance(fmt, FloatFormat) else None
    return None if smallest is None else float(smallest)
