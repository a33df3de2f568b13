"""The base of the sections of a config, and lists and tables that are written as one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from precgui.sentences import Sentence


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_texts(cls, given: Any) -> Any:
        """Nothing, as `--set key=` is read, is the empty text where a text is asked for."""
        if not isinstance(given, Mapping):
            return given
        texts = {name for name, field in cls.model_fields.items() if field.annotation is str}
        return {name: "" if value is None and name in texts else value for name, value in given.items()}


def as_list(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def as_table(value: Any, form: str, example: str) -> Any:
    """The table that `pattern=text, pattern=text` means; other values as they are. Raises ValueError."""
    return dict(as_pairs(value, form, example)) if isinstance(value, str) else value


def as_pairs(text: str, form: str, example: str) -> list[tuple[str, str]]:
    """The pairs of `pattern=text, pattern=text`, in their order. Raises ValueError."""
    pairs = []
    for part in as_list(text):
        pattern, equals, name = (piece.strip() for piece in part.rpartition("="))
        if not (equals and pattern and name):
            raise ValueError(
                Sentence("{part!r} is not {form}, such as {example}", part=part, form=form, example=example)
            )
        pairs.append((pattern, name))
    return pairs


def table_text(table: Mapping[str, str]) -> str:
    """A table as `--set` and the form read it back: `name=text, name=text`."""
    return ", ".join(f"{name}={text}" for name, text in table.items())


Patterns = Annotated[list[str], BeforeValidator(as_list)]
