"""Why the agent of a place does not answer, as one sentence with its cure."""

from __future__ import annotations

import re
from collections.abc import Callable

from precgui import __version__
from precgui.errors import SentenceError
from precgui.places.settings import NamedPlace
from precgui.process.frames import PROTOCOL
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence


class ContactError(SentenceError, OSError):
    """No agent answers. `is_final`: another try would fail in the same way, and may lock an account."""

    def __init__(self, message: str, *, is_final: bool = True) -> None:
        super().__init__(message)
        self.is_final = is_final


def _install(place: NamedPlace, before: str = "") -> str:
    """The commands that install precgui at a place, after "with": it is on no package index. `before` runs there first.

    The wheel is named in full: there may be others, of which pip would refuse to take two.
    """
    wheel = f"precgui-{__version__}-py3-none-any.whl"
    install = f"{before}python3 -m pip install ./{wheel}"
    if place.host:
        copy = f"make wheel && scp dist/{wheel} {place.host}:"
        return Sentence(
            "`{copy}` in your checkout, then `ssh {host} '{install}'`", copy=copy, host=place.host, install=install
        )
    return Sentence(
        "`make wheel` in your checkout, a copy of dist/{wheel} there, and `{install}` there",
        wheel=wheel, install=install,
    )  # fmt: skip


def upgrade(place: NamedPlace) -> str:
    """The commands that put the precgui of this machine in place of that of a place, after "with".

    pip leaves what is there where the wheel has the same version, so that goes first.
    """
    return _install(place, "python3 -m pip uninstall --yes precgui && ")


def _key_changed(place: NamedPlace) -> str:
    return Sentence(
        "the host key of {host} is another one than ssh knows; find out why, then `ssh-keygen -R {host}` "
        "forgets the old one",
        host=place.host,
    )


def _unknown_host_key(place: NamedPlace) -> str:
    return Sentence(
        "ssh does not know the host key of {host} yet; run `ssh {host}` once and compare its fingerprint",
        host=place.host,
    )


def _no_key(place: NamedPlace) -> str:
    return Sentence(
        "{host} takes none of your ssh keys; `ssh-copy-id {host}` puts yours there",
        host=place.host,
    )


def _unknown_name(place: NamedPlace) -> str:
    return Sentence(
        "no host is called {host}; correct its name, or give it one in ~/.ssh/config",
        host=place.host,
    )


def _not_installed(place: NamedPlace) -> str:
    return Sentence(
        "precgui is not installed at {name}; install it with {commands}, or name its path with --precgui",
        name=place.name,
        commands=_install(place),
    )


def _not_whole(place: NamedPlace) -> str:
    return Sentence(
        "libraries that precgui needs are not installed at {name}; install them with {commands}",
        name=place.name,
        commands=_install(place),
    )


def no_torch(place: NamedPlace) -> str:
    """The sentence about a place that can train nothing."""
    install = "python3 -m pip install torch"
    if place.host:
        return Sentence(
            "torch is not installed at {name}, which trains nothing without it; `ssh {host} {install}` installs it",
            name=place.name, host=place.host, install=install,
        )  # fmt: skip
    return Sentence(
        "torch is not installed at {name}, which trains nothing without it; `{install}` there installs it",
        name=place.name, install=install,
    )  # fmt: skip


def _too_old(place: NamedPlace) -> str:
    return Sentence(
        "precgui at {name} is too old to be a place; upgrade it with {commands}",
        name=place.name,
        commands=upgrade(place),
    )


def other_protocol(place: NamedPlace, number: int) -> ContactError:
    """The place speaks the protocol `number`."""
    how: str = Sentence("upgrade precgui there with {commands}", commands=upgrade(place))
    if number > PROTOCOL:
        how = L_("upgrade precgui here with `git pull && python3 -m pip install .` in your checkout")
    return ContactError(
        Sentence(
            "{name} speaks protocol {number} and this precgui protocol {protocol}; {how}",
            name=place.name,
            number=number,
            protocol=PROTOCOL,
            how=how,
        )
    )


def _refused(place: NamedPlace) -> str:
    return Sentence(
        "{host} refuses connections; start sshd there, or name the port in ~/.ssh/config",
        host=place.host,
    )


def _no_answer(place: NamedPlace) -> str:
    return Sentence(
        "{host} does not answer; check that it is on and that this machine is in its network",
        host=place.host or place.name,
    )


# What is printed, the sentence, and whether another try would fail in the same way.
_CAUSES: tuple[tuple[re.Pattern[str], Callable[[NamedPlace], str], bool], ...] = (
    (re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED"), _key_changed, True),
    (re.compile(r"Host key verification failed|No \S+ host key is known"), _unknown_host_key, True),
    (re.compile(r"Permission denied \(|Too many authentication failures"), _no_key, True),
    (re.compile(r"Could not resolve hostname"), _unknown_name, False),
    (re.compile(r"Connection refused"), _refused, False),
    (re.compile(r"timed out|No route to host|Network is unreachable|closed by remote host|reset by peer"),
     _no_answer, False),
    (re.compile(r"serve is neither a file nor a command|invalid choice: '?serve"), _too_old, True),
    (re.compile(r"No module named '?(pydantic|h5py|numpy|tomli_w|psutil|rich)\b"), _not_whole, True),
    (re.compile(r"command not found|precgui: (not found|No such file)|No module named '?precgui|can't open file"),
     _not_installed, True),
)  # fmt: skip


def no_program(place: NamedPlace) -> ContactError:
    """The program of its command is not on this machine."""
    if place.host:
        return ContactError(
            L_(
                "there is no ssh on this machine; install the OpenSSH client (Debian: `apt install openssh-client`, "
                "Windows: Settings, Optional features)"
            )
        )
    return ContactError(
        Sentence(
            "there is no program {command} on this machine; correct the command of {name}",
            command=place.command[0],
            name=place.name,
        )
    )


def explained(place: NamedPlace, words: str, exit_code: int | None) -> ContactError:
    """The error of a command that has ended; `words` is the end of what it has printed."""
    for pattern, sentence, is_final in _CAUSES:
        if pattern.search(words):
            return ContactError(sentence(place), is_final=is_final)
    if exit_code == 127:
        return ContactError(_not_installed(place))
    last = one_line(words.strip().splitlines()[-1]) if words.strip() else L_("it printed nothing")
    if exit_code is None:
        return ContactError(Sentence("the agent at {name} ended: {last}", name=place.name, last=last), is_final=False)
    text = Sentence(
        "the agent at {name} ended with exit code {code}: {last}", name=place.name, code=exit_code, last=last
    )
    return ContactError(text, is_final=False)
