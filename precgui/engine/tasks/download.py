"""Fetches the files of a torchvision data set: with progress, a way to stop, and the checksums that torchvision knows.

torchvision then finds them and unpacks them; its own downloader neither reports progress nor can be stopped.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.error import URLError
from urllib.request import Request, urlopen

from precgui.engine.errors import EngineError
from precgui.safe_open import replaced
from precgui.sentences import Sentence, message_of, together

Tell = Callable[[str], None]  # says how far it is; may raise to give up
_CHUNK_BYTES = 1 << 18
_PROGRESS_INTERVAL_S = 2.0
_PATIENCE_S = 30.0
_NETWORK = (URLError, ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)


class _AnotherFileError(Exception):
    """A sentence on a file whose checksum is not the one that torchvision knows."""


@dataclass(frozen=True)
class DownloadSource:
    """A file of a data set and the addresses where it may be had."""

    urls: tuple[str, ...]
    target: Path
    md5: str


def fetch(dataset: str, folder: Path, tell: Tell) -> None:
    """Put what is missing of a data set into `folder`. Raises EngineError, with the cure."""
    for requested in _missing(dataset, folder):
        try:
            requested.target.parent.mkdir(parents=True, exist_ok=True)
            _fetch_one(requested, dataset, folder, tell)
        except OSError as error:
            raise EngineError(
                Sentence(
                    "{dataset} cannot be kept in {folder} ({why}); choose another folder as data.path",
                    dataset=dataset,
                    folder=folder,
                    why=error.strerror or str(error),
                )
            ) from None


def missing_sentence(dataset: str, folder: Path, reason: str, *, download: bool = True) -> Sentence:
    if not download:
        return Sentence(
            "{dataset} is not in {folder}, or not whole; set data.download = true, or copy the data set into this "
            "folder from a machine that has it",
            dataset=dataset,
            folder=folder,
        )
    return Sentence(
        "{dataset} is not in {folder} and cannot be fetched ({reason}); connect to the network, or copy the data set "
        "into this folder from a machine that has it",
        dataset=dataset,
        folder=folder,
        reason=reason,
    )


def _missing(dataset: str, folder: Path) -> list[DownloadSource]:
    """Files that torchvision would fetch: archives that are neither there nor unpacked."""
    from torchvision import datasets
    from torchvision.datasets.utils import check_integrity

    kind: Any = getattr(datasets, dataset)
    if hasattr(kind, "resources"):  # MNIST and its kin: a file each for images and labels
        raw = folder / kind.__name__ / "raw"
        requested = [
            DownloadSource(tuple(m + name for m in kind.mirrors), raw / name, md5) for name, md5 in kind.resources
        ]
        requested = [each for each in requested if not each.target.with_suffix("").is_file()]
    else:  # CIFAR: one archive
        parts = [(folder / kind.base_folder / name, md5) for name, md5 in (*kind.train_list, *kind.test_list)]
        requested = [DownloadSource((kind.url,), folder / kind.filename, kind.tgz_md5)]
        requested = requested if not all(check_integrity(path, md5) for path, md5 in parts) else []
    return [each for each in requested if not check_integrity(each.target, each.md5)]


def _fetch_one(source: DownloadSource, dataset: str, folder: Path, tell: Tell) -> None:
    """The file from the first address that has it whole."""
    troubles: list[str] = []
    for url in source.urls:
        try:
            with replaced(source.target) as file:
                if _copied(url, file, dataset, source.target.name, tell) != source.md5:
                    raise _AnotherFileError(
                        Sentence("{url} gave another file than it should, by its checksum", url=url)
                    )
            return
        except _AnotherFileError as error:
            troubles.append(message_of(error))
        except _NETWORK as error:
            troubles.append(str(getattr(error, "reason", "") or error or type(error).__name__).rstrip(".:"))
    raise EngineError(missing_sentence(dataset, folder, together(*dict.fromkeys(troubles), between="; ")))


def _copied(url: str, file: BinaryIO, dataset: str, name: str, tell: Tell) -> str:
    """Copy what is at an address into a file; returns its MD5 sum, which is what torchvision has of each file."""
    digest = hashlib.md5(usedforsecurity=False)
    done, reported_s = 0, 0.0
    request = Request(url, headers={"User-Agent": "precgui"})
    with urlopen(request, timeout=_PATIENCE_S) as response:
        whole_mb = response.length / 1e6 if response.length else None
        while chunk := response.read(_CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if time.monotonic() - reported_s >= _PROGRESS_INTERVAL_S:
                reported_s = time.monotonic()
                tell(_progress(dataset, name, done / 1e6, whole_mb))
    tell(Sentence("{dataset}: fetching {file}, {done:.1f} MB, done", dataset=dataset, file=name, done=done / 1e6))
    return digest.hexdigest()


def _progress(dataset: str, name: str, done_mb: float, whole_mb: float | None) -> Sentence:
    if whole_mb is None:
        return Sentence("{dataset}: fetching {file}, {done:.1f} MB", dataset=dataset, file=name, done=done_mb)
    return Sentence(
        "{dataset}: fetching {file}, {done:.1f} of {whole:.1f} MB",
        dataset=dataset,
        file=name,
        done=done_mb,
        whole=whole_mb,
    )
