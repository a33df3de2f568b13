"""Images and their classes: the bundled digits, torchvision's data sets, and a folder of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.error import URLError

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor, nn
from torch.utils.data import Dataset

from precgui import paths
from precgui.engine.errors import EngineError
from precgui.engine.models.images import ImageShape, image_model
from precgui.engine.tasks.base import Batch, Classification, DatasetTask, InMemory, split
from precgui.engine.tasks.download import missing_sentence
from precgui.sentences import L_, Sentence

if TYPE_CHECKING:
    from precgui.config import RunConfig

_PADDING = 8  # one pixel at each side for so many of the edge: 4 of 32 pixels, as He et al. 2016 have it


def augmented(images: Tensor, draw: torch.Generator, *, mirror: bool) -> Tensor:
    """Each image [channels, pixels, pixels] moved at random within a border of zeros; half of them mirrored."""
    count, channels, pixels, _ = images.shape
    border = max(1, pixels // _PADDING)
    padded = nn.functional.pad(images, [border] * 4)
    tops, lefts = torch.randint(2 * border + 1, (2, count, 1), generator=draw)
    rows, columns = tops + torch.arange(pixels), lefts + torch.arange(pixels)
    if mirror:
        columns = torch.where(torch.rand(count, 1, generator=draw) < 0.5, columns, columns.flip(1))
    across = columns[:, None, None, :].expand(-1, channels, padded.shape[2], -1)
    down = rows[:, None, :, None].expand(-1, channels, -1, pixels)
    return padded.gather(3, across).gather(2, down)


VALIDATION_SHARE = 0.2


def digits_file() -> Path:
    return paths.resources() / "data" / "digits.npz"


def digits() -> tuple[Tensor, Tensor]:
    """The bundled handwritten digits: images [1797, 1, 8, 8] in 0..1 and labels [1797]."""
    with np.load(digits_file(), allow_pickle=False) as bundled:
        images = torch.from_numpy(bundled["images"]).float().unsqueeze(1) / 16
        return images, torch.from_numpy(bundled["labels"]).long()


class Images(Classification, DatasetTask):
    """Classification of square images of one size."""

    facts: Mapping[str, Any]
    mirrored: ClassVar[bool] = True  # whether a mirror image is of the same class

    def __init__(
        self,
        config: RunConfig,
        training: Dataset[Batch],
        validation: Dataset[Batch],
        shape: ImageShape,
        counts: tuple[int, int],
    ) -> None:
        super().__init__(config, training, validation, counts[0])
        self.shape = shape
        self._draw = torch.Generator().manual_seed(config.seed + 2)
        self.facts = {"training_samples": counts[0], "validation_samples": counts[1], **vars(shape)}

    def model(self) -> nn.Module:
        return image_model(self.config.model_name, self.config.model.size, self.shape)

    def train_batches(self) -> Iterable[Batch]:
        batches = super().train_batches()
        if not self.config.data.augment:
            return batches
        return ((augmented(images, self._draw, mirror=self.mirrored), labels) for images, labels in batches)


class Digits(Images):
    """The bundled handwritten digits, ten classes, a fifth held out for validation."""

    mirrored = False

    def __init__(self, config: RunConfig) -> None:
        images, labels = digits()
        training, validation = split(len(labels), VALIDATION_SHARE, config.seed)
        super().__init__(
            config,
            InMemory(images[training], labels[training]),
            InMemory(images[validation], labels[validation]),
            ImageShape(channels=1, pixels=8, classes=10),
            (len(training), len(validation)),
        )


class _Bytes(InMemory):
    """Images kept as bytes [samples, channels, pixels, pixels], given as floats of mean 0 and deviation about 1."""

    def __getitem__(self, indices: list[int]) -> Batch:
        return self.inputs[indices].float().div_(127.5).sub_(1.0), self.targets[indices]


def datasets_folder(config: RunConfig) -> Path:
    return Path(config.data.path).expanduser().absolute() if config.data.path else paths.datasets_dir()


class Torchvision(Images):
    """A data set of torchvision, downloaded on the first use into `data.path` and checked by its MD5 sums there."""

    dataset: ClassVar[str]
    images: ClassVar[ImageShape]

    def __init__(self, config: RunConfig) -> None:
        folder = datasets_folder(config)
        sets = [_load(self.dataset, folder, train=train, download=config.data.download) for train in (True, False)]
        training, validation = (_Bytes(images, labels) for images, labels in sets)
        super().__init__(config, training, validation, self.images, (len(training), len(validation)))
        self.facts = {**self.facts, "folder": str(folder)}


def _load(name: str, folder: Path, *, train: bool, download: bool) -> tuple[Tensor, Tensor]:
    """Images [samples, channels, pixels, pixels] as bytes and labels [samples]. Raises EngineError, with the cure."""
    from torchvision import datasets

    try:
        folder.mkdir(parents=True, exist_ok=True)
        loaded: Any = getattr(datasets, name)(folder, train=train, download=download)
    except (URLError, RuntimeError, OSError) as error:
        raise EngineError(missing_sentence(name, folder, _reason(error), download=download)) from None
    images = torch.as_tensor(loaded.data)
    images = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2).contiguous()
    return images, torch.as_tensor(loaded.targets).long()


def _reason(error: Exception) -> str:
    text = str(getattr(error, "reason", "") or error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".:")


class Mnist(Torchvision):
    dataset = "MNIST"
    mirrored = False
    images = ImageShape(channels=1, pixels=28, classes=10)


class FashionMnist(Torchvision):
    dataset = "FashionMNIST"
    images = ImageShape(channels=1, pixels=28, classes=10)


class Cifar10(Torchvision):
    dataset = "CIFAR10"
    images = ImageShape(channels=3, pixels=32, classes=10)


class Cifar100(Torchvision):
    dataset = "CIFAR100"
    images = ImageShape(channels=3, pixels=32, classes=100)


class _Files(Dataset[Batch]):
    """Image files read when they are asked for; a list of indices gives one batch."""

    def __init__(self, files: Any, indices: list[int]) -> None:
        self._files, self._indices = files, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, indices: list[int]) -> Batch:
        images, labels = zip(*(self._sample(self._indices[i]) for i in indices), strict=True)
        return torch.stack(images), torch.tensor(labels)

    def _sample(self, index: int) -> tuple[Tensor, int]:
        """Raises EngineError with the name of a file that is no image, or not one that can be read."""
        try:
            image, label = self._files[index]
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise EngineError(_image_fault(self._files.samples[index][0], error)) from None
        return image, label


def _image_fault(file: str, error: Exception) -> Sentence:
    if isinstance(error, UnidentifiedImageError):
        return Sentence("{file} is no image; repair it or take it away", file=file)
    return Sentence("{file} cannot be read ({why}); repair it or take it away", file=file, why=_reason(error))


class ImageFolder(Images):
    """One folder of images for each class, in `data.path` itself or in its folders `train` and `val`."""

    def __init__(self, config: RunConfig) -> None:
        if not config.data.path:
            raise EngineError(
                L_("task image-folder needs data.path: a folder that holds one folder of images per class")
            )
        root = Path(config.data.path).expanduser().absolute()
        pixels = config.data.pixels
        if (root / "train").is_dir() and (root / "val").is_dir():
            sets = [_files(root / part, pixels) for part in ("train", "val")]
            if sets[0].classes != sets[1].classes:
                raise EngineError(
                    Sentence("{folder}: the folders train and val do not hold the same classes", folder=root)
                )
            training, validation = (_Files(files, list(range(len(files)))) for files in sets)
        else:
            sets = [_files(root, pixels)]
            parts = split(len(sets[0]), VALIDATION_SHARE, config.seed)
            training, validation = (_Files(sets[0], part.tolist()) for part in parts)
        if not len(validation):
            raise EngineError(Sentence("{folder} holds too few images to keep some for validation", folder=root))
        shape = ImageShape(channels=3, pixels=pixels, classes=len(sets[0].classes))
        super().__init__(config, training, validation, shape, (len(training), len(validation)))
        self.facts = {**self.facts, "folder": str(root), "class_names": sets[0].classes[:100]}


def _files(folder: Path, pixels: int) -> Any:
    """torchvision's ImageFolder with images cut to a square in their middle. Raises EngineError when there are none."""
    from torchvision import datasets
    from torchvision.transforms import v2

    def to_square(image: Any) -> Any:  # before it is scaled: a long strip would become a huge picture
        return ImageOps.fit(image, (pixels, pixels), Image.Resampling.BILINEAR)

    prepared: Callable[[Any], Tensor] = v2.Compose(
        [
            to_square,
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    try:
        result = datasets.ImageFolder(str(folder), transform=prepared)
    except OSError as error:
        raise EngineError(
            Sentence("data.path: {why}; it must hold one folder of images per class", why=_reason(error))
        ) from None
    if len(result.classes) < 2:
        raise EngineError(
            Sentence(
                "data.path: {folder} holds one class only, {given}; it must hold two at least",
                folder=folder,
                given=result.classes[0],
            )
        )
    return result
