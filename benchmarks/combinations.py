"""Random combinations of settings, drawn from the table of settings itself: none may end in a traceback, and every run
that completes must repeat bit for bit.

`python benchmarks/combinations.py --count 105 --seed 1` prints how many completed and repeated, were refused with a
sentence, and failed with a traceback; the exit code is 1 where there is one of the last, or a run that did not repeat.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from precgui import config
from precgui.config import PRECISIONS, RunConfig
from precgui.engine.errors import EngineError
from precgui.engine.train import train
from precgui.events import Evaluated, Event, StepDone

FORMATS = ("e4m3fn", "e5m2", "e2m1", "e3m4", "bf16", "fp16", "int8", "int4", "mxfp6_e3m2")
PAIRS = (
    ("digits", "cnn"), ("digits", "mlp"), ("digits", "resnet"), ("digits", "vit"), ("text", "gpt"), ("text", "lstm"),
    ("regression", "mlp"), ("segmentation", "unet"), ("gan", "auto"), ("cartpole", "auto"),
)  # fmt: skip
FEW = (
    "device=cpu", "threads=1", "record.tensors=false", "train.max_steps=3", "train.epochs=1", "data.epoch_steps=3",
    "data.batch_size=8", "data.sequence_length=16", "qat.measure=false", "base.train_steps=2",
)  # fmt: skip
# Set by FEW or by the pairs, of other machines, or of processes and files: not what is drawn.
LEFT_OUT = frozenset({
    "title", "task", "precision", "seed", "device", "threads", "train.epochs", "train.max_steps", "train.compile",
    "base.weights", "base.train_steps", "base.backend", "qat.save_to", "qat.measure", "adapter.save_to",
    "precision_schedule",
})  # fmt: skip
SECTIONS_LEFT_OUT = ("model.", "data.", "record.", "parallel.")
_MOST_SWITCHES = 12


def switches() -> dict[str, tuple[str, ...]]:
    """Some values of every setting that has a few, each of which is valid by itself: booleans, words, numbers."""
    found: dict[str, tuple[str, ...]] = {}
    for path, field in _fields(RunConfig):
        if path not in LEFT_OUT and not path.startswith(SECTIONS_LEFT_OUT):
            found[path] = tuple(value for value in _values(field) if _is_valid(f"{path}={value}"))
    return {path: values for path, values in found.items() if values}


def _is_valid(setting: str) -> bool:
    try:
        config.load("digits-quick", [setting])
    except config.ConfigError:
        return False
    return True


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _values(field: FieldInfo) -> tuple[str, ...]:
    kinds = [field.annotation, *get_args(field.annotation)]
    for kind in kinds:
        if get_origin(kind) is Literal:
            return tuple(map(str, get_args(kind)))
    if bool in kinds:
        return ("true", "false")
    suggested = (
        (field.json_schema_extra or {}).get("suggestions") if isinstance(field.json_schema_extra, dict) else None
    )
    if isinstance(suggested, list):
        return tuple(map(str, suggested))
    if int in kinds:
        return ("1", "2", "3", "16", "64")
    if float in kinds:
        return ("0.1", "0.5", "0.9", "1", "2", "1024")
    if str(field.description).startswith("Format"):
        return FORMATS
    return ("*norm*", "head", "first") if "by name or type" in str(field.description) else ()


def drawn(draw: random.Random, known: dict[str, tuple[str, ...]]) -> list[str]:
    """The settings of one combination."""
    task, model = draw.choice(PAIRS)
    precision = draw.choice([*PRECISIONS, *(f"emulated:{name}" for name in FORMATS)])
    chosen = draw.sample(sorted(known), draw.randint(0, _MOST_SWITCHES))
    named = [f"task={task}", f"precision={precision}"] + ([f"model.name={model}"] if model != "auto" else [])
    return [*FEW, *named, *(f"{path}={draw.choice(known[path])}" for path in chosen)]


def numbers(requested: RunConfig) -> list[float]:
    """Every number of a run that must repeat."""
    events: list[Event] = []
    train(requested, events.append, lambda: False)
    steps = [(e.loss, e.grad_norm, e.scale) for e in events if isinstance(e, StepDone)]
    evaluated = [(e.loss, e.accuracy or 0.0) for e in events if isinstance(e, Evaluated)]
    return [number for row in (*steps, *evaluated) for number in row]


def outcome(settings: list[str]) -> tuple[str, str]:
    """What became of a combination, in one word, and the words that go with it."""
    try:
        requested = config.load("digits-quick", settings)
        first, again = numbers(requested), numbers(requested)
    except (config.ConfigError, EngineError) as error:
        return "refused", str(error)
    except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
        return "traceback", traceback.format_exc()
    same = len(first) == len(again) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(first, again, strict=True)
    )
    return ("repeated", "") if same else ("differs", f"{first[:4]} {again[:4]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=105)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", type=int, default=0, dest="start", help="leave out so many combinations first")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    known, counts = switches(), Counter[str]()
    for number in range(asked.start, asked.count):
        settings = drawn(random.Random(asked.seed * 1_000_003 + number), known)
        word, about = outcome(settings)
        counts[word] += 1
        if word != "repeated":
            print(f"{number} {word}: {' '.join(settings[len(FEW) :])}\n    {about}", file=sys.stderr, flush=True)
    print(json.dumps({"seed": asked.seed, "combinations": asked.count - asked.start, **counts}))
    return int(bool(counts["traceback"] or counts["differs"]))


if __name__ == "__main__":
    sys.exit(main())
