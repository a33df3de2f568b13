"""TensorBoard event files: records with checksums around protobuf messages, written and read without trust.

A record is its length (uint64), the checksum of that, the message, and the checksum of the message. TensorBoard's
own reader believes any length, and its checksum in plain Python is a hundred times slower than Google's in C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from precgui.runs.errors import RunFileError
from precgui.sentences import L_, Sentence, filled

NAME_PART = "tfevents"  # which TensorBoard, too, knows its files by
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_LARGEST_RECORD = 1 << 30  # protobuf itself ends at 2 GB
_CUT, _DAMAGED = L_("{file} is cut short"), L_("{file} is damaged")
_TOO_LARGE = L_("{file} holds a record that is too large to read")


class Damage(Exception):
    """The file ends, or cannot be understood, from here on; `clause(file)` says why."""

    def clause(self, file: str) -> Sentence:
        return filled(str(self), file=file)


def is_event_file(path: Path) -> bool:
    return NAME_PART in path.name and path.is_file()


def holds_events(path: Path) -> bool:
    """Whether a path is TensorBoard's to read: an event file, or any folder."""
    return path.is_dir() or is_event_file(path)


def event_type() -> Any:
    """The protobuf class of an event. Raises RunFileError when the library is not installed."""
    try:
        import google_crc32c  # noqa: F401  both belong to the extra
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError as error:
        missing = str(error.name or error).partition(".")[0]
        cure = L_('install it with pip install "precgui[tensorboard]"')
        raise RunFileError(
            Sentence("TensorBoard event files need the Python package {package}; {cure}.", package=missing, cure=cure)
        ) from None
    return Event


def write_record(file: IO[bytes], message: bytes) -> None:
    length = _LENGTH.pack(len(message))
    file.write(length + _CHECKSUM.pack(_masked_checksum(length)) + message)
    file.write(_CHECKSUM.pack(_masked_checksum(message)))


def read_records(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The messages of a file of `size` bytes. Raises Damage at the first that is cut or altered."""
    left = size
    while left > 0:
        head = file.read(_LENGTH.size + _CHECKSUM.size)
        left -= len(head)
        if len(head) < _LENGTH.size + _CHECKSUM.size:
            raise Damage(_CUT)
        (length,) = _LENGTH.unpack(head[: _LENGTH.size])
        if _CHECKSUM.unpack(head[_LENGTH.size :])[0] != _masked_checksum(head[: _LENGTH.size]):
            raise Damage(_DAMAGED)
        if length + _CHECKSUM.size > left:
            raise Damage(_CUT)
        if length > _LARGEST_RECORD:
            raise Damage(_TOO_LARGE)
        message = file.read(length)
        checksum = file.read(_CHECKSUM.size)
        left -= len(message) + len(checksum)
        if len(checksum) < _CHECKSUM.size:
            raise Damage(_CUT)
        if _CHECKSUM.unpack(checksum)[0] != _masked_checksum(message):
            raise Damage(_DAMAGED)
        yield message


def _masked_checksum(data: bytes) -> int:
    """CRC-32C, turned and shifted as TFRecord has it (tensorflow/core/lib/hash/crc32c.h)."""
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
