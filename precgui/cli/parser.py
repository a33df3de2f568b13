"""The argument parser of every command: what was typed wrong is one sentence that names it and the cure."""

from __future__ import annotations

import argparse
import difflib
import re
from gettext import ngettext
from typing import Any, NoReturn

from precgui.errors import SentenceError


class UserError(SentenceError):
    """Bad input: one sentence that names the value and the cure; exit code 2, no traceback."""


_KINDS = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """Raises UserError instead of printing its usage. Takes no abbreviated options: a later option would break them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base class does, but report unknown arguments of a sub-command in its own name."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        for pattern, sentence in _SENTENCES:
            if match := re.fullmatch(pattern, message, re.DOTALL):
                message = sentence(**{name: _named(name, text) for name, text in match.groupdict().items()})
                break
        raise UserError(f"{message}{self._nearest(message)}; see {self.prog} --help")

    def _nearest(self, message: str) -> str:
        word = message.split("=")[0].split()[0]
        near = difflib.get_close_matches(word, self._option_string_actions, 1) if word.startswith("--") else []
        return f"; perhaps {near[0]} is meant" if near and near[0] != word else ""


def _named(group: str, text: str) -> str:
    """An option by its long name (`-o/--output`), a list of choices without its quotes."""
    if group == "option":
        return text.rpartition("/")[2]
    return text.replace("'", "") if group == "choices" else text


def _required(names: str) -> str:
    return ngettext("{names} is missing", "{names} are missing", names.count(", ") + 1).format(names=names)


# Messages of argparse and the sentences that replace them; all other messages stay as they are.
_SENTENCES: tuple[tuple[str, Any], ...] = (
    (r"argument (?P<option>\S+): invalid choice: '?(?P<value>.*?)'? \(choose from (?P<choices>.*)\)",
     "{option} {value}: choose from {choices}".format),
    (r"argument (?P<option>\S+): invalid (?P<kind>\w+) value: '(?P<value>.*)'",
     lambda option, kind, value: f"{option} {value}: {_KINDS.get(kind, kind)} is needed"),
    (r"argument (?P<option>\S+): expected (one|at least one) argument", "{option} needs a value after it".format),
    (r"argument (?P<option>\S+): ignored explicit argument '(?P<value>.*)'", "{option} takes no value".format),
    (r"argument (?P<option>\S+): not allowed with argument (?P<other>\S+)",
     "{option} and {other} exclude each other: leave one out".format),
    (r"the following arguments are required: (?P<names>.*)", _required),
    (r"one of the arguments (?P<names>.*) is required", lambda names: f"one of {', '.join(names.split())} is missing"),
    (r"unrecognized arguments: (?P<words>.*)", "{words} is not understood".format),
)  # fmt: skip
