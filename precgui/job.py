"""One run from config to file in this process: the engine, the writer and the power sampler, joined by their events."""

from __future__ import annotations

import logging
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precgui.checkpoint_files import remove_checkpoints
from precgui.config import ConfigError, RunConfig, build
from precgui.config.refusals import require_startable
from precgui.config.sections import BESIDE_THE_RUN
from precgui.events import Emit, Event, Facts, Incident, PowerRead, RunEnded, RunStarted, Status
from precgui.hardware.environment import environment
from precgui.hardware.power import PowerSampler
from precgui.hardware.readings import Missing, known
from precgui.hardware.step_energy import idle_power
from precgui.hardware.summary import machine_summary
from precgui.runs.broken_off import BrokenOff, broken_off
from precgui.runs.errors import RunFileError
from precgui.runs.file.earlier_part import EarlierPart
from precgui.runs.file.writer import RunWriter
from precgui.runs.held_power_limit import PowerLimitError, held_power_limit, restore_left_limits, why_no_such_limit
from precgui.sentences import L_, Sentence, first_line, message_of, together

if TYPE_CHECKING:
    from precgui.engine.checkpoint.resume import Resumption
    from precgui.process.child import StopToken


class Job:
    """One run. `run` blocks until it has ended; `stop` and `abandon` may be called from other threads."""

    def __init__(
        self, config: RunConfig, path: Path, listeners: Sequence[Emit] = (), run_id: str = "",
        broken: BrokenOff | None = None,
    ) -> None:  # fmt: skip
        """Creates the run file, unless a broken run goes on.

        Raises ConfigError, with all faults at once, for a config that cannot be started, RunFileError when the file
        cannot be written.
        """
        if broken is None:
            require_startable(_placed(config, path), _refusals_of_machine(config))
        self.config, self.path, self._run_id = config, path, run_id or uuid.uuid4().hex
        self._environment = environment(PowerSampler(self._emit, 0.0).sensors())
        self._emit_to_listeners = self._emit_to(listeners)
        self._broken = broken
        self._resumed: Resumption | None = None
        self._writer: RunWriter | None = None
        self._is_retold = False
        self._before_start: list[Event] = []  # of a broken run, whose file stays as it is until it really goes on
        self._earlier_j: dict[str, float] = {}  # by sensor, used before the break
        if broken is None:
            self._writer = self._new_writer(datetime.now(UTC).astimezone().isoformat(timespec="seconds"))
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.ended: RunEnded | None = None
        self.was_refused = False  # by the engine, before the first step, for a fault of the config
        self._ending = self._interrupted = False  # see `interrupt`
        self._step, self._started, self._total_steps = 0, False, 0
        self._start = 0.0
        self._sampler: PowerSampler | None = None

    @classmethod
    def going_on(cls, path: Path, listeners: Sequence[Emit] = (), *, retold: bool = False) -> Job:
        """The job of a run that has ended before its last step; `retold` tells listeners what was before the break.

        Raises RunFileError where it cannot go on.
        """
        broken = broken_off(path)
        job = cls(broken.config, path, listeners, broken.run_id, broken)
        job._is_retold = retold
        return job

    def _new_writer(self, created: str, earlier: EarlierPart | None = None) -> RunWriter:
        return RunWriter(
            self.path,
            self.config,
            run_id=self._run_id,
            created=created,
            machine=machine_summary(),
            environment=self._environment,
            on_incident=self._emit_to_listeners,
            earlier=earlier,
        )

    def run(self) -> RunEnded:
        """Train to the end, whatever happens; what was recorded stays."""
        try:
            with ExitStack() as held:
                self._prepare_power(held)
                self._run_prepared()
        finally:
            self._close()
        assert self.ended is not None
        if self.ended.status == "completed" and not self.fault:
            remove_checkpoints(self.path)
        return self.ended

    def _run_prepared(self) -> None:
        self._start = time.perf_counter()
        if self._broken is not None and self.ended is None:
            self._resumed = self._read_checkpoint(self._broken)
            self._start -= self._resumed.checkpoint.time_s if self._resumed is not None else 0.0
        with PowerSampler(self._emit, self._start) as self._sampler:
            if self.ended is None:
                self._train()

    def _prepare_power(self, held: ExitStack) -> None:
        """Hold the power limit that is asked for, and read the power of the idle devices."""
        for sentence in restore_left_limits():
            logging.getLogger(__name__).warning("%s", sentence)
        asked = self.config.power
        try:
            held.enter_context(_power_limit_of(self.config))
        except PowerLimitError as error:
            self.was_refused = True
            self._fail(message_of(error))
            return
        has_sensor = any(sensor["found"] for sensor in self._environment["power_sensors"])
        if not asked.idle_s or not has_sensor or self._broken is not None:
            return
        try:
            idle = idle_power(asked.idle_s, self._stop.wait)
        except KeyboardInterrupt:
            text = L_("interrupted before the first step, while the power of the idle devices was read")
            self._end("stopped", text)
            return
        self._environment["power"] = {
            "idle_s": asked.idle_s,
            "idle_w": {device: known(watts) for device, watts in idle.items()},
            "idle_unknown": {device: watts.reason for device, watts in idle.items() if isinstance(watts, Missing)},
        }

    def stop(self) -> None:
        """Ask the run to end after the present step."""
        self._stop.set()

    def interrupt(self) -> None:
        """End the run inside its step: raises KeyboardInterrupt in the main thread, for signal handlers.

        While an event is being kept it waits for the end of that, and while the run is being ended it does nothing, so
        that the file is closed well.
        """
        if self._ending:
            return
        if self._lock.locked():
            self._interrupted = True
            return
        self._ending = True
        raise KeyboardInterrupt

    @property
    def fault(self) -> str:
        """Why the file does not hold the whole run, as a sentence; empty when it does."""
        return self._writer.fault() if self._writer is not None else ""

    def abandon(self) -> None:
        """End the record while the training thread is still inside a step. The process must exit next."""
        self._sampler = None  # it may be what does not answer
        text = Sentence("stopped inside step {step}, which did not end in time", step=self._step + 1)
        self._end("stopped", text)
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _train(self) -> None:
        try:  # only where a run really starts
            import torch

            from precgui.engine import device as devices
            from precgui.engine.errors import EngineError
            from precgui.engine.tasks import place_in_task
        except (ImportError, OSError) as error:  # a library of torch's own that is missing is an OSError
            text = Sentence("torch cannot be loaded: {error}; install it again", error=first_line(error))
            self._fail(text, traceback.format_exc())
            return
        try:
            self._train_here(_placed(self._broken.trained_as if self._broken else self.config, self.path))
        except RunFileError as error:  # of a broken run, whose file does not go on
            self.was_refused = True
            self._fail(message_of(error))
        except EngineError as error:
            self.was_refused = not self._started and not error.details
            self._fail(message_of(error), error.details)
        except KeyboardInterrupt:
            self._end("stopped", Sentence("interrupted inside step {step}", step=self._step + 1))
        except (torch.OutOfMemoryError, MemoryError) as error:
            text = Sentence(
                "out of memory {when}: {error}; reduce data.batch_size or model.size, or choose a 16-bit precision",
                when=self._when(),
                error=_memory_fault(error),
            )
            self._fail(text)
        except torch.AcceleratorError as error:
            self._fail(devices.fault_text(error, self._when()), traceback.format_exc())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model raises ends its run, not the process
            text = Sentence(
                "{error} {when}{place}: {reason}",
                error=type(error).__name__,
                when=self._when(),
                place=place_in_task(self.config.task, error),
                reason=first_line(error),
            )
            self._fail(text, traceback.format_exc())

    def _train_here(self, config: RunConfig) -> None:
        """In this process, or in those of its ranks."""
        if config.parallel.strategy == "none":
            from precgui.engine.train import train

            train(config, self._emit, self._stop.is_set, self._run_id, self.path.absolute(), self._resumed)
        else:
            from precgui.engine.parallel.start import train_on_ranks

            train_on_ranks(config, self._emit, self._stop.is_set, self._run_id, self.path.absolute(), self._resumed)

    def _read_checkpoint(self, broken: BrokenOff) -> Resumption | None:
        """The newest checkpoint that can be read; None, with the end of the job, where there is none."""
        from precgui.engine.checkpoint.resume import Resumption
        from precgui.engine.errors import EngineError

        why = ""
        for step, path in broken.checkpoints.items():
            left_out = Sentence("a newer checkpoint was left out: {reason}", reason=why) if why else ""
            sentence = together(broken.sentence(step), left_out, between="; ")
            try:
                return Resumption.read(path, sentence)
            except EngineError as error:
                why = why or message_of(error)
        self.was_refused = True
        self._fail(why)
        return None

    def _go_on(self, step: int, time_s: float) -> None:
        """Let the file of a broken run go on after a step. Raises RunFileError, and leaves it as it is then."""
        assert self._broken is not None
        earlier = EarlierPart.open(self.path, step, time_s)
        try:
            self._earlier_j = earlier.energy_j()
            self._writer = self._new_writer(self._broken.created, earlier)
            for event in earlier.events() if self._is_retold else ():
                self._emit_to_listeners(event)
        finally:
            earlier.close()
        for event in self._before_start:
            self._writer(self._since_the_start(event))
        self._before_start.clear()

    def _since_the_start(self, event: Event) -> Event:
        """A reading of an energy counter with what was used before the break."""
        if isinstance(event, PowerRead) and (before_j := self._earlier_j.get(event.device)):
            return replace(event, energy_j=event.energy_j + before_j)
        return event

    def _emit_all(self, event: Event) -> None:
        if isinstance(event, RunStarted) and self._writer is None and self._resumed is not None:
            self._go_on(self._resumed.checkpoint.step, self._resumed.checkpoint.time_s)
        event = self._since_the_start(event)
        if self._writer is not None:
            self._writer(event)
        else:
            self._before_start.append(event)
        self._emit_to_listeners(event)
        if isinstance(event, RunStarted) and self._broken is not None and self._resumed is not None:
            earlier = self._broken.environment.get("breaks")
            breaks = list(earlier) if isinstance(earlier, list) else []
            breaks.append(self._broken.as_fact(self._resumed.checkpoint.step))
            self._emit_all(Facts(event.time_s, {"breaks": breaks}))

    def _when(self) -> str:
        if not self._started:
            return L_("before the first step")
        if self._step == self._total_steps:
            return L_("after the last step")
        return Sentence("at step {step}", step=self._step + 1)

    def _fail(self, message: str, details: str = "") -> None:
        self._emit(Incident(self._now(), self._step, "failure", "error", message))
        self._end("failed", message, details)

    def _end(self, status: Status, message: str, details: str = "") -> None:
        self._emit(RunEnded(self._now(), status, message, details))

    def _emit(self, event: Event) -> None:
        """Hand an event to the writer and the listeners. Nothing follows the end; the last energy comes before it."""
        if isinstance(event, RunEnded):
            self._ending = True
            if self._sampler is not None:
                self._sampler.read_now()
            if self._writer is not None:
                self._writer.flush()
            if event.status != "failed" and (fault := self.fault):
                event = replace(event, status="failed", message=fault)
        with self._lock:
            if self.ended is not None:
                return
            if isinstance(event, Incident) and event.step < 0:  # a sensor knows no steps
                event = replace(event, step=self._step)
            self._step = getattr(event, "step", self._step)
            if isinstance(event, RunStarted):  # a listener in another process learns of the environment here
                event = replace(event, engine={**self._environment, **event.engine})
                self._started, self._total_steps = True, event.total_steps
            self._emit_all(event)
            if isinstance(event, RunEnded):
                self.ended = event
        if self._interrupted and not self._ending and threading.current_thread() is threading.main_thread():
            self._ending = True
            raise KeyboardInterrupt

    @staticmethod
    def _emit_to(targets: Sequence[Emit]) -> Emit:
        def emit(event: Event) -> None:
            for target in targets:
                target(event)

        return emit

    def _now(self) -> float:
        return time.perf_counter() - self._start


def _memory_fault(error: BaseException) -> str:
    """The reason of an error for want of memory: a sentence of the engine, or the first line of torch."""
    message = message_of(error)
    return message if isinstance(message, Sentence) else first_line(error)


def _refusals_of_machine(config: RunConfig) -> dict[str, str]:
    """A sentence for each setting that this machine refuses, by its path, as far as is known without torch."""
    watts = config.power.limit_w
    return {"power.limit_w": why} if watts is not None and (why := why_no_such_limit(watts)) else {}


def _power_limit_of(config: RunConfig) -> AbstractContextManager[None]:
    """The power limit that a config asks for, held on the GPU that it trains on. Raises PowerLimitError."""
    watts = config.power.limit_w
    if watts is None:
        return nullcontext()
    from precgui.engine import device as devices
    from precgui.engine.errors import EngineError
    from precgui.engine.torch_facts import cuda_uuid

    try:
        device = devices.choose(config.device)
    except EngineError as error:
        raise PowerLimitError(message_of(error)) from None
    uuid = cuda_uuid(device)
    if not uuid:
        raise PowerLimitError(
            Sentence(
                "power.limit_w = {watts:g}: {device} has no power limit that can be set; leave it empty",
                watts=watts,
                device=devices.name(device),
            )
        )
    return held_power_limit(uuid, watts)


def serve(
    emit: Emit, control: StopToken, *, config: Mapping[str, Any], path: str, run_id: str, goes_on: bool = False
) -> None:
    """One run as the task of a child process (see `precgui.process.child`); `goes_on` takes a broken one up."""
    try:
        job = (
            Job.going_on(Path(path), [emit], retold=True) if goes_on else Job(build(config), Path(path), [emit], run_id)
        )
    except (RunFileError, ConfigError) as error:
        emit(RunEnded(0.0, "failed", message_of(error)))
        return
    control.on_stop(job.stop)
    control.on_stuck(job.abandon)
    job.run()


def follow(config: RunConfig, stopped: Callable[[], bool], broken: Path | None = None) -> str:
    """Train as a rank that keeps no record, of several that torchrun has started. Returns why it failed, or ''.

    `broken` is the file of a run that goes on. Raises RunFileError where it cannot.
    """
    from precgui.engine.checkpoint.resume import Resumption
    from precgui.engine.errors import EngineError
    from precgui.engine.parallel.allocation import allocated_rank
    from precgui.engine.parallel.error_files import failure_of
    from precgui.engine.parallel.start import train_allocated

    resumed = None
    try:
        if broken is not None:
            newest = next(iter(broken_off(broken).checkpoints.values()))
            resumed = Resumption.read(newest)
        train_allocated(config, lambda event: None, stopped, resumed=resumed)
    except (EngineError, MemoryError) as error:
        return message_of(error)
    except RunFileError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model raises ends its run in a sentence
        failure = failure_of(allocated_rank(), error)
        return f"{failure.message}\n{failure.details}".rstrip()
    return ""


def _placed(config: RunConfig, path: Path) -> RunConfig:
    """The config with `auto` in `record.snapshot_to` and in each `save_to` as the path beside the run file."""
    if config.record.snapshot_to == BESIDE_THE_RUN:
        record = config.record.model_copy(update={"snapshot_to": str(path.absolute())})
        config = config.model_copy(update={"record": record})
    if config.train.save_to == BESIDE_THE_RUN:
        suffix = ".safetensors" if config.adapter.kind == "none" else ".adapter"
        train = config.train.model_copy(update={"save_to": str(path.absolute().with_suffix(suffix))})
        config = config.model_copy(update={"train": train})
    if config.qat.save_to != BESIDE_THE_RUN:
        return config
    companion = path.absolute().with_suffix(f".{config.precision.partition('-')[0]}.pt")
    return config.model_copy(update={"qat": config.qat.model_copy(update={"save_to": str(companion)})})
