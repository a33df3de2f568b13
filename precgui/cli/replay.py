"""`precgui replay`: one step of a recorded run again, with FP64 beside it, and its casts or layers on request."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.cli.place_option import add_place_option, run_source_there
from precgui.cli.terminal import say
from precgui.words import L_, _, error_text, p_, translated

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.runs.anatomy import StepAnatomy
    from precgui.runs.file.reader import SavedRun
    from precgui.runs.layer_errors import LayerDistance, LayersReplay
    from precgui.runs.replays import StepReplay

_MAX_ROWS = 12
_MECHANISMS = {
    "flush": L_("flush"), "rounding": L_("rounding"), "casts": L_("casts"), "flips": L_("flips"),
    "overflow": L_("overflow"),
}  # fmt: skip


def add_parsers(subparsers: Any) -> None:
    """Add `replay` to the command line."""
    parser = subparsers.add_parser(
        "replay",
        help=_("make one step of a run again with FP64 beside it: which line makes the error, is precision to blame"),
        epilog=_(
            "A step with a snapshot beside the run (the first with NaN or Inf, and record.snapshot_step) "
            "is made from it; up to any other one the run is trained again. Exit code: 0 healthy, 1 problems."
        ),
    )
    parser.add_argument("file", type=Path, metavar="RUN.h5", help=_("a run file of precgui run"))
    parser.add_argument(
        "--step", type=int, metavar="N", help=_("counted from 1; default the first that is not finite, else the last")
    )
    parser.add_argument(
        "--layers",
        metavar="P,P,...",
        help=_("compare each layer in up to five precisions with FP64, on this step's batch"),
    )
    parser.add_argument("--anatomy", action="store_true", help=_("print the moments and the casts of the step, too"))
    parser.add_argument(
        "--own-code", action="store_true", help=_("run the code of a task of your own that the run names")
    )
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    add_place_option(parser, run_source_there)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay and report; writes a side file that the window reads. Raises SentenceError for what cannot be replayed."""
    from precgui.runs.file.reader import open_run
    from precgui.runs.replays import REPLAYS

    with open_run(args.file) as saved:
        if args.layers is not None:
            return _layers_report(args, saved.config, _step(saved, args)[0])
        replay = _replayed(saved, args)
        path = REPLAYS.keep(args.file, replay)
    if args.json:
        reported = replay.model_dump(exclude={"format_version"})
        if args.anatomy:
            reported["anatomy"] = _anatomy_of(args.file, replay.step).model_dump(exclude={"format_version"})
        print(json.dumps({"run": str(args.file), **reported}, ensure_ascii=False, allow_nan=False))
    else:
        _print(replay, path)
        if args.anatomy:
            _print_anatomy(args.file, replay.step)
    return 0 if replay.verdict == "healthy" else 1


def _replayed(saved: SavedRun, args: argparse.Namespace) -> StepReplay:
    from precgui.replay_job import replayed

    step, losses = _step(saved, args)
    return replayed(args.file, saved.config, losses, step, lambda: False)


def _step(saved: SavedRun, args: argparse.Namespace) -> tuple[int, list[float]]:
    """The step to be made again, and the recorded losses. Raises SentenceError for a run that cannot be made again."""
    from precgui.config.names import OWN_LOOP, is_own_task, no_start
    from precgui.runs.replays import first_bad_step, last_step, snapshot_path

    config = saved.config
    if config.task == OWN_LOOP:
        raise UserError(
            no_start(str(args.file), L_("call precgui.shadow and precgui.keep_shadow in it (docs/shadow.md)"))
        )
    if is_own_task(config.task) and not args.own_code:
        raise UserError(
            _("{file} was trained on a task of your own; --own-code runs the code that it names").format(file=args.file)
        )
    losses, last = saved.series("loss")[1].tolist(), last_step(saved)
    if not last:
        raise UserError(
            _("{file} has no recorded step to compare with; replay a run of precgui run").format(file=args.file)
        )
    step = args.step if args.step is not None else first_bad_step(saved) or last
    if not 1 <= step <= last:
        raise UserError(
            _("{file} has no step {step}; it has the steps 1 to {last}").format(file=args.file, step=step, last=last)
        )
    if not args.json and not snapshot_path(args.file, step).exists():
        say(_("training again up to step {step} ...").format(step=step), flush=True)
    return step, losses


def _print(replay: StepReplay, path: Path) -> None:
    console = HarmlessConsole(highlight=False, soft_wrap=True)
    colour = "green" if replay.verdict == "healthy" else "red"
    console.print(
        Text(_("step {step}: {verdict}").format(step=replay.step, verdict=translated(replay.verdict)), style=colour)
    )
    console.print(Text(translated(replay.message)))
    if replay.gradient_error is not None:
        table = Table(box=SIMPLE_HEAD)
        table.add_column(_("share"), justify="right", min_width=6)
        table.add_column(_("left"), justify="right", min_width=9)
        table.add_column(_("line"), overflow="fold")
        table.add_column(_("module"), overflow="fold")
        for line in replay.lines[:_MAX_ROWS]:
            left = _left(line.left_measured, line.left_predicted)
            table.add_row(f"{line.share:z.1%}", left, translated(line.line), line.module)
        console.print(table)
        console.print(
            Text(_("left: of the error, when all of this line runs in FP64, products too; about: from its share"))
        )
        shares = replay.mechanisms.model_dump().items()
        parts = ", ".join(f"{translated(_MECHANISMS[name])} {_share(value)}" for name, value in shares)
        console.print(Text(_("explained {share:.3f}; {parts}").format(share=replay.explained, parts=parts)))
    for note in replay.notes:
        console.print(Text(_("note: {note}").format(note=translated(note))))
    console.print(Text(_("written to {path}").format(path=path)))


def _left(measured: float | None, predicted: float | None) -> str:
    if measured is not None:
        return f"{measured:z.0%}"
    return _("unknown") if predicted is None else _("about {share}").format(share=f"{predicted:z.0%}")


def _share(value: float | None) -> str:
    return _("unknown") if value is None else f"{value:z.1%}"


def _anatomy_of(run: Path, step: int) -> StepAnatomy:
    """The anatomy that the replay of this step has just kept."""
    from precgui.runs.anatomy import ANATOMIES

    return next(anatomy for anatomy in ANATOMIES.all(run) if anatomy.step == step)


def _print_anatomy(run: Path, step: int) -> None:
    """Print sentences and the table of casts."""
    console, anatomy = HarmlessConsole(highlight=False, soft_wrap=True), _anatomy_of(run, step)
    for sentence in anatomy.sentences():
        console.print(Text(translated(sentence)))
    table = Table(box=SIMPLE_HEAD)
    for title in (_("casts asked for by"), p_("a cast", "from"), p_("a cast", "to"), p_("a cast", "of")):
        table.add_column(title, overflow="fold")
    for title in (_("count"), _("bytes"), _("reused")):
        table.add_column(title, justify="right")
    for casts in anatomy.casts:
        numbers = (str(casts.count), f"{casts.bytes:,}".replace(",", " "), str(casts.reused))
        table.add_row(translated(casts.asked_by), casts.source, casts.target, translated(casts.of), *numbers)
    console.print(table)


def _layers_report(args: argparse.Namespace, config: RunConfig, step: int) -> int:
    """Compare, keep the side file and print. Raises SentenceError."""
    from precgui.engine.shadow.layers import layer_errors_of_run
    from precgui.runs.layer_errors import LAYERS, LayersReplay
    from precgui.runs.replays import snapshot_path

    names = _precisions(args.layers)
    path = snapshot_path(args.file, step)
    result = layer_errors_of_run(config, step, path if path.exists() else None, names, lambda: False)
    replay = LayersReplay.model_validate(result.to_json())
    written = LAYERS.keep(args.file, replay)
    if args.json:
        print(json.dumps({"run": str(args.file), **replay.model_dump(exclude={"format_version"})}, allow_nan=False))
    else:
        _print_layers(replay)
        HarmlessConsole(highlight=False, soft_wrap=True).print(Text(_("written to {path}").format(path=written)))
    return 0


def _precisions(text: str) -> list[str]:
    from precgui.runs.layer_errors import compared_precisions

    try:
        return compared_precisions([name.strip() for name in text.split(",") if name.strip()])
    except ValueError as error:
        raise UserError(f"--layers: {error_text(error)}") from None


def _print_layers(replay: LayersReplay) -> None:
    console = HarmlessConsole(highlight=False, soft_wrap=True)
    for side, title in (("forward", _("layer (output)")), ("gradient", _("layer (gradient)"))):
        table = Table(box=SIMPLE_HEAD)
        table.add_column(title, overflow="fold")
        for name in replay.precisions:
            table.add_column(name, justify="right", min_width=8)
        for layer in replay.layers:
            if distances := getattr(layer, side):
                table.add_row(layer.name, *(_distance_text(distances.get(name)) for name in replay.precisions))
        console.print(table)
    console.print(
        Text(_("step {step}: relative l2 distance from FP64 on the same weights and batch").format(step=replay.step))
    )
    for name in replay.precisions:
        loss = replay.losses.get(name)
        console.print(
            Text(_("loss in {name}: {loss}").format(name=name, loss=_("not finite") if loss is None else f"{loss:.6g}"))
        )
    for note in replay.notes:
        console.print(Text(_("note: {note}").format(note=translated(note))))


def _distance_text(distance: LayerDistance | None) -> str:
    """A distance in a cell; empty where the layer has none."""
    if distance is None:
        return ""
    if distance.relative_l2 == 0:
        return _("exact")
    return _("not finite") if distance.relative_l2 is None else f"{distance.relative_l2:.1e}"
