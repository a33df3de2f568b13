"""CPU time and memory of a scan beside reading the same folder: python benchmarks/model_scan.py [MB].

Makes a folder with BF16 weights (two shards, heavy tails, outlier columns), scans it in the twelve default formats
with one thread, and prints the ratio of CPU times (60 asked) and the peak memory before and after.
"""

from __future__ import annotations

import argparse
import json
import resource
import struct
import tempfile
import time
from pathlib import Path

import numpy as np

from precgui.engine.survey.scan import PIECE, scan
from precgui.formats.checkpoints.contents import StoredModel, open_checkpoint
from precgui.formats.weight_formats import DEFAULT, weight_format

COLUMNS = 2048
MATRIX = 2 * 2048 * COLUMNS  # bytes


def make(folder: Path, size_mb: int) -> None:
    """Matrices of 8 MB and norms, in two shards."""
    rng = np.random.default_rng(0)
    tails = np.exp(0.35 * rng.standard_normal((2048, COLUMNS)))
    base = (rng.standard_normal((2048, COLUMNS)) * tails * 0.02).astype(np.float32)
    placed: dict[str, str] = {}
    for shard in (1, 2):
        names = [f"layers.{n}.weight" for n in range(shard - 1, max(size_mb // 8, 2), 2)]
        header = {
            name: {"dtype": "BF16", "shape": [2048, COLUMNS], "data_offsets": [place * MATRIX, (place + 1) * MATRIX]}
            for place, name in enumerate(names)
        }
        placed |= dict.fromkeys(names, f"m-{shard}.safetensors")
        text = json.dumps(header).encode()
        with (folder / f"m-{shard}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for place in range(len(names)):
                values = np.roll(base, 997 * place + shard)
                values[:, rng.integers(0, COLUMNS, 5)] *= 8
                file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def read_s(checkpoint: StoredModel) -> float:
    """CPU seconds of reading all words in the pieces of the scan."""
    start = time.process_time()
    for tensor in checkpoint.tensors:
        assert tensor.words is not None
        for at in range(0, tensor.size, PIECE):
            tensor.words(at, min(at + PIECE, tensor.size))
    return time.process_time() - start


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size_mb", nargs="?", type=int, default=256)
    size_mb = parser.parse_args().size_mb
    formats = [weight_format(name) for name in DEFAULT]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make(folder, 16)
        scan(open_checkpoint(folder).tensors, formats, lambda each: None)  # compiles
        make(folder, size_mb)
        checkpoint = open_checkpoint(folder)
        before = peak_mb()
        ratios = []
        for _ in range(3):
            reading = read_s(checkpoint)
            start = time.process_time()
            scan(checkpoint.tensors, formats, lambda each: None)
            scanning = time.process_time() - start
            ratios.append(scanning / reading)
            numbers = sum(tensor.size for tensor in checkpoint.tensors)
            print(f"reading {reading:.2f} s, scan {scanning:.2f} s of CPU time: {ratios[-1]:.0f} times; "
                  f"{scanning / numbers * 1e9:.1f} ns a number")  # fmt: skip
        print(f"{checkpoint.nbytes / 1e6:.0f} MB: {np.median(ratios):.0f} times reading (60 asked)")
        print(f"memory {before:.0f} MB before, {peak_mb():.0f} MB at most")


if __name__ == "__main__":
    main()
