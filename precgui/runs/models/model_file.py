"""A scan of a checkpoint as a run file: one step with the statistics of its weights, and the group `/survey` beside.

`/survey` holds `about` (JSON text: source, files, formats, rows of tensors), `figures` [tensors, formats x FIGURES],
`columns` [tensors, 16], and `starts`, `codes`, `counts` in rows of 4096, padded. No weights are kept. `/effects` holds
what was measured on data, as JSON text in `about`.
"""

from __future__ import annotations

import json
import math
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from precgui import __version__
from precgui.config import OWN_LOOP, build
from precgui.events import TENSOR_STATS, ModelDescribed, ParameterInfo, RunEnded, RunStarted, TensorStats
from precgui.formats.checkpoints.contents import StoredModel
from precgui.formats.checkpoints.survey import FIGURES, TensorSurvey, exponents_of
from precgui.formats.checkpoints.tensor import CheckpointTensor
from precgui.formats.registry import UnknownFormatError
from precgui.formats.weight_formats import WeightFormat, weight_format
from precgui.runs.errors import RunFileError
from precgui.runs.file import safe_hdf5
from precgui.runs.file.writer import RunWriter
from precgui.runs.models.effects import ModelEffects, effects_of
from precgui.runs.run import Run
from precgui.sentence_keys import restored, with_keys
from precgui.sentences import Sentence

GROUP = "survey"
EFFECTS = "effects"
KIND = "model"
_CHUNK = 8192  # numbers
_ROW = 4096  # numbers of a row of what has one axis
_WIDEST = 8
_NUMBERS = ("amax", "amin_nonzero", "mean", "rms", "kurtosis", "usual_column", "wide_share")
_COUNTS = ("size", "zeros", "nan", "pos_inf", "neg_inf")


@dataclass(frozen=True)
class ModelScan:
    """A scan as it was kept. `tensors` are rows of facts of all tensors, also of those without a survey."""

    source: str
    files: tuple[dict[str, Any], ...]
    architecture: str
    notes: tuple[str, ...]
    formats: tuple[WeightFormat, ...]
    tensors: tuple[dict[str, Any], ...]
    surveys: tuple[TensorSurvey, ...]

    def is_of(self, checkpoint: StoredModel, formats: Sequence[WeightFormat]) -> bool:
        """Whether it was made of these files as they are now, in these formats."""
        same_formats = [fmt.name for fmt in self.formats] == [fmt.name for fmt in formats]
        return same_formats and list(self.files) == file_rows(checkpoint)

    @property
    def is_complete(self) -> bool:
        readable = [row for row in self.tensors if not row["why_not"] and math.prod(row["shape"]) > 0]
        return len(self.surveys) == len(readable)


def holds_scan(run: Run) -> bool:
    """Whether a run file is a scan of a model."""
    return run.environment.get("kind") == KIND


def file_rows(checkpoint: StoredModel) -> list[dict[str, Any]]:
    return [{"name": file.name, "bytes": file.nbytes} for file in checkpoint.files]


def tensor_row(tensor: CheckpointTensor) -> dict[str, Any]:
    """Facts of a tensor as JSON."""
    return {
        "name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype, "stored_as": tensor.stored_as,
        "bytes": tensor.nbytes, "why_not": tensor.why_not,
    }  # fmt: skip


def scan_of(checkpoint: StoredModel, formats: Sequence[WeightFormat], surveys: Sequence[TensorSurvey]) -> ModelScan:
    """A scan that is not kept in a file."""
    return ModelScan(
        str(checkpoint.source.absolute()), tuple(file_rows(checkpoint)), checkpoint.architecture, checkpoint.notes,
        tuple(formats), tuple(map(tensor_row, checkpoint.tensors)), tuple(surveys),
    )  # fmt: skip


def write_model_file(
    path: Path, checkpoint: StoredModel, formats: Sequence[WeightFormat], surveys: Sequence[TensorSurvey],
    effects: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write a scan, as far as it has come, in the place of an earlier one. Raises RunFileError and OSError.

    effects: the document of what was measured; None: that of the earlier file stays.
    """
    if effects is None and path.exists():
        earlier = read_effects(path)
        effects = earlier.document if earlier is not None else None
    rows = [tensor_row(each) for each in checkpoint.tensors]
    order = {row["name"]: place for place, row in enumerate(rows)}
    ordered = sorted(surveys, key=lambda each: order[each.name])
    about = {
        "source": str(checkpoint.source.absolute()), "files": file_rows(checkpoint),
        "architecture": checkpoint.architecture, "notes": list(checkpoint.notes),
        "formats": [fmt.name for fmt in formats], "tensors": rows,
        "surveys": [_facts(each) for each in ordered],
    }  # fmt: skip
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.h5")
    try:
        _write_run(draft, checkpoint, rows, ordered)
        with h5py.File(draft, "r+") as file:
            _write_survey(file.create_group(GROUP), about, ordered)
            if effects is not None:
                _write_text(file.create_group(EFFECTS), with_keys(effects))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _facts(each: TensorSurvey) -> dict[str, Any]:
    numbers = {name: _known(getattr(each, name)) for name in _NUMBERS}
    counts = {name: getattr(each, name) for name in _COUNTS}
    return {"name": each.name, "code": each.code, "is_exact": each.is_exact, **numbers, **counts}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write_run(path: Path, checkpoint: StoredModel, rows: list[dict[str, Any]], surveys: list[TensorSurvey]) -> None:
    """The file that every part of precgui reads: the weights of step 0 of a loop that precgui did not run."""
    title = (checkpoint.source.resolve().name or "model")[:200]
    name = (checkpoint.architecture or title)[:200]
    config = build({"title": title, "task": OWN_LOOP, "model": {"name": name}, "precision": "fp32"})
    writer = RunWriter(
        path, config, run_id=uuid.uuid4().hex, created=datetime.now(UTC).isoformat(), machine={},
        environment={"kind": KIND, "precgui": __version__},
    )  # fmt: skip
    dtypes = {row["name"]: row["dtype"] for row in rows}
    writer(RunStarted(0.0, 0, 0, "cpu", {}, len(surveys)))
    if surveys:
        names = tuple(each.name for each in surveys)
        stats = np.array([_stats(each) for each in surveys], "<f8")
        exponents = np.array([each.exponents for each in surveys], "<u4")
        kinds = tuple(str(dtypes[each])[:24] for each in names)
        writer(TensorStats(0, 0.0, "weight", names, (1,) * len(names), stats.tobytes(), exponents.tobytes(), kinds))
    writer(ModelDescribed(0.0, (), tuple(_parameter(row) for row in rows)))
    writer(RunEnded(0.0, "completed"))
    writer.close()


def _parameter(row: dict[str, Any]) -> ParameterInfo:
    facts = {"name": row["name"], "role": "other", "dtype": row["dtype"], "shape": tuple(row["shape"])}
    return ParameterInfo(**facts, requires_grad=False, updated=False, backward_order=-1)


def _stats(each: TensorSurvey) -> list[float]:
    known: dict[str, float] = {
        "amax": each.amax, "amin_nonzero": each.amin_nonzero, "mean": each.mean, "rms": each.rms,
        "l2": each.rms * math.sqrt(max(each.size - each.nonfinite, 0)), "zeros": each.zeros, "nan": each.nan,
        "pos_inf": each.pos_inf, "neg_inf": each.neg_inf, "count": each.size,
    }  # fmt: skip
    return [known.get(name, math.nan) for name in TENSOR_STATS]


def _write_survey(group: h5py.Group, about: dict[str, Any], surveys: list[TensorSurvey]) -> None:
    formats = len(about["formats"])
    figures = np.array([each.figures for each in surveys], "<f8").reshape(-1, formats * len(FIGURES))
    columns = np.full((len(surveys), _WIDEST * 2), np.nan)
    for row, each in zip(columns, surveys, strict=True):
        row[: 2 * len(each.columns)] = [part for column in each.columns for part in column]
    starts = np.concatenate([[0], np.cumsum([each.codes.size for each in surveys])]).astype("<i8")
    codes = np.concatenate([each.codes for each in surveys]) if surveys else np.zeros(0, "<u2")
    counts = np.concatenate([each.counts for each in surveys]) if surveys else np.zeros(0, "<u4")
    _write_text(group, about)
    for name, values in (("figures", figures), ("columns", columns), ("starts", starts), ("codes", codes),
                         ("counts", counts)):  # fmt: skip
        if values.ndim == 1:  # long rows, since each row is looked at before it is read
            values = np.pad(values, (0, -len(values) % _ROW)).reshape(-1, _ROW)
        rows = max(_CHUNK // max(math.prod(values.shape[1:]), 1), 1)
        chunk = (min(rows, max(len(values), 1)), *values.shape[1:])
        longest = (None, *values.shape[1:])  # a chunk of no rows is refused where the length is fixed
        group.create_dataset(name, data=values, chunks=chunk, maxshape=longest, compression="gzip", shuffle=True)


def _write_text(group: h5py.Group, document: Mapping[str, Any]) -> None:
    """A document as JSON text in long rows, since each row is looked at before it is read."""
    text = np.frombuffer(json.dumps(document, allow_nan=False).encode(), "u1")
    text = np.pad(text, (0, -len(text) % _ROW), constant_values=ord(" ")).reshape(-1, _ROW)
    group.create_dataset("about", data=text, chunks=(min(2, len(text)), _ROW), compression="gzip", shuffle=True)


def keep_effects(path: Path, checkpoint: StoredModel, effects: Mapping[str, Any]) -> None:
    """Keep what was measured beside the scan of the same model. Raises RunFileError for a file of another one."""
    scan = read_model_file(path)
    if scan is None or list(scan.files) != file_rows(checkpoint):
        raise RunFileError(
            Sentence("{file} holds something else than a scan of this model; choose another name.", file=path)
        )
    write_model_file(path, checkpoint, scan.formats, scan.surveys, effects)


def read_effects(path: Path) -> ModelEffects | None:
    """The measurements that a model's file holds; None where it holds none. Raises RunFileError for damaged ones."""
    file, snapshot = safe_hdf5.open_snapshot(path)
    try:
        if not safe_hdf5.has(file, f"{EFFECTS}/about"):
            return None
        document = json.loads(_column(file, "about", EFFECTS).astype(np.uint8).tobytes())
        return effects_of(restored(document) if isinstance(document, dict) else document)
    except (*safe_hdf5.FAULTS, safe_hdf5.Unusable, RecursionError, AttributeError) as error:
        raise RunFileError(
            Sentence(
                "{file} holds measurements that cannot be read ({fault}); measure them again.", file=path, fault=error
            )
        ) from None
    finally:
        file.close()
        snapshot.close()


def read_model_file(path: Path) -> ModelScan | None:
    """The scan that a run file holds; None where it holds none. Raises RunFileError for one that is damaged."""
    file, snapshot = safe_hdf5.open_snapshot(path)
    try:
        return _read(file) if safe_hdf5.has(file, f"{GROUP}/about") else None
    except (*safe_hdf5.FAULTS, safe_hdf5.Unusable, UnknownFormatError, RecursionError, IndexError) as error:
        raise RunFileError(
            Sentence("{file} holds a scan that cannot be read ({fault}); scan the model again.", file=path, fault=error)
        ) from None
    finally:
        file.close()
        snapshot.close()


def _column(file: h5py.File, name: str, group: str = GROUP) -> NDArray[Any]:
    item = safe_hdf5.dataset(file, f"{group}/{name}", packed=True)
    values = safe_hdf5.rows(item, 0, safe_hdf5.length(item))
    return values if name in ("figures", "columns") else values.reshape(-1)


def _read(file: h5py.File) -> ModelScan:
    about = json.loads(_column(file, "about").astype(np.uint8).tobytes())
    formats = tuple(weight_format(str(name)) for name in about["formats"])
    facts = about["surveys"]
    figures = _column(file, "figures").astype(np.float64).reshape(len(facts), len(formats), len(FIGURES))
    columns = _column(file, "columns").astype(np.float64)
    starts = _column(file, "starts").astype(np.int64)[: len(facts) + 1]
    codes, counts = _column(file, "codes").astype(np.uint16), _column(file, "counts").astype(np.uint32)
    fits = len(starts) == len(facts) + 1 and starts[0] == 0 and not (np.diff(starts) < 0).any()
    if not fits or starts[-1] > min(len(codes), len(counts)):
        raise ValueError("its counts do not fit its tensors")
    surveys = tuple(
        _survey(fact, figures[n], codes[starts[n] : starts[n + 1]], counts[starts[n] : starts[n + 1]], columns[n])
        for n, fact in enumerate(facts)
    )
    rows = tuple({**row, "shape": [int(size) for size in row["shape"]]} for row in about["tensors"])
    return ModelScan(str(about["source"]), tuple(about["files"]), str(about["architecture"]), tuple(about["notes"]),
                     formats, rows, surveys)  # fmt: skip


def _survey(
    fact: dict[str, Any], figures: NDArray[Any], codes: NDArray[Any], counts: NDArray[Any], columns: NDArray[Any]
) -> TensorSurvey:
    numbers: dict[str, Any] = {name: math.nan if fact.get(name) is None else float(fact[name]) for name in _NUMBERS}
    whole: dict[str, Any] = {name: int(fact[name]) for name in _COUNTS}
    pairs = tuple((int(place), float(peak)) for place, peak in columns.reshape(-1, 2) if math.isfinite(place))
    if fact["code"] not in ("bf16", "fp16"):
        raise ValueError("its counts are of an unknown format")
    return TensorSurvey(
        name=str(fact["name"]), figures=figures, exponents=exponents_of(fact["code"], codes, counts), codes=codes,
        counts=counts, code=fact["code"], is_exact=bool(fact["is_exact"]), columns=pairs, **numbers, **whole,
    )  # fmt: skip
