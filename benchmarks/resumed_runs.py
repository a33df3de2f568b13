"""Runs that are cut and go on, beside the same runs without a cut: every precision with every recipe, to the last bit.

`python benchmarks/resumed_runs.py --count 60 --seed 1` draws so many of the combinations of precision, recipe and
cut; `--all` takes all of them, with three cuts each. A cut is at a random step: a stop, kill -9 inside of the next
step, or a disk that becomes full (a small tmpfs in a mount namespace of its own; where the system allows none, it is
counted as left out). Each run is a `precgui.job.Job` in its own process, with its file and checkpoints. Compared are
loss, norm of the gradients, loss scale and skipped steps of every step, all validations, and the bytes of the saved
weights. The exit code is 1 where one of them differs or a run does not go on. Recipes whose data are downloaded are
left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch  # noqa: F401 - once, for all forks
from numpy.typing import NDArray

from precgui import config
from precgui.config import RECIPES, RunConfig
from precgui.config.names import DOWNLOADED
from precgui.config.precision_traits import TRAITS, traits
from precgui.config.refusals import refusals
from precgui.errors import SentenceError
from precgui.events import Event, StepDone
from precgui.job import Job
from precgui.runs.file.reader import open_run

Way = Literal["stopped", "killed", "disk full"]
WAYS: tuple[Way, ...] = ("stopped", "killed", "disk full")
STEPS, CUTS, LIMIT_S, DISK_MIB = 8, 3, 600.0, 512
FEW = (
    "device=cpu", "threads=1", "record.tensors=false", "train.epochs=2", "data.epoch_steps=4",
    f"train.max_steps={STEPS}", "data.batch_size=4", "data.sequence_length=16", "data.workers=0",
    "qat.measure=false", "base.train_steps=0",
)  # fmt: skip
COLUMNS = ("loss", "grad_norm", "scale", "skipped")
NOT_ALLOWED = "no mount of its own is allowed here"
_NEW_MOUNTS, _PRIVATE = 0x00020000, (1 << 18) | (1 << 14)  # CLONE_NEWNS; MS_PRIVATE with MS_REC


def configured(precision: str, recipe: str, every: int, weights: Path) -> RunConfig | str:
    """The config of a case, or why this recipe does not go with this precision."""
    settings = [*FEW, f"precision={precision}", f"train.checkpoint_every={every} steps"]
    if traits(precision).weight_bits is None:
        has_adapters = RECIPES[recipe][1].adapter.kind != "none"
        settings.append(f"train.save_to={weights if has_adapters else weights.with_suffix('.safetensors')}")
    try:
        chosen = config.load(recipe, settings)
    except config.ConfigError as error:
        return str(error)
    return "; ".join(refusals(chosen).values()) or chosen


def in_fork(work: Callable[[], Any], limit_s: float = LIMIT_S) -> tuple[int | None, Any]:
    """Exit code and JSON result of a function in a fork of this process; None where it did not end in time."""
    with tempfile.NamedTemporaryFile("r+", dir=os.environ.get("RESULTS")) as result:

        def inside() -> None:
            result.write(json.dumps(work()))
            result.flush()

        process = multiprocessing.get_context("fork").Process(target=inside)
        process.start()
        process.join(limit_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            return None, None
        text = Path(result.name).read_text(encoding="utf-8")
        return process.exitcode, json.loads(text) if text else None


def trained(job: Callable[[Sequence[Callable[[Event], None]]], Job], cut: int = 0, way: Way = "stopped") -> list[str]:
    """Train until the end or the cut; the status and the sentence of the end."""
    jobs: list[Job] = []

    def act(event: Event) -> None:
        if not cut or not isinstance(event, StepDone):
            return
        if way == "stopped" and event.step == cut:
            jobs[0].stop()
        elif way == "killed" and event.step == cut + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        elif way == "disk full" and event.step == cut:
            fill_disk(jobs[0].path.parent)

    jobs.append(job([act]))
    ended = jobs[0].run()
    return [ended.status, ended.message]


def own_small_disk(place: Path, mebibytes: int) -> str:
    """Mount a small disk on a folder for this process and its children; returns why it cannot be done, or ''."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(None, b"/", None, _PRIVATE, None):
        return NOT_ALLOWED
    options = f"size={mebibytes}m".encode()
    return NOT_ALLOWED if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, options) else ""


def fill_disk(folder: Path) -> None:
    """Take all room that is left, to the last byte."""
    with (folder / "filler").open("wb", buffering=0) as filler:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    filler.write(bytes(size))
            except OSError:
                continue


def case(precision: str, recipe: str, cut: int, every: int, way: Way) -> list[str]:
    """What came of one case, in one word, and the words that go with it."""
    with tempfile.TemporaryDirectory() as name:
        whole, place = Path(name) / "whole", Path(name) / "cut"
        for folder in (whole, place):
            folder.mkdir()
        chosen = configured(precision, recipe, every, whole / "weights")
        if isinstance(chosen, str):
            return ["refused", chosen]
        kept = configured(precision, recipe, every, place / "weights")
        assert isinstance(kept, RunConfig)
        code, ended = in_fork(lambda: trained(lambda listeners: Job(chosen, whole / "run.h5", listeners)))
        if code != 0 or ended[0] != "completed":
            return ["refused" if ended and ended[0] == "failed" else "not ended", str(ended)]
        if way == "disk full":
            code, told = in_fork(
                lambda: own_small_disk(place, DISK_MIB) or cut_and_resumed(kept, whole, place, cut, way)
            )
            if told == NOT_ALLOWED:
                return ["left out", told]
            return told if told else ["not ended", f"exit code {code}"]
        return cut_and_resumed(kept, whole, place, cut, way)


def cut_and_resumed(chosen: RunConfig, whole: Path, place: Path, cut: int, way: Way) -> list[str]:
    file = place / "run.h5"
    code, ended = in_fork(lambda: trained(lambda listeners: Job(chosen, file, listeners), cut, way))
    was_cut = code == -signal.SIGKILL if way == "killed" else code == 0
    if not was_cut:
        return ["not cut", f"exit code {code} {ended}"]
    (place / "filler").unlink(missing_ok=True)
    if ended is not None and ended[0] == "completed":  # on the full disk, where the rest of the steps still had room
        return ["differs" if (told := difference(whole, place)) else "equal", told]
    code, ended = in_fork(lambda: trained(lambda listeners: Job.going_on(file, listeners)))
    if code != 0 or ended[0] != "completed":
        return ["does not go on", f"exit code {code} {ended}"]
    return ["differs" if (told := difference(whole, place)) else "equal", told]


def difference(whole: Path, resumed: Path) -> str:
    """The first thing that differs in its bits; '' where nothing does."""
    with open_run(whole / "run.h5") as one, open_run(resumed / "run.h5") as other:
        for name in COLUMNS:
            if not all(_same(a, b) for a, b in zip(one.series(name), other.series(name), strict=True)):
                return f"{name}: {one.series(name)[1].tolist()} and {other.series(name)[1].tolist()}"
        for name in ("val_loss", "val_accuracy"):
            if not all(_same(a, b) for a, b in zip(one.series(name), other.series(name), strict=True)):
                return f"{name}: {one.series(name)[1].tolist()} and {other.series(name)[1].tolist()}"
    for file in sorted(path for path in whole.rglob("*") if path.suffix == ".safetensors"):
        own = resumed / file.relative_to(whole)
        if not own.is_file() or _tensors(own) != _tensors(file):
            return f"{own.name} differs"
    return ""


def _tensors(file: Path) -> bytes:
    """The part of a safetensors file behind its header, which names the run."""
    data = file.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes() and one.dtype == other.dtype


def recipes() -> list[str]:
    return [name for name, (_, chosen) in RECIPES.items() if chosen.task not in DOWNLOADED]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="every precision with every recipe, three cuts each")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    pairs = [(precision, recipe) for precision in TRAITS for recipe in recipes()]
    draw = random.Random(asked.seed)
    chosen = [pair for pair in pairs for _ in range(CUTS)] if asked.all else draw.choices(pairs, k=asked.count)
    counts, ways = Counter[str](), Counter[str]()
    for precision, recipe in chosen:
        cut, every, way = draw.randrange(2, STEPS - 1), draw.randint(1, 2), draw.choice(WAYS)
        if way == "disk full":  # which leaves no room for the checkpoint of this step: there is one before
            cut = max(cut, every + 1)
        try:
            word, about = case(precision, recipe, cut, every, way)
        except (SentenceError, OSError, ValueError):
            word, about = "error", traceback.format_exc()
        counts[word] += 1
        ways[way] += word == "equal"
        line = f"{precision} {recipe}, {way} at step {cut}, a checkpoint each {every} steps: {word}"
        print(line if word == "equal" else f"{line}: {about}", file=sys.stderr, flush=True)
    print(json.dumps({"seed": asked.seed, "cases": len(chosen), "equal by way": dict(ways), **counts}))
    return int(bool(counts.keys() - {"equal", "refused", "left out"}))


if __name__ == "__main__":
    sys.exit(main())
