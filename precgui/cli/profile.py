"""`precgui profile`: time and memory of a step by operation, why a precision saved little, and the ranks of a run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from precgui import config as configs
from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError, add_settings
from precgui.cli.place_option import add_place_option, run_source_there
from precgui.planner.ledger import PARTS, RESIDUAL_LIMIT, mib
from precgui.runs.speedup.profile_file import MOST_PAIRS_S, PAIRS_S
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.runs.speedup.products import ProductRate
    from precgui.runs.speedup.waterfall import Waterfall

_MAX_ROWS = 12
_WIDEST = 34  # characters of a name
_RANK_COLUMNS = (
    L_("rank"),
    L_("step, ms"),
    L_("waited, ms"),
    L_("CPU, ms"),
    L_("memory"),
    L_("sent"),
    L_("interface, all ranks"),
)


def add_parsers(subparsers: Any) -> None:
    """Add `profile` to the command line."""
    parser = subparsers.add_parser(
        "profile",
        help=_("time and memory of a step taken apart, FP32 beside it"),
        description=_("Runs some steps of the config in FP32 and in its precision, in turns, under torch.profiler."),
    )
    parser.add_argument(
        "config", nargs="?", default=configs.DEFAULT_RECIPE, metavar="CONFIG.toml|RECIPE|RUN.h5",
        help=_("what to run; of a run file its config, and the profile is kept beside it as RUN.h5.profile.json"),
    )  # fmt: skip
    add_settings(parser, _("change one value of the config, e.g. --set precision=bf16-amp"))
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help=_("keep the profile in this file"))
    parser.add_argument("--seconds", type=float, default=PAIRS_S, metavar="S",
                        help=_("repeat pairs of plain and profiled steps for up to S seconds, until the time that the "
                               "profiler adds is known; choose more on a busy machine (default {seconds:.0f})")
                        .format(seconds=PAIRS_S))  # fmt: skip
    parser.add_argument("--no-trials", action="store_true", help=_("do not try the suggested changes in pairs"))
    parser.add_argument("--kept", action="store_true", help=_("show the profile beside RUN.h5 instead of measuring"))
    parser.add_argument("--ranks", action="store_true",
                        help=_("show what each process of RUN.h5 recorded instead of measuring"))  # fmt: skip
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    add_place_option(parser, run_source_there)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Profile and print, or print what is kept. Returns 0."""
    from precgui.runs.speedup.profile_file import profile_path, read_profile, write_profile
    from precgui.runs.speedup.waterfall import rows, verdict, waterfall

    of_run = Path(args.config) if args.config.endswith(".h5") else None
    if args.ranks:
        return _show_ranks(of_run, as_json=args.json)
    if not 0 < args.seconds <= MOST_PAIRS_S:
        raise UserError(
            _("--seconds {seconds:g} is not between 0 and {most_pairs_s:.0f}; choose another duration").format(
                seconds=args.seconds, most_pairs_s=MOST_PAIRS_S
            )
        )
    if args.kept and of_run is None:
        raise UserError(_("--kept shows the profile of a run file; name one that ends in .h5"))
    if args.kept and of_run is not None:
        document = read_profile(profile_path(of_run))
    else:
        document = _measure(_config(of_run, args), args.seconds, trials=not args.no_trials, quiet=args.json)
        target = args.output or (profile_path(of_run) if of_run else None)
        if target is not None:
            write_profile(target, document)
    account = waterfall(document)
    if args.json:
        from precgui.runs.file import json_text

        reported = {"speedup": account.observed, "speedup_ci95": account.interval,
                "unexplained": account.unexplained, "closes": account.closes,
                "causes": [factor.key for factor in account.causes()], "waterfall": rows(account),
                "verdict": verdict(account, document["precision"])}  # fmt: skip
        print(json_text.dump({**document, **reported}))
    else:
        _print(HarmlessConsole(), document, account, verdict(account, document["precision"]))
    return 0


def _config(of_run: Path | None, args: argparse.Namespace) -> configs.RunConfig:
    from precgui.runs.file.reader import open_run

    if of_run is None:
        return configs.load(args.config, args.settings)
    with open_run(of_run) as saved:
        result = saved.config
    if result.task == configs.OWN_LOOP or configs.is_own_task(result.task):
        text = _(
            "{run} trained code of its own ({task}), which is not started from a run file; profile a config that "
            "names it"
        )
        raise UserError(text.format(run=of_run, task=result.task))
    return configs.change(result, args.settings)


def _measure(config: configs.RunConfig, seconds: float, *, trials: bool, quiet: bool) -> dict[str, Any]:
    from precgui.profile_job import profile_with_trials

    console = HarmlessConsole(stderr=True, quiet=quiet or not sys.stderr.isatty())
    with console.status(_("starting the engine")) as status:
        return profile_with_trials(
            config, lambda text: status.update(escape(translated(text))), seconds=seconds, trials=trials
        )


def _print(console: Console, document: dict[str, Any], account: Waterfall, sentence: str) -> None:
    head = _("[bold]{title}[/] on {device}")
    console.print(
        head.format(title=escape(document["title"]), device=escape(document["device"]["name"])), highlight=False
    )
    from precgui.runs.speedup.waterfall import repeated_sentence

    console.print(escape(translated(sentence)), highlight=False)
    table = Table("", _("Factor"), _("Speed-up"), _("Cost"), box=None, header_style="bold")
    for factor in account.factors:
        table.add_row(
            translated(factor.title),
            f"{factor.value:.3f}",
            f"{factor.after:.2f}",
            f"{factor.cost:.0%}" if factor.cost else "",
        )
    console.print(table)
    for factor in account.causes():
        title, detail, remedy = (translated(text) for text in (factor.title, factor.detail, factor.remedy))
        console.print(f"[bold]{title}[/]: {escape(detail)} {escape(remedy)}", highlight=False)
    spread = _("The middle half of the rounds lies within {spread:.0%}.").format(spread=account.spread)
    console.print(f"{translated(account.closing)} {spread}", highlight=False)
    if parts := repeated_sentence(document):
        console.print(translated(parts), highlight=False)
    console.print(_operations(document))
    _print_products(console, document)
    _print_memory(console, document)
    for note in document["notes"]:
        console.print(f"[dim]{escape(translated(note))}", highlight=False)


def _operations(document: dict[str, Any]) -> Table:
    from precgui.runs.speedup.profile_file import operation_text

    table = Table(_("Operation"), _("Module"), _("Kind"), _("Format"), "ms", "GFLOP/s", box=None, header_style="bold")
    for row in document["operations"][:_MAX_ROWS]:
        rate = row["flops"] / row["seconds"] * 1e-9 if row["flops"] and row["seconds"] else None
        module = f"{row['module']} {translated(row['phase'])}".strip()
        operation, kind, executed = (
            translated(operation_text(row)),
            translated(row["kind"]),
            translated(row["executed"]),
        )
        table.add_row(
            escape(operation[:_WIDEST]), escape(module), kind, executed,
            f"{row['seconds'] * 1e3:.3g}", "" if rate is None else f"{rate:.3g}",
        )  # fmt: skip
    return table


def _print_products(console: Console, document: dict[str, Any]) -> None:
    from precgui.runs.speedup.products import products_of

    measured = products_of(document)
    if measured is None:
        return
    titles = [_("{format}, GFLOP/s (to FP32)").format(format=fmt) for fmt in measured.formats]
    table = Table(_("Product alone"), _("Modules"), _("Sizes"), *titles, box=None, header_style="bold")
    for product in measured.products[:_MAX_ROWS]:
        rates = [product.rates.get(fmt) for fmt in measured.formats]
        module = f"{product.modules_text} {translated(product.phase)}"
        table.add_row(product.operation, escape(module), product.sizes, *("" if r is None else _rate(r) for r in rates))
    console.print(table)
    notes = dict.fromkeys(
        f"{fmt} {translated(rate.note)}"
        for product in measured.products
        for fmt, rate in product.rates.items()
        if rate.note
    )
    for note in notes:
        console.print(f"[dim]{escape(translated(note))}", highlight=False)


def _rate(rate: ProductRate) -> str:
    if rate.flops_s is None:
        return _("not measured")
    return f"{rate.flops_s * 1e-9:.3g}" + (f" ({rate.speedup:.2f}x)" if rate.speedup else "")


def _print_memory(console: Console, document: dict[str, Any]) -> None:
    from precgui.runs.speedup.profile_file import LEDGERS, ledgers_of

    ledgers, memory = ledgers_of(document), document["memory"]
    if ledgers:
        table = Table(
            _("Memory at the peak"), *(translated(LEDGERS[name]) for name in ledgers), box=None, header_style="bold"
        )
        for part, title in PARTS.items():
            sizes = [ledger.parts[part] for ledger in ledgers.values()]
            if any(sizes):
                table.add_row(translated(title), *(mib(size) for size in sizes))
        table.add_row("[bold]" + _("Peak"), *(f"[bold]{mib(ledger.total_bytes)}" for ledger in ledgers.values()))
        console.print(table)
    if memory.get("difference"):
        console.print(escape(translated(memory["difference"])), highlight=False)
    if abs(memory.get("residual") or 0.0) > RESIDUAL_LIMIT:
        console.print(
            _("The prediction misses {share:+.0%} of the measured peak.").format(share=memory["residual"]),
            highlight=False,
        )


def _show_ranks(path: Path | None, *, as_json: bool) -> int:
    """Print the figures of each rank. Returns 0. Raises SentenceError where the run has none."""
    from precgui.runs.file.reader import open_run
    from precgui.runs.ranks import memory_sentence, rank_figures, waiting_sentence

    if path is None:
        raise UserError(_("--ranks shows what a run recorded; name a run file that ends in .h5"))
    with open_run(path) as run:
        figures, of_memory = rank_figures(run), memory_sentence(run)
    if not figures:
        raise UserError(
            _("{name} trained in one process, so it has no ranks; see parallel.strategy").format(name=path.name)
        )
    if as_json:
        print(json.dumps({"ranks": [row.as_json() for row in figures]}, indent=1))
        return 0
    table = Table(*map(translated, _RANK_COLUMNS), title=_("Medians of each rank"))
    for row in figures:
        times = (_milliseconds(time_s) for time_s in (row.step_s, row.wait_s, row.cpu_s))
        table.add_row(str(row.rank), *times, *map(_size, (row.memory_bytes, row.sent_bytes, row.interface_bytes)))
    console = HarmlessConsole()
    console.print(table)
    console.print(translated(waiting_sentence(figures)))
    console.print(translated(of_memory))
    return 0


def _milliseconds(time_s: float) -> str:
    return "-" if time_s != time_s else f"{1e3 * time_s:.3g}"


def _size(size_bytes: float) -> str:
    return "-" if size_bytes != size_bytes else mib(size_bytes)
