"""Results of `precgui replay --layers` in side files of a run, readable without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from precgui.regular_files import read_text, replace_file
from precgui.runs.errors import RunFileError
from precgui.runs.replays import side_files

_LARGEST = 1 << 23
_Text = Annotated[str, Field(max_length=1000)]
_Names = Annotated[list[_Text], Field(max_length=5)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class LayerDistance(_Part):
    """The distance of a layer's numbers from FP64. None: not finite, or zero in FP64."""

    relative_l2: float | None
    cosine: float | None
    sqnr_db: float | None


class LayerRecord(_Part):
    """One layer: distances of its output and of its weights' gradients, by precision."""

    name: _Text
    kind: _Text
    forward: dict[_Text, LayerDistance]
    gradient: dict[_Text, LayerDistance]


class LayersReplay(_Part):
    """One batch of a step in several precisions; layers in the order of the forward pass."""

    format_version: Literal[1] = 1
    step: Annotated[int, Field(ge=1)]
    precisions: _Names
    losses: dict[_Text, float | None]
    scales: dict[_Text, float]
    layers: Annotated[list[LayerRecord], Field(max_length=20_000)]
    notes: Annotated[list[_Text], Field(max_length=100)] = []


def layers_path(run: Path, step: int) -> Path:
    """The side file: `RUN.h5.layers-000042.json`."""
    return run.with_name(f"{run.name}.layers-{step:06d}.json")


def write_layers(run: Path, replay: LayersReplay) -> Path:
    """Write or replace the side file of a step; returns its path. Raises RunFileError when that cannot be done."""
    path = layers_path(run, replay.step)
    try:
        replace_file(path, json.dumps(replay.model_dump(), ensure_ascii=False, allow_nan=False).encode())
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def read_layers(run: Path) -> list[LayersReplay]:
    """The comparisons beside a run, by step; files that are none are left out."""
    results = []
    for path in side_files(run, "layers"):
        try:
            results.append(LayersReplay.model_validate_json(read_text(path, _LARGEST)))
        except (OSError, ValueError):
            continue
    return sorted(results, key=lambda replay: replay.step)
