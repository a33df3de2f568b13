"""TOML from files and texts that may be anybody's: bounded, and every fault in words."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from precgui.safe_open import read_text
from precgui.sentences import L_, Sentence

MOST_TOML_BYTES = 1 << 20
MOST_KEY_PARTS = 100
_LONG_KEY = re.compile(rf"(?:[\w\"'-]+[ \t]*\.[ \t]*){{{MOST_KEY_PARTS}}}")  # the parser takes quadratic time for one


def toml_fault(path: Path, error: OSError | ValueError, choose: str) -> str:
    """The sentence on a file that `read_toml` could not read; `choose` names the file that a user should choose."""
    if isinstance(error, OSError):
        return Sentence(
            "{path} cannot be read: {reason}; choose {choose}", path=path, reason=error.strerror, choose=choose
        )
    if isinstance(error, UnicodeDecodeError):
        return Sentence("{path} cannot be read: it is no text in UTF-8; save it as one", path=path)
    return Sentence("{path} is not valid TOML: {error}", path=path, error=error)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file. Raises OSError, and ValueError for what is not TOML or is nested too deeply."""
    return parse_toml(read_text(path, MOST_TOML_BYTES))


def parse_toml(text: str) -> dict[str, Any]:
    """The table that a TOML text means. Raises ValueError, also for one that would take the parser's memory or time."""
    if _LONG_KEY.search(text):
        raise ValueError(Sentence("a key has more than {most} parts", most=MOST_KEY_PARTS))
    try:
        table = tomllib.loads(text)
        repr(table)  # a hexadecimal number can be longer than what Python writes as a decimal one
    except RecursionError:
        raise ValueError(L_("it is nested too deeply")) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # of int() and repr(), which name a setting of Python
        raise ValueError(Sentence("a number has more than {most} digits", most=sys.get_int_max_str_digits())) from None
    return table
