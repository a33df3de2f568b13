"""From TOML, recipes and `--set` to a config and back; every fault is one sentence with its path."""

from __future__ import annotations

import difflib
import functools
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from precgui.config.recipes import RECIPES
from precgui.config.tree import RunConfig
from precgui.errors import SentenceError
from precgui.safe_open import read_text
from precgui.sentences import L_, Sentence, together

MOST_TOML_BYTES = 1 << 20
MOST_KEY_PARTS = 100
_GONE = {  # keys of earlier versions, each with the way to go on
    "qat.backend": L_(
        "torchao trains no runs any more: leave the key out, keep the integers with qat.save_to = auto and "
        "hand them to torchao with `precgui export RUN.h5 --pt2 FILE.pt2`"
    ),
}
_UNKNOWN = L_("unknown key; `precgui run --keys` lists the known ones")
_LONG_KEY = re.compile(rf"(?:[\w\"'-]+[ \t]*\.[ \t]*){{{MOST_KEY_PARTS}}}")  # the parser takes quadratic time for one


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
        return _UNKNOWN
    return Sentence(
        "unknown key; did you mean {names}? `precgui run --keys` lists the known ones",
        names=together(*near[:3], between=" or "),
    )


def _sentence(error: Any) -> str:
    """One pydantic error as a sentence that names the value and the cure."""
    kind, ctx = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _GONE.get(_path(error["loc"])) or _unknown(str(error["loc"][-1]))
    displayed = _short(error["input"])
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
        "value_error": fault_of(ctx.get("error")),
    }
    return known.get(kind, f"{displayed}: {error['msg'][:1].lower()}{error['msg'][1:]}")


def _short(value: object, limit: int = 60) -> str:
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


def load(source: str | Path, settings: Iterable[str] = ()) -> RunConfig:
    """Read a recipe by name or a TOML file, then apply `key.path=value` settings. Raises ConfigError."""
    return build(_tree(source, settings))


def is_precision_auto(source: str | Path, settings: Iterable[str] = ()) -> bool:
    """Whether a config asks for formats that are searched for before the run. Raises ConfigError."""
    return bool(_tree(source, settings).get("precision") == "auto")


def _tree(source: str | Path, settings: Iterable[str]) -> dict[str, Any]:
    tree = _recipe_tree(str(source)) if str(source) in RECIPES else _toml_tree(Path(source))
    for setting in settings:
        _apply(tree, setting)
    return tree


def change(config: RunConfig, settings: Iterable[str]) -> RunConfig:
    """The config with `key.path=value` settings applied. Raises ConfigError."""
    tree = config.model_dump()
    for setting in settings:
        _apply(tree, setting)
    return build(tree)


def _recipe_tree(name: str) -> dict[str, Any]:
    return RECIPES[name][1].model_dump()


def _toml_tree(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except FileNotFoundError:
        names = ", ".join(RECIPES)
        raise ConfigError(
            {"": Sentence("{path} is neither a file nor a recipe; the recipes are {names}", path=path, names=names)}
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError({"": toml_fault(path, error, L_("a TOML file"))}) from None


def toml_fault(path: Path, error: OSError | ValueError, choose: str) -> str:
    """The sentence on a file that `read_toml` could not read; `choose` names the file that a user should choose."""
    if isinstance(error, OSError):
        return Sentence(
            "{path} cannot be read: {reason}; choose {choose}", path=path, reason=error.strerror, choose=choose
        )
    if isinstance(error, UnicodeDecodeError):
        return Sentence("{path} cannot be read: it is no text in UTF-8; save it as one", path=path)
    return Sentence("{path} is not valid TOML: {error}", path=path, error=error)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file. Raises OSError, and ValueError for what is not TOML or is nested too deeply."""
    return parse_toml(read_text(path, MOST_TOML_BYTES))


def parse_toml(text: str) -> dict[str, Any]:
    """The table that a TOML text means. Raises ValueError, also for one that would take the parser's memory or time."""
    if _LONG_KEY.search(text):
        raise ValueError(Sentence("a key has more than {most} parts", most=MOST_KEY_PARTS))
    try:
        table = tomllib.loads(text)
        repr(table)  # a hexadecimal number can be longer than what Python writes as a decimal one
    except RecursionError:
        raise ValueError(L_("it is nested too deeply")) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # of int() and repr(), which name a setting of Python
        raise ValueError(Sentence("a number has more than {most} digits", most=sys.get_int_max_str_digits())) from None
    return table


def _apply(tree: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise ConfigError(
            {
                "": Sentence(
                    "--set {setting} has no value; write key=value, e.g. optimizer.lr=0.01", setting=_short(setting)
                )
            }
        )
    *parents, last = path.strip().split(".")
    if len(parents) >= MOST_KEY_PARTS:
        raise ConfigError(
            {
                "": Sentence(
                    "--set {setting}: a key has more than {most} parts",
                    setting=_short(setting),
                    most=MOST_KEY_PARTS,
                )
            }
        )
    for parent in parents:
        child = tree.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError({path.strip(): _UNKNOWN})
        tree = child
    tree[last] = _value(text.strip())


def _value(text: str) -> Any:
    """A setting's text as a TOML value when it is one (0.1, true, [1, 2]), as plain text otherwise."""
    if not text:
        return None
    try:
        return parse_toml(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:  # a number of too many digits, or lists in lists without end
        raise ConfigError({"": Sentence("--set {text}: {error}", text=_short(text), error=error)}) from None


def to_toml(config: RunConfig) -> str:
    """The config as TOML that `load` reads back to an equal config."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def key_table() -> list[tuple[str, str, Any]]:
    """Every config path with its help text and default, in the order of the form."""
    return list(_walk(RunConfig, ""))


@functools.cache
def table_paths() -> frozenset[str]:
    """The config paths whose value is a table of names and texts, not a section."""
    return frozenset(path for path, _, default in key_table() if isinstance(default, dict))


def table_text(table: Mapping[str, str]) -> str:
    """A table as `--set` and the form read it back: `name=text, name=text`."""
    return ", ".join(f"{name}={text}" for name, text in table.items())


def _walk(section: type[BaseModel], prefix: str) -> Iterable[tuple[str, str, Any]]:
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info.description or "", info.default
