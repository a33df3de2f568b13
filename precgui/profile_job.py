"""A profile of a config whose suggested changes are tried in pairs, before they are told as a gain; in a child process
too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precgui.config import ConfigError, RunConfig, build, change
from precgui.config.refusals import refusals
from precgui.errors import SentenceError
from precgui.runs.speedup.profile_file import profile_path, write_profile
from precgui.runs.speedup.trials import TRIAL_S
from precgui.runs.speedup.waterfall import waterfall
from precgui.sentences import L_, Sentence, first_line, message_of, together

if TYPE_CHECKING:
    from precgui.process.child import StopToken

Say = Callable[[str], None]
Stopped = Callable[[], bool]


def profile_with_trials(
    config: RunConfig, say: Say = lambda _: None, stopped: Stopped = lambda: False, *, seconds: float,
    trials: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The profile of a config; with `trials`, each change that it suggests is measured beside the config in pairs.

    `seconds` are those for pairs of plain and profiled steps, and the most for each change. Raises EngineError and
    MemoryError where the profile cannot be made; a change that cannot be tried is told in it.
    """
    from precgui.engine.profile.document import profile_config

    document = profile_config(config, say, stopped, seconds=seconds)
    if trials:
        document["trials"] = _trials(config, document, say, stopped, min(seconds, TRIAL_S))
    return document


def _trials(
    config: RunConfig, document: Mapping[str, Any], say: Say, stopped: Stopped, seconds: float
) -> list[dict[str, Any]]:
    tried: list[dict[str, Any]] = []
    for factor in waterfall(document).causes():
        settings = dict(factor.settings)
        if not settings or stopped() or any(each["settings"] == settings for each in tried):
            continue
        trial: dict[str, Any] = {"settings": settings, "gains": [], "fault": ""}
        if settings == {"precision": "fp32"}:  # both sides of the profile, over the same batches
            trial["gains"] = [1 / ratio for ratio in document["rounds"] if ratio > 0]
        else:
            changes = ", ".join(f"{path} = {value}" for path, value in settings.items())
            say(Sentence("trying {changes} beside it", changes=changes))
            trial |= _tried(config, settings, stopped, seconds)
        tried.append(trial)
    return tried


def _tried(config: RunConfig, settings: Mapping[str, str], stopped: Stopped, seconds: float) -> dict[str, Any]:
    """The ratios of a change, or why there are none: some need a compiler, more memory, or another precision."""
    from precgui.engine.profile.paired_change import change_gains

    try:
        changed = change(config, [f"{path}={value}" for path, value in settings.items()])
        if found := refusals(changed):
            return {"fault": together(*found.values(), between="; ")}
        return {"gains": change_gains(config, changed, stopped, seconds=seconds)}
    except (ConfigError, SentenceError) as error:
        return {"fault": message_of(error)}
    except MemoryError:
        return {"fault": L_("there is not enough memory")}
    except Exception as error:  # noqa: BLE001 - of torch, such as of a compiler that is not there: told as the reason
        return {"fault": f"{type(error).__name__}: {first_line(error, 200)}"}


def serve_profile(
    emit: Callable[[Any], None], control: StopToken, *, config: Mapping[str, Any], path: str, seconds: float
) -> None:
    """Task of a child process: profiles a config and keeps the result beside the run file at `path`.

    `seconds` are those for pairs of plain and profiled steps.

    Emits `{"kind": "progress", "text"}` as it goes, then `{"kind": "kept"}` or `{"kind": "fault", "message"}`.
    """
    try:
        document = profile_with_trials(
            build(config), lambda text: emit({"kind": "progress", "text": text}), control.stopped, seconds=seconds
        )
        write_profile(profile_path(Path(path)), document)
    except (SentenceError, MemoryError) as error:
        emit({"kind": "fault", "message": message_of(error)})
    else:
        emit({"kind": "kept"})
