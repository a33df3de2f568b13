"""Results of `precgui replay` in side files of a run, readable without torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precgui.regular_files import read_text, replace_file
from precgui.runs.errors import RunFileError

_LARGEST = 1 << 22
_Text = Annotated[str, Field(max_length=4000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class ReplayedLine(_Part):
    """The part of one source line in the error of the gradient; see `docs/shadow.md`."""

    line: _Text
    module: _Text
    source: _Text = ""
    share: float
    avoidable: float = 0.0
    left_predicted: float | None = None
    left_measured: float | None = None


class NonFinitePlaceRecord(_Part):
    """The operation that made the first NaN or Inf."""

    operation: _Text
    module: _Text
    line: _Text
    backward: bool


class ErrorMechanisms(_Part):
    """Shares of the error by how it came about; `flips` None where decisions change the shape of a value."""

    flush: float
    rounding: float
    casts: float
    flips: float | None
    overflow: float


class StepReplay(_Part):
    """One step of a run beside its FP64 shadow. None: not a number in this step."""

    format_version: Literal[1] = 1
    step: Annotated[int, Field(ge=1)]
    verdict: Literal["healthy", "problems", "not explained"]
    message: _Text
    precision_is_to_blame: bool | None
    gradient_error: float | None
    ideal_error: float | None
    explained: float | None
    mechanisms: ErrorMechanisms
    lines: Annotated[list[ReplayedLine], Field(max_length=1000)]
    first_nonfinite: NonFinitePlaceRecord | None
    blamed: Annotated[list[_Text], Field(max_length=100)] = []
    notes: Annotated[list[_Text], Field(max_length=1000)] = []


def replay_path(run: Path, step: int) -> Path:
    """The side file of a replayed step: `RUN.h5.replay-000042.json`."""
    return run.with_name(f"{run.name}.replay-{step:06d}.json")


def snapshot_path(run: Path, step: int) -> Path:
    """The file that the engine keeps of a step: `RUN.h5.step-000042.safetensors`."""
    return run.with_name(f"{run.name}.step-{step:06d}.safetensors")


def write_replay(run: Path, replay: StepReplay) -> Path:
    """Write or replace the side file of a step; returns its path. Raises RunFileError when that cannot be done."""
    path = replay_path(run, replay.step)
    try:
        replace_file(path, json.dumps(replay.model_dump(), ensure_ascii=False, indent=1, allow_nan=False).encode())
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def read_replay(run: Path, step: int) -> StepReplay | None:
    """The replay of a step that is kept beside a run; None without one that can be read."""
    try:
        return StepReplay.model_validate_json(read_text(replay_path(run, step), _LARGEST))
    except (OSError, ValueError, ValidationError):
        return None


def read_replays(run: Path) -> list[StepReplay]:
    """The replays beside a run, by step; files that are none are left out."""
    results = []
    for path in side_files(run, "replay"):
        try:
            results.append(StepReplay.model_validate_json(read_text(path, _LARGEST)))
        except (OSError, ValueError, ValidationError):
            continue
    return sorted(results, key=lambda replay: replay.step)


def side_files(run: Path, kind: str) -> list[Path]:
    """The files `RUN.h5.KIND-000042.json` beside a run, by name."""
    pattern = re.compile(re.escape(run.name) + rf"\.{kind}-\d{{6,9}}\.json")
    files = run.parent.glob(f"{_escaped(run.name)}.{kind}-*.json")
    return sorted(path for path in files if pattern.fullmatch(path.name))


def _escaped(name: str) -> str:
    """A file name as a pattern that matches itself."""
    return re.sub(r"([*?\[])", r"[\1]", name)
