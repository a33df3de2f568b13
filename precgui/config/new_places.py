"""Files and folders that a run is to make: whether they can be made is asked before it starts, not at its end."""

from __future__ import annotations

import os
import re
from pathlib import Path

from precgui.sentences import Sentence

TENSOR_FILE = ".safetensors"


def place_fault(path: str) -> str:
    """Why nothing new can be made at a path; empty where it can."""
    place = Path(path).expanduser()
    if place.exists() or place.is_symlink():
        return Sentence("{place} already exists; choose another name or delete it first", place=place)
    if not place.parent.is_dir() or not os.access(place.parent, os.W_OK):
        return Sentence("{folder} is not a folder that can be written; choose another place", folder=place.parent)
    return ""


def tensor_file_fault(path: str) -> str:
    """Why a new file of tensors cannot be made at a path."""
    place = Path(path).expanduser()
    return place_fault(path) if place.suffix == TENSOR_FILE else (
        Sentence("{name} does not end in {ending}; name the file so", name=place.name, ending=TENSOR_FILE)
    )  # fmt: skip


def folder_fault(path: str) -> str:
    """Why a new folder cannot be made at a path."""
    place = Path(path).expanduser().absolute()
    if place.suffix == TENSOR_FILE:
        return Sentence("{name} is the name of a file; adapters are written as a folder, name one", name=place.name)
    return place_fault(str(place))


def package_name(script: Path) -> str:
    """The package beside a script that a run is exported as: `my run.py` imports from `my_run_parts`."""
    name = re.sub(r"\W", "_", script.stem, flags=re.ASCII)
    return f"{'_' if name[:1].isdigit() else ''}{name}_parts"
