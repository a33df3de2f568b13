"""Mutated files of each kind through everything that reads them: what is neither read nor refused with a sentence?

python benchmarks/mutate.py --kind run --files 4000
Kinds: run, events, npy, pt, safetensors, toml, profile, int8, and of a study sweep, plan, changes, targets.
Prints how many were read, how many refused, and each uncaught exception with its place.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np

from precgui import config
from precgui.cli.main import main as command
from precgui.engine.errors import EngineError
from precgui.engine.qat.saved_model import restore_file
from precgui.events import (
    EXPONENT_BINS,
    TENSOR_STATS,
    Evaluated,
    Incident,
    PowerRead,
    RunEnded,
    RunStarted,
    StepDone,
    TensorStats,
)  # fmt: skip
from precgui.formats.tensorfile import TensorFileError, load_tensor, tensor_names
from precgui.runs.compare import compare
from precgui.runs.csv_export import about, export_csv
from precgui.runs.diagnosis import examine
from precgui.runs.errors import RunFileError
from precgui.runs.file import json_text
from precgui.runs.file.reader import open_run
from precgui.runs.file.writer import RunWriter
from precgui.runs.library import read_entry
from precgui.runs.open import open_run_or_events
from precgui.runs.page import page
from precgui.runs.recorded_gradients import recorded_gradients
from precgui.runs.replays import REPLAYS
from precgui.runs.report.html import html_report
from precgui.runs.report.ungrouped import ungrouped_report
from precgui.runs.report.writing import markdown_report
from precgui.runs.scaler_simulation import policy_of, simulate
from precgui.runs.signals import SIGNALS
from precgui.runs.speedup.profile_file import check, read_profile
from precgui.runs.speedup.waterfall import rows, verdict
from precgui.runs.summary import summarise
from precgui.runs.tensorboard.export import export_events
from precgui.runs.tensors.what_if_table import what_if_table
from precgui.runs.verdict.targets import Targets
from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import SweepFolder, create_sweep, write_targets
from precgui.sweeps.listing import StudyList
from precgui.sweeps.report import sweep_document
from precgui.sweeps.spec import make_spec
from precgui.sweeps.study import SweepReader

REFUSED = (RunFileError, TensorFileError, config.ConfigError, SweepError, EngineError)


def write_run(path: Path) -> None:
    names = tuple(f"layer{number}.weight" for number in range(5))
    counts = np.ones((5, EXPONENT_BINS), "<u4").tobytes()
    with RunWriter(path, config.RunConfig(), run_id="7f", created="2026-01-01T00:00:00+00:00", machine={"devices": []},
                   environment={"threads": 1, "data": {"samples": 5}}) as emit:  # fmt: skip
        emit(RunStarted(0.0, 20, 10, "cpu", {"power_sensors": []}))
        for step in range(1, 21):
            emit(StepDone(step, 0.1 * step, 1 / step, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, float("nan")))
            emit(PowerRead("package-0", 0.1 * step, 20.0, 2.0 * step))
            emit(TensorStats(step, 0.1 * step, "gradient", names, (1,) * 5, np.ones((5, len(TENSOR_STATS))).tobytes(),
                             counts))  # fmt: skip
        emit(Incident(1.0, 10, "nonfinite_gradient", "error", "not finite " * 40, "layer1"))
        emit(Evaluated(20, 2, 2.0, 0.3, 0.75))
        emit(RunEnded(2.1, "completed"))


def read_run(path: Path, out: Path) -> None:
    with open_run(path) as run:
        for name in SIGNALS:
            run.series(name), run.series(name, "time_s")
        run.events(), summarise(run), run.model(), json_text.dump(about(run))
        for kind, record in run.tensors().items():
            record.stats(), record.exponents(), record.strides()
            what_if_table(run, kind, ["fp16", "e4m3fn"], 3, "by tensor")
        if (gradients := recorded_gradients(run)) is not None:
            simulate(gradients, policy_of("initial=2^16"), "fp16")
        examine(run), page(run), json_text.dump(asdict(compare([run], None)))
        export_csv(run, out / "csv")
        export_events(run, out / "events")
    report = ungrouped_report([path, path.parent / "seed" / path.name])
    html_report(report), markdown_report(report), read_entry(path), REPLAYS.all(path)


def read_profile_file(path: Path, _: Path) -> None:
    document = read_profile(path)
    account = check(document)
    verdict(account, str(document["precision"])), account.closing, rows(account)


def read_events(path: Path, _: Path) -> None:
    with contextlib.closing(open_run_or_events(path, {})) as run:
        run.series("loss"), json_text.dump(asdict(compare([run], None)))


def read_tensor(path: Path, _: Path) -> None:
    for name in tensor_names(path)[:50]:
        load_tensor(path, name)


def read_config(path: Path, _: Path) -> None:
    config.load(path)


def write_events(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder, "run.h5"))
        with open_run(Path(folder, "run.h5")) as run:
            shutil.copyfile(export_events(run, Path(folder, "events"))[0], path)


def write_npy(path: Path) -> None:
    np.save(path, np.arange(24, dtype="<f4").reshape(4, 6))


def write_pt(path: Path) -> None:
    import torch

    torch.save({"model": {"w": torch.ones(4, 4), "b": torch.zeros(4)}, "step": 3}, path)


def write_safetensors(path: Path) -> None:
    table = {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
             "b": {"dtype": "BF16", "shape": [2], "data_offsets": [16, 20]}}  # fmt: skip
    header = json.dumps(table).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(20))


def write_profile(path: Path) -> None:
    side = {"step_s": 4.5, "data_s": 1.0, "products_s": 2.5, "others_s": 2.0, "casts_s": 0.0, "gaps_s": 0.0,
            "kinds": {"product": 2.5, "element-wise": 2.0}, "calls": 9, "profiled_s": 4.5}  # fmt: skip
    operation = {"operation": "mm", "kind": "product", "module": "head", "phase": "forward", "format": "bf16",
                 "executed": "bf16", "shapes": [[2, 3], [3, 4]], "calls": 1, "seconds": 0.5, "flops": 10**9,
                 "bytes": 9, "tensor_cores": None}  # fmt: skip
    path.write_text(json.dumps({
        "schema": 1, "title": "seed", "precision": "bf16-amp", "fp32": side, "run": side, "rounds": [1.1, 1.2, 1.1],
        "peak": {"format": "bf16", "ratio": 4.0, "size": 1024, "note": ""}, "notes": ["on a CPU"],
        "settings": {"batch_size": 8, "workers": 0, "compile": False, "channels_last": False},
        "device": {"type": "cpu", "name": "CPU", "threads": 1}, "layers": [], "padding": [],
        "operations": [operation], "memory": {},
    }))  # fmt: skip


def write_toml(path: Path) -> None:
    path.write_text(config.to_toml(config.RECIPES["digits-quick"][1]))


def write_integers(path: Path) -> None:
    """The integer model that a short run keeps."""
    settings = ["train.max_steps=20", "train.epochs=1", f"qat.save_to={path}", "device=cpu", "threads=1"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        command(["run", "digits-int8", "-o", str(path.with_name("run.h5")), *(f"--set={each}" for each in settings)])


def read_integers(path: Path, _: Path) -> None:
    restore_file(path)


def make_study(folder: Path) -> SweepFolder:
    base = config.load("regression-precise", ["train.max_steps=5", "device=cpu", "threads=1"])
    study = create_sweep(folder, make_spec(base, ["fp32", "bf16-amp"], 2, order_seed=7), Targets(speedup=1.5))
    write_run(study.path_of(study.plan.members[1]))
    write_targets(folder, Targets(speedup=1.2))
    return study


def write_of_study(path: Path) -> None:
    make_study(path.with_name("study"))
    shutil.copyfile(path.with_name("study") / path.name, path)


def read_of_study(path: Path, out: Path) -> None:
    """A folder of studies in which one has the mutated file: the other must be listed, whatever it holds."""
    make_study(out / "good")
    make_study(out / "odd")
    shutil.copyfile(path, out / "odd" / path.name)
    entries = {entry.path.name: entry for entry in StudyList(out).entries()}
    if entries["good"].error or "odd" not in entries:
        raise AssertionError("the other study is not listed")
    study = SweepFolder(out / "odd")
    sweep_document(study)
    study.skip("s01-fp32")
    SweepReader(study).study()


KINDS: dict[str, tuple[str, Callable[[Path], None], Callable[[Path, Path], None]]] = {
    "run": ("run.h5", write_run, read_run),
    "events": ("events.out.tfevents.1", write_events, read_events),
    "npy": ("x.npy", write_npy, read_tensor),
    "pt": ("x.pt", write_pt, read_tensor),
    "safetensors": ("x.safetensors", write_safetensors, read_tensor),
    "profile": ("x.h5.profile.json", write_profile, read_profile_file),
    "toml": ("x.toml", write_toml, read_config),
    "int8": ("x.int8.pt", write_integers, read_integers),
    "sweep": ("sweep.toml", write_of_study, read_of_study),
    "plan": ("plan.json", write_of_study, read_of_study),
    "targets": ("targets.toml", write_of_study, read_of_study),
    "changes": ("targets-changes.jsonl", write_of_study, read_of_study),
}


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Bits flipped, bytes set, runs of bytes repeated, removed or zeroed, the end cut."""
    made = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 16, 64])):
        at = rng.randrange(min(len(made), rng.choice([200, 4000, len(made)])) or 1)
        match rng.randrange(6):
            case 0 | 1:
                made[at] ^= 1 << rng.randrange(8)
            case 2:
                made[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case 3:
                made[at : at + rng.randrange(9)] = bytes(rng.randrange(256) for _ in range(rng.randrange(9)))
            case 4:
                length = rng.randrange(1, 64)
                made[at : at + length] = bytes(min(length, len(made) - at))
            case 5 if rng.random() < 0.2:
                del made[at:]
        if not made:
            break
    return bytes(made)


def mutate_structure(path: Path, rng: random.Random) -> None:
    """A dataset of the run file retyped, resized, removed or filled with odd numbers, by HDF5 itself."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in rng.sample(names, rng.choice([1, 1, 2, 3])):
            item = file[name]
            values, attributes = item[()], dict(item.attrs)
            kind = rng.randrange(4)
            if kind == 0 and isinstance(values, np.ndarray) and values.dtype.kind in "iuf" and values.size:
                odd: list[float] = [np.nan, np.inf, -1, 2**31] if values.dtype.kind == "f" else [0, 1, 99]
                item[...] = rng.choice(odd)
                continue
            del file[name]
            if kind == 1 and isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
                values = values.astype(rng.choice(["<f8", "<i8", "u1", "<f4"]))
            if kind == 2 and isinstance(values, np.ndarray) and values.ndim > 1:
                values = values[:, : rng.randrange(values.shape[1] + 1)]
            if kind != 3:
                made = file.create_dataset(name, data=values)
                made.attrs.update(attributes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="run")
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    name, write, read = KINDS[options.kind]
    rng, ends, faults = random.Random(options.seed), Counter[str](), Counter[str]()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        seed, path = Path(folder, "seed", name), Path(folder, name)
        seed.parent.mkdir()
        write(seed)
        content = seed.read_bytes()
        for number in range(options.files):
            out = Path(folder, "out")
            out.mkdir()
            path.write_bytes(content)
            if options.kind == "run" and number % 2:
                with contextlib.suppress(OSError, RuntimeError, ValueError, TypeError):
                    mutate_structure(path, rng)
            else:
                path.write_bytes(mutate(content, rng))
            begin = time.process_time()
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    read(path, out)
                ends["read"] += 1
            except REFUSED as error:
                ends["refused" if "\n" not in str(error) else "refused with more than a sentence"] += 1
            except Exception as error:  # noqa: BLE001  what is looked for here
                place = traceback.extract_tb(error.__traceback__)[-1]
                ends["uncaught"] += 1
                faults[f"{type(error).__name__} {Path(place.filename).name}:{place.lineno}: {str(error)[:80]}"] += 1
            slowest = max(slowest, time.process_time() - begin)
            shutil.rmtree(out)
    print(f"{options.kind}: {options.files} files, {dict(ends)}, slowest {slowest:.2f} CPU s")
    for fault, count in faults.most_common():
        print(f"  {count} x {fault}")


if __name__ == "__main__":
    os.nice(3)
    main()
