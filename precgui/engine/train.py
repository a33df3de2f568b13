"""One training run: config in, events out. Knows no window, no file and no particular precision."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from precgui.config import RunConfig
from precgui.engine import backend_flags, execution
from precgui.engine import device as devices
from precgui.engine.adapters.base import prepare_base
from precgui.engine.adapters.hook import Adapters
from precgui.engine.checkpoint.hook import Checkpoints
from precgui.engine.checkpoint.resume import Resumption
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.hook import LoopHook
from precgui.engine.hooks.averaging import Averaging
from precgui.engine.hooks.early_stopping import EarlyStopping
from precgui.engine.hooks.first_census import FirstStepCensus
from precgui.engine.hooks.fp32_loss import Fp32Loss
from precgui.engine.hooks.memory_peak import MemoryPeak
from precgui.engine.hooks.non_finite import NonFiniteReporter
from precgui.engine.hooks.precision_schedule import PrecisionSchedule
from precgui.engine.hooks.saved_weights import SavedWeights
from precgui.engine.hooks.telemetry import TelemetryHook
from precgui.engine.journal import Journal
from precgui.engine.loop import Loop
from precgui.engine.pruning.hook import Pruning
from precgui.engine.run_parts import RunParts
from precgui.engine.setup import build_run
from precgui.engine.snapshot.hook import Snapshots
from precgui.engine.strategy import Strategy
from precgui.events import Emit, RunEnded
from precgui.sentences import L_

# The features of a run, in the order in which they are called. MemoryPeak follows those that let go, at the start of a
# step, of what they kept of the one before; EarlyStopping decides whether the run goes on, and what then is the state
# of the run Checkpoints keeps.
HOOKS: tuple[type[LoopHook], ...] = (
    FirstStepCensus, TelemetryHook, Snapshots, Averaging, MemoryPeak, Fp32Loss, NonFiniteReporter, PrecisionSchedule,
    Pruning, Adapters, SavedWeights, EarlyStopping, Checkpoints,
)  # fmt: skip


def train(
    config: RunConfig, emit: Emit, stopped: Callable[[], bool], run_id: str = "", run_file: Path | None = None,
    resumed: Resumption | None = None,
) -> None:  # fmt: skip
    """Train as `config` says, emitting events from RunStarted to RunEnded; ends early once `stopped()` is true.

    Event times are seconds since the call. `run_id` is that of the run file, for files that are written beside it,
    and `run_file` its path, beside which checkpoints are kept; without it there are none. `resumed` goes on from one.
    Raises EngineError for faults that the user can correct (a device that is not there), MemoryError when a batch does
    not fit, and lets errors of the model through; in all cases no RunEnded has been emitted. torch's process-wide
    switches are afterwards as they were before.
    """
    start_s = time.perf_counter() - (resumed.checkpoint.time_s if resumed is not None else 0.0)
    journal = Journal(emit, start_s, run_id, run_file)
    with backend_flags.restored():
        try:
            make_loop(config, journal, stopped, resumed=resumed).train()
        except Stopped:
            journal.emit(RunEnded(journal.now(), "stopped", L_("stopped before the first step")))
        except RuntimeError as error:
            if devices.is_out_of_memory(error):
                raise MemoryError(devices.out_of_memory_text(error)) from error
            if reported := execution.switch_to_blame(error, config.train):
                raise EngineError(reported) from error
            raise


def make_loop(
    config: RunConfig, journal: Journal, stopped: Callable[[], bool], strategy: Strategy | None = None,
    hooks: Sequence[type[LoopHook]] | None = None, resumed: Resumption | None = None,
) -> Loop:  # fmt: skip
    """Build a run and its loop, with all hooks unless others are given.

    Raises EngineError for faults that the user can correct, Stopped when `stopped()` became true meanwhile.
    """

    def tell(message: str) -> None:
        """Emit a sentence about a long wait before the first step."""
        journal.note(0, message)
        if stopped():
            raise Stopped

    strategy = strategy or Strategy()
    with strategy.building(config):
        parts = build_run(config, tell, strategy.shard, lambda model: prepare_base(model, config, tell, stopped))
    return Loop(config, parts, journal, stopped, HOOKS if hooks is None else hooks, strategy, resumed)


def train_quietly(config: RunConfig, stopped: Callable[[], bool]) -> RunParts:
    """Train without a record and return the parts of the run, with the trained model.

    Raises EngineError where the config cannot be trained, Stopped when `stopped()` became true before the end.
    """
    with backend_flags.restored():
        loop = make_loop(unrecorded(config), Journal(lambda event: None), stopped)
        loop.train()
    if loop.stopped():
        raise Stopped
    return loop.run.parts


def unrecorded(config: RunConfig) -> RunConfig:
    """The config of a run that leaves no file."""
    record = config.record.model_copy(update={"tensors": False, "snapshot_to": ""})
    qat = config.qat.model_copy(update={"save_to": ""})
    train = config.train.model_copy(update={"save_to": "", "checkpoint_every": "", "cuda_graph": False})
    return config.model_copy(update={"record": record, "qat": qat, "train": train})
