"""From a tree of plain values to a config: every fault is one sentence with its path."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from precgui.config.tree import RunConfig
from precgui.errors import SentenceError
from precgui.sentences import L_, Sentence, together

_GONE = {  # keys of earlier versions, each with the way to go on
    "qat.backend": L_(
        "torchao trains no runs any more: leave the key out, keep the integers with qat.save_to = auto and "
        "hand them to torchao with `precgui export RUN.h5 --pt2 FILE.pt2`"
    ),
}
_NO_NUMBER, _NO_WHOLE = ("float_parsing", "float_type"), ("int_parsing", "int_type", "int_from_float")
UNKNOWN = L_("unknown key; `precgui run --keys` lists the known ones")


class ConfigError(SentenceError, ValueError):
    """The config cannot be used; the message is one sentence per fault, with path, value and cure."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        self.faults = dict(faults)
        super().__init__(together(*map(placed_fault, self.faults, self.faults.values()), between="; "))


def placed_fault(path: str, fault: str) -> Sentence:
    """A fault behind the path of its setting; the path is empty where it is of the whole."""
    return Sentence("{path}: {fault}", path=path, fault=fault) if path else together(fault)


def build(tree: Mapping[str, Any]) -> RunConfig:
    """Validate a tree of plain values. Raises ConfigError with one sentence for each fault, keyed by path."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError({_path(e["loc"]): _sentence(e) for e in error.errors()}) from None


def build_accepted(tree: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """The config without the settings that this version does not know or accept, and their paths in order.

    Raises ConfigError where nothing can be made of the tree.
    """
    kept: dict[str, Any] = _copy(tree)
    refused: list[str] = []
    for _ in range(2):
        try:
            return build(kept), refused
        except ConfigError as error:
            for path in error.faults:
                refused.append(path)
                _remove(kept, path)
    return build(kept), refused


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _remove(tree: dict[str, Any], path: str) -> None:
    *parents, last = path.split(".")
    branch: Any = tree
    for parent in parents:
        branch = branch.get(parent) if isinstance(branch, dict) else None
    if isinstance(branch, dict):
        branch.pop(last, None)


def _path(loc: Iterable[int | str]) -> str:
    return ".".join(str(part) for part in loc)


def _unknown(name: str) -> str:
    """The sentence about a key that is none, with the keys that end in this name or in one like it."""
    endings = {path: path.rpartition(".")[2] for path, _, _ in key_table()}
    alike = difflib.get_close_matches(name, set(endings.values()), 1, 0.75)
    near = [path for path, ending in endings.items() if ending in alike]
    if not near:
        return UNKNOWN
    return Sentence(
        "unknown key; did you mean {names}? `precgui run --keys` lists the known ones",
        names=together(*near[:3], between=" or "),
    )


def _sentence(error: Any) -> str:
    """One pydantic error as a sentence that names the value and the cure."""
    kind, ctx = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _GONE.get(_path(error["loc"])) or _unknown(str(error["loc"][-1]))
    displayed = shortened(error["input"])
    if kind in (*_NO_NUMBER, *_NO_WHOLE) and error["input"] in (None, ""):
        return L_("a number is missing")
    known = {
        "literal_error": Sentence("{displayed} is not one of {names}", displayed=displayed, names=ctx.get("expected")),
        "greater_than_equal": Sentence(
            "{displayed} is too small, the least is {limit}", displayed=displayed, limit=ctx.get("ge")
        ),
        "greater_than": Sentence(
            "{displayed} is too small, it must be above {limit}", displayed=displayed, limit=ctx.get("gt")
        ),
        "less_than_equal": Sentence(
            "{displayed} is too large, the most is {limit}", displayed=displayed, limit=ctx.get("le")
        ),
        "less_than": Sentence(
            "{displayed} is too large, it must be below {limit}", displayed=displayed, limit=ctx.get("lt")
        ),
        "string_pattern_mismatch": Sentence(
            "{displayed} is not a device; use auto, cpu, cuda, cuda:N, mps or xpu", displayed=displayed
        ),
        "string_too_long": Sentence(
            "{count} characters are too many, the most is {limit}",
            count=_length(error["input"]),
            limit=ctx.get("max_length"),
        ),
        "finite_number": Sentence("{displayed} is not a finite number", displayed=displayed),
        **dict.fromkeys(
            _NO_NUMBER,
            Sentence("{displayed} is not a number; write it as 0.05 or 5e-2", displayed=displayed),
        ),
        **dict.fromkeys(_NO_WHOLE, Sentence("{displayed} is not a whole number", displayed=displayed)),
        "int_parsing_size": Sentence("{displayed} is too large", displayed=displayed),
        **dict.fromkeys(
            ("bool_parsing", "bool_type"), Sentence("{displayed} is neither true nor false", displayed=displayed)
        ),
        "string_type": Sentence("{displayed} is not a text", displayed=displayed),
        "value_error": fault_of(ctx.get("error")),
    }
    return known.get(kind, f"{displayed}: {error['msg'][:1].lower()}{error['msg'][1:]}")


def shortened(value: object, limit: int = 60) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer as long as the one that a hexadecimal number can be
        return L_("a number of too many digits")
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def fault_of(error: object) -> str:
    """The message of an error as it was made: a sentence stays one."""
    return (
        error.args[0] if isinstance(error, ValueError) and error.args and isinstance(error.args[0], str) else str(error)
    )


def _length(value: object) -> int:
    return len(value) if isinstance(value, str) else 0


def key_table() -> list[tuple[str, str, Any]]:
    """Every config path with its help text and default, in the order of the form."""
    return list(_walk(RunConfig, ""))


@functools.cache
def table_paths() -> frozenset[str]:
    """The config paths whose value is a table of names and texts, not a section."""
    return frozenset(path for path, _, default in key_table() if isinstance(default, dict))


def _walk(section: type[BaseModel], prefix: str) -> Iterable[tuple[str, str, Any]]:
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info.description or "", info.default
