"""The state of the bit explorer: what was typed, where it is shown, how it is rounded, and what came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from precgui.formats.codec import canonical_nan, infinity_code, quiet_bit, step
from precgui.formats.conventions import PRESETS, as_in
from precgui.formats.model import CodeBook, FloatFormat, Format
from precgui.formats.parse import parse
from precgui.formats.real import ExtendedReal
from precgui.formats.registry import MAIN, get
from precgui.formats.report import Report, report
from precgui.formats.rounding import CastPolicy, RoundingMode, draw
from precgui.sentences import L_

LONGEST_HISTORY = 500
DEFAULT_FORMATS = (*MAIN, "e2m1", "int8")


@dataclass
class Explorer:
    """One number in several formats. Every change of the number goes through its text, so undo is a list of texts."""

    text: str = "0.1"
    names: Sequence[str] = DEFAULT_FORMATS
    rounding: RoundingMode = "nearest_even"
    stack: str = PRESETS[0].name
    seed: int = 0
    real: ExtendedReal = field(init=False)
    _past: list[str] = field(init=False, default_factory=list)
    _future: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.real = parse(self.text)

    def type(self, text: str, *, joined: bool = False) -> None:
        """Take a new text; `joined` makes it one undo step with the last. Raises InputError and keeps the old."""
        real = parse(text)
        if text == self.text:
            return
        if not joined or not self._past:
            self._past = [*self._past[-LONGEST_HISTORY:], self.text]
        self._future.clear()
        self.text, self.real = text, real

    def undo(self) -> None:
        if self._past:
            self._future.append(self.text)
            self._show(self._past.pop())

    def redo(self) -> None:
        if self._future:
            self._past.append(self.text)
            self._show(self._future.pop())

    def _show(self, text: str) -> None:
        self.text, self.real = text, parse(text)

    def report(self, name: str) -> Report:
        """The number in one format, under the chosen rounding and stack."""
        fmt = get(name)
        return report(self.real, fmt, self.cast_policy(fmt), draw(self.seed, 0))

    def reports(self) -> list[Report]:
        return [self.report(name) for name in self.names]

    def cast_policy(self, fmt: Format) -> CastPolicy:
        return as_in(self.stack, self.rounding, fmt)

    def store(self, name: str, code: int, *, joined: bool = False) -> None:
        """Make the number that which `code` means in a format. Raises InputError for a code that means nothing."""
        fmt = get(name)
        self.type(f"{fmt.name}:0x{code:0{(fmt.bits + 3) // 4}x}", joined=joined)

    def toggle(self, name: str, bit: int) -> None:
        """Flip one bit of the stored code; bit 0 is the last one."""
        self.store(name, self.report(name).stored.code ^ 1 << bit)

    def set_bit(self, name: str, bit: int, on: bool, *, joined: bool = False) -> None:
        code = self.report(name).stored.code
        self.store(name, code | 1 << bit if on else code & ~(1 << bit), joined=joined)

    def step(self, name: str, steps: int) -> None:
        """Go up (or down) by so many values of a format, through zero and to infinity."""
        stored = self.report(name).stored
        self.store(name, step(stored.format, stored.code, steps))


def nan_with(fmt: FloatFormat, payload: int, *, quiet: bool, negative: bool) -> int:
    """The code of a NaN with that payload. Raises ValueError when it does not fit or would be infinity."""
    room = quiet_bit(fmt)
    if not room:
        return canonical_nan(fmt, negative=negative)
    if not 0 <= payload < max(room, 1):
        raise ValueError(f"{payload:#x} does not fit: a NaN of {fmt.name} holds payloads up to {max(room - 1, 0):#x}")
    if not quiet and payload == 0:
        raise ValueError("a signalling NaN needs a payload; with 0 the bits would mean infinity")
    return infinity_code(fmt, negative=negative) | payload | (room if quiet else 0)


def special_values(fmt: Format) -> list[tuple[str, int]]:
    """Special values with their codes: zeros, ones, the ends, infinity and NaN, as far as the format has them."""
    if isinstance(fmt, CodeBook):
        return [("smallest", 0), ("largest", fmt.max_ordinal)]
    if not isinstance(fmt, FloatFormat):
        return [("zero", 0), ("one", 1), ("largest", fmt.max_ordinal), ("smallest", fmt.min_ordinal % (1 << fmt.bits))]
    result = [("zero", 0)] if fmt.has_zero else []
    if fmt.has_negative_zero:
        result.append((L_("negative zero"), 1 << (fmt.bits - 1)))
    if fmt.min_subnormal is not None:
        result += [(L_("smallest subnormal"), 1), (L_("largest subnormal"), fmt.mantissa_mask)]
    if fmt.min_normal is not None:
        result.append((L_("smallest normal"), 0 if fmt.special == "e8m0" else 1 << fmt.mantissa_bits))
    result.append((L_("largest finite"), fmt.max_ordinal))
    if fmt.has_inf:
        result.append(("infinity", infinity_code(fmt)))
    if fmt.has_nan:
        result.append(("NaN", canonical_nan(fmt)))
    return result
