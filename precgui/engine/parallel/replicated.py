"""The strategy of ranks that keep the whole model each: the same steps as alone, each on a slice of the batch."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from precgui.config import RunConfig
from precgui.config.names import DOWNLOADED
from precgui.config.parallel import POWERSGD
from precgui.engine import device as devices
from precgui.engine.errors import EngineError
from precgui.engine.extended_arithmetic import exact_sum
from precgui.engine.hook import TrainingRun
from precgui.engine.journal import Journal
from precgui.engine.parallel.agreement import batches_digest, data_identity, require_same
from precgui.engine.parallel.group import RankGroup, slice_of
from precgui.engine.parallel.hooks import GradientTraffic, make_hook
from precgui.engine.strategy import Slice, Strategy
from precgui.engine.tasks.base import Batch
from precgui.engine.torch_private import BatchNormNd
from precgui.events import Emit, Event, Incident, RankStep, StepDone
from precgui.sentences import L_, Sentence, filled

DEFAULT_BUCKET_MB = 25.0  # of DDP
_MIB = 2.0**20
_MOST_TEXTS = 20  # of a rank in a step
_UNUSED = "Expected to have finished reduction in the prior iteration"


_COUNTERS = Path("/proc/self/net/dev")
_SENT = 8  # the ninth number of a line (proc_pid_net(5)); the first one is of bytes received


def interface_name() -> str:
    """The interface that gloo was told to use; '' where it chooses by itself."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]


def bytes_sent(interface: str) -> float:
    """Bytes sent by all processes through the interface since the system started; NaN where that cannot be read."""
    try:
        lines = _COUNTERS.read_text(encoding="ascii").splitlines()
    except OSError:
        return math.nan
    for line in lines:
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            return float(numbers.split()[_SENT])
    return math.nan


class Replicated(Strategy):
    """Replicas (DDP): each rank has the whole model and reduces its gradients with all others.

    Rank r takes its slice of each batch; its loss counts by its share of the samples, so that the mean of the reduced
    gradients is that of the whole batch. After backward the ranks exchange a few numbers: parts of the loss, times,
    who wants to stop. So all of them take the same decisions, and the first rank emits the events of the run.
    """

    shared = L_(
        "{count} processes share each batch, each with the whole model; the other settings are those of one process"
    )
    may_read_later = False

    def __init__(self, config: RunConfig, group: RankGroup, asked_to_stop: Callable[[], bool]) -> None:
        self.config, self.group, self._asked = of_rank(config, group), group, asked_to_stop
        self.is_first = group.rank == 0
        self._agreed_to_stop = False
        self._pending: list[Incident] = []  # of this rank, for the first one
        self._own_loss = math.nan
        self._data_compared = False
        self.traffic = GradientTraffic()

    def stopped(self) -> bool:
        """Whether the ranks have agreed to stop."""
        return self._agreed_to_stop

    def journal(self, emit: Emit, start_s: float | None, run_id: str, run_file: Path | None = None) -> Journal:
        """The journal of this rank: the first one emits, the others keep what it cannot know."""
        return Journal(emit if self.is_first else self._keep, start_s, run_id, run_file)

    @contextlib.contextmanager
    def building(self, config: RunConfig) -> Iterator[None]:
        """Where data is downloaded, or a base trained and kept, the first rank builds before the others."""
        keeps_base = config.adapter.kind != "none" and not config.base.weights
        is_alone = keeps_base or (config.task in DOWNLOADED and config.data.download)
        with self.group.first_before_others() if is_alone else contextlib.nullcontext():
            yield

    def join(self, run: TrainingRun) -> None:
        run.group = self.group
        self.run, self.model, self.device = run, run.parts.model, run.parts.device
        require_same(self.group, "data", data_identity(run.parts.task.facts))
        torch.manual_seed(self.config.seed + self.group.rank)  # dropout differs between slices
        self.network = self._trained_network()
        self._interface = interface_name()
        self._interface_bytes = bytes_sent(self._interface)
        self._note_batch_norm()

    def _trained_network(self) -> Callable[[Any], Any]:
        """The function that a training step calls with its inputs."""
        self._replica = self._replicated()
        return self._replica.forward  # its call would give modules other names

    def _replicated(self) -> DistributedDataParallel:
        """The model, wrapped so that backward reduces the gradients. Raises EngineError."""
        parallel, trained = self.config.parallel, [p for p in self.model.parameters() if p.requires_grad]
        size_mb = sum(p.nbytes for p in trained) / _MIB
        bucket_mb = parallel.bucket_mb or DEFAULT_BUCKET_MB
        if POWERSGD.fullmatch(parallel.gradient_format) and self.device.type == "cpu" and size_mb > bucket_mb:
            if parallel.bucket_mb is not None:
                raise EngineError(
                    Sentence(
                        "parallel.gradient_format = {gradient_format} works on gloo with one bucket only, but the "
                        "gradients are {size_mb:.1f} MiB; leave parallel.bucket_mb empty or set it to {least_mb}",
                        gradient_format=parallel.gradient_format,
                        size_mb=size_mb,
                        least_mb=math.ceil(size_mb),
                    )
                )
            bucket_mb = math.ceil(size_mb)
        replica = DistributedDataParallel(
            self.model,
            device_ids=None if self.device.type == "cpu" else [self.device],
            bucket_cap_mb=bucket_mb,
        )
        hook = make_hook(parallel, self.traffic, lambda: self.run.parts.precision.scale)
        replica.register_comm_hook(None, lambda _, bucket: hook(bucket))  # DDP takes no annotations that are texts
        return replica

    def _note_batch_norm(self) -> None:
        if any(isinstance(module, BatchNormNd) for module in self.model.modules()) and self.group.world > 1:
            self.run.parts.precision.notes.append(
                L_(
                    "batch norm sees the slice of each rank instead of the whole batch, so the losses are not those "
                    "of one process"
                )
            )

    def begin_run(self) -> None:
        self.run.journal.note(0, filled(self.shared, count=self.group.world))

    def begin_step(self, step: int) -> None:
        self.traffic.begin(measured=self._is_measured(step))
        self._cpu_begin = time.process_time()

    def _is_measured(self, step: int) -> bool:
        """Whether the reduced gradient of a step is compared with its FP32 sum."""
        every = self.config.parallel.error_every
        return bool(every) and (step - 1) % every == 0

    def slices(self, batches: Sequence[Batch]) -> Iterator[Slice]:
        if not self._data_compared:
            require_same(self.group, "batch", {"data": batches_digest(batches)})
            self._data_compared = True
        samples = sum(len(targets) for _, targets in batches)
        for place, batch in enumerate(batches):
            part, share = slice_of(batch, self.group.rank, self.group.world)
            yield part, share * len(batch[1]) / samples, self._reducing(last=place == len(batches) - 1)
        if self.device.type == "cpu":
            self.traffic.backward_ended()
        else:
            self.traffic.wait_s = math.nan  # not measured: a collective of a GPU returns before its work is done

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss times the number of ranks, since the gradients are reduced to their mean."""
        return loss * self.group.world

    @contextlib.contextmanager
    def _reducing(self, *, last: bool) -> Iterator[None]:
        """Gradients are reduced once a step, with the last of its batches."""
        try:
            with contextlib.nullcontext() if last else self._replica.no_sync():
                yield
        except RuntimeError as error:
            if _UNUSED in str(error):
                raise EngineError(
                    L_(
                        "some parameters of the model got no gradient in the last step, for which DDP waits; freeze "
                        "them or set parallel.strategy = none"
                    )
                ) from error
            raise

    def reduce(self, loss: float, step_s: float) -> float:
        """Exchange the numbers of the step; returns the loss of the whole batch."""
        self._own_loss = loss
        traffic, sent = self.traffic, bytes_sent(self._interface)
        through_interface = math.nan if traffic.measured else sent - self._interface_bytes
        self._interface_bytes = sent
        cpu_s = time.process_time() - self._cpu_begin
        mine = (step_s, traffic.wait_s, cpu_s, self._memory_bytes(), traffic.sent_bytes, through_interface)
        texts = self._left_texts()
        wanted = float(self.run.wants_checkpoint)
        rows = self.group.exchange([loss, float(self._asked()), float(texts), *mine, traffic.error, wanted])
        self.run.wants_checkpoint = bool(rows[0][-1])
        self._agreed_to_stop = any(row[1] for row in rows)
        if self.is_first:
            step, now = self.run.step, self.run.journal.now()
            for rank, row in enumerate(rows):
                self.run.journal.emit(RankStep(step, now, rank, *row[3:-1]))
                if row[2]:
                    self._emit_texts_of(rank, step)
        return exact_sum(row[0] for row in rows)

    def _memory_bytes(self) -> float:
        """Peak of the allocator, on the CPU the memory of the process (resident set)."""
        if self.device.type == "cuda":
            return devices.peak_memory_bytes(self.device)
        return float(psutil.Process().memory_info().rss)

    def own(self, done: StepDone) -> StepDone:
        """The loss of the whole batch is the first rank's; each other one sees that of its slice."""
        return done if self.is_first else replace(done, loss=self._own_loss)

    def _keep(self, event: Event) -> None:
        """Keep what the first rank cannot know: NaN and Inf in the slice of this one."""
        own = isinstance(event, Incident) and event.kind in ("nonfinite_loss", "nonfinite_activation")
        if own and isinstance(event, Incident) and len(self._pending) < _MOST_TEXTS:
            self._pending.append(event)

    def _left_texts(self) -> bool:
        if not self._pending:
            return False
        texts = [(e.step, e.kind, e.severity, e.message, e.module) for e in self._pending]
        self.group.leave_text(f"incidents/{self.run.step}", texts)
        self._pending.clear()
        return True

    def _emit_texts_of(self, rank: int, step: int) -> None:
        for of_step, kind, severity, message, module in self.group.text_of(f"incidents/{step}", rank):
            self.run.journal.incident(
                of_step, kind, severity, Sentence("rank {rank}: {message}", rank=rank, message=message), module
            )


def of_rank(config: RunConfig, group: RankGroup) -> RunConfig:
    """The config with the device and the threads of one rank; the first one alone writes files."""
    changed: dict[str, object] = {}
    if config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available()):
        changed["device"] = f"cuda:{group.local_rank}"
    if config.threads is None:
        local = min(group.world, config.parallel.ranks)
        changed["threads"] = max(1, devices.physical_cores() // max(local, 1))
    if group.rank:
        changed["record"] = config.record.model_copy(update={"tensors": False, "snapshot_to": ""})
        changed["train"] = config.train.model_copy(update={"save_to": ""})
        changed["adapter"] = config.adapter.model_copy(update={"save_to": ""})
    return config.model_copy(update=changed)
