"""The facts of a model for a person to read: its files, its numbers, and the formats of its scan by bytes and error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui.formats.checkpoints.survey import TensorSurvey, totals
from precgui.formats.checkpoints.tensor import WHOLE
from precgui.formats.text import grouped
from precgui.runs.errors import RunFileError
from precgui.runs.facts import FactGroup, RunFact, bytes_text, date_text, run_facts
from precgui.runs.models.model_file import ModelScan, holds_scan, read_model_file
from precgui.runs.run import Run
from precgui.sanitize import one_line, visible_name
from precgui.sentences import L_, Sentence, counted, message_of, together

_ERRORS = (0.001, 0.01, 0.03, 0.1)  # of the weights, relative, root of the mean square
_BITS = (5, 7, 9)  # of a number; 4, 6 and 8 bits of a code with their scales
_NEAR_BITS = 0.005  # one scale for a tensor does not count
_LOSS = L_("An error of weights is no loss: only a measurement on data (precgui quantize) tells what a format costs.")
_MOST_FILES = 200


@dataclass(frozen=True)
class FormatTotal:
    """A whole model in a format. `nbytes` has the tensors that it does not fit as they are stored; so has `error`.

    fitting: tensors that have such a form. error: relative, root of the mean square, of all numbers that were scanned.
    """

    name: str
    title: str
    nbytes: float
    error: float
    fitting: int

    @property
    def sqnr_db(self) -> float:
        """Signal to noise of all numbers, in dB; NaN for a format that fits no tensor."""
        if not self.fitting:
            return math.nan
        return -20 * math.log10(self.error) if self.error else math.inf


def file_facts(run: Run) -> tuple[FactGroup, ...]:
    """The facts of a run, or of the model whose scan its file holds."""
    return model_facts(run.path, run.created) if holds_scan(run) and run.path is not None else run_facts(run)


def model_facts(path: Path, created: str) -> tuple[FactGroup, ...]:
    """The groups that hold something; of a damaged scan, the sentence that says so. For a thread: it reads the file."""
    try:
        scan = read_model_file(path)
        why_not = "" if scan is not None else L_("This file holds no figures of a model; scan the model again.")
    except RunFileError as error:
        scan, why_not = None, message_of(error)
    file = FactGroup(L_("File of the scan"), tuple(_scan_file(path, created)))
    if scan is None:
        return FactGroup(L_("Model"), (RunFact(L_("Scan"), why_not),)), file
    formats = format_totals(scan)
    groups = (
        FactGroup(L_("Model"), tuple(_model(scan))),
        FactGroup(L_("Numbers as they are stored"), tuple(_dtypes(scan))),
        FactGroup(L_("Smallest format within an error of the weights"), tuple(_smallest(scan, formats))),
        FactGroup(L_("Least error within a size"), tuple(_best(scan, formats))),
        FactGroup(L_("All scanned formats, by bytes"), tuple(_totals(scan, formats))),
        FactGroup(L_("Not read"), tuple(RunFact(visible_name(str(row["name"])), _text(row["why_not"]))
                                    for row in scan.tensors if row["why_not"])),
        FactGroup(L_("Files of the model"), tuple(_files(scan))),
        file,
    )  # fmt: skip
    return tuple(group for group in groups if group.facts)


def format_totals(scan: ModelScan) -> list[FormatTotal]:
    """All scanned tensors in each format, the fewest bytes first."""
    stored = {str(row["name"]): float(row["bytes"]) for row in scan.tensors}
    signal = math.fsum(each.size * each.rms**2 for each in scan.surveys if each.rms)
    result = []
    for place, (name, (nbytes, sqnr_db)) in enumerate(totals(scan.surveys, scan.formats).items()):
        fits = [not math.isnan(each.figures[place, 0]) for each in scan.surveys]
        left = [each for each, fit in zip(scan.surveys, fits, strict=True) if not fit]
        own = signal - math.fsum(each.size * each.rms**2 for each in left)
        share = max(own, 0.0) / signal if signal else 0.0
        error = 10 ** (-sqnr_db / 20) * math.sqrt(share) if share else 0.0
        nbytes += math.fsum(stored.get(each.name, 0.0) for each in left)
        result.append(FormatTotal(name, scan.formats[place].title, nbytes, error, sum(fits)))
    return sorted(result, key=lambda each: (each.nbytes, each.error))


def _scanned(scan: ModelScan) -> int:
    return sum(each.size for each in scan.surveys)


def _model(scan: ModelScan) -> Iterator[RunFact]:
    rows, nbytes = scan.tensors, sum(int(row["bytes"]) for row in scan.tensors)
    if scan.architecture:
        yield RunFact(L_("Architecture"), _text(scan.architecture))
    yield RunFact(L_("Stored in"), _text(scan.source))
    left = sum(bool(row["why_not"]) for row in rows)
    count = Sentence("{count}, {left} of them not read", count=grouped(len(rows)), left=grouped(left))
    yield RunFact(L_("Tensors"), count if left else grouped(len(rows)))
    parameters = sum(math.prod(row["shape"]) for row in rows if row["why_not"] != WHOLE)
    yield RunFact(L_("Parameters"), grouped(parameters), L_("Numbers of all tensors but those of whole numbers"))
    size = bytes_text(nbytes)
    if parameters:
        size = Sentence("{size}, {bits:.3g} bits a parameter", size=size, bits=8 * nbytes / parameters)
    yield RunFact(L_("Size of the tensors"), size)
    if widest := max(scan.surveys, key=lambda each: each.amax, default=None):
        yield RunFact(L_("Largest magnitude"), _largest(widest))
    if scan.surveys:
        bad = sum(each.nonfinite for each in scan.surveys)
        yield RunFact(L_("NaN or Inf"), Sentence("{count} numbers", count=grouped(bad)) if bad else L_("none"))
    if not scan.is_complete:
        text = Sentence(
            "{count} tensors so far; the same command goes on with the rest", count=grouped(len(scan.surveys))
        )
        yield RunFact(L_("Scan"), text)
    for number, note in enumerate(scan.notes, 1):
        yield RunFact(Sentence("Note {number}", number=number), _text(note))


def _largest(widest: TensorSurvey) -> Sentence:
    return Sentence("{largest:.4g} in {tensor}", largest=widest.amax, tensor=visible_name(widest.name))


def _dtypes(scan: ModelScan) -> Iterator[RunFact]:
    """Tensors, numbers and bytes of each format, the most bytes first."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in scan.tensors:
        dtype, stored = _text(row["dtype"]), _text(row["stored_as"])
        kind = (
            dtype if dtype == stored.casefold() else Sentence("{dtype}, stored as {stored}", dtype=dtype, stored=stored)
        )
        kinds.setdefault(kind, []).append(row)
    for kind, rows in sorted(kinds.items(), key=lambda item: -sum(int(row["bytes"]) for row in item[1])):
        numbers = sum(math.prod(row["shape"]) for row in rows)
        nbytes = sum(int(row["bytes"]) for row in rows)
        amount = counted(
            "1 tensor, {numbers} numbers, {size}", "{grouped} tensors, {numbers} numbers, {size}", len(rows),
            grouped=grouped(len(rows)), numbers=grouped(numbers), size=bytes_text(nbytes),
        )  # fmt: skip
        yield RunFact(kind, amount)


def _smallest(scan: ModelScan, formats: list[FormatTotal]) -> Iterator[RunFact]:
    for limit in _ERRORS if scan.surveys else ():
        first = next((each for each in formats if each.error <= limit), None)
        name = Sentence("Error of at most {percent:g} %", percent=100 * limit)
        yield RunFact(name, _total(scan, first) if first else _NONE, _LOSS)


def _best(scan: ModelScan, formats: list[FormatTotal]) -> Iterator[RunFact]:
    numbers = _scanned(scan)
    for limit in _BITS if numbers else ():
        small = [each for each in formats if 8 * each.nbytes / numbers <= limit + _NEAR_BITS]
        best = min(small, key=lambda each: each.error, default=None)
        name = Sentence("At most {bits} bits a number", bits=limit)
        yield RunFact(name, _total(scan, best) if best else _NONE, _LOSS)


_NONE = L_("none of the scanned formats")


def _total(scan: ModelScan, each: FormatTotal) -> str:
    """A format with its bytes and its error."""
    return Sentence("{name} ({cost})", name=each.name, cost=_cost(scan, each))


def _cost(scan: ModelScan, each: FormatTotal) -> str:
    size, bits = bytes_text(each.nbytes), 8 * each.nbytes / max(_scanned(scan), 1)
    if not each.error:
        return Sentence("{size}, {bits:.3g} bits a number, no error", size=size, bits=bits)
    return Sentence(
        "{size}, {bits:.3g} bits a number, error {percent:.3g} %", size=size, bits=bits, percent=100 * each.error
    )


def _totals(scan: ModelScan, formats: list[FormatTotal]) -> Iterator[RunFact]:
    whole = len(scan.surveys)
    for each in formats if whole else ():
        left = whole - each.fitting
        kept = Sentence("{count} of {all} tensors stay as they are stored", count=grouped(left), all=grouped(whole))
        cost = together(_cost(scan, each), kept if left else "", between="; ")
        yield RunFact(each.name, cost, each.title)


def _files(scan: ModelScan) -> Iterator[RunFact]:
    for row in scan.files[:_MOST_FILES]:
        yield RunFact(_text(row["name"]), bytes_text(int(row["bytes"])))
    if len(scan.files) > _MOST_FILES:
        yield RunFact(L_("More files"), grouped(len(scan.files) - _MOST_FILES))


def _scan_file(path: Path, created: str) -> Iterator[RunFact]:
    yield RunFact(L_("Path"), str(path))
    yield RunFact(L_("Scanned"), date_text(created))


def _text(value: object) -> str:
    return one_line(str(value), 400) or "–"
