"""The first contact with a place: each failure is one sentence with its cure."""

from __future__ import annotations

import re
import sys

import pytest

from precgui import __version__, words
from precgui.cli.main import main
from precgui.places.contact import explained, no_program, other_protocol
from precgui.places.messages import REPLIES, JobLine, Pong, Refused
from precgui.places.settings import (
    NamedPlace,
    PlaceError,
    add_place,
    command_place,
    place_called,
    places,
    places_file,
    remove_place,
    ssh_place,
)
from precgui.places.trial import answer_of
from precgui.process.frames import PROTOCOL
from precgui.sentences import Sentence
from precgui.words import translated

SERVE = f"{sys.executable} -m precgui"
WHEEL = f"precgui-{__version__}-py3-none-any.whl"
INSTALL = f"`make wheel && scp dist/{WHEEL} gpu1:` in your checkout, then `ssh gpu1 'python3 -m pip install ./{WHEEL}'`"
UPGRADE = f"`ssh gpu1 'python3 -m pip uninstall --yes precgui && python3 -m pip install ./{WHEEL}'`"


FAILURES = [
    ("No ED25519 host key is known for gpu1\nHost key verification failed.", "run `ssh gpu1` once", True),
    (
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
        "ssh-keygen -R gpu1",
        True,
    ),
    ("me@gpu1: Permission denied (publickey).", "`ssh-copy-id gpu1` puts yours there", True),
    ("ssh: Could not resolve hostname gpu1: Name or service not known", "no host is called gpu1", False),
    ("ssh: connect to host gpu1 port 22: Connection refused", "gpu1 refuses connections", False),
    ("ssh: connect to host gpu1 port 22: Connection timed out", "gpu1 does not answer", False),
    ("bash: line 1: precgui: command not found", f"install it with {INSTALL}", True),
    ("/usr/bin/python3: No module named precgui", "precgui is not installed at gpu1", True),
    (
        "ModuleNotFoundError: No module named 'pydantic'",
        f"install them with {INSTALL}",
        True,
    ),
    ("precgui: serve is neither a file nor a command", UPGRADE, True),
    ("first\nSegmentation fault", "the agent at gpu1 ended with exit code 9: Segmentation fault", False),
]


@pytest.mark.parametrize(("printed", "sentence", "is_final"), FAILURES)
def test_that_each_failure_is_one_sentence_with_its_cure(printed: str, sentence: str, is_final: bool) -> None:
    error = explained(ssh_place("gpu1", "gpu1"), printed, 9)
    assert sentence in str(error)
    assert "\n" not in str(error)
    assert error.is_final == is_final


def test_that_failures_are_in_the_readers_language_where_they_are_shown() -> None:
    place = ssh_place("gpu1", "gpu1")
    errors: list[BaseException] = [explained(place, said, 9) for said, _, _ in FAILURES]
    errors += [explained(place, "", None), explained(place, "", 127), no_program(place), other_protocol(place, 1)]
    errors += [other_protocol(place, 99), no_program(command_place("box", ["nothing-here"]))]
    try:
        words.use("zh_CN")
        shown = [words.error_text(error) for error in errors]
    finally:
        words.use("en")
    plain = [re.sub("`[^`]*`|Segmentation fault", "", text) for text in shown]
    assert [text for text in plain if re.search("[a-z]{2,} [a-z]{2,} [a-z]{2,}", text)] == []
    assert not any(text == str(error) for text, error in zip(shown, errors, strict=True))


def test_that_a_frame_has_the_english_text_of_a_sentence_and_its_key() -> None:
    text = Sentence("there is no job {job} at this place", job="abc")
    received = REPLIES.decode(REPLIES.encode(Refused("abc", text)))
    assert received == Refused("abc", "there is no job abc at this place")
    assert translated(received.message) == translated(text)


def test_that_a_place_without_ssh_gets_a_copy_of_the_wheel() -> None:
    error = explained(command_place("box", ["docker", "exec"]), "precgui: command not found", 127)
    assert f"a copy of dist/{WHEEL} there, and `python3 -m pip install ./{WHEEL}` there" in str(error)


@pytest.mark.parametrize(("number", "how"), [(PROTOCOL - 2, UPGRADE), (PROTOCOL + 1, "`git pull && python3 -m pip")])
def test_that_another_protocol_is_one_sentence_with_the_command_that_upgrades(number: int, how: str) -> None:
    printed = bytearray(REPLIES.encode(Pong()))
    printed[4] = number
    program = f"import sys, time; sys.stdout.buffer.write({bytes(printed)!r}); sys.stdout.flush(); time.sleep(9)"
    place = NamedPlace("gpu1", (sys.executable, "-c", program, "--", "gpu1", "precgui"))
    answer = answer_of(place)
    assert answer.hello is None
    assert f"gpu1 speaks protocol {number} and this precgui protocol {PROTOCOL}; upgrade precgui" in answer.why
    assert how in str(other_protocol(ssh_place("gpu1", "gpu1"), number))


def test_that_a_missing_program_is_named() -> None:
    assert "install the OpenSSH client" in str(no_program(ssh_place("gpu1", "gpu1")))
    answer = answer_of(command_place("box", ["no-such-program", "x"]))
    assert answer.why == "there is no program no-such-program on this machine; correct the command of box"
    assert answer.document()["answered"] is False


def test_that_a_command_that_is_no_agent_is_found_out() -> None:
    answer = answer_of(command_place("box", [sys.executable, "-c", "print('hello')"]))
    assert answer.why == "the agent at box ended with exit code 0: hello"


def hello_place(**changes: object) -> NamedPlace:
    """A place whose agent says only this hello."""
    values = {"torch": "", "memory": 8 << 30, "free": 1 << 30} | changes
    program = (
        "import os; from precgui.places.messages import *; D = PlaceDevice; D.__post_init__ = lambda self: None; "
        "hello = PlaceHello('1', '3', {torch!r}, 'h', 's', (D('cpu', 'CPU', {memory}, {free}),)); "
        "os.write(1, REPLIES.encode(hello)); os.read(0, 1)"
    )
    return command_place("box", [sys.executable, "-c", program.format(**values)])


def test_that_a_place_without_torch_is_added_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["places", "add", "box", *hello_place().command]) == 0
    said = "".join(capsys.readouterr())
    assert "torch is not installed at box, which trains nothing without it; `python3 -m pip install torch`" in said
    assert "trains there" not in said


@pytest.mark.parametrize(("memory", "free"), [(8, -5), (8, 9), (-1, -1)])
def test_that_memory_that_cannot_be_is_refused(memory: int, free: int) -> None:
    answer = answer_of(hello_place(memory=memory, free=free))
    assert answer.hello is None
    assert f"cpu has {free} of {memory} bytes free, which cannot be" in answer.why


def test_that_empty_names_are_said_to_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    add_place(hello_place())
    for given, sentence in (
        (["run", "digits-quick", "--place", ""], "the name of a place is empty"),
        (["places", "attach", "box", ""], "the name of a job is empty"),
    ):
        assert main(given) == 2
        assert sentence in capsys.readouterr().err


def test_that_jobs_are_whole_in_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    add_place(hello_place())
    line = JobLine(
        "0123456789abcdef" * 2, "run", "a title of some words " * 3, "2026-03-01T12:00:00+00:00", False, ("run.h5",)
    )
    monkeypatch.setattr("precgui.cli.places.jobs_of", lambda place: (line,))
    assert main(["places", "jobs", "box"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("0123456789ab ", "2026-03-01 12:00", "run.h5"))
    assert "\u2026" not in printed


def test_that_places_are_kept_in_a_file_that_a_person_can_read() -> None:
    add_place(ssh_place("gpu1", "me@gpu1", "~/env/bin/precgui"))
    add_place(command_place("box", ["docker", "exec", "-i", "box", "precgui", "serve", "--stdio"]))
    assert list(places()) == ["gpu1", "box"]
    assert place_called("gpu1").command[-3:] == ("--", "me@gpu1", "~/env/bin/precgui serve --stdio")
    assert "BatchMode=yes" in places_file().read_text(encoding="utf-8")
    with pytest.raises(PlaceError, match="a place gpu1 already"):
        add_place(ssh_place("gpu1", "other"))
    remove_place("gpu1")
    assert list(places()) == ["box"]
    with pytest.raises(PlaceError, match="there is no place gpu1; known: box"):
        place_called("gpu1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("places = 3", "places is no table"),
        ("[places.a]\ncommand = 'rm'", "has no command"),
        ("[places.a]\ncommand = []", "has no command"),
        ("[places.'a b']\ncommand = ['x']", "is no name for a place"),
        ("[", "is not valid TOML"),
    ],
)
def test_that_a_damaged_file_of_places_is_one_sentence(text: str, sentence: str) -> None:
    places_file().parent.mkdir(parents=True)
    places_file().write_text(text, encoding="utf-8")
    with pytest.raises(PlaceError, match=sentence):
        places()


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b"])
def test_that_a_host_is_no_option_of_ssh(host: str) -> None:
    with pytest.raises(PlaceError, match="is no host"):
        ssh_place("gpu1", host)
