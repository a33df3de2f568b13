"""A run as the command that starts it: `precgui run SOURCE --set path=value ...`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from precgui.config import RunConfig

_PLAIN = re.compile(r"[a-z][a-z0-9_:-]*")
_WORDS_OF_TOML = ("true", "false", "inf", "nan", "none")


def changes(base: Mapping[str, Any], tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of all that differs from `base`."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from changes(base[name], value, f"{prefix}{name}.")
        elif value != base[name]:
            yield prefix + name, value


def value_text(value: object) -> str:
    """A value as `--set` reads it back."""
    if value is None:
        return "none"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _WORDS_OF_TOML:
        return value
    return json.dumps(value, ensure_ascii=False)


def command(source: str, base: RunConfig, config: RunConfig) -> str:
    """The command line that starts `config`, told as what differs from `source`, a recipe or a TOML file."""
    words = ["precgui", "run", source]
    for path, value in changes(base.model_dump(), config.model_dump()):
        words += ["--set", f"{path}={value_text(value)}"]
    return shlex.join(words)
