"""The cause of a rank's end in torch's error file: as torchrun reads it, and as the launcher does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from precgui.config import load
from precgui.engine.errors import EngineError
from precgui.engine.parallel import start
from precgui.engine.parallel.error_files import (
    COLLECTIVE,
    LostRank,
    RankFailure,
    failure_of,
    read_failures,
    write_failure,
)
from precgui.job import follow


def left(error: Exception, file: Path, monkeypatch: pytest.MonkeyPatch) -> RankFailure:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    try:
        raise error
    except Exception as raised:  # noqa: BLE001
        failure = failure_of(1, raised)
        write_failure(failure)
    return failure


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (EngineError("the model has no layer x; name another"), "error", "the model has no layer x; name another"),
        (LostRank("rank 0: an exchange failed", "a traceback"), COLLECTIVE, "rank 0: an exchange failed"),
        (MemoryError("no room\nat all"), "memory", "rank 1: no room"),
        (ValueError("no label 7"), "error", "rank 1: ValueError: no label 7"),
    ],
)
def test_that_a_failure_comes_back_from_the_file(
    error: Exception, kind: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attempt_0" / "1").mkdir(parents=True)
    failure = left(error, tmp_path / "attempt_0" / "1" / "error.json", monkeypatch)
    assert read_failures(tmp_path) == {1: failure}
    assert (failure.kind, failure.message) == (kind, message)
    assert ("ValueError" in failure.details) == isinstance(error, ValueError)


def test_that_torchrun_reports_it_as_the_root_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = left(EngineError("the model has no layer x"), tmp_path / "error.json", monkeypatch)
    read = ProcessFailure(1, 77, 1, str(tmp_path / "error.json"))
    assert read.timestamp == failure.time_ns // 1_000_000_000
    assert "the model has no layer x" in str(ChildFailedError("precgui", {1: read}))


def test_that_what_is_no_failure_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, text in enumerate(("", "[]", "{", '{"message": "x"}', '{"message": {"message": 1}}', "[" * 9000)):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "error.json").write_text(text)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "error.json").write_text(json.dumps({}))
    assert read_failures(tmp_path) == {}
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    write_failure(RankFailure("error", "outside of torchrun"))


def test_that_a_rank_of_torchrun_without_a_record_leaves_its_cause_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_rank(*_: object, **__: object) -> None:
        raise ValueError("no label 7")

    file = tmp_path / "1" / "error.json"
    file.parent.mkdir()
    monkeypatch.setattr(start, "train_rank", train_rank)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    told = follow(load("gpt-quick", []), lambda: False)
    assert told.startswith("rank 1: ValueError: no label 7\nTraceback")
    assert read_failures(tmp_path)[1].message == "rank 1: ValueError: no label 7"
