"""The effect of formats on a trained model, from its files to a document, for the command line and a child process."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precgui import config as configs
from precgui.config import ConfigError, RunConfig, is_own_task
from precgui.errors import SentenceError
from precgui.formats.checkpoints.contents import MOST_CONFIG_BYTES, CheckpointFile, StoredModel, open_checkpoint
from precgui.formats.tensorfile import TensorFileError, metadata_of
from precgui.formats.weight_formats import weight_format
from precgui.model_job import scan_model
from precgui.quantize_order import HUGGING_FACE, QuantizeError, QuantizeOrder, budget_of, check_order
from precgui.runs.models.effects import rise_row
from precgui.runs.models.model_file import file_rows, keep_effects, read_effects, read_model_file
from precgui.safe_open import read_text
from precgui.sanitize import visible_name
from precgui.sentences import L_, Sentence, message_of

if TYPE_CHECKING:
    from precgui.engine.ptq.effects import EffectMeter, LayerEffect, WholeEffect
    from precgui.engine.ptq.held_out import LossChange
    from precgui.engine.ptq.plan import VerifiedPlan
    from precgui.engine.ptq.scale_folds import ScaleFold
    from precgui.engine.ptq.subject import Subject
    from precgui.process.child import StopToken

RUN_SUFFIX = ".h5"
ALL_SINGLES = 64  # layers; of a model with more, `SOME_SINGLES` are measured alone
SOME_SINGLES = 12
_MOST_NAMED = 4  # layers in a note


@dataclass(frozen=True)
class Opened:
    """A model that is ready to be measured, and its files as they are stored."""

    subject: Subject
    checkpoint: StoredModel
    title: str
    task: str


@contextlib.contextmanager
def opened(order: QuantizeOrder, tell: Callable[[str], None]) -> Iterator[Opened]:
    """The model and its task. Weights of a run live in a folder that is gone afterwards. Raises SentenceError."""
    from precgui.engine.ptq.subject import from_config, from_folder

    if order.source.startswith(HUGGING_FACE):
        folder = Path(order.source.removeprefix(HUGGING_FACE)).expanduser()
        subject = from_folder(folder, order.text, order.length, order.batch_size, order.device)
        yield Opened(subject, open_checkpoint(folder), str(folder), L_("next token of a text"))
        return
    path = Path(order.source).expanduser()
    if not path.exists():
        raise QuantizeError(
            Sentence("there is no {path}; give a file or a folder with a model, or a run file", path=path)
        )
    with tempfile.TemporaryDirectory() as scratch:
        weights, config = path, None
        if path.suffix == RUN_SUFFIX:
            weights, config = _of_run(path, Path(scratch) / "weights.safetensors")
        config = _config(order, path, weights, config)
        checkpoint = replace(open_checkpoint(weights), source=path)
        if weights != path:
            checkpoint = replace(checkpoint, files=(CheckpointFile(path.name, checkpoint.nbytes),))
        yield Opened(from_config(config, weights, tell), checkpoint, str(path), config.task)


def _of_run(path: Path, scratch: Path) -> tuple[Path, RunConfig]:
    """Weights and config of a run file."""
    from precgui.engine.export.weights import write_run_weights
    from precgui.runs.file.reader import open_run
    from precgui.runs.recorded_facts import weights_sources

    with open_run(path) as run:
        places = {name: Path(where) if where else None for name, where in weights_sources(run).items()}
        written = write_run_weights(places["checkpoint"], places["saved"], run.run_id, scratch, "last")
        if written[0] != scratch:
            raise QuantizeError(
                Sentence("{path} kept adapters, no whole model; merge them and give the file of the weights", path=path)
            )
        return scratch, run.config


def _config(order: QuantizeOrder, path: Path, weights: Path, config: RunConfig | None) -> RunConfig:
    """The config of the task: as the caller names it, or as the files do, which may name code only with consent."""
    if order.task:
        is_function = ":" in order.task and is_own_task(order.task) and not Path(order.task).exists()
        source, settings = (configs.DEFAULT_RECIPE, [f"task={order.task}"]) if is_function else (order.task, [])
        chosen = configs.load(source, [*settings, *order.settings])
    else:
        chosen = configs.change(config or _told_config(path, weights), order.settings)
        if is_own_task(chosen.task) and not order.own_code:
            raise QuantizeError(
                Sentence("{path} was trained on a task of your own; --own-code runs the code that it names", path=path)
            )
    return configs.change(chosen, [f"device={order.device}"]) if order.device != "auto" else chosen


def _told_config(path: Path, weights: Path) -> RunConfig:
    """The config that `train.save_to` wrote into the header of a file of weights."""
    try:
        text = metadata_of(weights).get("config", "") if weights.suffix == ".safetensors" else ""
        if text:
            return configs.build(json.loads(text))
    except (TensorFileError, ValueError, RecursionError, ConfigError) as error:
        raise QuantizeError(
            Sentence(
                "{path} names a task that cannot be read ({error}); name one with --task",
                path=path,
                error=message_of(error),
            )
        ) from None
    raise QuantizeError(
        Sentence(
            "{path} does not say which data it belongs to; name a recipe, a config or FILE.py:F as --task", path=path
        )
    )


def measure_model(
    order: QuantizeOrder, ready: Opened, on_row: Callable[[str, dict[str, Any]], None],
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:  # fmt: skip
    """Measure what the order asks for; `on_row` gets the part ("whole", "layers") and each row of the document.

    A plan that is asked for is made and written, too. Raises EngineError, and Stopped when `stopped()` became true.
    """
    from precgui.engine.ptq.effects import SCORES
    from precgui.engine.ptq.model_files import left_as_they_are

    formats = [weight_format(name) for name in dict.fromkeys(order.formats)]
    meter = ready.subject.meter(formats, order.samples, stopped)
    held = meter.held_out
    left = left_as_they_are(order.target, held.model, meter.layers) if order.folder or order.recipe else {}
    document: dict[str, Any] = {
        "model": ready.title, "task": ready.task, "samples": held.samples, "units": held.units, "truth": held.truth,
        "baseline": {"loss": held.loss, "bytes": meter.plain_bytes}, "formats": [fmt.name for fmt in formats],
        "whole": [], "layers": [], "rank_agreement": {}, "ceiling": None, "by_format": {}, "notes": [], "speed": None,
        "calibration": meter.inputs_seen(), "plan": None, "plan_measured": None, "written": [], "read_back": None,
    }  # fmt: skip
    for whole in meter.whole(order.methods, order.rounded):  # type: ignore[arg-type]
        document["whole"].append(_whole_row(whole, held.units))
        on_row("whole", document["whole"][-1])
    names = _measured_alone(order, meter)
    effects: list[LayerEffect] = []
    if names:
        inputs = order.rounds_inputs
        for each in meter.singles(names, inputs=inputs):
            effects.append(each)
            document["layers"].append(_layer_row(each, held.units))
            on_row("layers", document["layers"][-1])
        document |= agreement_of(effects, held.truth, SCORES) | {"singles_round": "inputs" if inputs else "weights"}
        if len(names) < (count := len(meter.layers)):
            document["notes"].append(
                Sentence("{count} of {layers} layers were measured alone", count=len(names), layers=count)
            )
    if order.budget or order.folder or order.recipe:
        document |= planned(order, ready, meter, effects, document["notes"], left)
    return document


def _measured_alone(order: QuantizeOrder, meter: EffectMeter) -> list[str]:
    """The layers that are measured alone."""
    usual = ALL_SINGLES if len(meter.layers) <= ALL_SINGLES else SOME_SINGLES
    most = order.singles if order.singles >= 0 else usual
    return meter.chosen_layers(most) if most else []


def _whole_row(effect: WholeEffect, units: int) -> dict[str, Any]:
    row = {"format": effect.format, "method": effect.method, "round": effect.rounded, "bytes": effect.nbytes,
           "left_out": list(effect.left_out), "why_not": effect.why_not}  # fmt: skip
    return row | _change_row(effect.change, units)


def _layer_row(effect: LayerEffect, units: int) -> dict[str, Any]:
    scores = {name: value if math.isfinite(value) else None for name, value in effect.scores.items()}
    row = {"name": effect.layer, "format": effect.format, "bytes": effect.nbytes, "scores": scores}
    return row | _change_row(effect.change, units)


def _change_row(change: LossChange | None, units: int) -> dict[str, Any]:
    if change is None:
        return {"rise": None, "error": None, "interval": None, "within_noise": None, "distance": None}
    distance = change.mean_distance
    return rise_row(change.rise, change.error, units) | {"distance": distance if math.isfinite(distance) else None}


def agreement_of(effects: Sequence[LayerEffect], truth: str, scores: Sequence[str]) -> dict[str, Any]:
    """How well each score orders the layers as their measured distance does, beside half of the data against half.

    Where outputs cannot be compared, the rise of the loss is the truth.
    """
    formats = list(dict.fromkeys(each.format for each in effects))
    by_format = {name: _agreement([each for each in effects if each.format == name], truth, scores) for name in formats}
    whole = _agreement(effects, truth, scores)
    return {"rank_agreement": whole["scores"], "ceiling": whole["ceiling"], "ceiling_of_loss": whole["ceiling_of_loss"],
            "by_format": by_format}  # fmt: skip


def _agreement(effects: Sequence[LayerEffect], truth: str, names: Sequence[str]) -> dict[str, Any]:
    from precgui.engine.ptq.ranks import rank_agreement

    def true(change: LossChange) -> float:
        return change.rise if truth == "loss" else change.mean_distance

    def known(value: float) -> float | None:
        return value if math.isfinite(value) else None

    def halves(of: Callable[[LossChange], float]) -> float | None:
        first, second = ([of(each.change.half(n)) for each in effects] for n in (0, 1))
        return known(rank_agreement(first, second))

    measured = [true(each.change) for each in effects]
    found = {
        name: known(rank_agreement([each.scores.get(name, math.nan) for each in effects], measured)) for name in names
    }
    return {"scores": {name: value for name, value in found.items() if value is not None}, "ceiling": halves(true),
            "ceiling_of_loss": halves(lambda change: change.rise)}  # fmt: skip


def planned(
    order: QuantizeOrder, ready: Opened, meter: EffectMeter, effects: Sequence[LayerEffect], notes: Sequence[str],
    left: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Make a plan of all layers but those `left`, verify it, and write it as the order says.

    Raises EngineError and OSError.
    """
    from precgui.engine.ptq.methods import SCALING
    from precgui.engine.ptq.plan import Planner

    fuses = order.target in ("vllm", "transformers")
    is_written = bool(order.folder or order.recipe)
    places = meter.scale_places(order.target) if is_written and set(order.methods) & set(SCALING) else None
    planner = Planner(
        meter, effects, order.methods, inputs=order.rounds_inputs, fuses=fuses, left_out=left,  # type: ignore[arg-type]
        scored=bool(order.budget), places=places,
    )  # fmt: skip
    if order.budget:
        kind, value = budget_of(order.budget)
        plan = planner.plan(kind, value)  # type: ignore[arg-type]
    else:
        plan = planner.verify(dict.fromkeys(planner.layers, order.formats[0]))
    half = plan.verified
    distance = half.mean_distance if math.isfinite(half.mean_distance) else None
    measured = rise_row(half.rise, half.error, len(half.rises)) | {
        "distance": distance, "bytes": plan.nbytes, "bits": plan.bits, "method": plan.method,
        "chosen_by": plan.score if order.budget else None,
        "units": len(half.rises), "loss": float(meter.held_out.losses[1::2].mean()),
    }  # fmt: skip
    said = [*notes, *left.values(), *([_unscaled_note(plan.unscaled)] if places is not None and plan.unscaled else ())]
    if order.recipe_adds:
        added = ", ".join(order.recipe_adds)
        said.append(Sentence("the recipe adds {methods}, which was not measured here", methods=added))
    folds = places.folds if places is not None else ()
    document = {"plan": dict(plan.formats), "plan_measured": measured, "notes": said, "speed": _speed(meter, plan)}
    return document | _written(order, ready, meter, plan, folds)


def _speed(meter: EffectMeter, plan: VerifiedPlan) -> dict[str, Any] | None:
    """Bytes of the layers of a plan, and how long their products take here, beside FP32; None without linear layers."""
    from precgui.engine.ptq.product_times import product_times

    formats = {name: meter.formats[label] for name, label in plan.formats.items()}
    times = product_times(meter.layers, plan.layers, formats, meter.held_out.stopped)
    rows = [{"inputs": each.inputs, "times_as_long": each.ratio} for each in times]
    plain = sum({id(each): 4 * each.numel() for each in map(meter.weight, plan.formats)}.values())
    return {"bytes": plan.nbytes, "fp32_bytes": plain, "products": rows} if rows else None


def _unscaled_note(layers: Sequence[str]) -> Sentence:
    """That some layers of a plan have no scale of their inputs."""
    named = [visible_name(name) for name in layers[:_MOST_NAMED]]
    return Sentence(
        "rounded to nearest, since no norm or linear layer alone stands before them that could take over a scale of "
        "their inputs: {layers}",
        layers=", ".join([*named, *(["..."] if len(layers) > _MOST_NAMED else [])]),
    )


def _written(
    order: QuantizeOrder, ready: Opened, meter: EffectMeter, plan: VerifiedPlan, folds: Sequence[ScaleFold]
) -> dict[str, Any]:
    """Write the folder and the recipe that are asked for, and read the folder back."""
    from precgui.engine.ptq import model_files, recipes

    formats = {name: meter.formats[label] for name, label in plan.formats.items()}
    written, back, reader = [], None, ""
    if order.recipe:
        ignored = [name for name in meter.layers if name not in formats]
        if order.target == "torchao":
            text = recipes.torchao_recipe(formats, plan.method)
        elif order.target == "gguf":
            text = recipes.llama_quantize_recipe(formats, ignored)
        else:
            text = recipes.llm_compressor_recipe(formats, ignored, plan.method, folds, order.recipe_adds)
        try:
            with Path(order.recipe).expanduser().open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise QuantizeError(
                Sentence("{path} already exists; choose another name or delete it first", path=order.recipe)
            ) from None
        written.append(order.recipe)
    if order.folder:
        base = _own_config(ready.checkpoint.source)
        folder, model = Path(order.folder).expanduser(), meter.held_out.model
        paths, reader = model_files.write_model(
            order.target, folder, model, meter.layers, plan.layers, formats, base, order.converted
        )
        written, back = [*written, *map(str, paths)], "equal" if reader else "different"
    return {"written": written, "read_back": back, "read_back_by": reader or None}


def _own_config(source: Path) -> dict[str, Any]:
    """The config.json of a folder, which the written one keeps; empty where there is none."""
    file = (source if source.is_dir() else source.parent) / "config.json"
    try:
        found = json.loads(read_text(file, MOST_CONFIG_BYTES)) if file.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def keep(
    path: Path, order: QuantizeOrder, ready: Opened, document: Mapping[str, Any], stopped: Callable[[], bool]
) -> None:
    """Keep a document in the file of a model; a new file gets the scan of the same formats, too.

    Raises RunFileError for a file that holds something else, and OSError.
    """
    if not path.exists():
        formats = [weight_format(name) for name in dict.fromkeys(order.formats)]
        scan_model(ready.checkpoint, formats, path, lambda _: None, stopped=stopped)
    keep_effects(path, ready.checkpoint, document)


def check_output(path: Path) -> None:
    """Raises QuantizeError at once, not after the measurement, for a file that is no scan, or that has measurements."""
    if not path.exists():
        return
    if read_model_file(path) is None:
        raise QuantizeError(Sentence("{path} holds something else than a model; choose another name", path=path))
    if read_effects(path) is not None:
        raise QuantizeError(
            Sentence("{path} already holds measurements; choose another name or delete it first", path=path)
        )


def free_output(path: Path, checkpoint: StoredModel) -> Path:
    """The path, or the first with a number before its ends that is free or holds a scan of the same model alone."""
    stem, ends = path.name.partition(".")[0], path.name.partition(".")[2]
    for number in itertools.count(2):
        try:
            scan = read_model_file(path) if path.exists() and read_effects(path) is None else None
        except SentenceError:
            scan = None
        if not path.exists() or (scan is not None and list(scan.files) == file_rows(checkpoint)):
            return path
        path = path.with_name(f"{stem}-{number}.{ends}")
    raise AssertionError("numbers have no end")


def serve(emit: Callable[[Any], None], control: StopToken, *, order: Mapping[str, Any], output: str) -> None:
    """Task of a child process: measures what a QuantizeOrder says and keeps it.

    Emits `{"kind": "told", "message"}`, `{"kind": "row", "part", "row"}` on the way, then `{"kind": "kept", "file",
    "read_back", "read_back_by"}` or `{"kind": "fault", "message"}`. `output` gets a number where it holds another
    model.
    """
    from precgui.engine.errors import Stopped

    def row(part: str, values: dict[str, Any]) -> None:
        emit({"kind": "row", "part": part, "row": values})

    values: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in order.items()}
    asked = QuantizeOrder(**values)
    try:
        check_order(asked)
        with opened(asked, lambda text: emit({"kind": "told", "message": text})) as ready:
            document = measure_model(asked, ready, row, control.stopped)
            kept = free_output(Path(output), ready.checkpoint)
            kept.parent.mkdir(parents=True, exist_ok=True)
            keep(kept, asked, ready, document, control.stopped)
    except Stopped:
        emit({"kind": "fault", "message": L_("The measurement was stopped.")})
    except (SentenceError, OSError, MemoryError) as error:
        emit({"kind": "fault", "message": message_of(error) or L_("The memory is full.")})
    else:
        back = {name: document.get(name) for name in ("read_back", "read_back_by")}
        emit({"kind": "kept", "file": str(kept), **back})
