"""From TOML, recipes and `--set` to a config and back; every fault is one sentence with its path."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli_w

from precgui.config.recipes import RECIPES
from precgui.config.toml_file import MOST_KEY_PARTS, parse_toml, read_toml, toml_fault
from precgui.config.tree import RunConfig
from precgui.config.validation import UNKNOWN, ConfigError, build, shortened
from precgui.sentences import L_, Sentence


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


def _apply(tree: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise ConfigError(
            {
                "": Sentence(
                    "--set {setting} has no value; write key=value, e.g. optimizer.lr=0.01", setting=shortened(setting)
                )
            }
        )
    *parents, last = path.strip().split(".")
    if len(parents) >= MOST_KEY_PARTS:
        raise ConfigError(
            {
                "": Sentence(
                    "--set {setting}: a key has more than {most} parts",
                    setting=shortened(setting),
                    most=MOST_KEY_PARTS,
                )
            }
        )
    for parent in parents:
        child = tree.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError({path.strip(): UNKNOWN})
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
        raise ConfigError({"": Sentence("--set {text}: {error}", text=shortened(text), error=error)}) from None


def to_toml(config: RunConfig) -> str:
    """The config as TOML that `load` reads back to an equal config."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))
