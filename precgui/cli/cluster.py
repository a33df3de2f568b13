"""`precgui cluster`: one run on several hosts, by files for Slurm or a command for each, and a trial of their link."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from precgui import config
from precgui.cli.parser import UserError, add_settings
from precgui.cli.terminal import say
from precgui.words import _


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and set its `run`."""
    parser = subparsers.add_parser("cluster", help=_("write the files that start one run on several hosts with Slurm"))
    parser.add_argument("config", nargs="?", metavar="CONFIG.toml|RECIPE", help=_("a run with parallel.strategy"))
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=_("folder on a disk that all hosts share"))
    add_settings(parser, _("as in run"))
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help=_("hosts (default 2)"))
    parser.add_argument(
        "--ranks-per-node", type=int, default=1, metavar="N", help=_("processes of each host (default 1)")
    )
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help=_("GPUs of each host"))
    parser.add_argument(
        "--minutes", type=int, metavar="N", help=_("time limit of a job; the run goes on in the next one")
    )
    parser.add_argument("--account", default="", metavar="NAME", help=_("the account that the job is charged to"))
    parser.add_argument("--partition", default="", metavar="NAME", help=_("the partition of the cluster"))
    parser.add_argument(
        "--try-link", action="store_true", help=_("under torchrun: measure the link between the ranks, for plan --link")
    )
    parser.add_argument(
        "--rendezvous", metavar="HOST:PORT",
        help=_("without Slurm: print the command for each host; they meet at this port of the first one"),
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files, or try the link. Raises UserError where neither can be done."""
    if args.try_link:
        return _try_link(as_json=args.json)
    from precgui.config.refusals import require_startable
    from precgui.planner.cluster import SCRIPT, ClusterJob, cluster_files

    if args.config is not None and args.rendezvous:
        return _show_commands(args)
    if args.config is None or args.output is None:
        raise UserError(
            _(
                "name a config and, with -o, a new folder on a disk that all hosts share, or --rendezvous HOST:PORT "
                "for hosts without Slurm"
            )
        )
    chosen = config.load(args.config, args.settings)
    require_startable(chosen)
    job = ClusterJob(args.nodes, args.ranks_per_node, args.gpus_per_node, args.minutes, args.account, args.partition)
    folder = args.output.absolute()
    files = cluster_files(chosen, job, folder, sys.executable)
    try:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise UserError(
            _("{folder} already exists; choose another name or delete it first").format(folder=folder)
        ) from None
    except OSError as error:
        raise UserError(
            _("{folder} cannot be written: {strerror}; choose another place").format(
                folder=folder, strerror=error.strerror
            )
        ) from None
    if args.json:
        print(json.dumps({"folder": str(folder), "files": sorted(files)}))
    else:
        say(f"sbatch {folder / SCRIPT}")
    return 0


def _show_commands(args: argparse.Namespace) -> int:
    """The command for each host of a run without Slurm."""
    from precgui.config.refusals import require_startable
    from precgui.planner.cluster import ClusterJob, host_commands

    chosen = config.load(args.config, args.settings)
    require_startable(chosen)
    words = [args.config, *(word for setting in args.settings for word in ("--set", setting))]
    if args.output is not None:
        words += ["-o", str(args.output)]
    commands = host_commands(chosen, words, ClusterJob(args.nodes, args.ranks_per_node), args.rendezvous)
    if args.json:
        print(json.dumps({"commands": commands}))
        return 0
    for number, command in enumerate(commands, 1):
        say(_("host {number} of {count}: {command}").format(number=number, count=len(commands), command=command))
    return 0


def _try_link(*, as_json: bool) -> int:
    from precgui.engine.parallel.allocation import in_allocation

    if not in_allocation():
        raise UserError(_("--try-link is for several processes; start it with torchrun, as the script for sbatch does"))
    from precgui.engine.parallel.link_trial import try_link

    if (trial := try_link()) is None:
        return 0
    if as_json:
        print(json.dumps({**asdict(trial), "link": trial.link, "latency_us": 1e6 * trial.small_s}))
    else:
        text = _(
            "{ranks} ranks over {back_end}: {link} ({fastest_s:.4f} to {slowest_s:.4f} s for 16 MiB), {small_us:.0f} "
            "us for a small one; precgui plan ... --link {link}"
        )
        say(
            text.format(
                ranks=trial.ranks, back_end=trial.back_end, link=trial.link, fastest_s=trial.fastest_s,
                slowest_s=trial.slowest_s, small_us=1e6 * trial.small_s,
            )
        )  # fmt: skip
    return 0
