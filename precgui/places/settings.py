"""The places that the user has added: `places.toml` in the folder of the application's state."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from precgui.config.toml_file import read_toml, toml_fault
from precgui.errors import SentenceError
from precgui.paths import state_dir
from precgui.safe_open import replace_file
from precgui.sentences import L_, Sentence

HERE = L_("this machine")  # no place can have this name
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
    "-o", "ConnectTimeout=10",
)  # fmt: skip
_SERVE = "serve --stdio"


class PlaceError(SentenceError):
    """A place that is not there, or that cannot be added."""


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """A name, and the command that starts an agent with frames on its input and output."""

    name: str
    command: tuple[str, ...]

    @property
    def host(self) -> str:
        """That of ssh, with its user; empty for another command."""
        return self.command[-2] if self.command[:1] == ("ssh",) and self.command[-3:-2] == ("--",) else ""

    @property
    def text(self) -> str:
        """The command as a person would type it."""
        return shlex.join(self.command)

    @property
    def short(self) -> str:
        """`ssh:HOST`, from which `places add` makes this command; another command as it is."""
        return f"ssh:{self.host}" if self.host and self == ssh_place(self.name, self.host) else self.text


def ssh_place(name: str, host: str, precgui: str = "precgui", options: Sequence[str] = ()) -> NamedPlace:
    """A place behind ssh; `precgui` is the program there and its words, for the shell there. Raises PlaceError.

    `options` are more arguments of ssh. Everything else is as the user's own configuration of ssh says.
    """
    if not host or host.startswith("-") or any(character.isspace() for character in host):
        raise PlaceError(
            Sentence(
                "{host!r} is no host; write ssh:HOST with a name that `ssh HOST` knows",
                host=host,
            )
        )
    return _checked(NamedPlace(name, (*_SSH, *options, "--", host, f"{precgui} {_SERVE}")))


def command_place(name: str, words: Sequence[str]) -> NamedPlace:
    """A place behind any command, such as `docker exec -i BOX precgui serve --stdio`. Raises PlaceError."""
    if not words:
        raise PlaceError(L_("a place needs ssh:HOST or the words of a command that starts `precgui serve --stdio`"))
    return _checked(NamedPlace(name, tuple(words)))


def places() -> dict[str, NamedPlace]:
    """All places by name, in the order in which they were added. Raises PlaceError for a file that cannot be read."""
    try:
        tables = read_toml(places_file()).get("places", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise PlaceError(toml_fault(places_file(), error, "another $PRECGUI_STATE")) from None
    if not isinstance(tables, Mapping):
        raise PlaceError(
            Sentence(
                "{file}: places is no table; write [places.NAME] and command = [...]",
                file=places_file(),
            )
        )
    return {name: _read(name, table) for name, table in tables.items()}


def place_called(name: str) -> NamedPlace:
    """Raises PlaceError."""
    known = places()
    if not name:
        raise PlaceError(L_("the name of a place is empty; `precgui places` shows the names"))
    if name not in known:
        names = ", ".join(known) or L_("there is none yet")
        raise PlaceError(
            Sentence(
                "there is no place {name}; known: {names}; `precgui places add NAME ssh:HOST` adds one",
                name=name,
                names=names,
            )
        )
    return known[name]


def known_place(name: str) -> NamedPlace | None:
    """The place of this name; None where there is none, or where the file of the places cannot be read."""
    try:
        return places().get(name)
    except PlaceError:
        return None


def add_place(place: NamedPlace) -> None:
    """Raises PlaceError, also where the name is taken."""
    known = places()
    if place.name in known:
        raise PlaceError(
            Sentence(
                "there is a place {name} already; remove it first with `precgui places remove`",
                name=place.name,
            )
        )
    _write({**known, place.name: place})


def remove_place(name: str) -> None:
    """Raises PlaceError."""
    place_called(name)
    _write({known: place for known, place in places().items() if known != name})


def places_file() -> Path:
    """The file of the places."""
    return state_dir() / "places.toml"


def _read(name: str, table: object) -> NamedPlace:
    command = table.get("command") if isinstance(table, Mapping) else None
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise PlaceError(
            Sentence(
                "{file}: place {name} has no command; write command = [...] with its words",
                file=places_file(),
                name=name,
            )
        )
    return _checked(NamedPlace(name, tuple(command)))


def _checked(place: NamedPlace) -> NamedPlace:
    if not _NAME.fullmatch(place.name):
        raise PlaceError(
            Sentence(
                "{name!r} is no name for a place; use up to 40 letters, digits, `_`, `.` and `-`",
                name=place.name,
            )
        )
    return place


def _write(known: Mapping[str, NamedPlace]) -> None:
    tables = {name: {"command": list(place.command)} for name, place in known.items()}
    try:
        places_file().parent.mkdir(parents=True, exist_ok=True)
        replace_file(places_file(), tomli_w.dumps({"places": tables}).encode())
    except OSError as error:
        raise PlaceError(
            Sentence(
                "{file} cannot be written: {reason}; choose another $PRECGUI_STATE",
                file=places_file(),
                reason=error.strerror,
            )
        ) from None
