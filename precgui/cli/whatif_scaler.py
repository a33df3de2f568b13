"""`precgui whatif --scaler`: other policies of the loss scaler over the gradients of a run."""

from __future__ import annotations

import argparse
import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.cli.terminal import say_notes
from precgui.words import L_, _, error_text, translated

if TYPE_CHECKING:
    from precgui.runs.scaler_simulation import GradientSequence, Simulation

_SYNTHETIC = L_("made-up gradients")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --scaler and --inject to `whatif`."""
    parser.add_argument(
        "--scaler", action="append", metavar="POLICY",
        help=_(
            "simulate a loss scaler: initial=65536,growth=2,backoff=0.5,interval=2000, or a part of it; up to 3 times"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--inject", type=int, action="append", default=[], metavar="STEP", help=_("with --scaler: Inf in this step")
    )


def run(args: argparse.Namespace, formats: list[str]) -> int:
    """Simulate and report. Raises SentenceError for what cannot be asked."""
    from precgui.runs.scaler_simulation import MOST_POLICIES, policy_of, simulate

    if len(formats) > 1 or args.csv is not None:
        raise UserError(
            _("--scaler takes one format and no --csv; choose such as --format fp16, and --json for a file.")
        )
    if len(args.scaler) > MOST_POLICIES:
        raise UserError(
            _("--scaler was given {count} times; compare up to {most} policies.").format(
                count=len(args.scaler), most=MOST_POLICIES
            )
        )
    try:
        policies = [policy_of(text) for text in args.scaler]
    except ValueError as error:
        raise UserError(f"--scaler: {error_text(error)}.") from None
    about, gradients = _gradients(args)
    outside = [step for step in args.inject if step not in gradients.steps]
    if outside:
        raise UserError(
            _("--inject {step}: choose a step from {first} to {last}.").format(
                step=outside[0], first=gradients.steps[0], last=gradients.steps[-1]
            )
        )
    reported = [simulate(gradients, policy, formats[0], args.inject) for policy in policies]
    if args.json:
        document = {
            **about,
            **_basis_json(gradients, formats[0], args.inject),
            "policies": [_as_json(s) for s in reported],
        }
        print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    else:
        _print(about, gradients, reported, formats[0])
    return 0


def _gradients(args: argparse.Namespace) -> tuple[dict[str, Any], GradientSequence]:
    from precgui.runs.file.reader import open_run
    from precgui.runs.recorded_gradients import recorded_gradients
    from precgui.runs.scaler_simulation import synthetic_gradients

    if args.file is None:
        return {"run": None, "title": _SYNTHETIC, "precision": None}, synthetic_gradients()
    with open_run(args.file) as saved:
        gradients = recorded_gradients(saved)
        about = {"run": str(args.file), "title": saved.title, "precision": saved.config.precision}
        say_notes(args.file, saved.notes)
    if gradients is None:
        raise UserError(
            _("{file} has no finite gradients; train it again with record.tensors switched on.").format(file=args.file)
        )
    return about, gradients


def _basis_json(gradients: GradientSequence, format_name: str, injected: list[int]) -> dict[str, Any]:
    return {
        "format": format_name,
        "steps": len(gradients.steps),
        "measured_steps": gradients.measured,
        "histogram_steps": len(gradients.share_steps),
        "certainty": gradients.certainty,
        "notes": list(gradients.notes),
        "injected": sorted(set(injected)),
    }


def _as_json(simulation: Simulation) -> dict[str, Any]:
    policy = simulation.policy
    return {
        "initial_scale": policy.initial_scale,
        "growth_factor": policy.growth_factor,
        "backoff_factor": policy.backoff_factor,
        "growth_interval": policy.growth_interval,
        "skipped_steps": int(simulation.skipped.sum()),
        "first_taken_step": simulation.first_taken,
        "final_scale": simulation.final_scale,
        "underflow_mean": _or_none(simulation.mean_underflow),
        "step": simulation.steps.tolist(),
        "scale": simulation.scale.tolist(),
        "skipped": simulation.skipped.tolist(),
        "underflow": [_or_none(share) for share in simulation.underflow.tolist()],
    }


def _or_none(value: float) -> float | None:
    return value if isfinite(value) else None


def _print(about: dict[str, Any], gradients: GradientSequence, simulations: list[Simulation], format_name: str) -> None:
    from precgui.runs.tensors.confidence import scale_text, share_text

    console = HarmlessConsole()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in (
        _("initial"),
        _("growth"),
        _("backoff"),
        _("interval"),
        _("skipped"),
        _("first taken"),
        _("last scale"),
        _("to zero (mean)"),
    ):
        table.add_column(title, justify="right")
    for each in simulations:
        policy = each.policy
        skipped = _("{count} of {all}").format(count=int(each.skipped.sum()), all=len(each.steps))
        first = _("none") if each.first_taken is None else _("step {step}").format(step=each.first_taken)
        table.add_row(
            scale_text(policy.initial_scale), f"{policy.growth_factor:g}", f"{policy.backoff_factor:g}",
            str(policy.growth_interval), skipped, first, scale_text(each.final_scale), share_text(each.mean_underflow),
        )  # fmt: skip
    text = _("{name}: gradients in {format}, steps {first} to {last}")
    first, last = gradients.steps[0], gradients.steps[-1]
    name = translated(about["title"] or about["run"])
    console.print(escape(text.format(name=name, format=format_name, first=first, last=last)), highlight=False)
    console.print(table)
    certainty = _("Certainty: {certainty}.").format(certainty=translated(gradients.certainty))
    for note in (certainty, *map(translated, gradients.notes)):
        console.print(escape(note), highlight=False)
