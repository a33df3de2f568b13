"""The parts of a kept profile that are read, with their types: a file of somebody else may hold anything in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_LONGEST_S = 1e6  # eleven days: no part of a step takes that long
_Seconds = Annotated[float, Field(ge=0, le=_LONGEST_S, allow_inf_nan=False)]
_Count = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=1000)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Side(_Part):
    step_s: _Seconds
    data_s: _Seconds
    products_s: _Seconds
    casts_s: _Seconds
    others_s: _Seconds
    gaps_s: _Seconds
    profiled_s: _Seconds
    calls: _Count
    kinds: dict[_Text, _Seconds]
    uncertainty: _Count | None = None
    repeated: dict[_Text, list[_Count]] = {}


class _Peak(_Part):
    format: _Text
    ratio: _Count | None
    size: _Count | None = None
    note: _Text = ""


class _Settings(_Part):
    batch_size: int
    workers: int
    compile: bool
    keep_fp32: list[_Text] = []


class _Layer(_Part):
    module: _Text
    phase: _Text
    kind: _Text
    fp32_s: _Seconds
    run_s: _Seconds


class _Operation(_Part):
    operation: _Text
    module: _Text
    phase: _Text
    kind: _Text
    executed: _Text
    calls: _Count
    seconds: _Seconds
    flops: _Count
    shapes: list[Any]
    holds: list[_Text] | None = None


class _Device(_Part):
    name: _Text


class _Memory(_Part):
    difference: _Text | None = None
    residual: Annotated[float, Field(allow_inf_nan=False)] | None = None


class _Trial(_Part):
    settings: dict[_Text, _Text]
    gains: list[_Count]
    fault: _Text


class _Profile(_Part):
    title: _Text
    precision: _Text
    device: _Device
    fp32: _Side
    run: _Side
    peak: _Peak
    settings: _Settings
    rounds: list[_Count]
    cpu_share: _Count | None = None
    layers: list[_Layer]
    operations: list[_Operation]
    memory: _Memory
    trials: list[_Trial] = []
    notes: list[_Text]


def check_types(document: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the first place of a document that is none of a profile."""
    try:
        _Profile.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place[:100]}: {first['msg']}") from None
