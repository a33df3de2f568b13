"""Language modelling on bytes: the next byte of Python's own library, or of any file or folder."""

from __future__ import annotations

import hashlib
import math
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from precgui.engine.errors import EngineError
from precgui.engine.models.transformer import language_model
from precgui.engine.tasks.base import Batch, Ratio
from precgui.events import Metric
from precgui.sentences import L_, Sentence

if TYPE_CHECKING:
    from precgui.config import RunConfig

VALIDATION_SHARE = 0.1
MOST_BYTES = 1 << 30
_EPOCH_STEPS = {"small": 100, "medium": 500, "large": 1000}
_VALIDATION_WINDOWS = 64


def corpus(path: str) -> tuple[bytes, dict[str, Any]]:
    """All bytes of a file, of the files of a folder, or (empty path) of Python's own modules; and what is recorded.

    Folders are read in the order of their file names, so that one Python version gives one SHA-256. Raises EngineError.
    """
    root = Path(path).expanduser().absolute() if path else Path(sysconfig.get_path("stdlib"))
    if path and root.is_file():
        files = [root]
    else:
        pattern = "**/*" if path else "*.py"
        files = sorted(file for file in root.glob(pattern) if file.is_file() and not _hidden(file, root))
    try:
        if sum(file.stat().st_size for file in files) > MOST_BYTES:
            raise EngineError(Sentence("{path} holds more than 1 GiB; name a part of it as data.path", path=root))
        text = b"\n".join(file.read_bytes() for file in files)
    except OSError as error:
        raise EngineError(
            Sentence("data.path: {path} cannot be read: {why}", path=error.filename or root, why=error.strerror)
        ) from None
    if not files:
        if path:
            none = Sentence(
                "{path} holds no files; set data.path to a text file or to a folder of text files", path=root
            )
        else:
            none = Sentence(
                "this Python has no sources of its own library; set data.path to a text file or to a folder of text "
                "files"
            )
        raise EngineError(none)
    source = str(root) if path else L_("the modules of Python's standard library")
    return text, {
        "source": source, "files": len(files), "bytes": len(text), "sha256": hashlib.sha256(text).hexdigest(),
    }  # fmt: skip


def manual() -> tuple[bytes, dict[str, Any]]:
    """Python's language reference as `help()` shows it, and what is recorded. Raises EngineError."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise EngineError(L_("this Python has no language reference (pydoc_data); set data.corpus = library")) from None
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    digest = hashlib.sha256(text).hexdigest()
    return text, {"source": L_("Python's language reference"), "files": 1, "bytes": len(text), "sha256": digest}


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


class _Windows(Dataset[Batch]):
    """Pieces of a text by their starts: bytes [batch, length] and the bytes that follow each of them."""

    def __init__(self, text: Tensor, length: int) -> None:
        self._pieces = text.unfold(0, length + 1, 1)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, starts: list[int]) -> Batch:
        pieces = self._pieces[starts].long()
        return pieces[:, :-1], pieces[:, 1:]


class _RandomStarts(Sampler[list[int]]):
    """Batches of places in a text, so many in an epoch; another epoch goes on with the same generator."""

    def __init__(self, places: int, batch_size: int, steps: int, seed: int) -> None:
        self._places, self._batch_size, self._steps = places, batch_size, steps
        self._generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self._steps):
            yield torch.randint(self._places, (self._batch_size,), generator=self._generator).tolist()


class Text(Ratio):
    """Predict each next byte. The first nine tenths of the text are trained on, 64 pieces of the rest validate."""

    metric = Metric(
        "bits_per_byte",
        L_("Bits per byte"),
        L_("mean cross entropy of a byte, loss / ln 2"),
        unit="",
        higher_is_better=False,
    )
    facts: Mapping[str, Any]

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        data, length = config.data, config.data.sequence_length
        text, self.facts = manual() if data.corpus == "manual" and not data.path else corpus(data.path)
        whole = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
        cut = round(len(whole) * (1 - VALIDATION_SHARE))
        if len(whole) - cut < length + 1:
            raise EngineError(
                Sentence(
                    "{source} has {count} bytes, too few for data.sequence_length = {length}; choose a longer "
                    "text or shorter sequences",
                    source=self.facts["source"],
                    count=len(whole),
                    length=length,
                )
            )
        self._training, self._validation = _Windows(whole[:cut], length), _Windows(whole[cut:], length)
        whole_pass = math.ceil(cut / (data.batch_size * length))
        self.steps_per_epoch = min(whole_pass, data.epoch_steps or _EPOCH_STEPS[config.model.size])
        starts = _RandomStarts(len(self._training), data.batch_size, self.steps_per_epoch, config.seed + 1)
        self._loader = DataLoader(
            self._training, sampler=starts, batch_size=None, num_workers=data.workers,
            persistent_workers=data.workers > 0,
        )  # fmt: skip

    def model(self) -> nn.Module:
        return language_model(self.config.model_name, self.config.model.size, self.config.data.sequence_length)

    def train_batches(self) -> Iterable[Batch]:
        return self._loader

    def validation_batches(self) -> Iterable[Batch]:
        places = np.linspace(0, len(self._validation) - 1, _VALIDATION_WINDOWS).astype(int).tolist()
        size = max(1, min(self.config.data.batch_size, _VALIDATION_WINDOWS))
        return (self._validation[places[first : first + size]] for first in range(0, len(places), size))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of a byte, in nats."""
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        bits = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum") / math.log(2)
        return torch.stack((bits, bits.new_full((), targets.numel())))
