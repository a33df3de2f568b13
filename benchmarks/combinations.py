"""Random combinations of settings, drawn from the table of settings itself: none may end in a traceback, and every run
that completes must repeat bit for bit.

`python benchmarks/combinations.py --count 105 --seed 1` prints how many completed and repeated, were refused with a
sentence, and failed with a traceback; the exit code is 1 where there is one of the last, or a run that did not repeat.

With `--command` each combination is a whole `precgui run` in a process of its own, drawn from every section of the
config, a third of them with a value or a key that is not valid. Each has to complete with a file that can be read, to
fail with one sentence and a file, or to be refused with exit code 2, one sentence and no file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from precgui import config
from precgui.cli.main import main as command
from precgui.config import PRECISIONS, RunConfig
from precgui.engine.errors import EngineError
from precgui.engine.train import train
from precgui.events import Evaluated, Event, StepDone
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run

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
    "train.save_to", "precision_schedule",
})  # fmt: skip
SECTIONS_LEFT_OUT = ("model.", "data.", "record.", "parallel.")
_MOST_SWITCHES = 12
# In whole commands: only what is drawn by itself, and what would start more processes than the machine has cores.
LEFT_OUT_OF_COMMANDS = frozenset({
    "task", "precision", "device", "threads", "train.epochs", "train.max_steps", "data.epoch_steps", "model.name",
    "data.download", "data.path", "base.weights", "adapter.save_to", "qat.save_to",
    "train.save_to",
})  # fmt: skip
FEW_PROCESSES = {
    "data.workers": ("0", "1"), "parallel.ranks": ("1", "2"), "parallel.oversubscribe": ("true",),
    "parallel.time_limit_s": ("60",), "base.train_steps": ("1", "2"), "data.batch_size": ("1", "7", "16"),
    "data.sequence_length": ("3", "16"), "train.compile": ("false", "false", "false", "false", "false", "true"),
}  # fmt: skip
NOT_VALID = (
    "", "nan", "-inf", "-1", "0", "0.0", "1e400", "1e-400", "99999999999999999999", "none", "[]", "{}", "maybe",
    "\x1b[31m", "'", "a=b", "../x", "*", "fp33", "1,2", "\ud800", "x" * 5000, "0x10", "1_000", "true", "2:4", "first",
)  # fmt: skip
NO_KEYS = ("optimizer", "optimizer.lr.x", "optimiser.lr", "", ".", "model.", "__class__", "train.max_step")
WELL = frozenset({"repeated", "completed", "refused", "failed with a sentence"})
LIMIT_S = 150


def switches(*, of_commands: bool = False) -> dict[str, tuple[str, ...]]:
    """Some values of every setting that has a few, each of which is valid by itself: booleans, words, numbers."""
    found: dict[str, tuple[str, ...]] = {}
    for path, field in _fields(RunConfig):
        if of_commands:
            is_drawn = path not in LEFT_OUT_OF_COMMANDS
        else:
            is_drawn = path not in LEFT_OUT and not path.startswith(SECTIONS_LEFT_OUT)
        if is_drawn:
            found[path] = tuple(value for value in _values(field) if _is_valid(f"{path}={value}"))
    if of_commands:
        found |= FEW_PROCESSES
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


def drawn_for_command(draw: random.Random, known: dict[str, tuple[str, ...]]) -> list[str]:
    """The settings of one command, in a third of them one that is not valid."""
    settings = drawn(draw, known)
    if draw.random() < 1 / 3:
        key = draw.choice(NO_KEYS) if draw.random() < 0.15 else draw.choice(config.key_table())[0]
        settings.append(f"{key}={draw.choice(NOT_VALID)}")
    return settings


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


def outcome_of_command(settings: list[str]) -> tuple[str, str]:
    """What became of `precgui run` with these settings in a process of its own, in one word, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_run_command, args=(settings, Path(folder)))
        process.start()
        process.join(LIMIT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            return "not ended", f"within {LIMIT_S} s"
        return _judged(process.exitcode, Path(folder))


def _run_command(settings: list[str], folder: Path) -> None:
    os.chdir(folder)
    named = [part for setting in settings for part in ("--set", setting)]
    with Path("said").open("w", encoding="utf-8", errors="backslashreplace") as said, contextlib.redirect_stderr(said):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                code = command(["run", "digits-quick", *named, "--json", "-o", "run.h5"])
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
            traceback.print_exc(file=said)
            code = 1
    os._exit(code)


def _judged(code: int, folder: Path) -> tuple[str, str]:
    said, path = (folder / "said").read_text(encoding="utf-8"), folder / "run.h5"
    if code < 0 or "Traceback (most recent call last)" in said:
        return "traceback", f"exit code {code}\n{said}"
    if code == 2:
        lines = said.splitlines()
        is_sentence = len(lines) == 1 and lines[0].startswith("precgui")
        return ("refused" if is_sentence and not path.exists() else "refused badly"), said.strip()
    try:
        with open_run(path) as saved:
            status = saved.status
    except RunFileError as error:
        return "unreadable", f"{error}\n{said}"
    if code == 0:
        return ("completed" if status in ("completed", "stopped") else "told wrongly"), f"{status} {said}"
    return ("failed with a sentence" if status == "failed" and said.startswith("precgui") else "told wrongly"), said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=105)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", type=int, default=0, dest="start", help="leave out so many combinations first")
    parser.add_argument("--command", action="store_true", help="whole commands, also with values that are not valid")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    draws: Callable[[random.Random, dict[str, tuple[str, ...]]], list[str]] = (
        drawn_for_command if asked.command else drawn
    )
    judge = outcome_of_command if asked.command else outcome
    known, counts = switches(of_commands=asked.command), Counter[str]()
    for number in range(asked.start, asked.count):
        settings = draws(random.Random(asked.seed * 1_000_003 + number), known)
        word, about = judge(settings)
        counts[word] += 1
        if word not in ("repeated", "completed"):
            print(f"{number} {word}: {' '.join(settings[len(FEW) :])}\n    {about}", file=sys.stderr, flush=True)
    print(json.dumps({"seed": asked.seed, "combinations": asked.count - asked.start, **counts}))
    return int(bool(counts.keys() - WELL))


if __name__ == "__main__":
    sys.exit(main())
