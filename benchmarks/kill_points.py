"""Every moment at which a kill can hit a run: after each write of a short run, and after each page of it.

    python benchmarks/kill_points.py [--flushes 6] [--uncounted]

A run with everything in it is written under strace. Its writes are then repeated one by one on a copy of the file; the
system ends a write only between pages, so a write of several pages is cut behind each of them. After each piece the
file must open, with every step, event and reading that was flushed, and every histogram: of those a cut in a long part
of an index may cost the rows that this part names. `--uncounted` leaves out how many tensors there are. Needs strace.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import precgui
from precgui.config import RunConfig
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
)
from precgui.runs.errors import RunFileError
from precgui.runs.file import writer
from precgui.runs.file.reader import BROKEN_OFF
from precgui.runs.tensors.record import TensorHistory

TENSORS, STEPS_A_FLUSH, PAGE = 70, 7, 4096
NAME = "run.h5"
TRACED = "openat,pwrite64,write,ftruncate,link,linkat,rename,renameat,renameat2,unlink,unlinkat,close,dup2"
_CALL = re.compile(r"\d+ +(\w+)\((.*)\) += (-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def write_run(path: Path, flushes: int, tensors: int) -> None:
    """A run that is flushed only when it says so; a write to /dev/null marks each flush in the trace."""
    writer.FLUSH_S = 1e9
    marks = os.open(os.devnull, os.O_WRONLY)
    rng = np.random.default_rng(0)
    emit = writer.RunWriter(path, RunConfig(), run_id="kill", created="", machine={}, environment={})
    emit(PowerRead("CPU", 0.0, 10.0, 0.0))
    emit.flush()
    emit(RunStarted(0.1, flushes * STEPS_A_FLUSH, STEPS_A_FLUSH, "cpu", {"threads": 1}, tensors))
    for flush in range(flushes):
        for step in range(flush * STEPS_A_FLUSH + 1, (flush + 1) * STEPS_A_FLUSH + 1):
            emit(StepDone(step, float(step), 1 / step, 1.0, False, 0.1, 1.0, 0.001, 0.0, 8, math.nan))
            emit(histograms(step, "gradient", TENSORS, rng))
        emit(histograms(step, "optimizer", 3 * TENSORS, rng))
        emit(PowerRead("CPU", float(step), 10.0, math.nan))
        emit(Evaluated(step, flush, float(step), 0.5, 0.5))
        emit(Incident(float(step), step, "note", "info", f"{step} " * 60))
        emit.flush()
        os.write(marks, f"flushed {step}".encode())
    emit(RunEnded(float(step), "completed"))
    os.write(marks, b"ended")
    emit.close()


def histograms(step: int, kind: str, tensors: int, rng: np.random.Generator) -> TensorStats:
    exponents = np.zeros((tensors, EXPONENT_BINS), "<u4")
    exponents[:, 90:120] = rng.integers(0, 4096, (tensors, 30))
    stats = rng.lognormal(size=(tensors, len(TENSOR_STATS)))
    stats[:, TENSOR_STATS.index("count")] = exponents.sum(1)
    names = tuple(f"layer{place}.weight" for place in range(tensors))
    return TensorStats(step, float(step), kind, names, (1,) * tensors, stats.tobytes(), exponents.tobytes())


@dataclass
class Disk:
    """The files of the folder as the system has them: contents by number, names of them, open files."""

    files: list[bytearray] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    handles: dict[int, int] = field(default_factory=dict)

    def open(self, name: str, handle: int) -> None:
        if name not in self.names:
            self.names[name] = len(self.files)
            self.files.append(bytearray())
        self.handles[handle] = self.names[name]

    def write(self, handle: int, data: bytes, at: int) -> Iterator[None]:
        """Yields behind each page."""
        content = self.files[self.handles[handle]]
        content.extend(bytes(max(at + len(data) - len(content), 0)))
        done = 0
        while done < len(data):
            size = min(PAGE - (at + done) % PAGE, len(data) - done)
            content[at + done : at + done + size] = data[done : done + size]
            done += size
            yield

    def truncate(self, handle: int, size: int) -> None:
        content = self.files[self.handles[handle]]
        del content[size:]
        content.extend(bytes(size - len(content)))


def replay(trace: Path, folder: Path) -> Iterator[tuple[Disk, str]]:
    """The disk after each piece of a write and each change of a name, and what the run had said by then."""
    disk, said = Disk(), ""
    for line in trace.read_text().splitlines():
        call = _CALL.match(line)
        if call is None or int(call[3]) < 0:
            continue
        kind, rest, result = call[1], call[2], int(call[3])
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(rest)]
        names = [Path(text.decode()).name for text in texts if text.startswith(os.fsencode(folder))]
        number = int(rest.partition(",")[0]) if rest[0].isdigit() else -1
        if kind == "openat" and names and NAME in names[0]:
            disk.open(names[0], result)
        elif kind == "write" and texts and texts[0].startswith((b"flushed", b"ended")):
            said = texts[0].decode()
        elif kind == "pwrite64" and number in disk.handles:
            for _ in disk.write(number, texts[0], int(rest.rpartition(", ")[2])):
                yield disk, said
        elif kind == "ftruncate" and number in disk.handles:
            disk.truncate(number, int(rest.rpartition(", ")[2]))
            yield disk, said
        elif kind.startswith(("link", "rename")) and names:
            disk.names[names[1]] = disk.names[names[0]]
            if kind.startswith("rename"):
                del disk.names[names[0]]
            yield disk, said
        elif kind.startswith("unlink") and names:
            disk.names.pop(names[0], None)
        elif kind == "close":
            disk.handles.pop(number, None)


def lacking(path: Path, said: str) -> tuple[str, int]:
    """What a file lacks of that which was flushed, empty when nothing, and how many rows of histograms."""
    flushed = int(said.split()[1]) if said.startswith("flushed") else 0
    flushes = flushed // STEPS_A_FLUSH
    try:
        with precgui.open_run(path) as run:
            step, loss = run.series("loss")
            kinds = run.tensors()
            torn = {kind: torn_rows(record) for kind, record in kinds.items()}
            whole = (
                len(step) >= flushed
                and np.array_equal(step, np.arange(1, len(step) + 1))
                and np.array_equal(loss, 1 / step)
                and all(event.message == f"{event.step} " * 60 for event in run.events())
                and len(run.events()) >= flushes
                and (not flushes or len(run.power_column("CPU", "power_w")) > flushes)
                and (not flushes or (len(kinds["gradient"]) >= flushed and len(kinds["optimizer"]) >= flushes))
                and (said != "ended" or run.status == "completed")
            )
            notes = {note for note in run.notes if note != BROKEN_OFF}
            told = " ".join(note for note in notes if "rows that cannot be read" not in note)
            return ("" if whole else f"what was flushed {told}") or told, sum(torn.values())
    except RunFileError as error:
        return f"a file that opens: {error}", 0


def torn_rows(record: TensorHistory) -> int:
    """Rows whose histograms do not hold as many elements as were counted."""
    right = record.exponents().sum(2) == np.nan_to_num(record.stat("count"))
    return int((~right.all(1) | ~record.stat("count").any(1)).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flushes", type=int, default=6)
    parser.add_argument("--uncounted", action="store_true", help="the run does not say how many tensors it has")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write:
        write_run(asked.write, asked.flushes, 0 if asked.uncounted else TENSORS)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder, trace, copy = Path(name, "run"), Path(name, "trace"), Path(name, "copy.h5")
        folder.mkdir()
        command = ["strace", "-f", "-xx", "-s", "100000000", "-o", str(trace), "-e", f"trace={TRACED}"]
        subprocess.run([*command, sys.executable, *sys.argv, "--write", str(folder / NAME)], check=True)
        unborn = whole = bad = 0
        torn: list[int] = []
        for moment, (disk, said) in enumerate(replay(trace, folder)):
            if NAME not in disk.names:
                unborn += 1
                continue
            copy.write_bytes(disk.files[disk.names[NAME]])
            lack, rows = lacking(copy, said)
            whole += not lack and not rows
            bad += bool(lack)
            torn += [rows] if rows else []
            if lack:
                print(f"moment {moment}, {said}: lacks {lack}")
    print(f"{unborn} moments before the file has its name; at {whole} of the others nothing was lost")
    print(f"at {len(torn)} some histograms were lost, {max(torn, default=0)} rows at most; at {bad} more than that")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
