"""Gradients of two or four processes in each format: bytes, error, loss, CPU time; and ranks killed at random times.

    python benchmarks/parallel.py formats --ranks 2 --steps 200
    python benchmarks/parallel.py formats --ranks 2 --steps 60 --link 100mbit
    python benchmarks/parallel.py kills --count 50
    python benchmarks/parallel.py kills --count 50 --strategy fsdp

`formats` trains `gpt-quick` (466 432 parameters, 16 sequences of 64 bytes, one thread a rank) over gloo on the loopback
interface, one format after another in the same processes. It has no network of a given rate: bytes are those that the
hook counts and, beside them, those of the interface for one rank. Loss is the validation loss after the last step.
With `--link` (Linux, as root) each rank has a network namespace of its own, behind a veth that sends at that rate (tbf;
`unlimited`: no limit), and the time in which backward waited stands beside the time that the planner foretells for it.
`kills` starts runs of two ranks (DDP with INT8 gradients, or FSDP2), kills one of the two at random after a random
time of up to `--within` seconds, and looks for processes that are left, for runs that hang, and for files that cannot
be read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from precgui.config import RunConfig, build, load
from precgui.events import Evaluated, Event, RankStep
from precgui.planner.communication import Link, Traffic, link_rate

FORMATS = {
    "fp32": [], "fp16": [], "bf16": [], "int8": [], "e4m3fn": [], "e5m2": [], "int4": [], "e2m1": [], "nf4": [],
    "int4 with error feedback": ["parallel.gradient_format=int4", "parallel.error_feedback=true"],
    "powersgd:8": [], "powersgd:1": [],
}  # fmt: skip
PLAIN = ["device=cpu", "threads=1", "record.tensors=false", "parallel.strategy=ddp", "data.sequence_length=64"]
UNLIMITED = "unlimited"
LONGEST_S = 180.0  # of a run whose rank was killed, on a busy machine


def config_of(name: str, steps: int) -> RunConfig:
    own = FORMATS[name] or [f"parallel.gradient_format={name}"]
    run = [f"data.epoch_steps={steps}", "train.epochs=1", "parallel.error_every=10", "parallel.time_limit_s=300"]
    return load("gpt-quick", [*PLAIN, *run, *own])


def _figures(step: RankStep) -> list[float]:
    return [step.sent_bytes, step.interface_bytes, step.gradient_error, step.cpu_s, step.step_s, step.wait_s]


def rank_main(runs: Path, results: Path) -> None:
    """A rank of `formats`: one run after another."""
    from precgui.engine.parallel.rank_run import train_rank

    port, rows = int(os.environ["MASTER_PORT"]), []
    for place, tree in enumerate(json.loads(runs.read_text())):
        os.environ["MASTER_PORT"] = str(port + place)
        events: list[Event] = []
        train_rank(build(tree), events.append, lambda: False)
        steps = [event for event in events if isinstance(event, RankStep) and event.rank == 0]
        losses = [event.loss for event in events if isinstance(event, Evaluated)]
        rows.append({"loss": losses, "steps": [_figures(step) for step in steps]})
        if os.environ["RANK"] == "0":
            results.write_text(json.dumps(rows))


@contextlib.contextmanager
def namespaces(count: int, rate: str) -> Iterator[list[list[str]]]:
    """Network namespaces on one bridge, each sending at `rate`; yields what starts a command in each of them."""
    names = [f"precgui{number}" for number in range(count)]

    def run(*words: str) -> None:
        subprocess.run(words, check=True)

    try:
        run("ip", "link", "add", "precguibr", "type", "bridge")
        run("ip", "link", "set", "precguibr", "up")
        for number, name in enumerate(names):
            inside = ("ip", "netns", "exec", name)
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"pgout{number}", "type", "veth", "peer", "name", "pgin", "netns", name)
            run("ip", "link", "set", f"pgout{number}", "master", "precguibr", "up")
            run(*inside, "ip", "addr", "add", f"10.77.0.{number + 1}/24", "dev", "pgin")
            run(*inside, "ip", "link", "set", "pgin", "up")
            run(*inside, "ip", "link", "set", "lo", "up")
            if rate != UNLIMITED:
                bucket = ("burst", "128kb", "latency", "100ms")
                run(*inside, "tc", "qdisc", "add", "dev", "pgin", "root", "tbf", "rate", rate, *bucket)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", "precguibr"], check=False, stderr=subprocess.DEVNULL)


def linked_formats(ranks: int, steps: int, names: list[str], rate: str) -> None:
    """The formats between namespaces, with the time of the steps."""
    folder = _folder_of_runs(steps, names)
    variables = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29533"}
    with namespaces(ranks, rate) as starters:
        rows = _results(folder, starters, variables | {"GLOO_SOCKET_IFNAME": "pgin"})
    bytes_per_s = float("inf") if rate == UNLIMITED else link_rate(rate.replace("gbit", "Gb/s").replace("mbit", "Mb/s"))
    print(f"{ranks} ranks, {steps} steps, link {rate}; medians of the steps whose error is not measured, of rank 0")
    print("| gradients as | MB sent | error | validation loss | ms a step | ms waited | ms foretold on the link |")
    print("|---|---|---|---|---|---|---|")
    for name, row in zip(names, rows, strict=True):
        plain = [step for step in row["steps"][5:] if math.isnan(step[2])]
        sent_bytes = row["steps"][-1][0]
        errors = [step[2] for step in row["steps"][20:] if not math.isnan(step[2])]
        traffic = Traffic(sent_bytes * ranks / (2 * (ranks - 1)))
        foretold_s = traffic.ring_s(ranks, Link(bytes_per_s, 0.0))
        times = " | ".join(f"{1e3 * statistics.median(step[place] for step in plain):.1f}" for place in (4, 5))
        print(
            f"| {name} | {sent_bytes / 1e6:.3f} | {statistics.median(errors):.2g} | {row['loss'][-1]:.4f} | {times} | "
            f"{1e3 * foretold_s:.1f} |"
        )


def _folder_of_runs(steps: int, names: list[str]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="precgui-parallel-"))
    (folder / "runs.json").write_text(json.dumps([config_of(name, steps).model_dump() for name in names]))
    return folder


def _results(folder: Path, starters: list[list[str]], variables: dict[str, str]) -> list[dict[str, Any]]:
    """Start a rank with each of the starters and read what the first one wrote."""
    command = [sys.executable, __file__, "rank", str(folder / "runs.json"), str(folder / "results.json")]
    started = [
        subprocess.Popen([*starter, *command], env={**os.environ, **variables, "RANK": str(rank)})
        for rank, starter in enumerate(starters)
    ]
    for process in started:
        process.wait()
    rows: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return rows


def formats(ranks: int, steps: int, names: list[str]) -> None:
    folder = _folder_of_runs(steps, names)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    variables = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rows = _results(folder, [[]] * ranks, variables | {"GLOO_SOCKET_IFNAME": "lo"})
    print(f"{ranks} ranks, {steps} steps; MB a rank and step; CPU ms a step of rank 0, median")
    print("| gradients as | MB sent (hook) | MB (interface / ranks) | of FP32 | error | validation loss | CPU ms |")
    print("|---|---|---|---|---|---|---|")
    whole = rows[0]["steps"][-1][0] if names[0] == "fp32" else float("nan")
    for name, row in zip(names, rows, strict=True):
        print(table_row(name, row, ranks, whole))


def table_row(name: str, row: dict[str, Any], ranks: int, whole: float) -> str:
    sent, through, errors, cpu, *_ = (list(column) for column in zip(*row["steps"], strict=True))
    measured = [error for error in errors[20:] if error == error]
    through = [value for value in through[20:] if value == value]
    error = statistics.median(measured) if measured else float("nan")
    interface = statistics.median(through) / ranks / 1e6 if through else float("nan")
    last = sent[-1]
    return (
        f"| {name} | {last / 1e6:.3f} | {interface:.3f} | {last / whole:.3f} | {error:.2g} | {row['loss'][-1]:.4f} | "
        f"{statistics.median(cpu) * 1e3:.0f} |"
    )


def one_kill(number: int, args: argparse.Namespace, folder: Path) -> str:
    """One run of two ranks with one of them killed; '' or what went wrong."""
    from precgui.job import Job
    from precgui.runs.file.reader import open_run

    draw = random.Random(args.seed * 1000 + number)
    path = folder / f"{number}.h5"
    how = ["parallel.gradient_format=int8"] if args.strategy == "ddp" else ["parallel.strategy=fsdp"]
    settings = ["train.epochs=1000", "data.epoch_steps=1000", *how]
    job = Job(load("gpt-quick", [*PLAIN, *settings]), path)
    killed: list[int] = []
    pids: set[int] = set()
    within_s = draw.uniform(0, args.within)
    threading.Thread(target=_kill_one, args=(draw, within_s, killed, pids), daemon=True).start()
    begin = time.monotonic()
    ended = job.run()
    left = [pid for pid in pids if psutil.pid_exists(pid)]
    with open_run(path) as saved:
        readable = saved.status == "failed" and len(saved.series("loss")[1]) == saved.steps
        steps = saved.steps
    took_s = time.monotonic() - begin
    print(f"{number}: {ended.status} after {steps} steps, {took_s:.0f} s: {ended.message}", flush=True)
    faults = [*(["processes left"] if left else []), *([] if readable else ["file"])]
    return ", ".join(
        [*faults, *(["hung"] if took_s > LONGEST_S else []), *([] if ended.status == "failed" else ["status"])]
    )


def _kill_one(draw: random.Random, after_s: float, killed: list[int], pids: set[int]) -> None:
    """Kill one rank, that many seconds after both processes are there."""
    while True:
        children = psutil.Process().children()
        own = [c.pid for c in children if any("spawn_main" in word for word in c.cmdline())]
        if len(own) == 2:
            break
        time.sleep(0.02)
    pids.update(own)
    time.sleep(after_s)
    killed.append(draw.choice(own))
    psutil.Process(killed[0]).kill()


def kills(args: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="precgui-kills-"))
    faults = {number: fault for number in range(args.count) if (fault := one_kill(number, args, folder))}
    print(f"{args.count} kills of {args.strategy} ranks: {len(faults)} with a fault {faults or ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("formats")
    table.add_argument("--ranks", type=int, default=2)
    table.add_argument("--steps", type=int, default=200)
    table.add_argument("--formats", default=",".join(FORMATS))
    table.add_argument("--link", help="100mbit, 1gbit or unlimited: between network namespaces, as root")
    killing = commands.add_parser("kills")
    killing.add_argument("--count", type=int, default=50)
    killing.add_argument("--seed", type=int, default=0)
    killing.add_argument("--strategy", choices=["ddp", "fsdp"], default="ddp")
    killing.add_argument("--within", type=float, default=30.0, metavar="SECONDS")
    inner = commands.add_parser("rank")
    inner.add_argument("runs", type=Path)
    inner.add_argument("results", type=Path)
    args = parser.parse_args()
    if args.command == "formats" and args.link:
        linked_formats(args.ranks, args.steps, args.formats.split(","), args.link)
    elif args.command == "formats":
        formats(args.ranks, args.steps, args.formats.split(","))
    elif args.command == "kills":
        kills(args)
    else:
        rank_main(args.runs, args.results)


if __name__ == "__main__":
    main()
