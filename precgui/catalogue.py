"""Compiles a catalogue of translations (.po) into what `gettext` reads (.mo), with Babel, a build tool.

Imports nothing of precgui: `packaging/bundle.py` runs it while the package is built.
"""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path


def compile_catalogue(po: Path) -> bytes:
    """The .mo of a .po file. Entries that are empty or fuzzy are left out. Raises ImportError without Babel."""
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    with po.open("rb") as file:
        catalogue = read_po(file, locale=po.stem)
    compiled = BytesIO()
    write_mo(compiled, catalogue)
    return compiled.getvalue()


def is_outdated(mo: Path, po: Path) -> bool:
    """Whether the .mo is missing or older than its .po; False where there is no .po, as in an installed package."""
    return po.exists() and not (mo.exists() and mo.stat().st_mtime_ns >= po.stat().st_mtime_ns)


def write_compiled(mo: Path, content: bytes) -> None:
    """Write a .mo in one step: other processes see the old one or the new one. Raises OSError."""
    import tempfile  # 5 ms of a start that seldom needs it

    handle, name = tempfile.mkstemp(dir=mo.parent, prefix=mo.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(mo)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
