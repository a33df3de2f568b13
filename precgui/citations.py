"""Where the rows of facts in `resources/facts` come from: the document, the place in it, and whether it was opened."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from precgui.paths import resources
from precgui.sentences import Sentence, together


@dataclass(frozen=True, slots=True)
class FactSource:
    """A document that says a fact. `address` is where to find it, `place` where in it, or which figures it gives.

    `was_read` says whether the document itself was opened for the table; `checked` what its figures were compared with.
    """

    title: str
    address: str
    place: str
    was_read: bool
    checked: str

    @property
    def reference(self) -> str:
        """Document, place and address, with a word where the document was not opened."""
        named = f"{self.title}, {self.place}" if self.place else self.title
        if self.was_read:
            return f"{named} ({self.address})"
        return Sentence("{document} ({address}; not opened for this table)", document=named, address=self.address)

    @property
    def sentence(self) -> str:
        """The reference and how its figures were checked, as one sentence."""
        return Sentence("{clause}.", clause=together(self.reference, self.checked, between="; "))


@cache
def _documents() -> dict[str, dict[str, Any]]:
    loaded: dict[str, Any] = json.loads((resources() / "facts" / "sources.json").read_text(encoding="utf-8"))
    documents: dict[str, dict[str, Any]] = loaded["sources"]
    return documents


def sources_of(named: Mapping[str, str]) -> tuple[FactSource, ...]:
    """The sources that a row names: keys of `sources.json`, each with the place in it. Raises KeyError for another."""
    return tuple(FactSource(**_documents()[key], place=place) for key, place in named.items())


def source_keys(keys: Iterable[str]) -> tuple[FactSource, ...]:
    """The sources of these keys where no place in them is known. Raises KeyError for an unknown key."""
    return sources_of(dict.fromkeys(keys, ""))


def source_lines(sources: Iterable[FactSource], shown: Callable[[str], str] = str) -> str:
    """The sources as sentences, one a line, in the language that `shown` translates to."""
    return "\n".join(shown(source.sentence) for source in sources)


def sources_json(sources: Iterable[FactSource]) -> list[dict[str, Any]]:
    """The sources in built-in types, for `--json`."""
    return [asdict(source) for source in sources]
