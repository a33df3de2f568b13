"""`precgui plan`: the memory of a training step before it is run, whether it fits, and what to change first."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from precgui import config as configs
from precgui.cli import plan_ranks
from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError, add_settings
from precgui.cli.place_option import add_place_option, run_source_there
from precgui.config.doubts import doubts
from precgui.planner.communication import Link, Traffic
from precgui.planner.ledger import PARTS, mib
from precgui.planner.network import NETWORKS, Transformer
from precgui.planner.plan import (
    Plan,
    PlanRequest,
    changes,
    device_bytes,
    first_change,
    largest_batch,
    plan,
    sharded_bytes,
    trained_parameters,
)
from precgui.planner.storage import BASE_BITS, OPTIMIZERS, STORAGE, storage_of
from precgui.words import L_, _, error_text, translated

_CHANGE = {
    True: L_("Change first: {change} Then it needs {needed} and fits."),
    False: L_("Change first: {change} Then it needs {needed} and does not fit yet."),
}
_LARGEST_BATCH = {
    True: L_("The largest batch by steps really made: {samples} samples."),
    False: L_("The largest batch by the plan: {samples} samples."),
}
_MOMENTS = {
    "forward": L_("in the forward pass"),
    "backward": L_("in the backward pass"),
    "first block": L_("as the backward pass ends"),
    "update": L_("in the update"),
}
_OFFLOADS = ("none", "optimizer", "parameters")


def add_parsers(subparsers: Any) -> None:
    """Add `plan` to the command line."""
    parser = subparsers.add_parser(
        "plan",
        help=_("memory of a step before it is run, and whether it fits"),
        description=_("Of a config, gone through on shapes alone; or, with --network, of a transformer by formula."),
    )
    parser.add_argument(
        "config", nargs="?", default=configs.DEFAULT_RECIPE, metavar="CONFIG.toml|RECIPE",
        help=_("a TOML file or one of: {recipes} (default {default})").format(
            recipes=", ".join(configs.RECIPES), default=configs.DEFAULT_RECIPE
        ),
    )  # fmt: skip
    parser.add_argument("--device", metavar="24GB", help=_("memory of the device (default: what this machine has)"))
    add_settings(parser, _("change one value of the config, e.g. --set data.batch_size=256"))
    parser.add_argument(
        "--search", action="store_true", help=_("find the largest batch by steps really made, in a child")
    )
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    plan_ranks.add_arguments(parser.add_argument_group(_("several ranks, on paper")))
    _add_network(parser.add_argument_group(_("a transformer by formula, without building it")))
    add_place_option(parser, run_source_there)
    parser.set_defaults(run=run)


def _add_network(group: Any) -> None:
    group.add_argument(
        "--network",
        metavar="NAME",
        help=_("{networks}, or own with the four sizes below").format(networks=", ".join(NETWORKS)),
    )
    for name in ("layers", "width", "heads", "vocabulary"):
        group.add_argument(f"--{name}", type=int, metavar="N")
    group.add_argument("--sequence", type=int, metavar="N", help=_("tokens of a sample"))
    group.add_argument("--batch", type=int, default=1, metavar="N", help=_("sequences of a micro-step on one rank"))
    group.add_argument("--precision", default="bf16-amp", choices=list(STORAGE))
    group.add_argument("--optimizer", default="adamw", choices=list(OPTIMIZERS))
    group.add_argument("--checkpointing", action="store_true", help=_("compute activations again in the backward pass"))
    group.add_argument("--accumulation", type=int, default=1, metavar="N")
    group.add_argument("--offload", default="none", choices=_OFFLOADS, help=_("to the host's memory"))
    group.add_argument("--zero", type=int, default=0, choices=range(4), help=_("ZeRO stage"))
    group.add_argument("--ranks", type=int, default=1, metavar="N")
    group.add_argument("--lora", type=int, default=0, metavar="RANK", help=_("train adapters of this rank only"))
    group.add_argument(
        "--base", default="bf16", choices=list(BASE_BITS), help=_("format of the frozen base with --lora")
    )


def run(args: argparse.Namespace) -> int:
    """Plan and print. Returns 0 also for what does not fit."""
    size = _size(args.device)
    plain = _of_config(args, size) if args.network is None else _of_network(args, size)
    if args.json:
        print(json.dumps(plain, allow_nan=False))
    else:
        _print(HarmlessConsole(), plain)
    return 0


def _size(text: str | None) -> int | None:
    try:
        return None if text is None else device_bytes(text)
    except ValueError as error:
        raise UserError(f"--device {error_text(error)}") from None


def _of_config(args: argparse.Namespace, size: int | None) -> dict[str, Any]:
    requested = configs.load(args.config, args.settings)
    link = plan_ranks.link_of(args)
    from precgui.engine.parallel.forecast import traffic_of
    from precgui.engine.profile import planning, search

    traffic = None if link is None else traffic_of(requested)  # is refused sooner than a plan is there
    plain = planning.plan_config(requested, size)
    if args.search:
        result = search.largest_batch(requested, plain["memory"]["limit_bytes"])
        plain["search"], plain["largest_batch"] = result.to_json(), result.batch
    if link is not None and traffic is not None:
        plain["several_ranks"] = _ranks_of_config(args, link, traffic, requested, plain["parts"])
    notes = [*plain.get("notes", ()), *doubts(requested)]
    return {"config": requested.display_title, **plain, "notes": notes}


def _ranks_of_config(
    args: argparse.Namespace, link: Link, traffic: Traffic, requested: configs.RunConfig, parts: dict[str, int]
) -> dict[str, Any]:
    named = {name: parts[f"{name}_bytes"] for name in PARTS}
    shared = not args.batch_per_rank
    memory_bytes = partial(sharded_bytes, named, shared_batch=shared)
    return plan_ranks.of_ranks(traffic, link, args, memory_bytes, requested.data.batch_size if shared else None)


def _ranks_of_network(args: argparse.Namespace, link: Link, request: PlanRequest) -> dict[str, Any]:
    storage = storage_of(request.precision, master_weights=request.master_weights)
    gradient_bytes = trained_parameters(request) * storage.gradient
    gathered_bytes = request.network.parameters * min(storage.weight, storage.products) * (request.zero_stage == 3)
    layers = args.layers or NETWORKS.get(args.network, Transformer()).layers
    traffic = Traffic(gradient_bytes, layers, gathered_bytes=gathered_bytes)

    def memory_bytes(stage: int, ranks: int) -> int:
        return plan(replace(request, zero_stage=stage, ranks=ranks)).total_bytes

    return plan_ranks.of_ranks(traffic, link, args, memory_bytes, None)


def _of_network(args: argparse.Namespace, size: int | None) -> dict[str, Any]:
    try:
        request = _request(args)
        created = plan(request)
    except ValueError as error:
        raise UserError(error_text(error)) from None
    requested = first_change(request, size)
    link = plan_ranks.link_of(args)
    return {
        "config": args.network,
        "parameters": request.network.parameters,
        "parts": {f"{name}_bytes": created.parts[name] for name in PARTS},
        "total_bytes": created.total_bytes,
        "host_bytes": created.host_bytes,
        "states_bytes": created.states_bytes,
        "phase": created.moment,
        "method": L_("by formula"),
        "memory": {"device_bytes": size, "from": L_("as given")},
        "fits": created.fits(size),
        "batch_size": request.batch,
        "largest_batch": None if size is None else largest_batch(request, size),
        "changes": [
            _row(change.sentence, change.settings, change.plan, change.fits) for change in changes(request, size)
        ],
        "first_change": requested and _row(requested.sentence, requested.settings, requested.plan, requested.fits),
        **({} if link is None else {"several_ranks": _ranks_of_network(args, link, request)}),
    }


def _row(sentence: str, settings: dict[str, str], after: Plan, fits: bool | None) -> dict[str, Any]:
    return {"change": sentence, "settings": settings, "total_bytes": after.total_bytes, "fits": fits}


def _request(args: argparse.Namespace) -> PlanRequest:
    """Raises ValueError with a sentence."""
    if args.network != "own" and args.network not in NETWORKS:
        raise ValueError(
            _("--network {network}: the planner knows {networks} and own").format(
                network=args.network, networks=", ".join(NETWORKS)
            )
        )
    network = NETWORKS.get(args.network, Transformer())
    given = {
        name: value
        for name in ("layers", "width", "heads", "vocabulary", "sequence")
        if (value := getattr(args, name)) is not None
    }
    if any(value < 1 for value in given.values()):
        raise ValueError(_("--layers, --width, --heads, --vocabulary and --sequence are at least 1"))
    if "width" in given:
        given["feed_forward"] = round(network.feed_forward * given["width"] / network.width)
    network = replace(network, **given)
    if network.width % network.heads:
        raise ValueError(
            _("--width {width} is not a multiple of --heads {heads}").format(width=network.width, heads=network.heads)
        )
    master = args.precision == "bf16-master"
    return PlanRequest(
        network, args.batch, args.precision, master, args.optimizer, args.checkpointing, args.accumulation,
        args.offload, args.zero, args.ranks, args.lora, args.base,
    )  # fmt: skip


def _print(console: Console, plain: dict[str, Any]) -> None:
    table = Table(_("Part"), _("Memory"), _("Share"), box=None, header_style="bold")
    for name, title in PARTS.items():
        if size := plain["parts"][f"{name}_bytes"]:
            table.add_row(translated(title), mib(size), f"{size / max(plain['total_bytes'], 1):.0%}")
    moment = translated(_MOMENTS.get(plain["phase"], ""))
    table.add_row("[bold]" + _("Peak"), f"[bold]{mib(plain['total_bytes'])}", moment)
    console.print(f"[bold]{escape(plain['config'])}[/] ({escape(translated(plain['method']))})", highlight=False)
    console.print(table)
    for note in plain.get("notes", ()):
        console.print(f"[dim]{escape(translated(note))}", highlight=False)
    for sentence in _sentences(plain):
        console.print(escape(sentence), highlight=False)
    if ranks := plain.get("several_ranks"):
        plan_ranks.print_ranks(console, ranks)


def _sentences(plain: dict[str, Any]) -> list[str]:
    reported = [translated(plain["against_fp32"])] if plain.get("against_fp32") else []
    if plain.get("host_bytes"):
        reported.append(_("{size} lie in the host's memory.").format(size=mib(plain["host_bytes"])))
    size = plain["memory"]["device_bytes"]
    if size is None:
        return [*reported, _("Give the memory of a device to see whether it fits, for example --device 24GB.")]
    text = _("It fits into {size} ({source}).") if plain["fits"] else _("It does not fit into {size} ({source}).")
    reported.append(text.format(size=mib(size), source=translated(plain["memory"]["from"])))
    if first := plain.get("first_change"):
        change, needed = translated(first["change"]), mib(first["total_bytes"])
        reported.append(translated(_CHANGE[first["fits"]]).format(change=change, needed=needed))
    reported.append(translated(_LARGEST_BATCH["search" in plain]).format(samples=plain["largest_batch"]))
    reported += [f"  {_attempt(attempt)}" for attempt in plain.get("search", {}).get("attempts", ())]
    if "search" in plain:
        reported.append(
            _("Rates are medians of half a second, by {clock}.").format(clock=translated(plain["search"]["clock"]))
        )
    return reported


def _attempt(attempt: dict[str, Any]) -> str:
    """A step that was really made, with its figures."""
    figures = [_("batch {batch}").format(batch=attempt["batch"])]
    if attempt["peak_bytes"] is not None:
        figures.append(_("peak {size}").format(size=mib(attempt["peak_bytes"])))
    if attempt["samples_per_s"] is not None:
        figures.append(_("{rate:.4g} samples/s").format(rate=attempt["samples_per_s"]))
    verdict = _("fits")
    if not attempt["fits"]:
        verdict = _("does not fit: {reason}").format(reason=translated(attempt["reason"]))
    return f"{', '.join(figures)}: {verdict}"
