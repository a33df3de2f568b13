"""`precgui bench`: measure what this machine reaches in each format, keep the result, compare with earlier days."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.cli.place_option import add_place_option
from precgui.hardware import measured
from precgui.hardware.figures import Figure, csv_text, figures
from precgui.hardware.measured import number_text, remarks, threads_text
from precgui.hardware.product_sums import sums_text, sums_title
from precgui.words import L_, _, p_, translated

_SMALLEST, _LARGEST = 16, 65536
_BLOCKS = (L_("convolution"), L_("attention"))
_DEVICE = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d+)?")


def add_parsers(subparsers: Any) -> None:
    """Add `bench` to the command line."""
    parser = subparsers.add_parser("bench", help=_("measured rates of this machine by format and size"))
    parser.add_argument("--device", default="auto", help=_("auto, cpu, cuda, cuda:1, mps or xpu (default auto)"))
    parser.add_argument(
        "--formats", metavar="F,F", help=_("for example fp32,bf16 (default: all that can be multiplied)")
    )
    parser.add_argument(
        "--sizes", metavar="N,N", help=_("sizes of the square matrices (default: 256 to 2048 on a CPU)")
    )
    parser.add_argument("--threads", type=int, metavar="N", help=_("CPU threads (default: as in a run)"))
    parser.add_argument("--energy", action="store_true", help=_("also measure joules per product (15 s per format)"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    parser.add_argument("--csv", type=Path, metavar="FILE", help=_("write every figure as CSV"))
    parser.add_argument("--list", action="store_true", help=_("list the kept results instead of measuring"))
    parser.add_argument("--no-keep", action="store_true", help=_("do not keep the result for later comparison"))
    add_place_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Returns 0; Ctrl+C ends the bench and shows what was measured until then."""
    if args.list:
        return _list(args.json)
    plan = _plan(args)
    earlier = measured.kept()
    result = _measure(plan, quiet=args.json)
    if result["complete"] and not args.no_keep:
        _keep(result)
    if args.csv is not None:
        _write_csv(args.csv, result)
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        _print(HarmlessConsole(), result, earlier)
    return 0


def _plan(args: argparse.Namespace) -> Any:
    from precgui.engine.bench.parts import PARTS
    from precgui.engine.bench.run import DEFAULT_PARTS, BenchPlan
    from precgui.engine.bench.workloads import FORMATS

    formats = FORMATS if args.formats is None else tuple(name.strip() for name in args.formats.split(","))
    for name in formats:
        if name not in FORMATS:
            raise UserError(
                _("--formats {name}: the bench multiplies {formats}").format(
                    name=name or repr(args.formats), formats=", ".join(FORMATS)
                )
            )
    most = os.cpu_count() or 1
    if args.threads is not None and not 1 <= args.threads <= most:
        raise UserError(
            _("--threads {threads}: this machine takes 1 to {most}").format(threads=args.threads, most=most)
        )
    if not _DEVICE.fullmatch(args.device):
        raise UserError(
            _("--device {device}: a device is auto, cpu, cuda, cuda:1, mps or xpu").format(device=args.device)
        )
    if args.csv is not None:
        _check_place(args.csv)
    parts = PARTS if args.energy else DEFAULT_PARTS
    return BenchPlan(args.device, formats, None if args.sizes is None else _sizes(args.sizes), args.threads, parts)


def _check_place(path: Path) -> None:
    """Before minutes of measuring, not after them."""
    if path.is_dir():
        raise UserError(_("--csv {path}: this is a folder; name a file in it").format(path=path))
    if not path.parent.is_dir():
        raise UserError(
            _("--csv {path}: there is no folder {parent}; make it or choose another place").format(
                path=path, parent=path.parent
            )
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(_("--csv {path}: it may not be written; choose another place").format(path=path))


def _sizes(text: str) -> tuple[int, ...]:
    sizes = []
    for part in text.split(","):
        if not part.strip().isdigit() or not _SMALLEST <= int(part) <= _LARGEST:
            raise UserError(
                _("--sizes {text}: a size is a whole number from {smallest} to {largest}").format(
                    text=part.strip() or repr(text), smallest=_SMALLEST, largest=_LARGEST
                )
            )
        sizes.append(int(part))
    return tuple(sizes)


def _measure(plan: Any, quiet: bool) -> dict[str, Any]:
    from precgui.engine.bench.run import run_bench
    from precgui.engine.device import choose

    choose(plan.device)
    stop = _Interrupt()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=HarmlessConsole(stderr=True), disable=quiet, transient=True) as progress, stop:
        task = progress.add_task(_("starting"), total=None)

        def emit(event: dict[str, Any]) -> None:
            if event["kind"] == "progress":
                progress.update(
                    task, total=event["total"], completed=event["done"], description=translated(event["text"])
                )

        return run_bench(plan, emit, stop.stopped)


class _Interrupt:
    """Ctrl+C asks the bench to end; a second one ends the program as usual."""

    def __init__(self) -> None:
        self._asked = False

    def stopped(self) -> bool:
        return self._asked

    def __enter__(self) -> None:
        import signal

        self._before = signal.signal(signal.SIGINT, self._ask)

    def __exit__(self, *exception: object) -> None:
        import signal

        signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: object) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


def _keep(result: dict[str, Any]) -> None:
    try:
        measured.keep(result)
    except OSError as error:
        raise UserError(
            _("the result cannot be kept in {folder}: {error}; use --no-keep").format(
                folder=measured.folder(), error=error
            )
        ) from None


def _write_csv(path: Path, result: dict[str, Any]) -> None:
    try:
        path.write_text(csv_text(result), encoding="utf-8")
    except OSError as error:
        raise UserError(_("{path} cannot be written: {error}").format(path=path, error=error)) from None


def _list(as_json: bool) -> int:
    results = measured.kept()
    if as_json:
        print(json.dumps(results, indent=1))
        return 0
    table = Table(
        _("Started"), _("Device"), _("Threads"), "torch", _("Best 10¹²/s by format"), box=None, header_style="bold"
    )
    for result in results:
        best = "  ".join(f"{name} {number_text(tops)}" for name, tops in measured.best_tops(result).items())
        table.add_row(
            result["started"], escape(result["device"]["name"]), str(result["threads"]), result["torch"], best
        )
    HarmlessConsole().print(
        table if results else _("No results in {folder} yet; precgui bench makes one.").format(folder=measured.folder())
    )
    return 0


def _print(console: Console, result: dict[str, Any], earlier: list[dict[str, Any]]) -> None:
    device = result["device"]
    threads = f", {translated(threads_text(result['threads']))}" if device["kind"] == "cpu" else ""
    console.rule(
        f"[bold]{escape(device['name'])}[/] [dim]{device['id']}{threads}, torch {result['torch']}", align="left"
    )
    if not result["complete"]:
        console.print(_("[yellow]Stopped before the end: what follows is incomplete and is not kept."))
    rows = figures(result)
    console.print(_products(rows, measured.of_device(device["name"], earlier)))
    console.print(_certificates(result))
    if result.get("accumulation"):
        console.print(_accumulation(result))
    if result["alignment"]:
        console.print(_alignment(result))
    if result["copy"]:
        console.print(_copy(result["copy"]))
    if result["conversions"]:
        console.print(_conversions(rows))
    if result["blocks"]:
        console.print(_blocks(rows))
    if result.get("energy"):
        console.print(_energies(result))


def _copy(row: dict[str, Any]) -> str:
    if row["gb_s"]:
        return _("Copy: {rate:.1f} GB/s, read and write counted").format(rate=row["gb_s"])
    return _("Copy: {note}").format(note=escape(translated(row["note"])))


def _products(rows: list[Figure], earlier: list[Any]) -> Table:
    before = {(r["format"], r["m"]): r["tops"] for r in earlier[0]["gemm"]} if earlier else {}
    table = Table(
        _("Product"), _("Size"), "10¹²/s", "± %", "x FP32", _("of peak"), _("before"), "", box=None, header_style="bold"
    )
    for row in rows:
        tops, was = row["tops"], before.get((row["format"], row["size"]))
        if row["kind"] == "product":
            table.add_row(
                row["format"], str(row["size"]), number_text(tops), _percent(row["spread"]), _times(row),
                _percent(row["share"]), f"{round((tops / was - 1) * 100):+d} %" if tops and was else "",
                f"[dim]{escape(translated(remarks(row)))}",
            )  # fmt: skip
    return table


def _certificates(result: dict[str, Any]) -> Table:
    table = Table(_("Certificate"), _("Error against FP64"), _("That of"), "", box=None, header_style="bold")
    for row in result["certificate"]:
        error = "" if row["error"] is None else f"{row['error']:.1e}"
        table.add_row(row["format"], error, row["ran_as"] or "", f"[yellow]{escape(translated(row['note']))}")
    return table


def _accumulation(result: dict[str, Any]) -> Table:
    table = Table(_("Sums of products"), "", "", box=None, header_style="bold")
    for row in result["accumulation"]:
        note = f"[dim]{escape(translated(row['note']))}"
        table.add_row(translated(sums_title(row)), escape(translated(sums_text(row))), note)
    return table


def _alignment(result: dict[str, Any]) -> Table:
    sizes = sorted({row["m"] for row in result["alignment"]}, reverse=True)
    table = Table(_("Sizes"), *(f"{size}" for size in sizes), box=None, header_style="bold")
    for name in dict.fromkeys(row["format"] for row in result["alignment"]):
        cells = {
            row["m"]: _percent(row["relative"]) or _("refused") for row in result["alignment"] if row["format"] == name
        }
        table.add_row(name, *(cells.get(size, "") for size in sizes))
    return table


def _conversions(rows: list[Figure]) -> Table:
    table = Table(_("Conversion"), "GB/s", "± %", "", box=None, header_style="bold")
    for row in rows:
        if row["kind"] == "conversion":
            what = _("{source} to {target}").format(source=row["format"], target=row["to"])
            table.add_row(
                what, number_text(row["gb_s"]), _percent(row["spread"]), f"[dim]{escape(translated(remarks(row)))}"
            )
    return table


def _blocks(rows: list[Figure]) -> Table:
    table = Table(_("Forward and backward"), _("Format"), "ms", "x FP32", "", box=None, header_style="bold")
    for row in rows:
        if row["kind"] in _BLOCKS:
            milliseconds = number_text(row["seconds"] and row["seconds"] * 1e3)
            table.add_row(
                translated(row["kind"]),
                row["format"],
                milliseconds,
                _times(row),
                f"[dim]{escape(translated(remarks(row)))}",
            )
    return table


def _energies(result: dict[str, Any]) -> Table:
    table = Table(
        _("Energy"),
        _("Size"),
        _("J a product"),
        "± %",
        _("above idle"),
        _("10⁹ per J"),
        p_("energy is measured", "by"),
        "",
        box=None,
        header_style="bold",
    )
    for row in result["energy"]:
        table.add_row(
            row["format"], str(row["m"]), number_text(row.get("gross_j")), _percent(row.get("uncertainty")),
            _net(row), number_text(row.get("gigaops_per_joule")), translated(row.get("method", "")),
            f"[dim]{escape(translated(row['note']))}",
        )  # fmt: skip
    return table


def _net(row: Figure) -> str:
    """Energy above idle with its own uncertainty, in joules."""
    net, error = number_text(row.get("net_j")), number_text(row.get("net_uncertainty_j"))
    return f"{net} ± {error}" if net and error else net


def _times(row: Figure) -> str:
    return "" if row["times_fp32"] is None else f"{row['times_fp32']:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value * 100:.1f}"
