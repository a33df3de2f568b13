"""The profile of a run in a side file, RUN.h5.profile.json, since run files are never opened for writing again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precgui.planner.ledger import Ledger
from precgui.runs.errors import RunFileError
from precgui.runs.file import json_text
from precgui.runs.side_files import write_side_file
from precgui.runs.speedup.products import products_of
from precgui.runs.speedup.profile_schema import check_types
from precgui.runs.speedup.waterfall import Waterfall, waterfall
from precgui.safe_open import read_text
from precgui.sentence_keys import restored, with_keys
from precgui.sentences import L_, Sentence, as_given, filled, message_of

SCHEMA = 1
PAIRS_S, MOST_PAIRS_S = 25.0, 3600.0  # for which a profile repeats pairs of plain and profiled steps
LEDGERS = {"fp32": L_("FP32, predicted"), "predicted": L_("Predicted"), "measured": L_("Measured")}
_LARGEST = 8 << 20


def profile_path(run: Path) -> Path:
    """The side file of a run file."""
    return run.with_name(f"{run.name}.profile.json")


def write_profile(path: Path, document: Mapping[str, Any]) -> None:
    """Write a profile in one piece, in the place of an earlier one. Raises RunFileError."""
    write_side_file(path, json_text.dump(with_keys(document)))


def read_profile(path: Path) -> dict[str, Any]:
    """A profile that was written before. Raises RunFileError with a sentence for what is none."""
    try:
        document = restored(json_text.load(read_text(path, _LARGEST)))
        check(document)
    except FileNotFoundError:
        raise RunFileError(Sentence("{path} is not there; make it with precgui profile.", path=path)) from None
    except OSError as error:
        text = L_("{path} cannot be read: {reason}; make it anew with precgui profile.")
        raise RunFileError(filled(text, path=path, reason=error.strerror)) from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        text = L_("{path} is not a profile of precgui ({reason}); make it anew with precgui profile.")
        raise RunFileError(filled(text, path=path, reason=message_of(error))) from None
    return document


def profile_of(run: Path | None) -> dict[str, Any] | None:
    """The profile beside a run; None where there is none that can be read."""
    if run is None:
        return None
    try:
        return read_profile(profile_path(run))
    except RunFileError:
        return None


def ledgers_of(document: Mapping[str, Any]) -> dict[str, Ledger]:
    """The ledgers of memory that can be read, in the order of `LEDGERS`."""
    ledgers: dict[str, Ledger] = {}
    for name in LEDGERS:
        try:
            ledgers[name] = Ledger.from_json(document["memory"][name])
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return ledgers


def operation_text(row: Mapping[str, Any]) -> str:
    """The name of an operation; of a kernel that torch.compile made, the operations that it holds."""
    held = row.get("holds")
    if held:
        return Sentence("fused: {operations}", operations=", ".join(map(str, held)))
    return as_given(str(row["operation"]))


def check(document: Mapping[str, Any]) -> Waterfall:
    """The account of a document.

    Raises ValueError, LookupError, TypeError, AttributeError or ArithmeticError where it is no profile.
    """
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, this precgui reads {SCHEMA}")
    check_types(document)
    products_of(document)
    return waterfall(document)
