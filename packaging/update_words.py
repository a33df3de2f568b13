"""Bring `resources/words/*.po` up to date with the texts of the source: `make words` (docs/words.md).

New texts come in empty, those that are gone go. Prints how many texts of each room are translated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

from precgui.catalogue import write_whole
from precgui.words import LANGUAGES

ROOT = Path(__file__).parent.parent
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)  # of every catalogue: git knows better
HEADER = "# precgui in another language. `make words` brings it up to date; docs/words.md says how to translate."
WORDS = ROOT / "resources" / "words"
PLURALS = {"n_": (1, 2), "counted": (1, 2)}
# Texts of the fact tables: the keys whose values are shown to people.
FACTS = {
    "formats.json": ("title", "strengths", "weaknesses", "used"),
    "architectures.json": ("note",),
    "guide_claims.json": ("sentence",),
}
KEYWORDS: dict[str, Any] = {"_": None, "p_": ((1, "c"), 2), "L_": None, "Sentence": (1,), **PLURALS}


def template() -> Catalog:
    """Every marked text of the package, with the files that have it, in their order."""
    made = Catalog(project="precgui", charset="utf-8")
    found = extract_from_dir(ROOT / "precgui", [("**.py", "python")], keywords=KEYWORDS, strip_comment_tags=True)
    for file, _, text, comments, context in sorted(found, key=lambda each: (each[0], each[1])):
        made.add(text, locations=[(f"precgui/{Path(file).as_posix()}", 0)], auto_comments=comments, context=context)
    for name, keys in FACTS.items():
        table = ROOT / "resources" / "facts" / name
        for text in filter(None, fact_texts(json.loads(table.read_text(encoding="utf-8")), keys)):
            made.add(text, locations=[(f"resources/facts/{name}", 0)])
    return made


def fact_texts(facts: Any, keys: tuple[str, ...]) -> Iterator[str]:
    """The texts under these keys, however deep, in the order of the file."""
    if isinstance(facts, dict):
        for key, value in facts.items():
            if key in keys and isinstance(value, str):
                yield value
            else:
                yield from fact_texts(value, keys)
    elif isinstance(facts, list):
        for each in facts:
            yield from fact_texts(each, keys)


def read_catalogue(po: Path) -> Catalog:
    with po.open("rb") as file:
        return read_po(file, locale=po.stem)


def update(po: Path, source: Catalog) -> Catalog:
    """The catalogue with the texts of the source; nothing is guessed from texts that are alike."""
    catalogue = read_catalogue(po) if po.exists() else Catalog(locale=po.stem, project="precgui", charset="utf-8")
    catalogue.update(source, no_fuzzy_matching=True)
    catalogue.obsolete.clear()
    return catalogue


def write_catalogue(po: Path, catalogue: Catalog) -> None:
    """Write in one step, without dates and line numbers, so that two branches seldom change the same line."""
    catalogue.header_comment, catalogue.fuzzy = HEADER, False
    for name in ("creation_date", "revision_date"):
        setattr(catalogue, name, EPOCH)
    content = BytesIO()
    write_po(content, catalogue, width=120, include_lineno=False, sort_by_file=True, omit_header=False)
    write_whole(po, content.getvalue())


def is_translated(message: Message) -> bool:
    texts = message.string if isinstance(message.string, tuple | list) else (message.string,)
    return all(texts) and not message.fuzzy


def rooms_of(message: Message) -> set[str]:
    """The rooms that have the text: `gui/panels/formats`, `gui/shell`, `cli`, `config` ..."""
    found = set()
    for file, _ in message.locations:
        parts = Path(file).parts[1:]  # below `precgui` or `resources`
        depth = 3 if parts[:2] == ("gui", "panels") else 2 if parts[0] == "gui" else 1
        found.add("/".join(parts[: min(depth, max(1, len(parts) - 1))]))
    return found


def report(catalogue: Catalog) -> str:
    """Texts and translated texts of each room."""
    texts = [message for message in catalogue if message.id]
    all_, done = Counter[str](), Counter[str]()
    for message in texts:
        for room in rooms_of(message):
            all_[room] += 1
            done[room] += is_translated(message)
    rows = [f"{room:28} {done[room]:5} of {all_[room]:5}" for room in sorted(all_)]
    total = sum(map(is_translated, texts))
    return "\n".join([f"{total} of {len(texts)} texts are translated", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Bring the catalogues of translations up to date.")
    parser.add_argument("--missing", action="store_true", help="print the texts that have no translation")
    missing = parser.parse_args().missing
    source = template()
    for po in [WORDS / f"{language}.po" for language in LANGUAGES if language != "en"]:
        catalogue = update(po, source)
        write_catalogue(po, catalogue)
        sys.stdout.write(f"{po.stem}: {report(catalogue)}\n")
        if missing:
            sys.stdout.writelines(f"{m.id}\n" for m in catalogue if m.id and not is_translated(m))


if __name__ == "__main__":
    main()
