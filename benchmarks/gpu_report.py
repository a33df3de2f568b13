"""Everything that only a GPU can show, in one command and one report: `make gpu`.

    python benchmarks/gpu_report.py [--out FOLDER] [--device cuda] [--minutes 8] [--parts detection,tests,...]

Runs each part in a process of its own, so that one that fails or hangs costs only its own figures, and writes
`report.md` (to be pasted into docs/measurements.md), `results.json` and `log.txt` into the folder: `--out`, else the
environment variable GPU_OUT, else `gpu-report`. Needs torch, torchvision, pytest and the packages of NEEDED, which it
looks for first; no Qt, no network.
`--device cpu` rehearses the parts that a CPU can do. Exit code 0 when every part came to its end, 1 when one did not,
2 when there is no such device.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NEEDED = (
    "torch", "torchvision", "numpy", "h5py", "pydantic", "rich", "tomli_w", "numba", "psutil", "pytest", "ml_dtypes",
    "PIL",
)  # fmt: skip
STUDIED = ("fp32", "bf16-amp", "fp16-amp", "fp8")
Lines = list[str]


@dataclass(frozen=True)
class Part:
    """One section of the report: commands that run one after the other, and how their output becomes lines."""

    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    write: Callable[[list[str]], Lines]
    limit_s: float
    gpu_only: bool = False
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
    """The closing line of pytest, and the tests that failed or were skipped, with the reasons."""
    lines = outputs[0].strip().splitlines()
    named = [f"- `{line}`" for line in lines if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
    return [lines[-1].strip("= ") if lines else "no output", *named]


def verbatim(outputs: list[str]) -> Lines:
    return [line for output in outputs for line in ("```", output.strip(), "```")]


def rates(outputs: list[str]) -> Lines:
    result = json.loads(outputs[0])
    lines = ["| format | size | 10^12 operations/s | spread | share of the peak | clock, MHz | remark |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in result["gemm"]:
        tops, spread, share, clock_mhz = (row.get(name) for name in ("tops", "spread", "share", "clock_mhz"))
        cells = [
            "not measured" if tops is None else f"{tops:.4g}",
            "" if spread is None else f"{spread:.0%}",
            "peak not known" if share is None else f"{share:.0%}",
            "" if clock_mhz is None else f"{clock_mhz:.0f}",
            row.get("note", ""),  # why torch refused it, where it did
        ]
        lines += [f"| {row['format']} | {row['m']} | {' | '.join(cells)} |"]
    bandwidth = result["bandwidth_gbs"]
    return [*lines, "", f"Bandwidth of a copy: {'not measured' if bandwidth is None else f'{bandwidth:.4g} GB/s'}."]


def energy(outputs: list[str]) -> Lines:
    rows = json.loads(outputs[0]).get("energy", [])
    lines = [f"- {', '.join(f'{key} {value}' for key, value in row.items() if value is not None)}" for row in rows]
    return lines or ["The device tells no energy."]


def overhead(outputs: list[str]) -> Lines:
    lines = ["| model | precision | engine, ms | by hand, ms | ratio by the clock (95 %) |", "|---|---|---|---|---|"]
    for model, found in json.loads(outputs[0]).items():
        for precision in ("fp32", "bf16-amp"):
            row = found[precision]
            wall = row["wall"]
            ratio = f"{wall['ratio']:.3f} ({wall['low']:.3f} to {wall['high']:.3f})"
            lines += [f"| {model} | {precision} | {row['engine_ms']:.2f} | {row['hand_ms']:.2f} | {ratio} |"]
    return lines


def study(outputs: list[str]) -> Lines:
    runs = [json.loads(output) for output in outputs]
    base = runs[0]["step_s_median"]
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


def parts_for(device: str) -> list[Part]:
    python = sys.executable
    precgui = (python, str(ROOT / "main.py"))
    bench = (*precgui, "bench", "--device", device, "--json", "--no-keep")
    sizes = ("--sizes", "256") if device == "cpu" else ()
    models, size = ("cnn", "small") if device == "cpu" else ("resnet,gpt", "medium")

    def script(name: str, *arguments: str) -> tuple[str, ...]:
        return (python, str(ROOT / "benchmarks" / name), *arguments)

    def run(precision: str) -> tuple[str, ...]:
        recipe = "digits-quick" if device == "cpu" else "gpt-quick"
        settings = ("--set", f"precision={precision}", "--set", f"device={device}", "--set", "train.max_steps=300")
        return (*precgui, "run", recipe, *settings, "-o", f"{{out}}/{precision}.h5", "--json")

    return [
        Part("detection", "Detection", ((*precgui, "detect", "--json"),), detection, 40),
        *(
            Part(f"tests-{name}", f"Tests on the GPU: {name}",
                 ((python, "-m", "pytest", "-v", "-rfEs", "--tb=short", f"tests/gpu/test_{name}.py"),),
                 tests, limit_s, gpu_only=True, codes=(0, 1))
            for name, limit_s in (("quantize", 90), ("machine", 40), ("runs", 90), ("bench", 60))
        ),
        Part("rates", "Rates per format", ((*bench, *sizes),), rates, 100),
        Part("fp8", "FP8, native and emulated", (script("fp8_native.py"),), verbatim, 40, True),
        Part("quantize", "Rounding tensors", (script("quantize.py", "--gpu-only"),), verbatim, 40, True),
        Part("telemetry", "Cost of recording tensors", (
            script("telemetry_overhead.py", "--device", device, "--model", "gpt", "--pairs", "40", "--way", "nothing",
                   "--way", "gradients, every element", "--way", "all tensors, budget 3 %"),), verbatim, 60),
        Part("engine", "Engine over a hand-written loop", (
            script("engine_overhead.py", "--device", device, "--models", models, "--size", size, "--seconds", "10",
                   "--precisions", ""),),
            overhead, 90),
        Part("study", "A short study", tuple(run(name) for name in STUDIED), study, 120),
        Part("energy", "Energy of a known load", (
            (*bench, "--energy", "--formats", "bf16", "--sizes", "256" if device == "cpu" else "4096"),), energy, 60),
    ]  # fmt: skip


class PartError(RuntimeError):
    """A command that did not do its work, with what it had printed."""

    def __init__(self, message: str, output: str) -> None:
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
        self._environment = {**os.environ, **own, "PYTHONPATH": str(ROOT)}

    def run(self, part: Part) -> Outcome:
        begin = time.monotonic()
        outcome = Outcome(part.name, part.title, 0.0)
        try:
            outcome.lines = part.write([self._output(part, command) for command in part.commands])
        except subprocess.TimeoutExpired as error:
            self._keep(error.stdout, error.stderr)
            outcome.problem = f"Ended after {error.timeout:.0f} s, before it was ready."
            outcome.lines = _last_lines(error.stdout)
        except PartError as error:
            outcome.problem, outcome.lines = str(error), _last_lines(error.output)
        except RuntimeError as error:
            outcome.problem = str(error)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            outcome.problem = f"Its output could not be read: {type(error).__name__}: {error}"
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _output(self, part: Part, command: Sequence[str]) -> str:
        left_s = min(part.limit_s, self._deadline - time.monotonic())
        if left_s < 5:
            raise RuntimeError("Left out: the time for the report is over.")
        words = [word.replace("{out}", str(self._out)) for word in command]
        self._keep(f"\n$ {' '.join(words)}\n")
        ran = subprocess.run(
            words, capture_output=True, text=True, timeout=left_s, env=self._environment, cwd=ROOT, check=False
        )
        self._keep(ran.stdout, ran.stderr)
        if ran.returncode not in part.codes or not ran.stdout.strip():
            last = ran.stderr.strip().splitlines()[-1:] or [
                "it printed nothing" if not ran.stdout else "no reason given"
            ]
            raise PartError(f"Ended with exit code {ran.returncode}: {last[0]}", ran.stdout)
        return ran.stdout

    def _keep(self, *outputs: str | bytes | None) -> None:
        """Add to the log; a process that was stopped leaves bytes."""
        with self._log.open("a", encoding="utf-8") as log:
            for output in outputs:
                log.write(output.decode(errors="replace") if isinstance(output, bytes) else output or "")


def _last_lines(output: str | bytes | None, most: int = 40) -> Lines:
    """The end of what a command had printed, as a block of the report."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    lines = text.strip().splitlines()[-most:]
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


def write(out: Path, head: Lines, outcomes: list[Outcome]) -> None:
    text = [*head]
    for outcome in outcomes:
        text += ["", f"## {outcome.title} ({outcome.seconds:.0f} s)", ""]
        text += [f"Not measured. {outcome.problem}", ""] if outcome.problem else []
        text += outcome.lines
    (out / "report.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    document: dict[str, Any] = {"head": head, "parts": [asdict(outcome) for outcome in outcomes]}
    (out / "results.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def missing_device(device: str) -> str:
    """A sentence when the report cannot begin, or ''."""
    if lacking := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        return f"{sys.executable} lacks {', '.join(lacking)}: install them, or run `make run` once, which does."
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        return "torch sees no GPU here: this needs an NVIDIA GPU with its driver, and a torch that was built for CUDA."
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("GPU_OUT", "gpu-report")))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--parts", default="", help="some of the parts, by name; empty: all")
    options = parser.parse_args()
    if problem := missing_device(options.device):
        print(problem, file=sys.stderr)
        return 2
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    for name in STUDIED:
        (out / f"{name}.h5").unlink(missing_ok=True)  # of an earlier report
    report, outcomes, head = Report(out, options.minutes * 60 - 10), [], heading(options.device)
    chosen = [name for name in options.parts.split(",") if name]
    for part in parts_for(options.device):
        if (chosen and part.name not in chosen) or (part.gpu_only and options.device == "cpu"):
            continue
        outcomes.append(report.run(part))
        write(out, head, outcomes)  # after each part, so that what is known stays when the machine goes
        print(f"{part.title}: {outcomes[-1].problem or 'done'} ({outcomes[-1].seconds:.0f} s)", flush=True)
    print(f"The report is {out / 'report.md'}.")
    return 1 if any(outcome.problem for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
