"""Write the bundled examples `resources/examples` again: three broken runs and a finished study, trained here.

Run it with `make examples`; it takes some ten minutes. Each is trained by the commands and the loop below into an empty
folder, and kept without the room that a run file holds free for rows to come.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precgui
from precgui.cli.main import main as run_command
from precgui.config import RecordConfig
from precgui.examples import EXAMPLES, Example
from precgui.paths import examples_dir, resources

FEW = [  # measurements of tensors: enough for the diagnosis, in a tenth of the size
    *("--set", 'record.snapshot_to=""', "--set", "record.least_measurements=3"),
    *(f"--set=record.{kind}_every=20" for kind in ("gradients", "weights", "activations")),
]
COMMANDS = {
    "scale-collapse": ["run", "digits-quick", "--set=precision=fp16-amp", "--set=optimizer.lr=30",
                       "--set=train.max_steps=40", *FEW],
    "bf16-stagnation": ["run", "digits-adamw", "--set=precision=bf16-pure", "--set=optimizer.lr=1e-4",
                        "--set=train.epochs=6", *FEW],
    "digits-study": ["sweep", "digits-quick", "--precisions=fp32,bf16-amp,fp16-amp", "--seeds=5",
                     "--set=record.tensors=false", "--set=train.epochs=6"],
}  # fmt: skip
MOST_BYTES = 2_000_000  # of all examples together


def train_clipped_too_early(path: Path) -> None:
    """A loop with a mistake: gradients are clipped while they are still multiplied by the loss scale."""
    torch.manual_seed(0)
    with np.load(resources() / "data" / "digits.npz") as data:
        images = torch.from_numpy(data["images"]).flatten(1) / 16.0
        labels = torch.from_numpy(data["labels"]).long()
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=40)
    few = RecordConfig(least_measurements=3, gradients_every=20, weights_every=20, activations_every=20)
    with precgui.Recorder(path, model, optimizer, scaler, total_steps=160, record=few) as recorder:
        for _ in range(160):
            batch = torch.randint(len(labels), (64,))
            with torch.autocast("cpu", torch.float16):
                loss: Tensor = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # scaler.unscale_(optimizer) is missing before
            scaler.step(optimizer)
            scaler.update()
            recorder.step(loss, samples=64)


def main() -> int:
    sys.argv = ["train.py"]  # the record names the script
    with tempfile.TemporaryDirectory() as own:
        os.environ.update(PRECGUI_STATE=f"{own}/state", PRECGUI_RUNS=own)
        made = [build(example, Path(own)) for example in EXAMPLES]
        folder = examples_dir()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in made:
            path.rename(folder / path.name) if path.is_file() else shutil.copytree(path, folder / path.name)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    sys.stdout.write(f"{folder}: {len(files)} files, {size / 1e6:.2f} MB\n")
    return 0 if size < MOST_BYTES else 1


def build(example: Example, folder: Path) -> Path:
    """Train an example into a folder; returns its file, or the folder of the study. Raises RuntimeError."""
    path = folder / example.path.name
    if example.name == "clip-before-unscale":
        train_clipped_too_early(path)
    else:
        titled = ["--title", example.title] if example.is_study else []
        if run_command([*COMMANDS[example.name], *titled, "-o", str(path)]):
            raise RuntimeError(f"{example.name} could not be trained")
    for lock in path.glob("*.lock"):
        lock.unlink()
    if path.is_file():
        pack(path, example.title)
    for run in path.glob("members/*.h5"):
        pack(run)
    return path


def pack(path: Path, title: str = "") -> None:
    """Write a run file again with the same rows and no room for more: a tenth of the size.

    The title stands in the file, but not in its settings, so that a run that is made of them is no example.
    """
    draft = path.with_suffix(".packed")
    with h5py.File(path, "r") as source, h5py.File(draft, "w", libver="latest") as target:
        _copy_attributes(source, target)
        if title:
            target.attrs.create("title", np.bytes_(title.encode()))
        source.visititems(partial(_pack_item, target))
    draft.replace(path)


def _pack_item(target: h5py.File, name: str, item: object) -> None:
    if not isinstance(item, h5py.Dataset):
        return
    kind, layout = item.dtype, {}
    data = item[()]
    if item.shape == () and kind.kind == "S":
        data = bytes(data).rstrip(b"\0")
        if name == "config":
            data = json.dumps({**json.loads(data), "title": ""}).encode()
        kind = h5py.string_dtype("utf-8", max(1, len(data)))
    elif item.compression:
        layout = {"chunks": item.chunks, "maxshape": item.maxshape, "shuffle": item.shuffle, "compression": 9}
    _copy_attributes(item, target.create_dataset(name, data=data, dtype=kind, **layout))


def _copy_attributes(source: h5py.File | h5py.Dataset, target: h5py.File | h5py.Dataset) -> None:
    for name, value in source.attrs.items():
        target.attrs.create(name, value, dtype=source.attrs.get_id(name).dtype)


if __name__ == "__main__":
    sys.exit(main())
