"""Results of `precgui replay --layers` in side files of a run, readable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from precgui.config.names import check_precision
from precgui.runs.side_files import SideFilePart, SideFiles, Text

_Text = Annotated[str, Field(max_length=1000)]
_Sentence = Annotated[Text, Field(max_length=1000)]
MOST_PRECISIONS = 5
_EXACT = "fp64"
_Names = Annotated[list[_Text], Field(max_length=MOST_PRECISIONS)]


class LayerDistance(SideFilePart):
    """The distance of a layer's numbers from FP64. None: not finite, or zero in FP64."""

    relative_l2: float | None
    cosine: float | None
    sqnr_db: float | None


class LayerRecord(SideFilePart):
    """One layer: distances of its output and of its weights' gradients, by precision."""

    name: _Text
    kind: _Text
    forward: dict[_Text, LayerDistance]
    gradient: dict[_Text, LayerDistance]


class LayersReplay(SideFilePart):
    """One batch of a step in several precisions; layers in the order of the forward pass."""

    format_version: Literal[1] = 1
    step: Annotated[int, Field(ge=1)]
    precisions: _Names
    losses: dict[_Text, float | None]
    scales: dict[_Text, float]
    layers: Annotated[list[LayerRecord], Field(max_length=20_000)]
    notes: Annotated[list[_Sentence], Field(max_length=100)] = Field(default_factory=list)


def compared_precisions(names: Sequence[str]) -> list[str]:
    """The precisions that layers are to be compared in, each once and under its own name.

    Raises ValueError for an unknown name, for fp64, and for none or more than `MOST_PRECISIONS`.
    """
    known = list(dict.fromkeys(check_precision(name) for name in names))
    if _EXACT in known:
        raise ValueError(f"{_EXACT} is what the others are compared with; leave it out")
    if not 1 <= len(known) <= MOST_PRECISIONS:
        raise ValueError(f"name 1 to {MOST_PRECISIONS} precisions, not {len(known)}")
    return known


LAYERS = SideFiles("layers", LayersReplay, 1 << 23)
