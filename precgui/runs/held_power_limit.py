"""A power limit that one run holds: set before it, set back after it, also by the next process where it was killed.

The limit before is written to the state folder before it is changed, with the process that changes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from precgui import paths
from precgui.errors import SentenceError
from precgui.hardware.power_limit import PowerLimit, find_power_limit, power_limits, set_power_limit
from precgui.hardware.readings import Missing
from precgui.runs.file.process import is_gone, this_process
from precgui.safe_open import read_text
from precgui.sentences import Sentence

_MOST_BYTES = 10_000


class PowerLimitError(SentenceError):
    """The limit cannot be set."""


def folder() -> Path:
    """Where the limits before are kept while a run holds another one."""
    return paths.state_dir() / "power-limits"


@contextmanager
def held_power_limit(uuid: str, watts: float) -> Iterator[None]:
    """Set the limit of the GPU with this UUID for the block. Raises PowerLimitError where the driver refuses it."""
    restore_left_limits()
    limit = find_power_limit(uuid)
    if isinstance(limit, Missing):
        raise PowerLimitError(
            Sentence(
                "power.limit_w = {watts:g}: the limit of this GPU cannot be read: {reason}",
                watts=watts,
                reason=limit.reason,
            )
        )
    if outside := _outside_of_range(limit, watts):
        raise PowerLimitError(outside)
    record = folder() / f"{limit.uuid}.json"
    _write(record, limit.uuid, limit.name, limit.present_w)
    try:
        refused = set_power_limit(uuid, watts)
        if refused is not None:
            raise PowerLimitError(
                Sentence(
                    "power.limit_w = {watts:g} cannot be set on {device}: {reason}; or leave it empty",
                    watts=watts,
                    device=limit.name,
                    reason=refused.reason,
                )
            )
        yield
    finally:
        set_power_limit(uuid, limit.present_w)
        record.unlink(missing_ok=True)


def restore_left_limits() -> list[str]:
    """Set back the limits of runs that were killed; a sentence for each, also where the driver refuses it."""
    records = sorted(folder().glob("*.json")) if folder().is_dir() else []
    return [sentence for path in records if (sentence := _restore(path))]


def why_no_such_limit(watts: float) -> str:
    """Why no GPU of this machine takes this limit, as far as the driver tells without a trial; else empty."""
    limits = power_limits()
    if isinstance(limits, Missing):
        return Sentence("power.limit_w cannot be set on this machine: {reason}; leave it empty", reason=limits.reason)
    outside = [_outside_of_range(limit, watts) for limit in limits]
    return outside[0] if all(outside) else ""


def _outside_of_range(limit: PowerLimit, watts: float) -> str:
    if limit.least_w <= watts <= limit.most_w:
        return ""
    return Sentence(
        "power.limit_w = {watts:g} is outside the range of {device}; choose {least:g} to {most:g}",
        watts=watts,
        device=limit.name,
        least=limit.least_w,
        most=limit.most_w,
    )


def why_no_power_limit() -> str:
    """Why no run on this machine can set a limit, as a sentence; empty where it can, or where only a trial tells.

    The trial sets each limit to what it is.
    """
    limits = power_limits()
    if isinstance(limits, Missing):
        return Sentence("power.limit_w cannot be set on this machine: {reason}", reason=limits.reason)
    refusals = [set_power_limit(limit.uuid, limit.present_w) for limit in limits]
    first = refusals[0]
    if first is None or any(refused is None for refused in refusals):
        return ""
    return Sentence("power.limit_w cannot be set on {device}: {reason}", device=limits[0].name, reason=first.reason)


def _write(record: Path, uuid: str, name: str, watts: float) -> None:
    document = {"uuid": uuid, "name": name, "limit_w": watts, "process": this_process()}
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with record.open("x", encoding="utf-8") as file:
            json.dump(document, file)
    except FileExistsError:
        raise PowerLimitError(
            Sentence(
                "power.limit_w: another run holds the power limit of {device}; wait for its end, or delete {file}",
                device=name,
                file=record,
            )
        ) from None
    except OSError as error:
        raise PowerLimitError(
            Sentence(
                "power.limit_w: the limit of {device} cannot be noted in {folder} ({why}), so it would not be set back "
                "after a kill; choose another PRECGUI_STATE",
                device=name,
                folder=record.parent,
                why=error.strerror,
            )
        ) from None


def _restore(path: Path) -> str:
    document = _read(path)
    process = document.get("process")
    if document and isinstance(process, Mapping) and is_gone(process) is not True:
        return ""
    uuid, name, watts = document.get("uuid"), document.get("name"), document.get("limit_w")
    if not (isinstance(uuid, str) and isinstance(watts, int | float)):
        path.unlink(missing_ok=True)
        return ""
    refused = set_power_limit(uuid, float(watts))
    if refused is not None:
        return Sentence(
            "The power limit of {device}, {watts:g} W before a run that was killed, is not set back: {reason}.",
            device=name,
            watts=watts,
            reason=refused.reason,
        )
    path.unlink(missing_ok=True)
    return Sentence(
        "The power limit of {device} is {watts:g} W again, as it was before a run that was killed.",
        device=name,
        watts=watts,
    )


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        document = json.loads(read_text(path, _MOST_BYTES))
        return document if isinstance(document, dict) else {}
    return {}
