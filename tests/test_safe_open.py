"""Files that are replaced in one piece: where one cannot be written, the old one stays and nothing lies beside it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from precgui.safe_open import replace_file, replaced


@contextmanager
def _no_file_longer_than(size: int) -> Iterator[None]:
    """The system then refuses to write, as it does on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _snapshot(path: Path, _: pytest.MonkeyPatch) -> None:
    import torch

    from precgui.engine.snapshot.file import write_tensors

    write_tensors(path, {"w": torch.zeros(4096)}, "weights")


def _converted_model(path: Path, _: pytest.MonkeyPatch) -> None:
    import torch

    from precgui import config
    from precgui.engine.qat import saved_model

    saved_model.save(path, config.load("digits-quick", []), {"w": torch.zeros(4096)}, {}, {})


def _bench(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precgui.hardware import measured

    monkeypatch.setattr(measured, "folder", lambda: path.parent)
    measured.keep({"started": "kept", "device": {"id": "cpu"}, "rows": [0] * 4096})


def _download(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precgui.engine.tasks import download

    class Response(io.BytesIO):
        length = 9000

    monkeypatch.setattr(download, "urlopen", lambda *_, **__: Response(bytes(9000)))
    download._fetch_one(download.DownloadSource(("http://nowhere",), path, ""), "MNIST", path.parent, lambda _: None)


def _bytes(path: Path, _: pytest.MonkeyPatch) -> None:
    replace_file(path, bytes(4096))


@pytest.mark.parametrize("write", [_snapshot, _converted_model, _bench, _download, _bytes])
def test_that_a_file_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, Any], None]
) -> None:
    path = tmp_path / "kept-cpu.json"
    path.write_bytes(b"old")
    with pytest.raises((OSError, RuntimeError)), _no_file_longer_than(2000):
        write(path, monkeypatch)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"old"


def test_that_a_replaced_file_is_the_old_one_until_the_end_and_after_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    replace_file(path, b"old")
    with replaced(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    with pytest.raises(KeyboardInterrupt), replaced(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
