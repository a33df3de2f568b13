"""The argument parser of every command: what was typed wrong is one sentence that names it and the cure."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from precgui.errors import SentenceError
from precgui.words import L_, _, n_, translated


class UserError(SentenceError):
    """Bad input: one sentence that names the value and the cure; exit code 2, no traceback."""


_KINDS = {"int": L_("a whole number"), "float": L_("a number")}


class _Help(argparse.HelpFormatter):
    """The help of argparse in the reader's language."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, _("usage: ") if prefix is None else prefix)


class Parser(argparse.ArgumentParser):
    """Raises UserError instead of printing its usage. Takes no abbreviated options: a later option would break them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "add_help": False, "formatter_class": _Help, **options})
        self._positionals.title, self._optionals.title = _("positional arguments"), _("options")
        self.add_argument("-h", "--help", action="help", help=_("show this help message and exit"))

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
        near = self._nearest(message)
        text = (
            _("{fault}; perhaps {near} is meant; see {program} --help") if near else _("{fault}; see {program} --help")
        )
        raise UserError(text.format(fault=message, near=near, program=self.prog))

    def _nearest(self, message: str) -> str:
        import difflib  # seldom needed

        word = message.split("=")[0].split()[0]
        near = difflib.get_close_matches(word, self._option_string_actions, 1) if word.startswith("--") else []
        return near[0] if near and near[0] != word else ""


def _named(group: str, text: str) -> str:
    """An option by its long name (`-o/--output`), a list of choices without its quotes."""
    if group == "option":
        return text.rpartition("/")[2]
    return text.replace("'", "") if group == "choices" else text


def _required(names: str) -> str:
    return n_("{names} is missing", "{names} are missing", names.count(", ") + 1).format(names=names)


def _invalid_choice(option: str, value: str, choices: str) -> str:
    return _("{option} {value}: choose from {choices}").format(option=option, value=value, choices=choices)


def _invalid_value(option: str, kind: str, value: str) -> str:
    kind = translated(_KINDS.get(kind, kind))
    return _("{option} {value}: {kind} is needed").format(option=option, value=value, kind=kind)


def _one_of(names: str) -> str:
    return _("one of {names} is missing").format(names=", ".join(names.split()))


# Messages of argparse, which has them in English, and what makes the sentences that replace them; others stay.
_SENTENCES: tuple[tuple[str, Callable[..., str]], ...] = (
    (
        r"argument (?P<option>\S+): invalid choice: '?(?P<value>.*?)'? \(choose from (?P<choices>.*)\)",
        _invalid_choice,
    ),
    (r"argument (?P<option>\S+): invalid (?P<kind>\w+) value: '(?P<value>.*)'", _invalid_value),
    (
        r"argument (?P<option>\S+): expected (one|at least one) argument",
        lambda **named: _("{option} needs a value after it").format(**named),
    ),
    (
        r"argument (?P<option>\S+): ignored explicit argument '(?P<value>.*)'",
        lambda **named: _("{option} takes no value").format(**named),
    ),
    (
        r"argument (?P<option>\S+): not allowed with argument (?P<other>\S+)",
        lambda **named: _("{option} and {other} exclude each other: leave one out").format(**named),
    ),
    (r"the following arguments are required: (?P<names>.*)", _required),
    (r"one of the arguments (?P<names>.*) is required", _one_of),
    (r"unrecognized arguments: (?P<words>.*)", lambda **named: _("{words} is not understood").format(**named)),
)


def add_settings(parser: argparse._ActionsContainer, text: str) -> None:
    """`--set KEY=VALUE`, any number of times; the values come as `args.settings`. `text` is its help."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help=text)
