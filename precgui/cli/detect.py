"""`precgui detect`: what this machine can do with each number format, and which precision to use on it."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from precgui.cli.console import HarmlessConsole
from precgui.cli.detect_watch import UNTIL_STOPPED, seconds, watch
from precgui.cli.parser import UserError
from precgui.cli.place_option import add_place_option
from precgui.cli.terminal import say
from precgui.hardware import measured
from precgui.hardware.advice import SIZES, TASKS, Advice, Situation, Step, advise
from precgui.hardware.datasheet import datasheet_devices
from precgui.hardware.detect import Machine, detect
from precgui.hardware.device import Device
from precgui.hardware.measured import number_text, threads_text
from precgui.hardware.readings import Missing, Reading, gibibytes
from precgui.hardware.report import document
from precgui.hardware.support import Support
from precgui.runs.held_power_limit import restore_left_limits
from precgui.runs.model_memory import parameter_count, training_sentence
from precgui.words import L_, Sentence, _, error_text, paragraph, translated

_USE = L_("[bold]Use {precision}[/] for {situation}.")
_USE_THEN = L_("[bold]Use {precision}[/], then try {then} for {situation}.")
_SUPPOSED = L_("{size} {task} (supposed; choose with --task and --size)")
_STYLE = {"native": "green", "slow": "yellow", "emulated": "yellow", "none": "bright_black", "unknown": "dim"}
_MARK = {"native": "●", "slow": "◐", "emulated": "○", "none": "✕", "unknown": "?"}


def add_parsers(subparsers: Any) -> None:
    """Add `detect` to the command line."""
    parser = subparsers.add_parser("detect", help=_("what this machine can do with each number format, and advice"))
    parser.add_argument("--task", choices=list(TASKS), help=_("what the advice is for (default classification)"))
    parser.add_argument("--size", choices=list(SIZES), help=_("how large the model is (default large)"))
    parser.add_argument(
        "--card", metavar="NAME", help=_("a card that is not in this machine, for example V100 or B200")
    )
    parser.add_argument(
        "--parameters",
        type=_parameters,
        metavar="N",
        help=_("of a model to train, such as 124M or 7B: whether it fits"),
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds,
        const=UNTIL_STOPPED,
        metavar="SECONDS",
        help=_("print present readings of every device twice a second, for SECONDS or until Ctrl+C"),
    )
    parser.add_argument(
        "--json", action="store_true", help=_("print one JSON document and nothing else; with --watch one a line")
    )
    add_place_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Detect and print. Returns 0."""
    if args.watch is not None:
        if args.card is not None:
            raise UserError(_("--watch reads the devices of this machine; leave --card out"))
        return watch(args.watch, as_json=args.json)
    for sentence in restore_left_limits():
        say(f"precgui: {translated(sentence)}", file=sys.stderr)
    facts, problem = ask_torch()
    machine = detect(facts)
    if args.card is not None:
        machine = replace(machine, devices=cards_called(args.card))
    results = measured.kept()
    task, size = args.task or "classification", args.size or "large"
    advices = {
        device.id: advise(Situation(device, task, size, measured.gain(device.name, results)))
        for device in machine.devices
    }
    fits = {} if args.parameters is None else _model_memory(args.parameters, machine, advices)
    if args.json:
        tree = document(machine, advices, problem)
        for row in tree["devices"] if fits else ():
            row["model_memory"] = fits[row["id"]]
        print(json.dumps(tree, indent=1))
    else:
        supposed = not args.task and not args.size
        situation = translated(_SUPPOSED).format(size=size, task=task) if supposed else f"{size} {task}"
        _print(HarmlessConsole(), machine, advices, problem, situation, fits)
    return 0


def _parameters(text: str) -> int:
    try:
        return parameter_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(error_text(error)) from None


def _model_memory(parameters: int, machine: Machine, advices: dict[str, Advice]) -> dict[str, str]:
    """By device, whether the training of so large a model fits, in the precision that is advised."""
    return {
        device.id: training_sentence(
            parameters,
            advices[device.id].precision,
            device.memory_bytes if isinstance(device.memory_bytes, int) else None,
        )
        for device in machine.devices
    }


def cards_called(name: str) -> tuple[Device, ...]:
    """The cards of the table whose names hold all of these words. Raises SentenceError when there is none."""
    words = name.casefold().split()
    result = tuple(d for d in datasheet_devices() if words and all(word in d.name.casefold() for word in words))
    if not result:
        near = difflib.get_close_matches(name, [device.name for device in datasheet_devices()], 5, 0.3)
        if near:
            text = _("--card {name}: no card of the table has this name; perhaps {near}")
            raise UserError(text.format(name=name, near=", ".join(near)))
        text = _("--card {name}: no card of the table has this name; the window lists all of them under Formats")
        raise UserError(text.format(name=name))
    return result


def ask_torch() -> tuple[dict[str, Any] | None, str]:
    """(facts of torch, "") or (None, why torch cannot be imported); the other facts do not need torch."""
    try:
        from precgui.engine.torch_facts import torch_facts
    except (ImportError, OSError) as error:
        return None, Sentence("torch cannot be imported: {error}", error=error)
    return torch_facts(), ""


def _print(
    console: Console,
    machine: Machine,
    advices: dict[str, Advice],
    problem: str,
    situation: str,
    fits: dict[str, str],
) -> None:
    for device in machine.devices:
        _print_device(console, device)
        _print_advice(console, advices[device.id], situation, fits.get(device.id, ""))
    host = machine.host
    console.rule("[bold]" + _("Machine"), align="left")
    console.print(f"{escape(host['os'])}, Python {host['python']}, {_memory(host['memory_bytes'])}")
    for sensor in machine.sensors:
        console.print(f"{'[green]●' if sensor.available else '[dim]○'}[/] {escape(translated(sensor.message))}")
    if machine.torch is None:
        console.print(f"[red]{escape(translated(problem))}")
        return
    facts = machine.torch
    built = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else _("CPU only")
    console.print(
        _("torch {version}, built for {built}, {threads}").format(
            version=facts["version"], built=built, threads=translated(threads_text(facts["threads"]))
        )
    )
    table = Table(_("Switch of torch"), _("Now"), box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name, value in facts["switches"].items():
        table.add_row(escape(name), escape(str(value)))
    console.print(table)


def _print_device(console: Console, device: Device) -> None:
    what = " ".join(part for part in (device.architecture, device.capability) if part)
    console.rule(f"[bold]{escape(device.id)}  {escape(device.name)}[/]  [dim]{escape(what)}", align="left")
    if device.problem:
        console.print(f"[red]{escape(translated(device.problem))}")
    facts = [(_("Memory"), gibibytes(device.memory_bytes)), (_("Bandwidth"), _bandwidth(device)), *device.details]
    console.print("   ".join(f"[dim]{escape(translated(label))}[/] {escape(_value(value))}" for label, value in facts))
    table = Table(
        _("Format"), _("Support"), _("Peak 10¹²/s"), _("Why"), box=None, header_style="bold", padding=(0, 2, 0, 0)
    )
    for names, cell in _grouped(device):
        peak = "" if isinstance(cell.peak, Missing) else number_text(cell.peak.tops)
        mark = Text(f"{_MARK[cell.support]} {translated(cell.support)}", style=_STYLE[cell.support])
        table.add_row(names, mark, Text(peak, justify="right"), escape(translated(cell.reason)))
    console.print(table)
    for source in device.sources:
        console.print("[dim]" + _("Sheet: {sentence}").format(sentence=escape(translated(source.sentence))))


def _grouped(device: Device) -> list[tuple[str, Support]]:
    """Neighbours in the table with the same answer as one line."""
    lines: list[tuple[str, Support]] = []
    for name, cell in device.formats.items():
        if lines and lines[-1][1] == cell:
            lines[-1] = (f"{lines[-1][0]}\n{name}", cell)
        else:
            lines.append((name, cell))
    return lines


def _print_advice(console: Console, advice: Advice, situation: str, fits: str) -> None:
    answer = translated(_USE_THEN if advice.then else _USE)
    head = answer.format(precision=advice.precision, then=advice.then, situation=escape(situation))
    console.print("\n" + paragraph(head, escape(translated(advice.reason))))
    for step in advice.path:
        console.print(_step_line(step))
    for line in advice.watch:
        console.print(f"  [yellow]![/] {escape(translated(line))}")
    if fits:
        console.print(escape(translated(fits)))
    console.print()


def _step_line(step: Step) -> str:
    question, answer, why = (escape(translated(text)) for text in (step.question, step.answer, step.why))
    return f"  {question} [bold]{answer}[/]  [dim]{why}"


def _value(value: Reading[str]) -> str:
    return translated(str(value) if isinstance(value, Missing) else value)


def _memory(count: int | None) -> str:
    return _("memory not known") if count is None else _("{gibibytes} of memory").format(gibibytes=gibibytes(count))


def _bandwidth(device: Device) -> Reading[str]:
    rate = device.bandwidth_gbs
    return rate if isinstance(rate, Missing) else f"{rate:.0f} GB/s"
