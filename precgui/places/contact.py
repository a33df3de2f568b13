"""Why the agent of a place does not answer, as one sentence with its cure."""

from __future__ import annotations

import re
from collections.abc import Callable

from precgui import __version__
from precgui.errors import SentenceError
from precgui.places.settings import NamedPlace
from precgui.process.frames import PROTOCOL
from precgui.sanitize import one_line


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
        return f"`{copy}` in your checkout, then `ssh {place.host} '{install}'`"
    return f"`make wheel` in your checkout, a copy of dist/{wheel} there, and `{install}` there"


def upgrade(place: NamedPlace) -> str:
    """The commands that put the precgui of this machine in place of that of a place, after "with".

    pip leaves what is there where the wheel has the same version, so that goes first.
    """
    return _install(place, "python3 -m pip uninstall --yes precgui && ")


def _key_changed(place: NamedPlace) -> str:
    return (
        f"the host key of {place.host} is another one than ssh knows; find out why, then "
        f"`ssh-keygen -R {place.host}` forgets the old one"
    )


def _unknown_host_key(place: NamedPlace) -> str:
    return (
        f"ssh does not know the host key of {place.host} yet; run `ssh {place.host}` once and compare its fingerprint"
    )


def _no_key(place: NamedPlace) -> str:
    return f"{place.host} takes none of your ssh keys; `ssh-copy-id {place.host}` puts yours there"


def _unknown_name(place: NamedPlace) -> str:
    return f"no host is called {place.host}; correct its name, or give it one in ~/.ssh/config"


def _not_installed(place: NamedPlace) -> str:
    return (
        f"precgui is not installed at {place.name}; install it with {_install(place)}, or name its path with --precgui"
    )


def _not_whole(place: NamedPlace) -> str:
    return f"libraries that precgui needs are not installed at {place.name}; install them with {_install(place)}"


def no_torch(place: NamedPlace) -> str:
    """The sentence about a place that can train nothing."""
    install = "python3 -m pip install torch"
    where = f"`ssh {place.host} {install}`" if place.host else f"`{install}` there"
    return f"torch is not installed at {place.name}, which trains nothing without it; {where} installs it"


def _too_old(place: NamedPlace) -> str:
    return f"precgui at {place.name} is too old to be a place; upgrade it with {upgrade(place)}"


def other_protocol(place: NamedPlace, number: int) -> ContactError:
    """The place speaks the protocol `number`."""
    how = f"upgrade precgui there with {upgrade(place)}"
    if number > PROTOCOL:
        how = "upgrade precgui here with `git pull && python3 -m pip install .` in your checkout"
    return ContactError(f"{place.name} speaks protocol {number} and this precgui protocol {PROTOCOL}; {how}")


def _refused(place: NamedPlace) -> str:
    return f"{place.host} refuses connections; start sshd there, or name the port in ~/.ssh/config"


def _no_answer(place: NamedPlace) -> str:
    return f"{place.host or place.name} does not answer; check that it is on and that this machine is in its network"


# What is printed, the sentence, and whether another try would fail in the same way.
_CAUSES: tuple[tuple[str, Callable[[NamedPlace], str], bool], ...] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", _key_changed, True),
    (r"Host key verification failed|No \S+ host key is known", _unknown_host_key, True),
    (r"Permission denied \(|Too many authentication failures", _no_key, True),
    (r"Could not resolve hostname", _unknown_name, False),
    (r"Connection refused", _refused, False),
    (r"timed out|No route to host|Network is unreachable|closed by remote host|reset by peer", _no_answer, False),
    (r"serve is neither a file nor a command|invalid choice: '?serve", _too_old, True),
    (r"No module named '?(pydantic|h5py|numpy|tomli_w|psutil|rich)\b", _not_whole, True),
    (r"command not found|precgui: not found|No module named '?precgui|precgui: No such file|can't open file",
     _not_installed, True),
)  # fmt: skip


def no_program(place: NamedPlace) -> ContactError:
    """The program of its command is not on this machine."""
    if place.host:
        return ContactError(
            "there is no ssh on this machine; install the OpenSSH client (Debian: `apt install openssh-client`, "
            "Windows: Settings, Optional features)"
        )
    return ContactError(f"there is no program {place.command[0]} on this machine; correct the command of {place.name}")


def explained(place: NamedPlace, words: str, exit_code: int | None) -> ContactError:
    """The error of a command that has ended; `words` is the end of what it has printed."""
    for pattern, sentence, is_final in _CAUSES:
        if re.search(pattern, words):
            return ContactError(sentence(place), is_final=is_final)
    if exit_code == 127:
        return ContactError(_not_installed(place))
    last = one_line(words.strip().splitlines()[-1]) if words.strip() else "it printed nothing"
    code = "" if exit_code is None else f" with exit code {exit_code}"
    return ContactError(f"the agent at {place.name} ended{code}: {last}", is_final=False)
