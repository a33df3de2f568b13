"""Every figure of a bench result as one row of the same columns: what tables show and CSV files hold."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

Result = Mapping[str, Any]
Figure = dict[str, Any]

# Columns of a CSV file; what a row has no value for is empty. docs/hardware.md says what each means.
COLUMNS = (
    "started", "device", "threads", "torch", "kind", "format", "to", "size", "seconds", "spread", "tops", "gb_s",
    "times_fp32", "peak_tops", "share", "relative", "error", "ran_as",
    "fast", "bits", "rounding", "terms", "promoted_every",
    "gross_j", "net_j", "net_uncertainty_j", "idle_w", "uncertainty", "gigaops_per_joule",
    "method", "clock_mhz", "temperature_c", "power_w", "reasons", "note",
)  # fmt: skip


def figures(result: Result) -> list[Figure]:
    """One row per figure under COLUMNS, in the order of measurement within a kind: `product`, `certificate`,
    `accumulation`, `alignment`, `copy`, `conversion`, `convolution`, `attention`, `energy`. Takes a result that still
    grows, too."""
    about = {name: result.get(name) for name in ("started", "threads", "torch")} | {"device": result["device"]["name"]}
    parts = (_products, _certificates, _accumulations, _alignment, _copy, _conversions, _blocks, _energies)
    return [dict.fromkeys(COLUMNS) | about | _kept(row) for part in parts for row in part(result)]


def csv_text(result: Result) -> str:
    """The figures with a line of column names; numbers in full precision."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "reasons": " + ".join(row["reasons"] or [])} for row in figures(result))
    return text.getvalue()


def _kept(row: Mapping[str, Any]) -> Figure:
    return {name: value for name, value in row.items() if name in COLUMNS}


def _products(result: Result) -> Iterator[Figure]:
    fp32 = {row["m"]: row["tops"] for row in result["gemm"] if row["format"] == "fp32"}
    for row in result["gemm"]:
        yield {**row, "kind": "product", "size": row["m"], "times_fp32": _ratio(row["tops"], fp32.get(row["m"]))}


def _certificates(result: Result) -> Iterator[Figure]:
    for row in result["certificate"]:
        yield {**row, "kind": "certificate", "size": row.get("m")}


def _accumulations(result: Result) -> Iterator[Figure]:
    for row in result.get("accumulation", []):
        yield {**row, "kind": "accumulation"}


def _alignment(result: Result) -> Iterator[Figure]:
    for row in result["alignment"]:
        yield {**row, "kind": "alignment", "size": row["m"]}


def _copy(result: Result) -> Iterator[Figure]:
    if result["copy"]:
        yield {**result["copy"], "kind": "copy"}


def _conversions(result: Result) -> Iterator[Figure]:
    for row in result["conversions"]:
        yield {**row, "kind": "conversion", "format": row["from"]}


def _blocks(result: Result) -> Iterator[Figure]:
    fp32 = {row["block"]: row["seconds"] for row in result["blocks"] if row["format"] == "fp32"}
    for row in result["blocks"]:
        yield {**row, "kind": row["block"], "times_fp32": _ratio(fp32.get(row["block"]), row["seconds"])}


def _energies(result: Result) -> Iterator[Figure]:
    for row in result.get("energy", []):
        yield {**row, "kind": "energy", "size": row["m"]}


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None
