"""What an exported script needs to know of a task: its data, its model, its loss and its metric, as source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui import paths
from precgui.config import RunConfig
from precgui.engine.errors import EngineError
from precgui.engine.script_source import Source

_SETS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}
_OWN_CLASSES = {"cnn": "Cnn", "mlp": "Mlp", "resnet": "ResNet", "vit": "ViT"}


@dataclass(frozen=True)
class ScriptedTask:
    """`data` defines `data()`, which gives batches to train on, with a length, and batches to validate with.

    `model`, `loss`, `found` (how many were right) and `possible` are expressions, the last three of `outputs` and
    `targets`. `files` are copied beside the script.
    """

    data: str
    model: str
    loss: str = "nn.functional.cross_entropy(outputs, targets)"
    found: str = "int((outputs.argmax(1) == targets).sum())"
    possible: str = "len(targets)"
    imports: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


def scripted(config: RunConfig, environment: Mapping[str, Any], source: Source) -> ScriptedTask:
    """The task as source; definitions go to `source`. Raises EngineError when it has no script."""
    if config.task not in _TASKS:
        raise EngineError(f"a run of task {config.task} cannot be written as a script yet; {', '.join(_TASKS)} can")
    return _TASKS[config.task](config, dict(environment.get("data") or {}), source)


_DIGITS = '''def data() -> tuple[DataLoader, DataLoader]:
    """1 797 handwritten digits of 8x8 pixels; a fifth is held out. digits.npz lies beside this script."""
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as bundled:
        images = torch.from_numpy(bundled["images"]).float().unsqueeze(1) / 16
        labels = torch.from_numpy(bundled["labels"]).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    held_out = round(len(labels) * 0.2)
    training = TensorDataset(images[order[held_out:]], labels[order[held_out:]])
    validation = TensorDataset(images[order[:held_out]], labels[order[:held_out]])
'''

_DOWNLOADED = '''def data() -> tuple[DataLoader, DataLoader]:
    """The training and the test images of {name}, downloaded on the first use."""
    folder = Path({folder!r})
    training, validation = (_Bytes(*_load("{name}", folder, train=train, download=True)) for train in (True, False))
'''

_TEXT = '''def data() -> tuple[DataLoader, list[Batch]]:
    """Pieces of a text and the bytes that follow; the last tenth is held out."""
    text, facts = corpus({path!r})
    if facts["sha256"] != {sha256!r}:
        print("the text is not the one of the run, so the losses will differ")
    whole = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
    cut = round(len(whole) * 0.9)
    training, validation = _Windows(whole[:cut], {length}), _Windows(whole[cut:], {length})
    steps = min(math.ceil(cut / {per_step}), {most})
    starts = _RandomStarts(len(training), {batch_size}, steps, SEED + 1)
    loader = DataLoader(training, sampler=starts, batch_size=None, num_workers={workers})
    places = np.linspace(0, len(validation) - 1, _VALIDATION_WINDOWS).astype(int).tolist()
    size = min({batch_size}, _VALIDATION_WINDOWS)
    return loader, [validation[places[first : first + size]] for first in range(0, len(places), size)]'''


def _loaders(config: RunConfig, source: Source) -> str:
    batches = f"BatchSampler(order, {config.data.batch_size}, drop_last=False)"
    if config.data.epoch_steps is not None:
        source.take("tasks.base", "_Limited")
        batches = f"_Limited(order, {config.data.batch_size}, {config.data.epoch_steps})"
    return f"""    order = RandomSampler(training, generator=torch.Generator().manual_seed(SEED + 1))
    batches = {batches}
    held_out_batches = BatchSampler(SequentialSampler(validation), 512, drop_last=False)
    return (
        DataLoader(training, sampler=batches, batch_size=None, num_workers={config.data.workers}),
        DataLoader(validation, sampler=held_out_batches, batch_size=None),
    )"""


def _digits(config: RunConfig, _: Mapping[str, Any], source: Source) -> ScriptedTask:
    return ScriptedTask(
        data=_DIGITS + _loaders(config, source),
        model=_image_model(config, source, "channels=1, pixels=8, classes=10"),
        imports=("from pathlib import Path", "import numpy as np"),
        files=(paths.resources() / "data" / "digits.npz",),
    )


def _downloaded(config: RunConfig, facts: Mapping[str, Any], source: Source) -> ScriptedTask:
    source.take("tasks.images", "_Bytes", "_load")
    shape = f"channels={facts['channels']}, pixels={facts['pixels']}, classes={facts['classes']}"
    text = _DOWNLOADED.format(name=_SETS[config.task], folder=str(facts["folder"]))
    return ScriptedTask(data=text + _loaders(config, source), model=_image_model(config, source, shape))


def _image_model(config: RunConfig, source: Source, shape: str) -> str:
    name = config.model_name
    source.take("models.images", "ImageShape")
    if name in _OWN_CLASSES:
        source.take("models.images", _OWN_CLASSES[name])
        return f'{_OWN_CLASSES[name]}("{config.model.size}", ImageShape({shape}))'
    builder = "_small_stem" if name in ("resnet18", "resnet50") else "_from_torchvision"
    source.take("models.images", builder)
    return f'{builder}("{name}", ImageShape({shape}))'


def _text(config: RunConfig, facts: Mapping[str, Any], source: Source) -> ScriptedTask:
    source.take("tasks.text", "corpus", "_Windows", "_RandomStarts", "_VALIDATION_WINDOWS")
    data = config.data
    text = _TEXT.format(
        path=data.path, sha256=facts.get("sha256"), length=data.sequence_length, batch_size=data.batch_size,
        per_step=data.batch_size * data.sequence_length, workers=data.workers,
        most=data.epoch_steps or source.value("tasks.text", "_EPOCH_STEPS")[config.model.size],
    )  # fmt: skip
    if config.model_name == "lstm":
        source.take("models.transformer", "Lstm")
        model = f'Lstm("{config.model.size}")'
    else:
        source.take("models.transformer", "Gpt")
        model = f'Gpt("{config.model.size}", {data.sequence_length})'
    return ScriptedTask(
        data=text,
        model=model,
        loss="nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())",
        found="int((outputs.argmax(-1) == targets).sum())",
        possible="targets.numel()",
        imports=("import math", "import numpy as np"),
    )


_TASKS: dict[str, Callable[[RunConfig, Mapping[str, Any], Source], ScriptedTask]] = {
    "digits": _digits,
    "text": _text,
    **dict.fromkeys(_SETS, _downloaded),
}
