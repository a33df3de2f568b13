"""Parts of a run made again from its file: a step beside FP64, its layers in several precisions, branches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precgui.config import RunConfig
from precgui.errors import SentenceError
from precgui.runs.anatomy import ANATOMIES, StepAnatomy
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.layer_errors import LAYERS, LayersReplay
from precgui.runs.replays import REPLAYS, StepReplay, snapshot_path
from precgui.runs.twins import TWINS, TwinResult, distance_band, twin_result
from precgui.sentences import L_, Sentence, filled, message_of

if TYPE_CHECKING:
    from precgui.process.child import StopToken

_AS_RECORDED = L_(
    "the step was made from its snapshot, without training; its loss is {loss:.9g}, as recorded, to the last bit"
)
_NOT_AS_RECORDED = L_(
    "the step was made from its snapshot, without training; its loss is {loss:.9g}, recorded {recorded:.9g}: other "
    "hardware, kernels or random draws"
)
_STOPPED = L_("stopped before the step was made again")


def replayed(
    run: Path,
    config: RunConfig,
    losses: Sequence[float],
    step: int,
    stopped: Callable[[], bool],
    progress: Callable[[int], None] = lambda step: None,
) -> StepReplay:
    """A step of a run with FP64 beside it, from its snapshot where there is one, else trained again up to it.

    `losses` are the recorded ones; `progress` is called before each step trained. Writes the anatomy of the step
    beside the run. Raises EngineError and RunFileError.
    """
    from precgui.engine.shadow.anatomy import anatomy
    from precgui.engine.shadow.of_run import shadow_of_run, shadow_of_snapshot

    snapshot = snapshot_path(run, step)
    kept = snapshot.exists()
    repeated = shadow_of_snapshot(config, snapshot, step) if kept else shadow_of_run(config, step, stopped, progress)
    shadow = repeated.shadow
    shadow.measure_largest()
    parts = anatomy(shadow.step, repeated.scale)
    ANATOMIES.keep(run, StepAnatomy.model_validate({"step": step, "precision": config.precision, **parts}))
    document = shadow.to_json()
    if kept:
        compared = _comparison_of_step(losses, shadow.loss, step)
    else:
        compared = _comparison(losses, repeated.losses, shadow.loss, step)
    document["notes"] = [*document["notes"], compared]
    return StepReplay(step=step, **document)


def serve_replay(emit: Callable[[Any], None], control: StopToken, *, path: str, step: int) -> None:
    """Task of a child process: replays a step of the run file at `path` and keeps the result beside it.

    Emits `{"kind": "progress", "text"}`, then `{"kind": "kept", "verdict"}` or `{"kind": "fault", "message"}`.
    """
    from precgui.engine.errors import EngineError, Stopped

    progress = _told(emit, step, L_("making the step with FP64 beside it"))
    try:
        with open_run(Path(path)) as saved:
            losses = saved.series("loss")[1].tolist()
            replay = replayed(Path(path), saved.config, losses, step, control.stopped, progress)
        REPLAYS.keep(Path(path), replay)
    except (EngineError, MemoryError, RunFileError, Stopped) as error:
        emit({"kind": "fault", "message": message_of(error) or _STOPPED})
    else:
        emit({"kind": "kept", "verdict": replay.verdict})


def serve_layers(
    emit: Callable[[Any], None], control: StopToken, *, path: str, step: int, precisions: Sequence[str]
) -> None:
    """Task of a child process: compares the layers of a step in `precisions` with FP64 and keeps the result.

    Emits as `serve_replay`, `kept` without a verdict.
    """
    from precgui.engine.errors import EngineError, Stopped
    from precgui.engine.shadow.layers import layer_errors_of_run

    then = Sentence("running its batch in FP64 and in {precisions}", precisions=", ".join(precisions))
    run, progress = Path(path), _told(emit, step, then)
    try:
        with open_run(run) as saved:
            config = saved.config
        snapshot = snapshot_path(run, step)
        kept = snapshot if snapshot.exists() else None
        compared = layer_errors_of_run(config, step, kept, precisions, control.stopped, progress)
        LAYERS.keep(run, LayersReplay.model_validate(compared.to_json()))
    except (EngineError, MemoryError, RunFileError, Stopped) as error:
        emit({"kind": "fault", "message": message_of(error) or _STOPPED})
    else:
        emit({"kind": "kept"})


def _told(emit: Callable[[Any], None], last: int, then: str) -> Callable[[int], None]:
    """Emits how far a training up to a step is, once for each per cent; `then` says what is done at that step."""

    def progress(step: int) -> None:
        if step == last:
            emit({"kind": "progress", "text": then})
        elif step == 1 or step * 100 // last > (step - 1) * 100 // last:
            text = Sentence("training again: step {step} of {last}", step=step, last=last)
            emit({"kind": "progress", "text": text})

    return progress


def branched(
    config: RunConfig, precision: str, plan: tuple[int, int, int | None], twins: int, stopped: Callable[[], bool],
    progress: Callable[[int, int], None],
) -> TwinResult:  # fmt: skip
    """Branches of a run of `config` in a precision beside FP32 and `twins` rounding twins, judged.

    `plan`: branch points, steps of each branch, steps before the first one or None for a fifth of the run. Raises
    EngineError.
    """
    from precgui.engine.twins.arms import BranchPlan, TwinArm, rounding_twin
    from precgui.engine.twins.branches import run_branches

    names = [f"twin {number}" for number in range(twins)]
    arms = [TwinArm("low", precision), *(rounding_twin(name, config.seed + place) for place, name in enumerate(names))]
    record = run_branches(config, arms, BranchPlan(*plan), stopped, progress)
    low, others = record.arms["low"], [record.arms[name] for name in names]
    points = [
        {"step": step, "before": before, "reference": after, "low": held_out if math.isfinite(held_out) else None,
         "twins": [twin.held_out[place] for twin in others]}
        for place, (step, before, after, held_out) in enumerate(
            zip(record.steps, record.before, record.after, low.held_out, strict=True)
        )
    ]  # fmt: skip

    def tensor(place: int) -> tuple[list[list[float]], list[list[float]]]:
        def pick(branches: list[list[list[float]]]) -> list[list[float]]:
            return [[distances[place] for distances in steps] for steps in branches]

        return pick(low.tensor_distances), [row for twin in others for row in pick(twin.tensor_distances)]

    loss = distance_band(L_("the training loss"), low.loss_distances, [r for t in others for r in t.loss_distances])
    tensors = [distance_band(name, *tensor(place)) for place, name in enumerate(record.tensors)]
    return twin_result(
        precision, plan[1], points, loss, tensors, samples=record.samples, skipped=low.skipped, notes=record.notes
    )


def serve_twin(
    emit: Callable[[Any], None], control: StopToken, *, path: str, precision: str, branches: int, steps: int
) -> None:
    """Task of a child process: branches of the config of the run file at `path`; keeps the result beside it.

    Emits `{"kind": "progress", "text"}`, then `{"kind": "kept", "verdict"}` or `{"kind": "fault", "message"}`.
    """
    from precgui.engine.errors import Stopped

    def progress(done: int, count: int) -> None:
        emit({"kind": "progress", "text": Sentence("{done} of {count} branches", done=done, count=count)})

    try:
        with open_run(Path(path)) as saved:
            config = saved.config
        result = branched(config, precision, (branches, steps, None), 1, control.stopped, progress)
        TWINS.write(TWINS.path(Path(path), precision), result)
    except (SentenceError, MemoryError, Stopped) as error:
        emit({"kind": "fault", "message": message_of(error) or L_("stopped before its last branch")})
    else:
        emit({"kind": "kept", "verdict": result.verdict})


def _comparison_of_step(recorded: Sequence[float], loss: float, step: int) -> str:
    """Whether a step from a snapshot is that of the run."""
    was = float(recorded[step - 1]) if step <= len(recorded) else math.nan
    same = loss == was or (math.isnan(loss) and math.isnan(was))
    sentence = _AS_RECORDED if same else _NOT_AS_RECORDED
    return filled(sentence, loss=loss, recorded=was)


def _comparison(recorded: Sequence[float], repeated: Sequence[float], loss: float, step: int) -> str:
    """Whether the repeated steps are those of the run."""
    before = [float(value) for value in recorded[: step - 1]]
    same = len(before) == len(repeated) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(before, repeated, strict=True)
    )
    if same:
        was = float(recorded[step - 1]) if step <= len(recorded) else math.nan
        return Sentence(
            "the steps before have the recorded losses to the last bit; this step has {loss:.9g}, recorded "
            "{recorded:.9g}",
            loss=loss,
            recorded=was,
        )
    gap = max((abs(a - b) for a, b in zip(before, repeated, strict=False)), default=math.nan)
    return Sentence(
        "the repeated steps are not those of the recorded run (losses differ by up to {gap:.2g}): other hardware or "
        "kernels; all of this holds for the repeated step",
        gap=gap,
    )
