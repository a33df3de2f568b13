"""Files and folders that a run is to make: whether they can be made is asked before it starts, not at its end."""

from __future__ import annotations

import os
from pathlib import Path

TENSOR_FILE = ".safetensors"


def place_fault(path: str) -> str:
    """Why nothing new can be made at a path; empty where it can."""
    place = Path(path).expanduser()
    if place.exists() or place.is_symlink():
        return f"{place} already exists; choose another name or delete it first"
    if not place.parent.is_dir() or not os.access(place.parent, os.W_OK):
        return f"{place.parent} is not a folder that can be written; choose another place"
    return ""


def tensor_file_fault(path: str) -> str:
    """Why a new file of tensors cannot be made at a path."""
    place = Path(path).expanduser()
    return place_fault(path) if place.suffix == TENSOR_FILE else (
        f"{place.name} does not end in {TENSOR_FILE}; name the file so"
    )  # fmt: skip


def folder_fault(path: str) -> str:
    """Why a new folder cannot be made at a path."""
    place = Path(path).expanduser().absolute()
    if place.suffix == TENSOR_FILE:
        return f"{place.name} is the name of a file; adapters are written as a folder, name one"
    return place_fault(str(place))
