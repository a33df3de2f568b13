"""Frames: each message comes back as it was, and nothing else is read, whatever bytes come.

`PRECGUI_FUZZ=100000` mutates so many frames in each direction; without it a few hundred.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from precgui import events, words
from precgui.events import (
    EXPONENT_BINS,
    TENSOR_STATS,
    Incident,
    ModuleInfo,
    RunEnded,
    RunStarted,
    StepDone,
    TensorStats,
)
from precgui.places import messages
from precgui.places.history import events_of, history_of
from precgui.places.messages import ORDERS, REPLIES, FilePart, JobEvents, JobHistory, Ping, SentFile, StartRun
from precgui.process.frames import (
    HEAD,
    MAGIC,
    MOST_HEADER_BYTES,
    MOST_NOISE_BYTES,
    PROTOCOL,
    WITHOUT_SENTENCES,
    Codec,
    FrameError,
    FrameReader,
    ProtocolError,
)
from precgui.sentences import Sentence, counted, together, whole
from tests import needs

JOB = "0123456789abcdef" * 2
MUTATIONS = int(os.environ.get("PRECGUI_FUZZ", "400"))


def step(number: int, loss: float = 0.5) -> StepDone:
    return StepDone(number, 0.25, loss, 65536.0, False, 0.1, math.inf, 0.01, 0.0, 64, math.nan)


def row() -> TensorStats:
    stats, counts = bytes(8 * len(TENSOR_STATS)), bytes(range(256)) * 4
    return TensorStats(3, 1.5, "gradient", ("a.weight",), (1,), stats, counts, ("fp32",))


def batch() -> JobEvents:
    described = events.ModelDescribed(
        0.5, (ModuleInfo("", "m.Net"),), (events.ParameterInfo("w", "parameter", "fp32", (3, 4), True, True),)
    )
    started = RunStarted(0.0, 10, 5, "cpu", {"torch": {"threads": 1, "tf32": None}}, 1)
    return JobEvents(JOB, 1, (started, described, step(1, math.nan), step(2), row()))


def said() -> JobEvents:
    """Sentences, one of them in another, and a text."""
    reason = Sentence("a frame has {size} bytes, fewer than its head", size=3)
    message = together(whole(reason), counted("{count} run", "{count} runs", 2), between=" ")
    return JobEvents(
        JOB, 1, (Incident(0.5, 1, "note", "info", message), Incident(0.5, 1, "note", "info", "text"),
                 RunEnded(1.0, "failed", reason)),
    )  # fmt: skip


@needs.babel
def test_that_sentences_are_shown_in_the_language_of_the_far_end() -> None:
    """The message itself is the same with and without them."""
    received = REPLIES.decode(REPLIES.encode(said()))
    plain = REPLIES.decode(with_header(lambda tree: tree.pop("sentences"), said()))
    assert received == plain == said()
    words.use("zh_CN")
    shown = [[words.translated(event.message) for event in each.events] for each in (said(), received, plain)]
    words.use("en")
    assert shown[0] == shown[1]
    assert shown[0][0] != shown[2][0] == said().events[0].message


def test_that_frames_of_the_protocol_before_are_read_and_orders_are_written_in_it() -> None:
    """So a window reaches places with an older precgui, and follows jobs that one has begun."""
    frame = bytearray(REPLIES.encode(batch()))
    frame[4] = WITHOUT_SENTENCES
    assert repr(REPLIES.decode(bytes(frame))) == repr(batch())
    assert ORDERS.encode(order())[4] == WITHOUT_SENTENCES


def history() -> JobHistory:
    return history_of(JOB, 1, 9, [step(1, math.nan), step(2), events.PowerRead("cuda:0", 0.5, 300.0, 1.0)])


def order() -> StartRun:
    return StartRun(JOB, {"task": "digits", "model": {"name": "mlp"}}, "gpu1", (SentFile("t.py", "0" * 64, b"x = 1"),))


def with_header(change: Callable[[dict[str, Any]], None], message: object = None) -> bytes:
    """A frame whose header is changed before it is sent."""
    frame = REPLIES.encode(message or batch())
    _, _, flags, stored, _, blob_stored, blob_size = HEAD.unpack_from(frame)
    header = frame[HEAD.size : HEAD.size + stored]
    tree = json.loads(zlib.decompress(header) if flags & 1 else header)
    change(tree)
    text = json.dumps(tree).encode()
    head = HEAD.pack(MAGIC, PROTOCOL, flags & 2, len(text), len(text), blob_stored, blob_size)
    return head + text + frame[HEAD.size + stored :]


@pytest.mark.parametrize(("codec", "message"), [(REPLIES, batch()), (ORDERS, order()), (ORDERS, Ping())])
def test_that_a_message_comes_back_as_it_was(codec: Codec, message: object) -> None:
    assert repr(codec.decode(codec.encode(message))) == repr(message)  # NaN is not equal to itself


def test_that_every_event_of_a_run_can_be_sent() -> None:
    names = {kind.__name__ for kind in events.Event.__args__}
    with pytest.raises(FrameError) as error:
        REPLIES.decode(with_header(lambda tree: tree["message"]["events"][0].update({"class": "os.system"})))
    assert names <= set(str(error.value).rpartition("one of ")[2].split(", "))


@pytest.mark.parametrize("cut", [1, 7, 64, 5000])
def test_that_frames_are_found_however_the_stream_is_cut(cut: int) -> None:
    sent = [batch(), FilePart(JOB, "run.h5", 0, 9, "f" * 64, os.urandom(9000)), batch()]
    stream = b"".join(map(REPLIES.encode, sent))
    reader, read = FrameReader(REPLIES), []
    for start in range(0, len(stream), cut):
        read += reader.feed(stream[start : start + cut])
    assert repr(read) == repr(sent)


def test_that_rows_of_tensors_are_deflated() -> None:
    names = tuple(f"layer.{number}.weight" for number in range(60))
    row_of_60 = TensorStats(
        1, 0.5, "gradient", names, (1,) * 60, bytes(60 * 8 * len(TENSOR_STATS)), bytes(60 * 4 * EXPONENT_BINS)
    )
    assert len(REPLIES.encode(JobEvents(JOB, 1, (row_of_60,)))) < 12_000


def test_that_print_of_a_login_shell_before_the_first_frame_is_skipped() -> None:
    reader = FrameReader(REPLIES, noise=True)
    assert reader.feed(b"Welcome to gpu1!\n" + MAGIC[:2]) == []
    assert len(reader.feed(MAGIC[2:] + REPLIES.encode(batch())[4:])) == 1
    assert reader.skipped == "Welcome to gpu1!\n"
    with pytest.raises(FrameError, match="something else writes to the same stream"):
        reader.feed(b"a stray print in the middle of the stream")


def test_that_a_command_that_is_no_agent_is_found_out() -> None:
    with pytest.raises(FrameError, match="the command is not an agent"):
        FrameReader(REPLIES, noise=True).feed(b"y\n" * MOST_NOISE_BYTES)


def test_that_another_protocol_is_refused() -> None:
    frame = bytearray(REPLIES.encode(batch()))
    frame[4] = PROTOCOL + 1
    with pytest.raises(ProtocolError, match="upgrade precgui here"):
        FrameReader(REPLIES).feed(bytes(frame))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda tree: tree["message"].update(number="1"), "JobEvents.number is '1', which is not a whole number"),
        (lambda tree: tree["message"].update(number=True), "JobEvents.number is True"),
        (lambda tree: tree["message"].update(number=1 << 70), "JobEvents.number is 11805"),
        (lambda tree: tree["message"].update(job=None), "JobEvents.job is None, which is not a text"),
        (lambda tree: tree["message"].update(more=1), "lacks or does not know more"),
        (lambda tree: tree["message"].pop("events"), "lacks or does not know events"),
        (lambda tree: tree["message"].update({"class": "__import__"}), "message is '__import__', which is not one of"),
        (lambda tree: tree["message"].update({"class": "StartRun"}), "message is 'StartRun', which is not one of"),
        (lambda tree: tree["message"]["events"][2].update(loss="low"), "StepDone.loss is 'low'"),
        (lambda tree: tree["message"]["events"][4].update(stats={"blob": 9}), "not one of the data of its frame"),
        (lambda tree: tree["blobs"].append(1), "its header gives"),
        (lambda tree: tree.update(pickle="gASV"), "does not consist of"),
    ],
)
def test_that_what_is_no_message_is_one_sentence(change: Callable[[dict[str, Any]], None], sentence: str) -> None:
    with pytest.raises(FrameError) as error:
        REPLIES.decode(with_header(change))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_that_sizes_are_capped_before_anything_is_read() -> None:
    large = HEAD.pack(MAGIC, PROTOCOL, 0, MOST_HEADER_BYTES + 1, MOST_HEADER_BYTES + 1, 0, 0)
    with pytest.raises(FrameError, match="larger than"):
        FrameReader(REPLIES).feed(large)
    bomb = zlib.compress(b"[" * 10_000_000, 1)
    with pytest.raises(FrameError, match="size that its head gives"):
        REPLIES.decode(HEAD.pack(MAGIC, PROTOCOL, 1, len(bomb), 100, 0, 0) + bomb)
    deep = b'{"message":' + b"[" * 100_000
    with pytest.raises(FrameError, match="no JSON text"):
        REPLIES.decode(HEAD.pack(MAGIC, PROTOCOL, 0, len(deep), len(deep), 0, 0) + deep)


@pytest.mark.parametrize(
    ("codec", "message"), [(REPLIES, batch()), (REPLIES, history()), (REPLIES, said()), (ORDERS, order())]
)
def test_that_mutated_frames_are_read_or_refused_and_import_nothing(codec: Codec, message: object) -> None:
    random_source = random.Random(7)
    sound, before = codec.encode(message), set(sys.modules)
    plain = with_header(lambda tree: None, message) if codec is REPLIES else sound
    for number in range(MUTATIONS):
        frame = bytearray((sound, plain)[number % 2])
        for _ in range(random_source.randint(1, 4)):
            place = random_source.randrange(len(frame))
            match random_source.randrange(4):
                case 0:
                    frame[place] = random_source.randrange(256)
                case 1:
                    del frame[place : place + random_source.randrange(1, 40)]
                case 2:
                    frame[place:place] = random_source.randbytes(random_source.randrange(1, 40))
                case _:
                    frame[place : place + 1] = random_source.choice([b'"', b"{", b"]", b"-1e999", b"null", b"NaN"])
            frame = frame or bytearray(b"x")
        try:
            for read in FrameReader(codec).feed(bytes(frame)):
                if isinstance(read, JobHistory):
                    events_of(read)
        except FrameError as error:
            assert "\n" not in str(error)
    assert set(sys.modules) == before


def test_that_no_message_goes_both_ways() -> None:
    with pytest.raises(FrameError, match="is not one of"):
        ORDERS.decode(REPLIES.encode(messages.Pong()))


def test_that_a_message_without_a_class_is_said_to_have_none() -> None:
    device = {"id": "cpu", "name": "CPU", "memory_bytes": 8, "free_bytes": 4}
    text = dict.fromkeys(("precgui", "python", "torch", "host", "system"), "1")
    message = {"class": "PlaceHello", **text, "devices": [device]}
    header = json.dumps({"message": message, "blobs": []}).encode()
    frame = HEAD.pack(MAGIC, PROTOCOL, 0, len(header), len(header), 0, 0) + header
    with pytest.raises(FrameError, match=r"PlaceHello\.devices has no `class`, which is one of PlaceDevice"):
        REPLIES.decode(frame)
