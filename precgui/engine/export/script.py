"""A run as a PyTorch script that needs no precgui: its loop and its settings, with the modules it uses in a folder."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precgui import __version__
from precgui.config import OWN_LOOP, RunConfig, is_own_task, no_start
from precgui.config.new_places import package_name
from precgui.engine import precisions, tasks
from precgui.engine.errors import EngineError
from precgui.engine.export import loop
from precgui.engine.export.modules import copied
from precgui.engine.parallel.agreement import PLACES
from precgui.sentences import L_, Sentence

_SECTIONS = ("task", "seed", "precision", "model", "data", "train", "optimizer", "scaling", "precision_options", "qat")


def write_script(config: RunConfig, environment: Mapping[str, Any], path: Path) -> list[Path]:
    """Write the script and the package that it imports beside it; returns both paths.

    `environment` is the run's (device, threads, data). Raises EngineError when one of them exists or cannot be written.
    """
    text = script(config, environment)
    package = path.with_name(package_name(path))
    for place in (path, package):
        if place.exists():
            raise EngineError(Sentence("{path} already exists; choose another name or delete it first", path=place))
    try:
        path.write_text(copied(text, package), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(package, ignore_errors=True)
        raise EngineError(
            Sentence("{path} cannot be written: {why}; choose another place", path=path, why=error.strerror)
        ) from None
    return [path, package]


def script(config: RunConfig, environment: Mapping[str, Any]) -> str:
    """The text of the script, with imports from precgui. Raises EngineError for a run that has no script."""
    if config.train.rounding_twin:
        raise EngineError(L_("a rounding twin has no script of its own: export the run that it is the twin of"))
    if config.parallel.strategy != "none":
        raise EngineError(
            Sentence(
                "parallel.strategy = {strategy}: a script has one process; export a run of one process",
                strategy=config.parallel.strategy,
            )
        )
    if config.pruning.method != "none":
        raise EngineError(
            Sentence(
                "pruning.method = {method}: a script has no masks; export a run that is not pruned",
                method=config.pruning.method,
            )
        )
    if config.precision_schedule:
        raise EngineError(L_("precision_schedule: a script has one precision; export a run without a schedule"))
    if config.adapter.kind != "none":
        raise EngineError(
            L_("adapter.kind = lora: a script has no adapters; adapter.save_to keeps the weights of a run")
        )
    if config.task == OWN_LOOP:
        raise EngineError(no_start(L_("this run"), L_("its script is the one that recorded it")))
    recorded = environment.get("data")
    facts = {str(k): v for k, v in recorded.items() if _is_plain(v)} if isinstance(recorded, Mapping) else {}
    threads = environment.get("threads")
    threads = threads if isinstance(threads, int) and 0 < threads < 1 << 16 else config.threads or 1
    title = "".join(c if c.isprintable() else " " for c in config.display_title).replace("\\", "/").replace('"', "'")
    values = {
        "DEVICE, THREADS": f"{str(environment.get('device') or 'cpu')!r}, {threads}",
        "CONFIG: dict[str, Any]": _table(_settings(config, facts)),
        "DATA: dict[str, Any]": _table({name: value for name, value in facts.items() if name not in PLACES}),
    }
    head = f'"""{title}: a run of precgui {__version__} as a PyTorch script."""'
    text = re.sub(r'\A""".*?"""', lambda _: head, Path(loop.__file__).read_text(encoding="utf-8"))
    for role, kind in (("RunPrecision", precisions.chosen(config)), ("RunTask", tasks.maker(config))):
        line = f"from {kind.__module__} import {kind.__name__} as {role}"
        text = re.sub(rf"^from \S+ import \w+ as {role}$", line, text, flags=re.MULTILINE)
    for name, value in values.items():
        begin = text.index(f"\n{name} = ") + len(f"\n{name} = ")
        text = text[:begin] + value + text[text.index("\n", begin) :]
    return text


def _settings(config: RunConfig, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that the copied modules read, as plain values."""
    requested = config.model_dump(mode="json", include=set(_SECTIONS))
    requested["model_name"] = config.model_name
    requested["qat"]["save_to"] = requested["train"]["save_to"] = ""
    if is_own_task(config.task):
        requested["task"] = _own_task(config.task, facts)
    else:
        result = facts.get("folder") or (facts.get("source") if config.data.path else "")
        requested["data"]["path"] = str(result or config.data.path)
    return requested


def _own_task(task: str, facts: Mapping[str, Any]) -> str:
    """The task with the whole path of its file, so that the script finds it from anywhere."""
    place, _, function = task.rpartition(":")
    kept = Path(str(facts.get("file", "")))
    named = Path(place).expanduser().parts
    same = kept.is_absolute() and kept.parts[-len(named) :] == named  # a file of others may name any
    return f"{kept}:{function}" if same and place.endswith(".py") else task


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _table(values: Mapping[str, Any]) -> str:
    return "\n".join(["{", *(f"    {key!r}: {value!r}," for key, value in values.items()), "}"])
