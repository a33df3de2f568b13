"""The formats by name: the table in resources/facts/formats.json, its aliases, and custom eXmY."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from precgui.errors import SentenceError
from precgui.formats.model import BlockFormat, CodeBook, FloatFormat, Format, IntFormat, Special, power_of_two
from precgui.paths import resources
from precgui.sentences import L_, Sentence, filled

_NO_FORMAT = L_("{name} is no number format; `precgui formats` lists the known ones, or write eXmY such as e5m7")
_NO_FORMAT_NEAR = L_("{name} is no number format; near are {near}, or write eXmY such as e5m7")
MAIN = ("fp64", "fp32", "tf32", "bf16", "fp16", "e4m3fn", "e5m2")
MAX_EXPONENT_BITS, MAX_MANTISSA_BITS = 15, 112

_CUSTOM = re.compile(r"(u?)e(\d{1,3})m(\d{1,4})(?:b(-?\d{1,5}))?(_ieee|fnuz|fn|_finite|)")
_SPECIALS: dict[str, Special] = {"": "ieee", "_ieee": "ieee", "fn": "fn", "fnuz": "fnuz", "_finite": "none"}
_PREFIXES = ("torch.", "numpy.", "np.", "jnp.", "jax.numpy.", "ml_dtypes.", "tf.")


class UnknownFormatError(SentenceError, ValueError):
    """No such format; the message names it and the nearest ones."""


@dataclass(frozen=True)
class Prose:
    """Facts about a format in one sentence each; `torch` is the call that gives it.

    `source` names the documents that define the format, by the keys of sources.json, each with the place in it.
    """

    strengths: str
    weaknesses: str
    used: str
    torch: str
    source: Mapping[str, str]


@cache
def _facts() -> dict[str, Any]:
    text = (resources() / "facts" / "formats.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


@cache
def formats() -> dict[str, Format]:
    """Every named format that stores single values, in the order of the table."""
    facts = _facts()
    named: list[Format] = [
        FloatFormat(
            name, row["title"], row["exponent_bits"], row["mantissa_bits"], row["bias"], row["special"],
            row["sign_bits"], tuple(row["aliases"]),
        )
        for name, row in facts["floats"].items()
    ]  # fmt: skip
    named += [
        IntFormat(
            name, row["title"], row["bits"], row["signed"], power_of_two(row["step_exponent"]), tuple(row["aliases"])
        )
        for name, row in facts["integers"].items()
    ]
    named += [
        CodeBook(name, row["title"], row["bits"], tuple(Fraction(v) for v in row["values"]), tuple(row["aliases"]))
        for name, row in facts["codebooks"].items()
    ]
    return {fmt.name: fmt for fmt in named}


@cache
def blocks() -> dict[str, BlockFormat]:
    """The formats in which elements share a scale."""
    return {
        name: BlockFormat(name, row["title"], row["element"], row["scale"], row["block"], row["two_level"])
        for name, row in _facts()["blocks"].items()
    }


@dataclass(frozen=True)
class ScaleRuleFacts:
    """The formula of a rule for the power-of-two scale of an MX block, and the documents that give it."""

    formula: str
    source: Mapping[str, str]


@cache
def scale_rules() -> dict[str, ScaleRuleFacts]:
    """The rules for the power-of-two scale of an MX block."""
    return {name: ScaleRuleFacts(**row) for name, row in _facts()["scale_rules"].items()}


@cache
def prose(name: str) -> Prose | None:
    """Strengths, weaknesses and use of a named format or block format; None for a custom one."""
    facts = _facts()
    for group in ("floats", "integers", "codebooks", "blocks"):
        if row := facts[group].get(name):
            return Prose(row["strengths"], row["weaknesses"], row["used"], row["torch"], row["source"])
    return None


@cache
def _aliases() -> dict[str, str]:
    return {alias: name for name, fmt in formats().items() for alias in (name, *map(_normal, fmt.aliases))}


@cache
def get(name: str) -> Format:
    """The format of that name: a key of the table, a spelling of torch, NumPy or ml_dtypes, or a custom eXmY.

    eXmY has X exponent and Y mantissa bits and is IEEE-like. A suffix chooses other special values (`fn`, `fnuz`,
    `_finite`, `_ieee`), `bN` another bias, a leading `u` drops the sign. Raises UnknownFormatError.
    """
    key = _normal(name)
    if key in _aliases():
        return formats()[_aliases()[key]]
    if match := _CUSTOM.fullmatch(key):
        return _custom(key, *match.groups())
    near = difflib.get_close_matches(key, [*_aliases(), *blocks()], n=3, cutoff=0.5)
    if key in blocks():
        raise UnknownFormatError(Sentence("{name} is a block format: it has no code for a single value", name=name))
    sentence = _NO_FORMAT_NEAR if near else _NO_FORMAT
    raise UnknownFormatError(filled(sentence, name=repr(_short(name)), near=", ".join(near)))


def bits_per_value(name: str) -> float:
    """Bits of one stored value of a format, the share of its block's scale included. Raises UnknownFormatError."""
    block = blocks().get(name)
    return block.bits_per_value(get(block.element).bits) if block else float(get(name).bits)


def _normal(name: str) -> str:
    key = name.strip().lower()
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key.replace("-", "_").replace(" ", "_")


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:37]}..."


def _custom(key: str, unsigned: str, exponent: str, mantissa: str, bias: str | None, suffix: str) -> FloatFormat:
    exponent_bits, mantissa_bits = int(exponent), int(mantissa)
    if exponent_bits > MAX_EXPONENT_BITS or mantissa_bits > MAX_MANTISSA_BITS:
        raise UnknownFormatError(
            Sentence(
                "{key} is too wide: at most {max_exponent_bits} exponent bits and {max_mantissa_bits} mantissa bits",
                key=key,
                max_exponent_bits=MAX_EXPONENT_BITS,
                max_mantissa_bits=MAX_MANTISSA_BITS,
            )
        )
    if exponent_bits + mantissa_bits == 0:
        raise UnknownFormatError(Sentence("{key} has no bits for a value: give it exponent or mantissa bits", key=key))
    special = _SPECIALS[suffix]
    if special == "fn" and exponent_bits + mantissa_bits < 2:
        raise UnknownFormatError(Sentence("{key} would have nothing but zero and NaN: give it more bits", key=key))
    default = (1 << (exponent_bits - 1)) - 1 if exponent_bits else 1
    if special == "fnuz":
        default += 1
    chosen = default if bias is None else int(bias)
    fmt = FloatFormat(key, _title(exponent_bits, mantissa_bits, special), exponent_bits, mantissa_bits, chosen,
                      special, 0 if unsigned else 1)  # fmt: skip
    if fmt.max_ordinal < 1:
        raise UnknownFormatError(
            Sentence("{key} has no value but zero: give it another bit, or the suffix _finite", key=key)
        )
    return fmt


def _title(exponent_bits: int, mantissa_bits: int, special: Special) -> str:
    if not exponent_bits:
        return Sentence(
            "Custom fixed point: {mantissa_bits} fraction bits in [0, 1), sign", mantissa_bits=mantissa_bits
        )
    kinds = {"ieee": "IEEE-like", "fn": L_("NaN but no infinity"), "fnuz": "FNUZ", "none": L_("finite values only")}
    return Sentence(
        "Custom: {exponent_bits} exponent, {mantissa_bits} mantissa bits, {kinds}",
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        kinds=kinds[special],
    )
