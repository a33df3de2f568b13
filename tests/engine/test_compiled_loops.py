"""Machine code on disk that several processes write at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile

from precgui.engine.compiled_loops import CodeFiles, compiled
from precgui.engine.qat import integer_layers
from precgui.engine.quantize import float_kernels
from precgui.engine.quantize.plan import SINGLE
from precgui.engine.survey import kernels
from precgui.engine.telemetry import cpu_kernels


def _files(folder: Path, kind: type[Any] = CodeFiles) -> Any:
    return kind(str(folder), "loop", ("stamp", 1))


def _save_at_once(folder: Path, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes read the index before the other writes it; the first to begin is the last to write its code."""
    early, late = _files(folder, kind), _files(folder, kind)
    for each in (early, late):
        monkeypatch.setattr(each, "_load_index", dict)
    written = early._save_data
    postponed: list[tuple[str, Any]] = []
    monkeypatch.setattr(early, "_save_data", lambda *file: postponed.append(file))
    early.save("e4m3", "code for e4m3")
    late.save("e5m2", "code for e5m2")
    for file in postponed:
        written(*file)


def test_that_code_saved_at_the_same_time_is_never_found_under_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save_at_once(tmp_path, CodeFiles, monkeypatch)
    assert _files(tmp_path).load("e5m2") == "code for e5m2"
    assert _files(tmp_path).load("e4m3") in (None, "code for e4m3")


def test_that_numbas_own_files_may_be_mixed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for `CodeFiles`: where this fails, numba has mended it, and they may go."""
    _save_at_once(tmp_path, IndexDataCacheFile, monkeypatch)
    assert _files(tmp_path, IndexDataCacheFile).load("e5m2") == "code for e4m3"


def test_that_variants_of_a_function_are_kept_side_by_side(tmp_path: Path) -> None:
    for key in ("e4m3", "e5m2", "e4m3"):
        _files(tmp_path).save(key, f"code for {key}")
    assert [_files(tmp_path).load(key) for key in ("e4m3", "e5m2", "e3m4")] == ["code for e4m3", "code for e5m2", None]
    assert len(list(tmp_path.glob("*.nbc"))) == 2


def test_that_code_of_an_earlier_source_is_not_taken(tmp_path: Path) -> None:
    _files(tmp_path).save("e4m3", "code for e4m3")
    assert CodeFiles(str(tmp_path), "loop", ("stamp", 2)).load("e4m3") is None


def test_that_all_compiled_loops_keep_their_code_in_such_files() -> None:
    loops: list[Any] = [
        integer_layers._round, kernels.count_codes, cpu_kernels.measure, cpu_kernels.compare,
        float_kernels.loop(SINGLE, "nearest", "bit_mask", True),
    ]  # fmt: skip
    assert {type(loop._cache._cache_file) for loop in loops} == {CodeFiles}


def test_that_a_loop_is_compiled_where_no_folder_may_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, cache: bool = False, njit: Any = numba.njit, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*arguments, **options)

    def doubled(values: Any) -> None:
        values *= 2

    monkeypatch.setattr(numba, "njit", refused)
    numbers = np.ones(3)
    compiled(doubled)(numbers)
    assert numbers.tolist() == [2, 2, 2]
