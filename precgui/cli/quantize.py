"""`precgui quantize`: what formats cost a trained model, measured on held-out data."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.text import Text

from precgui.cli.format_tables import console, print_json, table
from precgui.cli.parser import UserError, add_settings
from precgui.cli.place_option import add_place_option, follow_command, placed_run, without_place
from precgui.cli.terminal import say
from precgui.planner.ledger import mib
from precgui.quantize_job import check_output, keep, measure_model, opened
from precgui.quantize_order import (
    DEFAULT_FORMATS,
    METHODS,
    RECIPE_ADDS,
    ROUNDED,
    TARGETS,
    QuantizeOrder,
    check_order,
)
from precgui.runs.models.effects import ROUNDED as ROUNDED_WORDS
from precgui.runs.models.effects import SCORES, TRUTHS, ModelEffects, WholeRow, effects_of
from precgui.sanitize import visible_name
from precgui.words import L_, _, translated

_EPILOG = L_(
    "A single tensor or typed numbers: precgui quantise. Formats of weights without data: precgui model. "
    "Exit code: 0 measured, 2 bad input, 130 broken off."
)


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and set its `run`."""
    parser = subparsers.add_parser(
        "quantize", help=_("what formats cost a trained model: the rise of its loss on held-out data, with its noise"),
        description=_("Rounds the linear and convolutional layers of a trained model to each format and measures the "
        "rise of its held-out loss: the whole model, then single layers, and how well cheap scores order them."),
        epilog=translated(_EPILOG),
    )  # fmt: skip
    parser.add_argument(
        "source", metavar="FILE|DIR|RUN.h5|hf:DIR", help=_("weights, a run, or a folder of transformers")
    )
    parser.add_argument(
        "--task", default="", metavar="RECIPE|CONFIG.toml|FILE.py:F",
        help=_("model and data for the weights; needless where the file names them, as those of train.save_to do"),
    )  # fmt: skip
    add_settings(parser, _("change one value of the task's config"))
    parser.add_argument(
        "--own-code", action="store_true", help=_("run the code of a task of your own that a file names")
    )
    parser.add_argument("--formats", default=",".join(DEFAULT_FORMATS), metavar="F,F",
                        help=_("as those of precgui model; default: %(default)s"))  # fmt: skip
    parser.add_argument(
        "--methods",
        default="rtn",
        metavar="M,M",
        help=_("{methods}; default: rtn, nearest").format(methods=", ".join(METHODS)),
    )
    parser.add_argument(
        "--round", default=",".join(ROUNDED), metavar="R,R", dest="rounded",
        help=_("weights; inputs (and weights); k, v: keys, values of attention; default all"),
    )  # fmt: skip
    _add_data(parser)
    _add_plan(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="MODEL.h5", help=_("keep it; Inspect > Formats shows it"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    add_place_option(parser, _run_there)
    parser.set_defaults(run=run_quantize)


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--singles", type=int, metavar="N",
                        help=_("layers measured alone; default: all up to 64 layers, else 12; 0: none"))  # fmt: skip
    parser.add_argument(
        "--samples", type=int, default=1024, metavar="N", help=_("most held-out samples; default: 1024")
    )
    parser.add_argument("--device", default="auto", help=_("auto, cpu, cuda, ..."))
    parser.add_argument(
        "--text", default="", metavar="FILE|DIR", help=_("with hf:DIR: the text; default: Python's manual")
    )
    parser.add_argument("--length", type=int, default=512, metavar="N", help=_("with hf:DIR: tokens of a sample"))
    parser.add_argument("--batch", type=int, default=8, metavar="N", help=_("with hf:DIR: samples at once"))


def _add_plan(parser: argparse.ArgumentParser) -> None:
    plan = parser.add_argument_group(_("a plan, verified on the half of the held-out samples that did not choose it"))
    plan.add_argument(
        "--budget", default="", metavar="bytes=N|bits=B|loss=X", help=_("a format for each layer within it")
    )
    plan.add_argument(
        "--as",
        default="",
        metavar="TARGET",
        dest="target",
        help=_("who reads it: {targets}").format(targets=", ".join(TARGETS)),
    )
    plan.add_argument("--write", default="", metavar="DIR|FILE.gguf",
                      help=_("write the quantised model, and read it back"))  # fmt: skip
    plan.add_argument("--converted", default="", metavar="FILE.gguf",
                      help=_("with --as gguf: this model as llama.cpp converts it; its header, vocabulary and other "
                      "tensors are kept"))  # fmt: skip
    plan.add_argument("--recipe", default="", metavar="FILE", help=_("write the plan for the library of the target"))
    plan.add_argument(
        "--recipe-adds",
        default="",
        metavar="A,A",
        help=_("with --as vllm --recipe: rotations and learned rounding that llm-compressor runs and precgui does not "
        "measure: {methods}").format(methods=", ".join(RECIPE_ADDS)),
    )  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def order_of(args: argparse.Namespace) -> QuantizeOrder:
    """The request in the words of the command. Raises SentenceError for those that are not known."""
    for name in ("samples", "length", "batch"):
        if getattr(args, name) < 1:
            raise UserError(
                _("--{name} {value}: a number from 1 on is needed").format(name=name, value=getattr(args, name))
            )
    if args.singles is not None and args.singles < 0:
        raise UserError(_("--singles {singles}: a number from 0 on is needed").format(singles=args.singles))
    singles = -1 if args.singles is None else args.singles
    order = QuantizeOrder(
        args.source, args.task, tuple(args.settings), args.own_code, _names(args.formats), _names(args.methods),
        _names(args.rounded), singles, args.samples, args.text, args.length, args.batch, args.device,
        args.budget, args.target, args.write, args.recipe, args.converted,
        _names(args.recipe_adds),
    )  # fmt: skip
    check_order(order)
    return order


def run_quantize(args: argparse.Namespace) -> int:
    """Measure, print and keep. Raises SentenceError for what the user can correct."""
    from precgui.engine.errors import Stopped

    order = order_of(args)
    if args.output is not None:
        if str(args.output) in (order.folder, order.recipe):
            raise UserError(
                _("-o and the files of the plan both name {output}; choose two names").format(output=args.output)
            )
        check_output(args.output)
    shows = not args.json and sys.stderr.isatty()

    def tell(text: str) -> None:
        if shows:
            say(translated(text), file=sys.stderr)

    def row(part: str, values: dict[str, Any]) -> None:
        name = f"{values.get('name', '')} {values['format']}".strip()
        tell(f"{name}: {_rise(values['rise'], values['error'])}")

    try:
        with _interrupts() as stopped, opened(order, tell) as ready:
            document = measure_model(order, ready, row, stopped)
            if args.output is not None:
                keep(args.output, order, ready, document, stopped)
                document["written"].append(str(args.output))
    except Stopped:
        say("precgui: " + _("the measurement was broken off; nothing is kept."), file=sys.stderr)
        return 130
    if args.json:
        print_json(document)
    else:
        print_effects(effects_of(document))
        if document["plan"] is not None:
            print_plan(document)
        for path in document["written"]:
            say(path)
    return 0


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl+C ends the measurement between two batches."""
    broken = threading.Event()
    earlier = signal.signal(signal.SIGINT, lambda *_: broken.set())
    try:
        yield broken.is_set
    finally:
        signal.signal(signal.SIGINT, earlier)


def print_effects(effects: ModelEffects) -> None:
    """Tables of the whole model, of single layers, and of the agreement of scores."""
    say(
        _("held-out loss {loss:.5g} on {samples} samples; +- is the standard error of paired differences").format(
            loss=effects.loss, samples=effects.samples
        )
    )
    right = (L_("Bytes"), L_("Rise of the loss"), TRUTHS[effects.truth])
    whole = table(
        _("All layers in one format"), (L_("Format"), L_("Method"), L_("Rounded"), *right, L_("Remark")), right=right
    )
    for row in effects.whole:
        rise = _rise(row.rise, row.error) if not row.why_not else ""
        distance = "" if row.distance is None else f"{row.distance:.3g}"
        cells = (
            row.format,
            row.method,
            translated(ROUNDED_WORDS[row.rounded]),
            mib(row.nbytes),
            rise,
            distance,
            _remark(row),
        )
        whole.add_row(*map(Text, cells))
    console().print(whole)
    if effects.layers:
        _print_layers(effects)
    for note in effects.document["notes"]:
        say(f"{translated(note)}.")


def _remark(row: WholeRow) -> str:
    if row.why_not:
        return _("not measured: {why}").format(why=translated(row.why_not))
    parts = [_("equal within noise")] if row.within_noise else []
    if row.left_out:
        parts.append(_("{count} layers left as they are: rows of other lengths").format(count=row.left_out))
    return "; ".join(parts)


def _rise(rise: float | None, error: float | None) -> str:
    if rise is None:
        return _("not measured")
    return f"{rise:+.5f}" if error is None else f"{rise:+.5f} +- {error:.5f}"


def _print_layers(effects: ModelEffects) -> None:
    document = effects.document
    formats = list(dict.fromkeys(row.format for row in effects.layers))
    names = list(dict.fromkeys(row.layer for row in effects.layers))
    is_loss = effects.truth == "loss"
    found = {(row.layer, row.format): row.rise if is_loss else row.distance for row in effects.layers}
    say(
        _("One layer alone, {rounded} rounded to nearest: {truth}").format(
            rounded=translated(ROUNDED_WORDS[document["singles_round"]]), truth=translated(TRUTHS[effects.truth])
        )
    )
    listed = table(_("One layer alone"), (L_("Layer"), *formats), right=formats)
    for name in names:
        cells = (found.get((name, fmt)) for fmt in formats)
        listed.add_row(*map(Text, (visible_name(name), *("" if cell is None else f"{cell:.3g}" for cell in cells))))
    console().print(listed)
    agreement = table(_("Agreement of scores"), (L_("Score"), *formats, L_("all")), right=(*formats, "all"))
    columns: list[Mapping[str, Any]] = [*(document["by_format"][fmt] for fmt in formats)]
    whole = {"scores": document["rank_agreement"], "ceiling": effects.ceiling,
             "ceiling_of_loss": document["ceiling_of_loss"]}  # fmt: skip
    for name, words in SCORES.items():
        if any(name in column["scores"] for column in (*columns, whole)):
            agreement.add_row(translated(words), *(_rho(column["scores"].get(name)) for column in (*columns, whole)))
    agreement.add_row(_("half of the data against half"), *(_rho(column["ceiling"]) for column in (*columns, whole)))
    agreement.add_row(_("the same of the loss"), *(_rho(column["ceiling_of_loss"]) for column in (*columns, whole)))
    console().print(agreement)
    say(
        _(
            "Agreement of two orders of the layers: 1 the same, 0 none. A score says nothing of the size of a loss; "
            "more than half of the data reach against the other half, no score is known to reach."
        )
    )


def print_plan(document: Mapping[str, Any]) -> None:
    """The format of each layer, what was measured of the plan, and whether its file is what was measured."""
    measured = document["plan_measured"]
    listed = table(_("Plan"), (L_("Layer"), L_("Format")), right=())
    for name, fmt in document["plan"].items():
        listed.add_row(Text(visible_name(name)), Text(fmt))
    console().print(listed)
    if measured["chosen_by"] is None:
        units = _("{count} held-out units").format(count=measured["units"])
    else:
        units = _("the {count} held-out units that did not choose the plan").format(count=measured["units"])
    text = _("{size}, {bits:.3g} bits a weight, by {method}: the loss rises by {rise} from {loss:.5g}, on {units}")
    if measured["within_noise"]:
        text = _(
            "{size}, {bits:.3g} bits a weight, by {method}: the loss rises by {rise} from {loss:.5g}, equal within "
            "noise, on {units}"
        )
    rise = _rise(measured["rise"], measured["error"])
    values = {"bits": measured["bits"], "method": measured["method"], "loss": measured["loss"]}
    say(text.format(size=mib(measured["bytes"]), rise=rise, units=units, **values))
    if measured["chosen_by"] not in (None, "measured"):
        say(
            _("not all layers were measured alone, so the plan was chosen by a score: {score}").format(
                score=translated(SCORES[measured["chosen_by"]])
            )
        )
    for row in (document["speed"] or {"products": []})["products"]:
        say(
            _("its products take {ratio:.3g} times as long here as in FP32; inputs at once: {count}").format(
                ratio=row["times_as_long"], count=row["inputs"]
            )
        )
    if document["read_back"] == "equal":
        say(
            _("read back by {library}: every number of the layers is the one that was measured").format(
                library=document["read_back_by"]
            )
        )
    elif document["read_back"] == "different":
        say(_("read back, some numbers differ from those that were measured"))


def _rho(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _run_there(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Measure at a place: what is named PLACE:PATH is there, small files are sent, what is written comes home."""
    from precgui.places.models import model_there
    from precgui.places.orders import MOST_SENT_BYTES, sent_file
    from precgui.places.settings import place_called

    place = place_called(args.place)
    homes = [Path(home) for home in (args.output, args.write, args.recipe) if home]
    for home in homes:
        if home.exists():
            raise UserError(_("{home} is there already; choose another name").format(home=home))
    if args.text or args.converted:
        raise UserError(_("--text and --converted name files of one machine; run the command at the place itself"))
    model = model_there(place, args.source, args.task)
    if model.run is not None:
        placed_run(args.place, model.run)
    named = {args.source: model.source, f"--task={args.task}": f"--task={model.task}"}
    named |= {args.task: model.task} if args.task else {}
    for option, home in (("output", args.output), ("write", args.write), ("recipe", args.recipe)):
        if home:
            named |= {str(home): Path(home).name, f"--{option}={home}": f"--{option}={Path(home).name}"}
    rest = [named.get(word, word) for word in without_place(words)]
    files = {path.name: sent_file(path, MOST_SENT_BYTES).content for path in model.files}
    return follow_command(args.place, rest, files, homes, of=model.run_id)
