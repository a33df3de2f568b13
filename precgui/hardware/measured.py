"""Measured rates kept from one day to the next: one JSON file per bench under the state folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precgui import paths
from precgui.hardware.figures import COLUMNS
from precgui.safe_open import replace_file
from precgui.sentences import Sentence, counted, together

SCHEMA = 1
NOISY = 0.2  # spread from which a figure is marked
_FOLDER = "bench"
_KEYS = {
    "started", "device", "torch", "threads", "gemm", "certificate", "alignment", "copy", "conversions", "blocks",
}  # fmt: skip
_ROWS = {  # the parts that are lists, and what each of their rows has
    "gemm": {"format", "m", "tops", "note"}, "certificate": {"format", "note"},
    "accumulation": {"format", "fast", "bits", "note"},
    "alignment": {"format", "m", "relative", "note"}, "conversions": {"from", "to", "gb_s", "note"},
    "blocks": {"block", "format", "seconds", "note"}, "energy": {"format", "m", "note"},
}  # fmt: skip
_BLOCKS = ("convolution", "attention")
_TEXTS = ("format", "from", "to", "block", "note")


def folder() -> Path:
    """Where results are kept. Not created here."""
    return paths.state_dir() / _FOLDER


def keep(result: Mapping[str, Any]) -> Path:
    """Write a result (engine.bench) to a file of its own, named after its time. Raises OSError."""
    where = folder()
    where.mkdir(parents=True, exist_ok=True)
    stamp = str(result["started"]).replace(":", "").replace("-", "").split(".")[0].split("+")[0]
    path = where / f"{stamp}-{str(result['device']['id']).replace(':', '')}.json"
    replace_file(path, json.dumps(result, indent=1, allow_nan=False).encode())
    return path


def kept() -> list[dict[str, Any]]:
    """Every readable result, newest first; a file that is damaged or of another schema is left out."""
    results = []
    try:
        files = sorted(folder().glob("*.json"), reverse=True)
    except OSError:  # a folder that cannot be read; the window says so of the settings, which lie beside it
        return []
    for path in files:
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if is_result(result):
            results.append(result)
    return results


def is_result(result: object) -> bool:
    """Whether it is a result of this schema with all its parts, each figure a number or absent: fit to be shown."""
    if not isinstance(result, dict) or result.get("schema") != SCHEMA or not result.keys() >= _KEYS:
        return False
    device, copied = result["device"], result["copy"]
    if not isinstance(device, dict) or not all(isinstance(device.get(name), str) for name in ("id", "name", "kind")):
        return False
    if not isinstance(result["started"], str) or type(result["threads"]) is not int:
        return False
    parts = {name: result.get(name, []) for name in _ROWS} | {"copy": [copied] if copied else []}
    return all(isinstance(rows, list) and all(_is_row(row, name) for row in rows) for name, rows in parts.items())


def _is_row(row: object, part: str) -> bool:
    if not isinstance(row, dict) or not row.keys() >= _ROWS.get(part, {"gb_s"}):
        return False
    return row.get("block", "attention") in _BLOCKS and all(_is_figure(name, value) for name, value in row.items())


def _is_figure(name: str, value: object) -> bool:
    if name in _TEXTS:
        return isinstance(value, str)
    if name == "m":
        return type(value) is int and value > 0
    if name == "reasons":
        return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    kinds = str if name in ("ran_as", "rounding", "method") else (int, float)
    return name not in COLUMNS or value is None or isinstance(value, kinds)


def of_device(name: str, results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The results measured on a device of this name, in the given order."""
    return [result for result in results if result["device"]["name"] == name]


def best_tops(result: Mapping[str, Any]) -> dict[str, float]:
    """The best matrix-multiply rate of each format, in 10^12 operations a second."""
    best: dict[str, float] = {}
    for row in result["gemm"]:
        if row.get("tops") is not None:
            best[row["format"]] = max(best.get(row["format"], 0.0), row["tops"])
    return best


def noise_of(result: Mapping[str, Any], fmt: str) -> float:
    """The relative spread of the best rate of a format; 0 where it was not measured or keeps none."""
    rows = [row for row in result["gemm"] if row["format"] == fmt and row.get("tops") is not None]
    return max(rows, key=lambda row: row["tops"]).get("spread") or 0.0 if rows else 0.0


def copy_gb_s(result: Mapping[str, Any] | None) -> float | None:
    """The measured copy bandwidth, None where it was not measured or torch refused."""
    copied = result.get("copy") if result else None
    return copied["gb_s"] if copied else None


def earlier_than(result: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The newest result before this one on a device of the same name; one that still grows has no time yet."""
    same = of_device(result["device"]["name"], results)
    return next((other for other in same if other.get("started", "") < result.get("started", "~")), None)


def newest_with(name: str, results: Sequence[Mapping[str, Any]], fmt: str) -> Mapping[str, Any] | None:
    """The newest result of a device of this name that has rates of `fmt` and of FP32."""
    return next((each for each in of_device(name, results) if {fmt, "fp32"} <= best_tops(each).keys()), None)


def gain(name: str, results: Sequence[Mapping[str, Any]], fmt: str = "bf16") -> float | None:
    """Best measured rate of `fmt` over the best of FP32 in the newest result of a device of this name.

    None where there is none, or where the spreads of both rates leave open which one is higher.
    """
    result = newest_with(name, results, fmt)
    if result is None:
        return None
    best = best_tops(result)
    ratio = best[fmt] / best["fp32"]
    spread = noise_of(result, fmt) + noise_of(result, "fp32")
    return None if 1 / (1 + spread) < ratio < 1 + spread else ratio


def number_text(value: float | None) -> str:
    """Three digits, or all before the point; empty for None. Rates of a GPU reach thousands."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rate_text(tops: float) -> str:
    """A rate given in 10^12 operations a second, in the unit that leaves one to three digits before the point."""
    units = (("Top/s", 1.0), ("Gop/s", 1e3), ("Mop/s", 1e6))
    unit, factor = next((each for each in units if tops * each[1] >= 1), units[-1])
    return f"{number_text(tops * factor)} {unit}"


def threads_text(threads: int) -> str:
    """For example `1 CPU thread`."""
    return counted("{count} CPU thread", "{count} CPU threads", threads)


def remarks(row: Mapping[str, Any]) -> str:
    """Remarks on one figure: its note, its noise, clock limits."""
    reasons = together(*(row.get("reasons") or []), between=", ")
    spread = row.get("spread") or 0.0
    noisy = Sentence("noisy by {spread:.0%}: the device was shared", spread=spread) if spread > NOISY else ""
    held = Sentence("clock held by {reasons}", reasons=reasons) if reasons else ""
    return together(row["note"], noisy, held, between="; ")
