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
        HarmlessConsole(highlight=False, soft_wrap=True).print(Text(f"written to {written}"))
    return 0


def _precisions(text: str) -> list[str]:
    from precgui.runs.layer_errors import compared_precisions

    try:
        return compared_precisions([name.strip() for name in text.split(",") if name.strip()])
    except ValueError as error:
        raise UserError(f"--layers: {error}") from None


def _print(replay: LayersReplay) -> None:
    console = HarmlessConsole(highlight=False, soft_wrap=True)
    for title in ("output", "gradient"):
        table = Table(box=SIMPLE_HEAD)
        table.add_column(f"layer ({title})", overflow="fold")
        for name in replay.precisions:
            table.add_column(name, justify="right", min_width=8)
        for layer in replay.layers:
            side = layer.forward if title == "output" else layer.gradient
            if side:
                table.add_row(layer.name, *(distance_text(side.get(name)) for name in replay.precisions))
        console.print(table)
    console.print(Text(f"step {replay.step}: relative l2 distance from FP64 on the same weights and batch"))
    for name in replay.precisions:
        loss = replay.losses.get(name)
        console.print(Text(f"loss in {name}: {'not finite' if loss is None else f'{loss:.6g}'}"))
    for note in replay.notes:
        console.print(Text(f"note: {note}"))


def distance_text(distance: LayerDistance | None) -> str:
    """A distance in a cell; empty where the layer has none."""
    if distance is None:
        return ""
    if distance.relative_l2 == 0:
        return "exact"
    return "not finite" if distance.relative_l2 is None else f"{distance.relative_l2:.1e}"
