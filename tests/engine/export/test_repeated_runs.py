"""Runs written as plain scripts do the same again, bit for bit, without precgui: every precision and every task."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from precgui.config import PRECISIONS
from precgui.engine.export.script import write_script
from precgui.engine.tasks.images import digits
from precgui.events import Evaluated, Event, Facts, RunStarted, StepDone
from tests.engine.export.script_output import printed_by, recorded
from tests.engine.tasks.test_images import write_idx
from tests.engine.tasks.test_own import LINE

_OPTION = "precision_options"
_TEXT = ("task=text", "data.sequence_length=16", "data.batch_size=4")
# Each name with the settings of a run; every precision, and every switch at least once.
PRECISE: dict[str, tuple[str, ...]] = {
    **{name: (f"precision={name}", "train.max_steps=3") for name in PRECISIONS if not name.endswith("-qat")},
    "masters": ("precision=fp16-pure", f"{_OPTION}.master_weights=true", "optimizer.name=adamw", "optimizer.lr=0.002"),
    "kept": ("precision=bf16-amp", f"{_OPTION}.keep_fp32=*norm*,head", "train.channels_last=true"),
    "kept in low": ("precision=mxfp8", f"{_OPTION}.keep_fp32=first", f"{_OPTION}.scale_rule=rceil"),
    "layers": ("precision=mxfp8", f"{_OPTION}.layers=first=e5m2, head=fp32"),
    "rows": ("precision=fp8", f"{_OPTION}.fp8_scaling=rowwise", "train.checkpointing=true", "train.accumulation=2"),
    "delayed": ("precision=fp8", f"{_OPTION}.fp8_amax=delayed", "train.ema_decay=0.9", "train.clip_norm=1"),
    "skipping": ("precision=fp16-amp", "scaling.initial_scale=1e9", "scaling.growth_interval=3", "train.ema_decay=0.9"),
    "static": ("precision=fp16-amp", "scaling.mode=static", "scaling.initial_scale=512", "optimizer.schedule=constant"),
    "any": (
        "precision=emulated:e5m2", f"{_OPTION}.updates=bf16", f"{_OPTION}.rounding=stochastic",
        f"{_OPTION}.accumulator=bf16", f"{_OPTION}.weights=int8", f"{_OPTION}.gradients=mxfp6_e3m2",
    ),
    "channels last": ("precision=tf32", "model.name=resnet", "train.channels_last=true"),
    "channels last in any": ("precision=emulated:e4m3fn", "model.name=resnet", "train.channels_last=true"),
    "channels last at random": (
        "precision=emulated:e5m2", "train.channels_last=true", f"{_OPTION}.rounding=stochastic"
    ),
    "text": (*_TEXT, "precision=bf16-pure", "data.epoch_steps=4"),
    "text in fp16": (*_TEXT, "precision=fp16-amp"),
    "text in any": (*_TEXT, "precision=emulated:e5m2"),
    "recurrent": (*_TEXT, "model.name=lstm", "precision=emulated:fp16", f"{_OPTION}.keep_fp32=head"),
    "limited": ("data.epoch_steps=3", "train.deterministic=true", "train.attention=math", "model.name=vit"),
}  # fmt: skip

_FOLDER = ("task=image-folder", "data.path={folder}/classes", "data.pixels=16")
# {folder} holds the data and the code of the user's.
TASKS: dict[str, tuple[str, ...]] = {
    "digits": ("data.augment=true", "model.name=mlp", "data.workers=1"),
    "vit": (*_FOLDER, "model.name=vit"),
    "torchvision": (*_FOLDER, "model.name=squeezenet1_1"),
    "small stem": (*_FOLDER, "model.name=resnet18"),
    "mnist": ("task=mnist", "data.path={folder}", "model.name=cnn"),
    "image folder": (*_FOLDER, "model.name=resnet", "data.augment=true"),
    "lstm": ("task=text", "model.name=lstm", "data.sequence_length=8", "data.path={folder}/prose.txt"),
    "segmentation": ("task=segmentation",),
    "speech": ("task=speech", "precision=bf16-amp"),
    "recommender": ("task=recommender", "data.epoch_steps=4"),
    "regression": ("task=regression",),
    "perceptron": ("task=regression", "model.name=mlp", "precision=fp64"),
    "gan": ("task=gan", "train.accumulation=2"),
    "cartpole": ("task=cartpole", "train.max_steps=2"),
    "detection": ("task=detection", "train.channels_last=true"),
    "own": ("task={folder}/line.py:make_task", "precision=bf16-amp"),
}

_QAT = ("qat.start_epoch=2", "qat.observers_off_after_epoch=2", "qat.freeze_bn_after_epoch=2")
_LEARNED = ("qat.learned_scales=true", "qat.learned_ranges=true", "qat.per_channel=false")
QUANTISED: dict[str, tuple[str, ...]] = {
    "int8": ("precision=int8-qat", *_QAT, "model.name=resnet"),
    "int8 kept": ("precision=int8-qat", f"{_OPTION}.keep_fp32=head", "train.accumulation=2"),
    "int4": ("precision=int4-qat", *_LEARNED, "train.clip_norm=1"),
    "int2": ("precision=int2-qat", "qat.ends=fp32", "qat.activations=int4", "train.ema_decay=0.9"),
    "int1": ("precision=int1-qat", "qat.activations=fp32", "qat.ends=same", "train.checkpointing=true"),
    "unmeasured": ("precision=int8-qat", "qat.measure=false", "task=text", "data.sequence_length=16"),
}
_FEW = ("data.batch_size=4", "data.epoch_steps=3", "train.max_steps=2", "train.epochs=1", "optimizer.lr=0.001")
RUNS: dict[str, tuple[str, ...]] = {
    **{name: ("data.batch_size=16", "train.max_steps=5", *settings) for name, settings in PRECISE.items()},
    **{f"task {name}": (*_FEW, *settings) for name, settings in TASKS.items()},
    **{
        f"qat {name}": ("train.epochs=3", "data.epoch_steps=2", "data.batch_size=16", *settings)
        for name, settings in QUANTISED.items()
    },
}
Outputs = dict[str, tuple[list[Event], str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, code, images by class, and a folder as torchvision's MNIST has it."""
    root = tmp_path_factory.mktemp("data")
    (root / "prose.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    (root / "line.py").write_text(LINE.format(extra=""))
    images, labels = digits()
    enlarged = torch.nn.functional.interpolate(images[:40], size=28)[:, 0].mul(255).to(torch.uint8)
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, part in (("train", slice(0, 30)), ("t10k", slice(30, 40))):
        write_idx(raw / f"{name}-images-idx3-ubyte", enlarged[part])
        write_idx(raw / f"{name}-labels-idx1-ubyte", labels[:40][part])
    for n, image in enumerate(enlarged):
        place = root / "classes" / ("even", "odd")[n % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.numpy()).save(place / f"{n:02}.png")
    return root


# How fast a converted model is, and the number of samples, are no matter of these tests. `latency_of_few_rounds` does
# the first in this process.
FEW_ROUNDS = ("engine/qat/measure.py", "_FEWEST, _MOST", "2, 2")
FEW_SAMPLES = (
    ("engine/tasks/detection.py", "_SCENES", "(24, 8)"),
    ("engine/tasks/segmentation.py", "_SCENES", "(24, 8)"),
    ("engine/tasks/speech.py", "_SOUNDS", "(24, 8)"),
    ("engine/tasks/text.py", "_VALIDATION_WINDOWS", "8"),
)


def _make_few(parts: Path) -> None:
    """Change these numbers in the modules of a script."""
    for module, name, value in (FEW_ROUNDS, *FEW_SAMPLES):
        if (parts / module).exists():
            text = (parts / module).read_text()
            changed = re.sub(rf"^{name} = [^#\n]*", f"{name} = {value}  ", text, flags=re.MULTILINE)
            assert changed != text, module
            (parts / module).write_text(changed)


@pytest.fixture(scope="module")
def few_samples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in FEW_SAMPLES:
            path = f"precgui.{module.removesuffix('.py').replace('/', '.')}.{name}"
            patch.setattr(path, ast.literal_eval(value))
        yield


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory, folder: Path, few_samples: None) -> Outputs:
    """Every run with what its script printed; the scripts run in one process, because importing torch takes seconds."""
    place = tmp_path_factory.mktemp("scripts")
    runs: dict[str, list[Event]] = {}
    paths: list[Path] = []
    for n, (name, settings) in enumerate(RUNS.items()):
        config, runs[name] = recorded(tuple(setting.format(folder=folder) for setting in settings))
        started = next(e for e in runs[name] if isinstance(e, RunStarted))
        paths.append(place / f"script_{n}.py")
        write_script(config, started.engine, paths[-1])
        _make_few(place / f"script_{n}_parts")
    return {name: (runs[name], text) for name, text in zip(RUNS, printed_by(paths), strict=True)}


@pytest.mark.parametrize("name", RUNS)
def test_that_a_script_repeats_the_run_bit_for_bit(outputs: Outputs, name: str) -> None:
    events, printed = outputs[name]
    losses = [float(text) for text in re.findall(r"^step \d+: loss (\S+)$", printed, re.MULTILINE)]
    assert len(losses) > 0
    assert losses == [e.loss for e in events if isinstance(e, StepDone)]
    pairs = re.findall(r"^epoch .*validation loss (\S+), .* (\S+)$", printed, re.MULTILINE)
    validation = [tuple(map(float, pair)) for pair in pairs]
    expected = [(e.loss, e.accuracy) for e in events if isinstance(e, Evaluated)]
    assert len(validation) > 0
    assert str(validation) == str(expected), "NaN included, for a task without a score"
    assert "are not those of the run" not in printed


@pytest.mark.parametrize("name", QUANTISED)
def test_that_a_script_converts_to_the_integers_of_the_run(outputs: Outputs, name: str) -> None:
    events, printed = outputs[f"qat {name}"]
    integers = [float(text) for text in re.findall(r"^on integers: validation loss (\S+)$", printed, re.MULTILINE)]
    measured = [e.values["quantised"] for e in events if isinstance(e, Facts) and "quantised" in e.values]
    assert integers == [facts["evaluation"]["integer"]["loss"] for facts in measured]
    assert bool(integers) == (name != "unmeasured")
