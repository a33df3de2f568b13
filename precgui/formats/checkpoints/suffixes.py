"""The names of files that hold checkpoints, apart from what reads them, so that asking for a name loads nothing."""

from __future__ import annotations

from pathlib import Path

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", ".gguf", *TORCH_SUFFIXES)


def is_checkpoint(path: Path) -> bool:
    """Whether a file or folder looks like a checkpoint by its names alone."""
    if path.is_dir():
        return any(next(path.glob(f"*{suffix}"), None) is not None for suffix in SUFFIXES)
    return path.suffix in SUFFIXES or path.name.endswith(".index.json")
