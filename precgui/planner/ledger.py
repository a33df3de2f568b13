"""The ledger of a step's memory: parts that add up to its peak, who owns them, and two ledgers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from precgui.sentences import L_, Sentence, kept_text, together

PARTS = {
    "weights": L_("Weights and buffers"),
    "gradients": L_("Gradients"),
    "optimizer": L_("Optimizer state"),
    "master": L_("FP32 master weights"),
    "activations": L_("Activations kept for the backward pass"),
    "cast_cache": L_("Weights that autocast holds as 16-bit copies"),
    "temporary": L_("Temporaries"),
    "batch": L_("Batch"),
    "fragmentation": L_("Reserved by the allocator and not in use"),
    "base": L_("Frozen base: codes of its weights"),
    "base_scales": L_("Frozen base: scales and tables"),
    "adapters": L_("Adapters"),
    "unpacked": L_("Unpacked copies of the frozen base"),
}
_PARTS_INSIDE = {  # a sentence
    "weights": L_("weights and buffers"),
    "gradients": L_("gradients"),
    "optimizer": L_("optimizer state"),
    "master": L_("fp32 master weights"),
    "activations": L_("activations kept for the backward pass"),
    "cast_cache": L_("weights that autocast holds as 16-bit copies"),
    "temporary": L_("temporaries"),
    "batch": L_("batch"),
    "fragmentation": L_("reserved by the allocator and not in use"),
    "base": L_("frozen base: codes of its weights"),
    "base_scales": L_("frozen base: scales and tables"),
    "adapters": L_("adapters"),
    "unpacked": L_("unpacked copies of the frozen base"),
}
RESIDUAL_LIMIT = 0.10  # of the measured peak: more than this unexplained is a finding
_MOST_OWNERS = 40  # modules with their activations, and tensors alive at the peak, that a ledger keeps
_LARGEST = 1 << 60  # bytes


@dataclass(frozen=True, slots=True)
class Owner:
    """Memory of one part that one module holds at the peak; `tensors` blocks, the largest is of `shape`."""

    part: str
    module: str
    size_bytes: int
    tensors: int = 1
    dtype: str = ""
    shape: tuple[int, ...] = ()
    operation: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """`parts` by name add up to `total_bytes`, the peak. `phase` is the moment of the peak: forward, backward, update.

    `method` says how it was found, `notes` what it does not hold. `timeline` is (event number, bytes) over the step,
    thinned to the extremes of each stretch; `phases` gives the event number at which each phase begins.
    """

    parts: dict[str, int]
    total_bytes: int
    phase: str
    method: str
    owners: tuple[Owner, ...] = ()
    timeline: tuple[tuple[int, int], ...] = ()
    phases: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the keys of `precgui plan --json` (`weights_bytes` ... under `parts`)."""
        plain = asdict(self)
        plain["parts"] = {f"{name}_bytes": self.parts.get(name, 0) for name in PARTS}
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Ledger:
        """The ledger that `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            parts={name: _size(plain["parts"].get(f"{name}_bytes", 0)) for name in PARTS},
            total_bytes=_size(plain["total_bytes"]),
            phase=str(plain["phase"]),
            method=kept_text(plain["method"]),
            owners=tuple(_owner(row) for row in plain.get("owners", ())),
            timeline=tuple((_size(place), _size(size)) for place, size in plain.get("timeline", ())),
            phases=tuple((str(name), _size(place)) for name, place in plain.get("phases", ())),
            notes=tuple(kept_text(note) for note in plain.get("notes", ())),
        )


def _size(value: Any) -> int:
    """A number of bytes or of places. Raises TypeError or ValueError for none, and for one that no machine has."""
    size = int(value) if isinstance(value, int) or abs(value) < _LARGEST else _LARGEST
    if abs(size) >= _LARGEST:
        raise ValueError(L_("a size of more bytes than any machine has"))
    return size


def _owner(row: Mapping[str, Any]) -> Owner:
    return Owner(
        str(row["part"]), str(row["module"]), _size(row["size_bytes"]), _size(row["tensors"]), str(row["dtype"]),
        tuple(_size(size) for size in row["shape"]), str(row["operation"]),
    )  # fmt: skip


def largest_owners(owners: Sequence[Owner], most: int = _MOST_OWNERS) -> tuple[Owner, ...]:
    """The largest ones, and one for each part that sums up the rest."""
    ordered = sorted(owners, key=lambda owner: -owner.size_bytes)
    remainder: dict[str, tuple[int, int]] = {}
    for owner in ordered[most:]:
        size, count = remainder.get(owner.part, (0, 0))
        remainder[owner.part] = size + owner.size_bytes, count + owner.tensors
    return (*ordered[:most], *(Owner(part, "(others)", size, count) for part, (size, count) in remainder.items()))


def residual(predicted: Ledger, measured: Ledger) -> float:
    """(measured - predicted) / measured: the share of the peak that the prediction does not hold."""
    return (measured.total_bytes - predicted.total_bytes) / max(measured.total_bytes, 1)


def difference_sentence(fp32: Ledger, other: Ledger, name: str) -> str:
    """Why the step needs so much more or less memory in precision `name` than in FP32, in one sentence."""
    ratio = other.total_bytes / max(fp32.total_bytes, 1)
    changes = {part: other.parts.get(part, 0) - fp32.parts.get(part, 0) for part in PARTS}
    least = 0.01 * fp32.total_bytes
    ordered = sorted((c for c in changes.items() if abs(c[1]) >= least), key=lambda c: -abs(c[1]))
    if not ordered:
        return Sentence(
            "{name} needs {ratio:.2f} times the memory of fp32: no part of the ledger changes by 1 % or more.",
            name=name,
            ratio=ratio,
        )
    parts = together(*(_part_change(part, size) for part, size in ordered), between=", ")
    return Sentence("{name} needs {ratio:.2f} times the memory of fp32: {parts}.", name=name, ratio=ratio, parts=parts)


def _part_change(part: str, size: int) -> Sentence:
    return Sentence("{part} {change}", part=_PARTS_INSIDE[part], change=f"{'+' if size > 0 else '-'}{mib(abs(size))}")


def mib(size_bytes: float) -> str:
    """Bytes as text in the binary unit that suits them."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= size:
            return (
                f"{size_bytes / size:.3g} {unit}"
                if abs(size_bytes) < 1000 * size
                else f"{size_bytes / size:.0f} {unit}"
            )
    return Sentence("{count:.0f} bytes", count=size_bytes)
