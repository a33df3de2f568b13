"""The section of a config that says which weights are set to zero, how many and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from precgui.config.section import Section, as_table
from precgui.sentences import L_, Sentence

_METHODS: list[JsonValue] = ["magnitude", "wanda", "2:4", "channels"]
_PRUNED: dict[str, JsonValue] = {"pruning.method": _METHODS}
_GRADUAL: dict[str, JsonValue] = {"pruning.method": [name for name in _METHODS if name != "2:4"]}


def _as_shares(value: Any) -> Any:
    """The table that `pattern=share, pattern=share` means, its shares as text; other values as they are."""
    table = as_table(value, "pattern=share", "head=0")
    if isinstance(table, Mapping):
        return {name: str(each) if isinstance(each, int | float) else each for name, each in table.items()}
    return table


def _check_shares(table: dict[str, str]) -> dict[str, str]:
    for pattern, text in table.items():
        try:
            share = float(text)
        except ValueError:
            raise ValueError(
                Sentence(
                    "{text!r} of {pattern} is not a number; write a share such as {pattern}=0.8",
                    text=text,
                    pattern=pattern,
                )
            ) from None
        if not 0 <= share < 1:
            raise ValueError(
                Sentence(
                    "{text} of {pattern} is no share of 1 below 1; 0 leaves the layer as it is",
                    text=text,
                    pattern=pattern,
                )
            )
    return table


LayerShares = Annotated[dict[str, str], BeforeValidator(_as_shares), AfterValidator(_check_shares)]


def _check_moment(value: float) -> float:
    if value > 1 and value != int(value):
        raise ValueError(
            Sentence("{value} is neither a share of the run, at most 1, nor a whole number of steps", value=value)
        )
    return value


Moment = Annotated[float, AfterValidator(_check_moment)]


class PruningConfig(Section):
    """Weights set to zero by masks. `start` and `every` below 1, `end` up to 1, are shares of the run, else steps."""

    method: Literal["none", "magnitude", "wanda", "2:4", "channels"] = Field(
        "none",
        title=L_("Pruning"),
        description=L_(
            "magnitude: smallest weights; wanda: weight times input (Sun et al. 2023); 2:4: two of four "
            "inputs; channels: whole outputs by their norm."
        ),
        json_schema_extra={"rare": True},
    )
    share: float = Field(
        0.5,
        ge=0,
        lt=1,
        title=L_("Share of zeros"),
        description=L_("Of the weights of each linear and convolutional layer, at the end. 2:4 has 0.5 always."),
        json_schema_extra={"show_if": _GRADUAL},
    )
    start: Moment = Field(
        0.1,
        ge=0,
        le=10**9,
        title=L_("Begin"),
        description=L_("Below 1 a share of the run, from 1 a step."),
        json_schema_extra={"show_if": _PRUNED},
    )
    end: Moment = Field(
        0.7,
        gt=0,
        le=10**9,
        title=L_("End"),
        description=L_(
            "By then the whole share is zero and masks stay; up to 1 a share of the run, above that a step."
        ),
        json_schema_extra={"show_if": _GRADUAL},
    )
    every: Moment = Field(
        10,
        gt=0,
        le=10**9,
        title=L_("Every"),
        description=L_("Between two choices of weights; below 1 a share of the run, from 1 steps: 1 is each step."),
        json_schema_extra={"rare": True, "show_if": _GRADUAL},
    )
    layers: LayerShares = Field(
        {},
        title=L_("Shares of layers"),
        description=L_(
            "pattern=share, commas between them (blocks.0.*=0.9, head=0); the first pattern that matches a "
            "layer counts."
        ),
        json_schema_extra={"rare": True, "show_if": _PRUNED},
    )

    @model_validator(mode="after")
    def _in_order(self) -> PruningConfig:
        alike = (self.start < 1) == (self.end <= 1)
        if self.method not in ("none", "2:4") and alike and self.start > self.end:
            raise ValueError(
                Sentence("start {start:g} comes after end {end:g}; exchange the two", start=self.start, end=self.end)
            )
        return self
