"""Frames: messages between processes that do not trust each other, as JSON text and raw bytes; no pickle.

A message is a dataclass. `Codec` knows which ones there are, and reads nothing else: a field has the type that its
class gives it, sizes are capped, and whatever differs is a `FrameError`. docs/frames.md describes the bytes.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union

from precgui.errors import SentenceError
from precgui.sanitize import one_line
from precgui.sentence_keys import SENTENCES, keys_in, restore
from precgui.sentences import L_, Sentence, filled, message_of

PROTOCOL = 3
WITHOUT_SENTENCES = 2  # the protocol before: read as well, and enough for orders, so that older agents take them
MAGIC = b"pcgf"
HEAD = struct.Struct("<4sBB2xIIII")  # magic, protocol, flags, then stored and inflated bytes of header and of blobs
MOST_HEADER_BYTES = 16 << 20
MOST_BLOB_BYTES = 64 << 20
MOST_NOISE_BYTES = 64 << 10  # that a login shell prints before the first frame
_HEADER_DEFLATED, _BLOBS_DEFLATED = 1, 2
_WORTH_DEFLATING_BYTES = 256
_MOST_SHOWN = 40  # characters of a wrong value in a sentence

_Blobs = Sequence[bytes]
_Decoder = Callable[[Any, str, _Blobs], Any]


class FrameError(SentenceError):
    """The far end sent what no message of this protocol is."""


class ProtocolError(FrameError):
    """The far end speaks another protocol, `number`."""

    def __init__(self, number: int) -> None:
        self.number = number
        values = {"number": number, "own": PROTOCOL}
        if number < PROTOCOL:
            text = L_("the far end speaks protocol {number} and this precgui protocol {own}; upgrade precgui there")
        else:
            text = L_("the far end speaks protocol {number} and this precgui protocol {own}; upgrade precgui here")
        super().__init__(filled(text, **values))


class Codec:
    """Messages to bytes and back. `kinds` are the dataclasses that may be sent by themselves.

    A text that is a `Sentence` comes back as one, so that the far end shows it in its own language.
    """

    def __init__(self, kinds: Iterable[type], protocol: int = PROTOCOL) -> None:
        self._message, self._protocol = _decoder_of_classes(tuple(kinds)), protocol

    def encode(self, message: object) -> bytes:
        """One frame. Raises FrameError where it would be larger than a reader takes."""
        blobs: list[bytes] = []
        tree = _tree(message, blobs)
        parts = {"message": tree, "blobs": [len(blob) for blob in blobs]}
        if self._protocol > WITHOUT_SENTENCES and (keys := keys_in(tree)):
            parts[SENTENCES] = keys
        text = json.dumps(parts, separators=(",", ":"))
        header, blob = text.encode("utf-8"), b"".join(blobs)
        if len(header) > MOST_HEADER_BYTES or len(blob) > MOST_BLOB_BYTES:
            raise FrameError(
                Sentence(
                    "a {message} of {size} bytes is too large to be sent",
                    message=type(message).__name__,
                    size=len(header) + len(blob),
                )
            )
        stored_header, stored_blob = _deflated(header), _deflated(blob)
        flags = _HEADER_DEFLATED * (stored_header is not header) | _BLOBS_DEFLATED * (stored_blob is not blob)
        head = HEAD.pack(MAGIC, self._protocol, flags, len(stored_header), len(header), len(stored_blob), len(blob))
        return head + stored_header + stored_blob

    def decode(self, frame: bytes) -> Any:
        """The message of one whole frame. Raises FrameError."""
        head = FrameHead.read(frame)
        body = memoryview(frame)[HEAD.size :]
        if len(body) != head.body_bytes:
            raise FrameError(
                Sentence(
                    "a frame has {size} bytes after its head, which gives {body_bytes}",
                    size=len(body),
                    body_bytes=head.body_bytes,
                )
            )
        header = _inflated(body[: head.header_stored], head.header_bytes, bool(head.flags & _HEADER_DEFLATED))
        blob = _inflated(body[head.header_stored :], head.blob_bytes, bool(head.flags & _BLOBS_DEFLATED))
        tree = _parsed(header)
        if not isinstance(tree, dict) or tree.keys() - {SENTENCES} != {"message", "blobs"}:
            raise FrameError(L_("the header of a frame does not consist of `message` and `blobs`"))
        restore(tree["message"], tree.get(SENTENCES))
        return self._message(tree["message"], "message", _split(blob, tree["blobs"]))


@dataclasses.dataclass(frozen=True, slots=True)
class FrameHead:
    """The first `HEAD.size` bytes of a frame; sizes in bytes."""

    flags: int
    header_stored: int
    header_bytes: int
    blob_stored: int
    blob_bytes: int

    @property
    def body_bytes(self) -> int:
        """Of what follows the head."""
        return self.header_stored + self.blob_stored

    @classmethod
    def read(cls, data: bytes | bytearray) -> FrameHead:
        """Raises FrameError, ProtocolError for another protocol."""
        if len(data) < HEAD.size:
            raise FrameError(
                Sentence(
                    "a frame has {size} bytes, fewer than its head",
                    size=len(data),
                )
            )
        magic, protocol, flags, *sizes = HEAD.unpack_from(data)
        if magic != MAGIC:
            raise FrameError(
                Sentence(
                    "a frame begins with {magic!r}; something else writes to the same stream",
                    magic=bytes(magic),
                )
            )
        if protocol not in (WITHOUT_SENTENCES, PROTOCOL):
            raise ProtocolError(protocol)
        if flags & ~(_HEADER_DEFLATED | _BLOBS_DEFLATED):
            raise FrameError(Sentence("a frame has the unknown flags {flags:#x}", flags=flags))
        head = cls(flags, *sizes)
        if max(head.header_stored, head.header_bytes) > MOST_HEADER_BYTES:
            raise FrameError(
                Sentence(
                    "the header of a frame is larger than {most} bytes",
                    most=MOST_HEADER_BYTES,
                )
            )
        if max(head.blob_stored, head.blob_bytes) > MOST_BLOB_BYTES:
            raise FrameError(
                Sentence(
                    "the data of a frame are larger than {most} bytes",
                    most=MOST_BLOB_BYTES,
                )
            )
        return head


class FrameReader:
    """Cuts a stream of bytes into messages.

    With `noise`, up to `MOST_NOISE_BYTES` before the first frame are skipped: what a login shell prints.
    """

    def __init__(self, codec: Codec, *, noise: bool = False) -> None:
        self._codec, self._noise = codec, noise
        self._skipped = bytearray()
        self._buffer = bytearray()

    @property
    def skipped(self) -> str:
        """The end of what was skipped before the first frame."""
        return (self._skipped + self._buffer * self._noise).decode("utf-8", "replace")

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are whole now. Raises FrameError; the stream cannot be read any further then."""
        self._buffer += data
        return [self._codec.decode(frame) for frame in self._frames()]

    def _frames(self) -> Iterable[bytes]:
        if self._noise and not self._skip():
            return
        while len(self._buffer) >= HEAD.size:
            size = HEAD.size + FrameHead.read(self._buffer).body_bytes
            if len(self._buffer) < size:
                return
            frame = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield frame

    def _skip(self) -> bool:
        """Skip to the first frame; False where it has not come yet."""
        place = self._buffer.find(MAGIC)
        noise = len(self._buffer) - len(MAGIC) + 1 if place < 0 else place
        if noise > 0:
            self._skipped += self._buffer[:noise]
            del self._buffer[:noise]
        if len(self._skipped) > MOST_NOISE_BYTES:
            raise FrameError(
                Sentence(
                    "no frame came within the first {most} bytes; the command is not an agent",
                    most=MOST_NOISE_BYTES,
                )
            )
        self._noise = place < 0
        return place >= 0


def _deflated(data: bytes) -> bytes:
    """The data at deflate level 1, or the same object where that does not pay."""
    if len(data) < _WORTH_DEFLATING_BYTES:
        return data
    result = zlib.compress(data, 1)
    return result if len(result) < len(data) * 0.9 else data


def _inflated(data: memoryview, size: int, is_deflated: bool) -> bytes:
    if not is_deflated:
        if len(data) != size:
            raise FrameError(L_("a part of a frame has not the size that its head gives"))
        return bytes(data)
    inflater = zlib.decompressobj()
    try:
        result = inflater.decompress(data, size + 1)
    except zlib.error as error:
        raise FrameError(Sentence("a part of a frame cannot be inflated: {error}", error=message_of(error))) from None
    if len(result) != size or not inflater.eof or inflater.unused_data:
        raise FrameError(L_("a part of a frame has not the size that its head gives"))
    return result


def _parsed(header: bytes) -> Any:
    try:
        return json.loads(header.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FrameError(
            Sentence("the header of a frame is no JSON text: {error}", error=one_line(str(error)))
        ) from None


def _split(blob: bytes, sizes: Any) -> list[bytes]:
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise FrameError(L_("the sizes of the data of a frame are no list of whole numbers"))
    if sum(sizes) != len(blob):
        raise FrameError(
            Sentence(
                "the data of a frame have {size} bytes, and its header gives {sizes}",
                size=len(blob),
                sizes=sum(sizes),
            )
        )
    result, place = [], 0
    for size in sizes:
        result.append(blob[place : place + size])
        place += size
    return result


def _tree(value: Any, blobs: list[bytes]) -> Any:
    """The JSON tree of a value: a dataclass with its name as `class`, bytes as the number of a blob."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _tree(getattr(value, field.name), blobs) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, bytes):
        blobs.append(value)
        return {"blob": len(blobs) - 1}
    if isinstance(value, Mapping):
        return {str(key): _tree(item, blobs) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tree(item, blobs) for item in value]
    return value


def _fault(where: str, value: Any, expected: str) -> FrameError:
    return FrameError(
        Sentence(
            "{where} is {value}, which is not {expected}",
            where=where,
            value=one_line(repr(value), _MOST_SHOWN),
            expected=expected,
        )
    )


def _decoder_of_classes(classes: Sequence[type]) -> _Decoder:
    """Of a dataclass among `classes`, by its name."""
    readers: dict[str, _Decoder] = {}
    known = {each.__name__: each for each in classes}

    def decode(value: Any, where: str, blobs: _Blobs) -> Any:
        kind = value.get("class") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in known:
            if kind is None and isinstance(value, dict):
                raise FrameError(
                    Sentence(
                        "{where} has no `class`, which is one of {known}",
                        where=where,
                        known=", ".join(known),
                    )
                )
            raise _fault(
                where,
                kind if isinstance(value, dict) else value,
                Sentence(
                    "one of {known}",
                    known=", ".join(known),
                ),
            )
        if kind not in readers:
            readers[kind] = _decoder_of_class(known[kind])
        return readers[kind](value, kind, blobs)

    return decode


def _decoder_of_class(kind: type) -> _Decoder:
    hints = typing.get_type_hints(kind)
    fields: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(kind)}
    decoders = {name: _decoder(hints[name]) for name in fields}
    needed = {
        name for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }  # fmt: skip

    def decode(value: Any, where: str, blobs: _Blobs) -> Any:
        names = value.keys() - {"class"}
        if not needed <= names <= fields.keys():
            wrong = sorted(map(str, (needed - names) or (names - fields.keys())))
            raise FrameError(
                Sentence(
                    "{where} lacks or does not know {wrong}",
                    where=where,
                    wrong=one_line(", ".join(wrong), _MOST_SHOWN),
                )
            )
        return kind(**{name: decoders[name](value[name], f"{where}.{name}", blobs) for name in names})

    return decode


def _decoder(hint: Any) -> _Decoder:
    """The reader of a field with this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS:
        return _scalar(*_SCALARS[hint])
    if hint is bytes:
        return _blob
    if hint is Any:
        return lambda value, where, blobs: value
    if origin is Literal:
        return _choice(arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _items(_decoder(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping
    if origin in (Union, types.UnionType) and all(dataclasses.is_dataclass(each) for each in arguments):
        return _decoder_of_classes(arguments)
    if dataclasses.is_dataclass(hint):
        return _decoder_of_classes((typing.cast(type, hint),))
    raise TypeError(f"no frame holds a field of the type {hint}")


_SCALARS: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str, Sentence), L_("a text")),
    bool: ((bool,), L_("true or false")),
    int: ((int,), L_("a whole number of 64 bits")),
    float: ((int, float), L_("a number")),
}


def _scalar(accepted: tuple[type, ...], expected: str) -> _Decoder:
    def decode(value: Any, where: str, blobs: _Blobs) -> Any:
        if type(value) not in accepted or (type(value) is int and not -(1 << 63) <= value < 1 << 64):
            raise _fault(where, value, expected)
        return float(value) if float in accepted else value

    return decode


def _blob(value: Any, where: str, blobs: _Blobs) -> bytes:
    number = value.get("blob") if isinstance(value, dict) and value.keys() == {"blob"} else None
    if type(number) is not int or not 0 <= number < len(blobs):
        raise _fault(where, value, L_("one of the data of its frame"))
    return blobs[number]


def _choice(choices: tuple[Any, ...]) -> _Decoder:
    def decode(value: Any, where: str, blobs: _Blobs) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise _fault(where, value, Sentence("one of {choices}", choices=", ".join(choices)))
        return value

    return decode


def _items(decoder: _Decoder) -> _Decoder:
    def decode(value: Any, where: str, blobs: _Blobs) -> Any:
        if not isinstance(value, list):
            raise _fault(where, value, L_("a list"))
        return tuple(decoder(item, where, blobs) for item in value)

    return decode


def _mapping(value: Any, where: str, blobs: _Blobs) -> Any:
    if not isinstance(value, dict):
        raise _fault(where, value, L_("an object"))
    return value
