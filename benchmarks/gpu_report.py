"""Everything that only a GPU can show, in one command and one report: `make gpu`.

    python benchmarks/gpu_report.py [--out FOLDER] [--device cuda] [--minutes 8] [--parts detection,speeds,...]

Runs each part in a process of its own, the most telling first, so that one that fails or hangs costs only its own
figures, and writes `report.md` (to be pasted into docs/measurements.md), `results.json` and `log.txt` into the folder:
`--out`, else the environment variable GPU_OUT, else `gpu-report`. The limits of all parts fit into 8 minutes; what a
part leaves of its own is given to those after it. Needs torch and the packages of NEEDED, and says at once which of
them are absent; no Qt, no network.
`--device cpu` rehearses the parts that a CPU can do, `--small` all parts with little work: its figures mean nothing.
Exit code 0 when every part came to its end and no test failed, 1
otherwise, 2 when there is no torch or no such device.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent
NEEDED = (
    "torchvision", "numpy", "h5py", "pydantic", "rich", "tomli_w", "numba", "psutil", "pytest", "ml_dtypes",
    "PIL",
)  # fmt: skip
RESERVE_S = 10  # of the minutes, to end the last part and write
FEWEST_S = 3  # in which a command can begin
# Tests that need no quiet machine: pytest-xdist shares them out, where it is installed.
TOGETHER = ("quantize", "fp8_sums", "runs", "recipes", "loops", "commands", "faults", "foreign", "ranks", "memory")
MOST_WORKERS = 12
STUDIED = ("fp32", "bf16-amp", "fp16-amp", "fp8")
Lines = list[str]


@dataclass(frozen=True)
class Part:
    """One section of the report: commands that run one after the other, and how their output becomes lines.

    All commands together have `limit_s`. `write` takes the outputs of the commands that have done their work, and with
    `by_line` also that of one which was ended.
    """

    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    write: Callable[[list[str]], Lines]
    limit_s: float
    gpu_only: bool = False
    by_line: bool = False
    codes: tuple[int, ...] = (0,)  # exit codes of a command that has done its work


@dataclass
class Outcome:
    """The end of a part: its lines, and the sentence why there are none or why they are not all."""

    name: str
    title: str
    seconds: float
    problem: str = ""
    lines: Lines = field(default_factory=list)


def detection(outputs: list[str]) -> Lines:
    report = json.loads(outputs[0])
    lines = []
    for device in report["devices"]:
        formats = [f"{name} {row['support']}" for name, row in device["formats"].items()]
        lines += [f"- {device['name']} (`{device['id']}`): {', '.join(formats)}"]
        lines += [f"  - advice: {device['advice']['precision']}. {device['advice']['reason']}"]
    return lines


def tests(outputs: list[str]) -> Lines:
    """The closing line of pytest, and the tests that failed or were skipped, with the reasons.

    Where pytest was ended first, the tests that had passed until then are counted, and those that had failed are named.
    """
    lines = outputs[0].strip().splitlines()
    named = [f"- `{line}`" for line in lines if line.startswith(("FAILED", "ERROR", "SKIPPED", "WHY"))]
    last = lines[-1].strip("= ") if lines else "no output"
    if not re.search(r" in [\d.]+s", last):
        passed, failed = (sum(word in line.split() for line in lines) for word in ("PASSED", "FAILED"))
        last = f"{passed} passed, {failed} failed until it was ended"
    return [last, *named]


def failed_tests(lines: Lines) -> str:
    """A sentence when one of the tests failed, or ''."""
    return f"Tests failed: {lines[0]}." if any(line.startswith(("- `FAILED", "- `ERROR")) for line in lines) else ""


def verbatim(outputs: list[str]) -> Lines:
    return [line for output in outputs for line in ("```", output.strip(), "```")]


def rates(outputs: list[str]) -> Lines:
    rows = _rows(outputs)
    lines = ["| format | size | 10^12 operations/s | spread | share of the peak | clock, MHz | remark |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in (row for row in rows if row["part"] == "gemm"):
        tops, spread, share, clock_mhz = (row.get(name) for name in ("tops", "spread", "share", "clock_mhz"))
        cells = [
            "not measured" if tops is None else f"{tops:.4g}",
            "" if spread is None else f"{spread:.0%}",
            "peak not known" if share is None else f"{share:.0%}",
            "" if clock_mhz is None else f"{clock_mhz:.0f}",
            _cell(row.get("note", "")),  # why torch refused it, where it did
        ]
        lines += [f"| {row['format']} | {row['m']} | {' | '.join(cells)} |"]
    copied = [row for row in rows if row["part"] == "copy"]
    told = [f"{row['gb_s']:.4g} GB/s" if row["gb_s"] is not None else f"not measured. {row['note']}" for row in copied]
    doubts = [f"- {row['format']}: {row['note']}" for row in rows if row["part"] == "certificate" and row["note"]]
    return [*lines, "", f"Bandwidth of a copy: {told[0] if told else 'not measured'}", *doubts]


def _cell(text: str) -> str:
    """A text that stands in one cell of a table."""
    return text.replace("|", "/").replace("\n", " ")


def _rows(outputs: list[str]) -> list[dict[str, Any]]:
    """The documents of one line each that these outputs hold."""
    rows = [json.loads(line) for output in outputs for line in output.splitlines() if line.startswith("{")]
    if not rows:
        raise ValueError("there is no row in it")
    return rows


def speeds(outputs: list[str]) -> Lines:
    """The ratio of each precision to FP32, and the reason where it was refused."""
    lines = ["| model | precision | products | FP32, ms | it, ms | FP32 / it (95 %) | pairs | remark |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in _rows(outputs):
        head, remark = f"| {row['model']} | {row['precision']}", _cell(row["remark"])
        if row["pairs"]:
            interval = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
            times = f"{row['fp32_ms']:.2f} | {row['step_ms']:.2f}"
            lines += [f"{head} | {row['products']} | {times} | {interval} | {row['pairs']} | {remark} |"]
        else:
            lines += [f"{head} | | | | refused | 0 | {remark} |"]
    return lines


def registers(outputs: list[str]) -> Lines:
    lines = ["| asked for | kernel | registers of a thread | spilled | warps | remark |", "|---|---|---|---|---|---|"]
    for row in _rows(outputs):
        cells = [row[name] for name in ("what", "kernel", "registers", "spilled", "warps", "remark")]
        texts = ["" if cell is None else _cell(str(cell)) for cell in cells]
        lines += [f"| {' | '.join(texts)} |"]
    return lines


def energy(outputs: list[str]) -> Lines:
    rows = [row for row in _rows(outputs) if row["part"] == "energy"]
    told = [{key: value for key, value in row.items() if key != "part" and value not in (None, "")} for row in rows]
    lines = [f"- {', '.join(f'{key} {_number(value)}' for key, value in row.items())}" for row in told]
    return lines or ["Energy was not measured."]


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def overhead(outputs: list[str]) -> Lines:
    lines = ["| model | precision | engine, ms | by hand, ms | ratio by the clock (95 %) | pairs |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in (row for row in _rows(outputs) if row["part"] == "overhead"):
        wall = row["wall"]
        ratio = f"{wall['ratio']:.3f} ({wall['low']:.3f} to {wall['high']:.3f})"
        times = f"{row['engine_ms']:.2f} | {row['hand_ms']:.2f}"
        lines += [f"| {row['model']} | {row['precision']} | {times} | {ratio} | {row['pairs']} |"]
    return lines


def fp8(outputs: list[str]) -> Lines:
    """Step times of a layer, native and emulated, and the distance of its results from FP32 and from measured sums."""
    lines = [
        "| size | native, ms | emulated, ms | BF16, ms | emulated / native | BF16 / native | output | gradient "
        "| output beside measured sums | gradient beside measured sums |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for row in _rows(outputs):
        figures = [*(row["step_ms"][name] for name in ("native", "emulated", "bf16-amp")),
                   row["emulated_over_native"], row["bf16_over_native"]]  # fmt: skip
        beside = row["beside_measured_sums"] or (None, None)
        apart = [row["difference_output"], row["difference_weight_gradient"], *beside]
        cells = [*(f"{figure:.3f}" for figure in figures), *("" if one is None else f"{one:.1e}" for one in apart)]
        lines += [f"| {row['size']} | {' | '.join(cells)} |"]
    return lines


def study(outputs: list[str]) -> Lines:
    runs = [json.loads(output) for output in outputs]
    base = next((run["step_s_median"] for run in runs if run["precision"] == "fp32"), None)
    lines = ["One seed each, one after the other: speeds are a hint, accuracies are no measurement.", ""]
    lines += ["| precision | status | steps | skipped | val. loss | accuracy | step, ms | FP32 / it | peak, MB | J |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for run in runs:
        final, step_s = run["final"], run["step_s_median"]
        cells = [
            run["precision"], run["status"], run["steps"], run["skipped_steps"], _figure(final["val_loss"]),
            _figure(final["val_accuracy"]), _figure(step_s, 1e3), _figure(base / step_s if base and step_s else None),
            _figure(run["memory_peak_bytes"], 1e-6), _figure(run["energy_j"]),
        ]  # fmt: skip
        lines += [f"| {' | '.join(str(cell) for cell in cells)} |"]
    return lines


def _figure(value: float | None, factor: float = 1.0) -> str:
    return "not measured" if value is None else f"{value * factor:.4g}"


SMALL = {
    "speeds": ("--model", "cnn", "--size", "small", "--seconds", "1", "--precisions", "bf16-amp,fp8,fp64"),
    "rates": ("--formats", "fp32,bf16", "--sizes", "128,256"),
    "registers": ("--formats", "bf16"),
    "fp8": ("--sizes", "64,128", "--rounds", "2"),
    "quantize": ("--elements", "65536", "--gpu-elements", "65536"),
    "telemetry": ("--pairs", "2", "--batch", "1"),
    "engine": ("--models", "cnn", "--size", "small", "--pairs", "6", "--seconds", "1"),
    "energy": ("--sizes", "128"),
    "study": ("--set", "train.max_steps=3"),
}  # what a part is given last for a rehearsal


def parts_for(device: str, *, small: bool = False) -> list[Part]:
    """The parts in their order; `small`: each with so little work that a CPU could do it, for a rehearsal."""
    python = sys.executable
    precgui = (python, str(ROOT / "main.py"))
    little = small or device == "cpu"
    model, size = ("cnn", "small") if little else ("gpt", "medium")

    def script(part: str, name: str, *arguments: str) -> tuple[str, ...]:
        return (python, str(ROOT / "benchmarks" / name), *arguments, *(SMALL[part] if small else ()))

    def bench(part: str, *arguments: str) -> tuple[str, ...]:
        return script(part, "bench_rows.py", "--device", device, *arguments)

    def run(precision: str) -> tuple[str, ...]:
        recipe = "digits-quick" if little else "gpt-quick"
        settings = ("--set", f"precision={precision}", "--set", f"device={device}", "--set", "train.max_steps=300")
        words = (*precgui, "run", recipe, *settings, *(SMALL["study"] if small else ()))
        return (*words, "-o", f"{{out}}/{precision}.h5", "--json")

    def on_gpu(name: str, limit_s: float, files: Sequence[str] = (), more: Sequence[str] = ()) -> Part:
        paths = [f"tests/gpu/test_{file}.py" for file in files or (name,)]
        command = (python, "-m", "pytest", "-v", "-rfEs", "--tb=short", *more, *paths)
        return Part(f"tests-{name}", f"Tests on the GPU: {name}", (command,), tests, limit_s, True, True, codes=(0, 1))

    overheads = script("engine", "engine_overhead.py", "--device", device, "--models", model, "--size", size,
                       "--seconds", "8", "--precisions", "")  # fmt: skip
    recordings = script("telemetry", "telemetry_overhead.py", "--device", device, "--model", "gpt", "--pairs", "150",
                        "--way", "nothing", "--way", "a recorder without tensors", "--way", "gradients, every element",
                        "--way", "all tensors, budget 3 %")  # fmt: skip
    ratios = [script("speeds", "precision_ratios.py", "--device", device, "--model", model, "--size", size,
                     "--seconds", "8", "--precisions", "tf32,bf16-amp,fp16-amp,fp8")]  # fmt: skip
    if not little:  # the small one leaves a fast GPU idle between launches
        ratios += [script("speeds", "precision_ratios.py", "--device", device, "--model", model, "--size", "large",
                          "--batch", "64", "--seconds", "45")]  # fmt: skip
    products = bench("rates", "--parts", "gemm,copy", *(("--sizes", "256") if device == "cpu" else ()))
    joules = bench("energy", "--parts", "energy", "--formats", "bf16", "--sizes", "256" if little else "4096")
    kernels, rounded = script("registers", "kernel_registers.py"), script("quantize", "quantize.py", "--gpu-only")
    return [
        Part("detection", "Detection", ((*precgui, "detect", "--json"),), detection, 10),
        Part("speeds", "Speed of each precision, in pairs with FP32", tuple(ratios), speeds, 80, by_line=True),
        Part("rates", "Rates per format", (products,), rates, 35, by_line=True),
        Part("registers", "Registers of the fused kernels", (kernels,), registers, 30, True, True),
        Part("fp8", "FP8, native and emulated", (script("fp8", "fp8_native.py"),), fp8, 30, True, True),
        Part("quantize", "Rounding tensors", (rounded,), verbatim, 25, True, True),
        Part("telemetry", "Cost of recording tensors", (recordings,), verbatim, 40, by_line=True),
        on_gpu("together", 86, TOGETHER, _workers()),
        Part("engine", "Engine over a hand-written loop", (overheads,), overhead, 20, by_line=True),
        Part("energy", "Energy of a known load", (joules,), energy, 27, by_line=True),
        on_gpu("machine", 27),
        on_gpu("bench", 25),
        Part("study", "A short study", tuple(run(name) for name in STUDIED), study, 35),
    ]


def _workers() -> tuple[str, ...]:
    """Options of pytest for processes that share tests and the GPU."""
    if importlib.util.find_spec("xdist") is None:
        return ()
    return ("-n", str(max(1, min(MOST_WORKERS, 3 * (os.cpu_count() or 1) // 4))))


class PartError(RuntimeError):
    """A command that did not do its work, with what it had printed."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class Report:
    """Runs parts until the time is over; everything that they print goes to `log.txt`."""

    def __init__(self, out: Path, deadline_s: float) -> None:
        self._out = out
        self._deadline = time.monotonic() + deadline_s
        self._log = out / "log.txt"
        self._log.write_text("", encoding="utf-8")
        own = {"PRECGUI_RUNS": str(out / "runs"), "PRECGUI_STATE": str(out / "state"), "QT_QPA_PLATFORM": "offscreen"}
        self._environment = {**os.environ, **own, "PYTHONPATH": os.pathsep.join([str(ROOT), *_path()])}

    def run(self, part: Part, later_s: float = math.inf) -> Outcome:
        """The end of a part, which has its limit, and twice as much where `later_s` are left for those after it."""
        begin = time.monotonic()
        spare_s = self._deadline - begin - later_s
        end = min(self._deadline, begin + min(max(part.limit_s, spare_s), 2 * part.limit_s))
        outcome = Outcome(part.name, part.title, 0.0)
        outputs: list[str] = []
        problems, told = [], Lines()
        for place, command in enumerate(part.commands, 1):
            try:
                outputs.append(self._output(part, command, end))
            except PartError as error:
                which = f"Command {place} of {len(part.commands)}: " if len(part.commands) > 1 else ""
                problems.append(f"{which}{error}")
                if part.by_line:
                    outputs.append(error.output)
                else:
                    told += _last_lines(error.output)
        try:
            outcome.lines = part.write(outputs) if any(outputs) else []
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            problems.append(f"Its output could not be read: {type(error).__name__}: {error}")
            outcome.lines = _last_lines("\n".join(outputs))
        if part.write is tests and not problems:
            problems = [sentence] if (sentence := failed_tests(outcome.lines)) else []
        outcome.problem = " ".join(problems)
        outcome.lines += told
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _output(self, part: Part, command: Sequence[str], end: float) -> str:
        """What the command prints; it and all its children are gone when this returns."""
        left_s = end - time.monotonic()
        if left_s < FEWEST_S:
            raise PartError("Left out: the time for it is over.")
        words = [word.replace("{out}", str(self._out)) for word in command]
        self._keep(f"\n$ {' '.join(words)}\n")
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as complaints:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=printed, stderr=complaints, env=self._environment, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(left_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                output, complaint = _text(printed), _text(complaints)
                self._keep(output, complaint)
        if code is None:
            raise PartError(f"Ended after {left_s:.0f} s, before it was ready.", output)
        if code not in part.codes or not output.strip():
            reason = "it printed nothing" if not output.strip() else "no reason given"
            last = complaint.strip().splitlines()[-1:] or [reason]
            raise PartError(f"Ended with exit code {_code(code)}: {last[0]}", output)
        return output

    def _keep(self, *outputs: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.writelines(outputs)


def _path() -> list[str]:
    """Folders of modules that this process was given, which its children need as well."""
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _code(code: int) -> str:
    """An exit code, with the name of the signal that ended the process."""
    names = {-number: number.name for number in signal.Signals}
    return f"{code} ({names[code]})" if code in names else str(code)


def _last_lines(output: str, most: int = 40) -> Lines:
    """The end of what a command had printed, as a block of the report."""
    lines = output.strip().splitlines()[-most:]
    return ["```", *lines, "```"] if lines else []


def heading(device: str) -> Lines:
    import torch

    lines = [f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"]
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        capability = f"{properties.major}.{properties.minor}"
        lines = [
            f"{properties.name}, compute capability {capability}, {properties.total_memory / 2**30:.0f} GiB, "
            f"CUDA {torch.version.cuda}",
            *lines,
        ]
    command = "make gpu" if device == "cuda" else f"python benchmarks/gpu_report.py --device {device}"
    return [f"# GPU report, {time.strftime('%Y-%m-%d')}", "", *(f"- {line}" for line in lines), f"- by `{command}`"]


def write(out: Path, head: Lines, outcomes: list[Outcome], waiting: Sequence[Part] = ()) -> None:
    """The report so far; `waiting` are the part that runs now and those after it."""
    text = [*head]
    for outcome in outcomes:
        text += ["", f"## {outcome.title} ({outcome.seconds:.0f} s)", ""]
        text += [f"Not measured in full. {outcome.problem}", ""] if outcome.problem else []
        text += outcome.lines
    text += ["", *(f"- not ended when this was written: {part.title}" for part in waiting)] if waiting else []
    (out / "report.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    parts = [asdict(outcome) for outcome in outcomes]
    document: dict[str, Any] = {"head": head, "parts": parts, "waiting": [part.name for part in waiting]}
    (out / "results.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def missing_device(device: str) -> str:
    """A sentence when the report cannot begin, or ''."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"{sys.executable} cannot import torch ({error}): nothing can be measured. `make run` once installs it."
    if device.startswith("cuda") and not torch.cuda.is_available():
        return "torch sees no GPU here: this needs an NVIDIA GPU with its driver, and a torch that was built for CUDA."
    return ""


def missing_packages() -> str:
    """A sentence on packages without which some parts cannot run, or ''."""
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"{sys.executable} lacks {', '.join(lacking)}: parts that need them will fail." if lacking else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("GPU_OUT", "gpu-report")))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--parts", default="", help="some of the parts, by name; empty: all")
    parser.add_argument("--small", action="store_true", help="little work for each part, to rehearse the report")
    options = parser.parse_args()
    chosen = [name for name in options.parts.split(",") if name]
    every = parts_for(options.device, small=options.small)
    known = [part.name for part in every]
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--parts {', '.join(unknown)}: the parts are {', '.join(known)}")
    if problem := missing_device(options.device):
        print(problem, file=sys.stderr)
        return 2
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    for name in STUDIED:
        (out / f"{name}.h5").unlink(missing_ok=True)  # of an earlier report
    head = heading(options.device)
    head += ["- little work for each part (`--small`): the figures mean nothing"] if options.small else []
    head += [f"- {sentence}" for sentence in [missing_packages()] if sentence]
    print("\n".join(head), flush=True)
    report, outcomes = Report(out, options.minutes * 60 - RESERVE_S), list[Outcome]()
    parts = [part for part in every if not (part.gpu_only and options.device == "cpu")]
    parts = [part for part in parts if part.name in chosen] if chosen else parts
    for place, part in enumerate(parts):
        write(out, head, outcomes, parts[place:])
        outcomes.append(report.run(part, sum(other.limit_s for other in parts[place + 1 :])))
        write(out, head, outcomes, parts[place + 1 :])
        print(f"{part.title}: {outcomes[-1].problem or 'done'} ({outcomes[-1].seconds:.0f} s)", flush=True)
    print(f"The report is {out / 'report.md'}.")
    return 1 if any(outcome.problem for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
