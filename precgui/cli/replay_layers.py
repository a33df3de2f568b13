"""`precgui replay --layers`: one batch of a run in several precisions, each layer compared with FP64."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.words import _, error_text, translated

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.runs.layer_errors import LayerDistance, LayersReplay


def layers_report(args: argparse.Namespace, config: RunConfig, step: int) -> int:
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
        _print(replay)
        HarmlessConsole(highlight=False, soft_wrap=True).print(Text(_("written to {path}").format(path=written)))
    return 0


def _precisions(text: str) -> list[str]:
    from precgui.runs.layer_errors import compared_precisions

    try:
        return compared_precisions([name.strip() for name in text.split(",") if name.strip()])
    except ValueError as error:
        raise UserError(f"--layers: {error_text(error)}") from None


def _print(replay: LayersReplay) -> None:
    console = HarmlessConsole(highlight=False, soft_wrap=True)
    for side, title in (("forward", _("layer (output)")), ("gradient", _("layer (gradient)"))):
        table = Table(box=SIMPLE_HEAD)
        table.add_column(title, overflow="fold")
        for name in replay.precisions:
            table.add_column(name, justify="right", min_width=8)
        for layer in replay.layers:
            if distances := getattr(layer, side):
                table.add_row(layer.name, *(distance_text(distances.get(name)) for name in replay.precisions))
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


def distance_text(distance: LayerDistance | None) -> str:
    """A distance in a cell; empty where the layer has none."""
    if distance is None:
        return ""
    if distance.relative_l2 == 0:
        return _("exact")
    return _("not finite") if distance.relative_l2 is None else f"{distance.relative_l2:.1e}"
