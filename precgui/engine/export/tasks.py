"""The parts of an exported script for a task: its definition as it stands in precgui, and the config it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui import paths
from precgui.config import OWN_LOOP, RunConfig, is_own_task
from precgui.config.names import DOWNLOADED
from precgui.engine.errors import EngineError
from precgui.engine.export.source import ScriptSource

_CLASSES = {
    "digits": ("tasks.images", "Digits"),
    "mnist": ("tasks.images", "Mnist"),
    "fashion-mnist": ("tasks.images", "FashionMnist"),
    "cifar10": ("tasks.images", "Cifar10"),
    "cifar100": ("tasks.images", "Cifar100"),
    "image-folder": ("tasks.images", "ImageFolder"),
    "text": ("tasks.text", "Text"),
    "segmentation": ("tasks.segmentation", "Segmentation"),
    "detection": ("tasks.detection", "Detection"),
    "regression": ("tasks.regression", "Regression"),
    "gan": ("tasks.gan", "Gan"),
    "cartpole": ("tasks.cartpole", "CartPole"),
}
_IMAGE_CLASSES = {"cnn": "Cnn", "mlp": "Mlp", "resnet": "ResNet", "vit": "ViT"}
_WITH_DIGITS = ("digits", "segmentation", "detection", "gan")
_PLACES = ("folder", "source", "file")  # facts that may differ although the data are the same
_READ = ("seed", "model", "data")  # what the tasks of precgui read of a config

_SETTINGS = '''def settings(values: dict[str, Any]) -> SimpleNamespace:
    """Nested values as attributes."""
    parts = {name: settings(value) if isinstance(value, dict) else value for name, value in values.items()}
    return SimpleNamespace(**parts)'''

_SAME_DATA = '''def tell_other_data(facts: Mapping[str, Any]) -> None:
    """Say so when the data are not those of the run."""
    other = [name for name, value in DATA.items() if facts.get(name) != value]
    if other:
        print(f"the data are not those of the run ({', '.join(other)}), so the losses will differ")'''

_DIGITS_FILE = '''def digits_file() -> Path:
    """The digits lie beside this script."""
    return Path(__file__).with_name("digits.npz")'''

_DATASETS_FOLDER = """def datasets_folder(config: SimpleNamespace) -> Path:
    return Path(config.data.path)"""


@dataclass(frozen=True)
class ScriptedTask:
    """`make` is an expression of `config`, `constants` and `functions` are definitions; `files` lie beside it."""

    make: str
    constants: tuple[str, ...]
    functions: tuple[str, ...]
    files: tuple[Path, ...] = ()


def scripted(config: RunConfig, environment: Mapping[str, Any], source: ScriptSource) -> ScriptedTask:
    """The task as source; its definition goes to `source`. Raises EngineError for a loop that precgui only recorded."""
    if config.task == OWN_LOOP:
        raise EngineError(
            "this run was recorded in a training loop that is not precgui's; the script is the one that recorded it"
        )
    facts = {name: value for name, value in dict(environment.get("data") or {}).items() if _is_plain(value)}
    wanted = config.model_dump(mode="json") | {"model_name": config.model_name}
    own = is_own_task(config.task)
    if own:
        wanted["task"] = _own_task(config.task, facts)
        source.take("tasks.own", "make_own")
        make = "make_own(config)"
    else:
        wanted = {name: wanted[name] for name in (*_READ, "model_name")}
        wanted["data"]["path"] = _data_path(config, facts)
        make = f"{_take(config, facts, source)}(config)"
    seen = {name: value for name, value in facts.items() if name not in _PLACES}
    return ScriptedTask(
        make,
        (_constant("CONFIG", wanted), _constant("DATA", seen)),
        (_SETTINGS, _SAME_DATA),
        (paths.resources() / "data" / "digits.npz",) if config.task in _WITH_DIGITS else (),
    )


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _constant(name: str, values: dict[str, Any]) -> str:
    return "\n".join([f"{name} = {{", *(f"    {key!r}: {value!r}," for key, value in values.items()), "}"])


def _own_task(task: str, facts: Mapping[str, Any]) -> str:
    """The task with the whole path of its file, so that the script finds it from anywhere."""
    place, _, function = task.rpartition(":")
    kept = Path(str(facts.get("file", "")))
    named = Path(place).expanduser().parts
    same = kept.is_absolute() and kept.parts[-len(named) :] == named  # a file of others may name any
    return f"{kept}:{function}" if same and place.endswith(".py") else task


def _data_path(config: RunConfig, facts: Mapping[str, Any]) -> str:
    found = facts.get("folder") or (facts.get("source") if config.data.path else "")
    return str(found or config.data.path)


def _take(config: RunConfig, facts: Mapping[str, Any], source: ScriptSource) -> str:
    """Take the class of the task without the networks that the run does not train; returns its name."""
    module, name = _CLASSES[config.task]
    if config.task in _WITH_DIGITS:
        source.put("digits_file", _DIGITS_FILE, ("from pathlib import Path",))
    if module == "tasks.images":
        _put_image_model(config.model_name, source)
        if config.task in DOWNLOADED:
            source.put("datasets_folder", _DATASETS_FOLDER, ("from pathlib import Path",))
    elif config.task == "text":
        _put_language_model(config.model_name, source)
    source.take(module, name)
    return name


def _put_image_model(name: str, source: ScriptSource) -> None:
    source.take("models.images", "ImageShape")
    if name in _IMAGE_CLASSES:
        made = f"{_IMAGE_CLASSES[name]}(size, shape)"
        source.take("models.images", _IMAGE_CLASSES[name])
    else:
        builder = "_small_stem" if name in ("resnet18", "resnet50") else "_from_torchvision"
        made = f"{builder}(name, shape)"
        if builder == "_from_torchvision":  # names the others in a sentence
            source.put("OWN", "OWN: dict[str, Any] = {}", ("from typing import Any",))
        source.take("models.images", builder)
    head = "def image_model(name: str, size: str, shape: ImageShape) -> nn.Module:"
    source.put("image_model", f"{head}\n    return {made}")


def _put_language_model(name: str, source: ScriptSource) -> None:
    made = {"lstm": ("Lstm", "Lstm(size)"), "gpt": ("Gpt", "Gpt(size, longest)")}
    source.take("models.transformer", made[name][0])
    head = "def language_model(name: str, size: str, longest: int) -> nn.Module:"
    source.put("language_model", f"{head}\n    return {made[name][1]}")
