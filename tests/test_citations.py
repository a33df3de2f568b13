"""Every row of every table of facts names where it comes from, and says where that could not be opened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from precgui.citations import FactSource, source_lines, sources_json, sources_of
from precgui.formats.catalogue import catalogue
from precgui.hardware import tables
from precgui.hardware.datasheet import datasheet_devices
from precgui.hardware.device import device_json
from precgui.paths import resources

FACTS = resources() / "facts"
DOCUMENTS: dict[str, dict[str, Any]] = json.loads((FACTS / "sources.json").read_text(encoding="utf-8"))["sources"]


def table(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FACTS / name).read_text(encoding="utf-8"))
    return loaded


def rows() -> Iterator[tuple[str, Mapping[str, str]]]:
    """(name of a row, its `source`) of all tables whose rows name documents by key."""
    formats = table("formats.json")
    for group in ("floats", "integers", "codebooks", "blocks", "scale_rules"):
        yield from ((f"{group} {name}", row["source"]) for name, row in formats[group].items())
    yield from ((row["name"], row["source"]) for row in table("gpus.json")["gpus"])
    architectures = table("architectures.json")
    for vendor in ("nvidia", "amd", "intel", "apple"):
        for row in architectures[vendor]:
            yield f"{vendor} {row['architecture']}", row["source"]
            for key, unit in row["units"].items():
                yield f"{vendor} {row['architecture']} {key}", dict.fromkeys(unit["sources"], "")
    autocast = table("autocast_ops.json")
    yield from ((f"autocast {name}", autocast["source"][name]) for name in autocast if isinstance(autocast[name], list))


ROWS = dict(rows())


def test_that_every_table_of_facts_is_looked_through() -> None:
    """A new table needs a line in `rows`, or a test beside these."""
    names = {
        "architectures.json",
        "autocast_ops.json",
        "formats.json",
        "gpus.json",
        "guide_claims.json",
        "sources.json",
        "targets.json",
    }
    assert {path.name for path in FACTS.iterdir()} == names
    assert len(ROWS) > 700


def test_that_every_row_of_facts_names_a_source() -> None:
    assert [name for name, named in ROWS.items() if not named] == []
    for name, named in ROWS.items():
        for source in sources_of(named):
            assert source.title.strip(), name
            assert source.address.strip(), name
            assert source.sentence.endswith("."), name


def test_that_claims_limits_and_lists_of_words_name_a_source() -> None:
    gpus = table("gpus.json")
    assert table("targets.json")["source"]["url"].strip()
    for row in (*gpus["limited"], gpus["no_tensor_cores"], *table("guide_claims.json")["claims"]):
        assert row["source"].strip()


def test_that_a_document_that_was_not_opened_says_so_and_against_which_others_it_was_checked() -> None:
    used = {key for source in ROWS.values() for key in source}
    assert used <= set(DOCUMENTS)
    for key, row in DOCUMENTS.items():
        (source,) = sources_of({key: ""})
        assert isinstance(row["was_read"], bool)
        if not source.was_read:
            assert source.checked, key
            assert "not opened" in source.sentence


def test_that_a_row_that_names_an_unknown_document_is_refused() -> None:
    with pytest.raises(KeyError, match="rumour"):
        sources_of({"rumour": ""})
    with pytest.raises(KeyError, match="rumour"):
        tables.source_text(("rumour",))


def test_that_a_card_has_a_source_besides_an_unopened_sheet() -> None:
    alone = {card.name for card in tables.cards() if not any(source.was_read for source in card.sources)}
    assert alone == set()


def test_that_json_and_text_carry_the_sources() -> None:
    source = FactSource("Title", "example.org", "table 1", False, "as another says")
    assert source.sentence == "Title, table 1 (example.org; not opened for this table); as another says."
    assert source_lines([source, source]).count("\n") == 1
    assert sources_json([source])[0]["was_read"] is False
    assert all(row["sources"] for row in catalogue())
    assert all(device_json(device)["sources"] for device in datasheet_devices())
