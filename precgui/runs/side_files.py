"""Side files of a run: results that came after it, since run files are never opened for writing again."""

from __future__ import annotations

import glob
import json
import re
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, WrapValidator

from precgui.runs.errors import RunFileError
from precgui.runs.file import json_text
from precgui.safe_open import read_text, replace_file
from precgui.sentence_keys import SENTENCES, restored, with_keys
from precgui.sentences import Sentence

# A text that may be a `Sentence`, of which pydantic would keep the English only. The file holds its key, too.
Text = Annotated[str, WrapValidator(lambda value, check: value if isinstance(value, Sentence) else check(value))]


class SideFilePart(BaseModel):
    """A part of such a result, as a file holds it: finite numbers, and keys of later versions are left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


Document = TypeVar("Document", bound=SideFilePart)


class SideFiles(Generic[Document]):
    """The side files of one kind, `RUN.h5.KIND-MARK.json`; the field `mark` of a document tells them apart.

    A mark is a step (six digits or more) or the name of a precision.
    """

    def __init__(
        self, kind: str, model: type[Document], most_bytes: int, *, mark: str = "step", indent: int | None = None
    ) -> None:
        self._kind, self._model, self._most_bytes = kind, model, most_bytes
        self._mark, self._indent = mark, indent

    def path(self, run: Path, mark: int | str) -> Path:
        text = f"{mark:06d}" if isinstance(mark, int) else re.sub(r"[^a-z0-9_-]", "_", mark)
        return run.with_name(f"{run.name}.{self._kind}-{text}.json")

    def keep(self, run: Path, document: Document) -> Path:
        """Write or replace the file of a document beside its run; returns its path. Raises RunFileError."""
        return self.write(self.path(run, getattr(document, self._mark)), document)

    def write(self, path: Path, document: Document) -> Path:
        """Write or replace a file in one piece. Raises RunFileError when that cannot be done."""
        content = with_keys(document.model_dump())
        text = json.dumps(content, ensure_ascii=False, indent=self._indent, allow_nan=False)
        write_side_file(path, text)
        return path

    def one(self, run: Path, mark: int | str) -> Document | None:
        """The document that is kept beside a run; None without one that can be read."""
        return self._read(self.path(run, mark))

    def all(self, run: Path) -> list[Document]:
        """The documents beside a run, by mark; files that are none are left out."""
        known = [self._read(path) for path in self._paths(run)]
        return sorted((each for each in known if each is not None), key=lambda each: getattr(each, self._mark))

    def _paths(self, run: Path) -> list[Path]:
        mark = r"\d{6,9}" if self._mark == "step" else "[a-z0-9_-]+"
        pattern = re.compile(rf"{re.escape(run.name)}\.{self._kind}-{mark}\.json")
        files = run.parent.glob(f"{glob.escape(run.name)}.{self._kind}-*.json")
        return [path for path in files if pattern.fullmatch(path.name)]

    def _read(self, path: Path) -> Document | None:
        try:
            text = read_text(path, self._most_bytes)
            if f'"{SENTENCES}"' not in text:
                return self._model.model_validate_json(text)
            return self._model.model_validate(restored(json_text.load(text)))
        except (OSError, ValueError):
            return None


def write_side_file(path: Path, text: str) -> None:
    """Write or replace a side file in one piece. Raises RunFileError when that cannot be done."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise RunFileError(
            Sentence("{file} cannot be written: {why}; check the folder.", file=path, why=error.strerror or error)
        ) from None
