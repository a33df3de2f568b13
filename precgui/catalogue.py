"""Compiles a catalogue of translations (.po) into what `gettext` reads (.mo), with Babel, a build tool.

Imports nothing of precgui: `packaging/bundle.py` runs it while the package is built.
"""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path


def compile_catalogue(po: Path) -> bytes:
    """The .mo of a .po file. Entries that are empty or fuzzy are left out.

    Raises ImportError without Babel, ValueError for a file that is no catalogue, OSError where it cannot be read.
    """
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import PoFileError, read_po

    with po.open("rb") as file:
        try:
            catalogue = read_po(file, locale=po.stem, abort_invalid=True)  # else it prints, also between lines of JSON
        except (PoFileError, LookupError) as error:  # LookupError: a character set that Python does not have
            raise ValueError(f"{po} is no catalogue of translations: {error}") from None
    compiled = BytesIO()
    write_mo(compiled, catalogue)
    return compiled.getvalue()


def is_outdated(mo: Path, po: Path) -> bool:
    """Whether the .mo is missing or older than its .po; False where there is no .po, as in an installed package."""
    return po.exists() and not (mo.exists() and mo.stat().st_mtime_ns >= po.stat().st_mtime_ns)


def write_whole(path: Path, content: bytes, modified_ns: int | None = None) -> None:
    """Write a catalogue in one step: other processes see the old one or the new one. Raises OSError.

    Args:
        modified_ns: Time of modification, such as that of the .po when it was read: one that is changed while it is
            compiled is newer than its .mo.
    """
    import tempfile  # 5 ms of a start that seldom needs it

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        if modified_ns is not None:
            os.utime(name, ns=(modified_ns, modified_ns))
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
