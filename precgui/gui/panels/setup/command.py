"""The settings of a run as what differs from a recipe or a file, and as the command that does the same."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from precgui.config import RunConfig, table_paths, table_text
from precgui.sweeps.spec import SweepSpec

_PLAIN = re.compile(r"[a-z][a-z0-9_:-]*")
_WORDS_OF_TOML = ("true", "false", "inf", "nan", "none")


def changes(base: Mapping[str, Any], tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of all that differs from `base`."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and prefix + name not in table_paths():
            yield from changes(base[name], value, f"{prefix}{name}.")
        elif value != base[name]:
            yield prefix + name, value


def value_text(value: object) -> str:
    """A value as `--set` reads it back."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return table_text(value)
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _WORDS_OF_TOML:
        return value
    return json.dumps(value, ensure_ascii=False)


def command(source: str, base: RunConfig, config: RunConfig) -> str:
    """The command line that starts `config`, as its differences from `source`, a recipe or a TOML file."""
    words = ["precgui", "run", source]
    for path, value in changes(base.model_dump(), config.model_dump()):
        words += ["--set", f"{path}={value_text(value)}"]
    return shlex.join(words)


def study_command(source: str, base: RunConfig, config: RunConfig, spec: SweepSpec) -> str:
    """The command line that runs a study of `config`, as its differences from `source`."""
    words = ["precgui", "sweep", source, "--precisions", ",".join(spec.precisions), "--seeds", str(spec.seeds)]
    words += ["--baseline", spec.baseline]
    words += ["--timing-rounds", str(spec.timing_rounds)] if spec.timing_rounds else []
    for path, values in spec.vary.items():
        words += ["--vary", f"{path}={','.join(map(value_text, values))}"]
    for path, value in changes(base.model_dump(), config.model_dump()):
        words += ["--set", f"{path}={value_text(value)}"] if path not in ("precision", "seed", "title") else []
    return shlex.join(words)
