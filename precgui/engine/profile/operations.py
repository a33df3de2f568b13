"""Every operation of some steps with its own time, by torch.profiler, in the module and the phase that it belongs to.

On the CPU the times of all events add up to the time of the steps: an event's own time is what its children do not
take, and what lies between operations (Python, the autograd engine) is the own time of the markers around them.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile, record_function

from precgui.engine.device import synchronize
from precgui.engine.errors import EngineError
from precgui.engine.memory import stderr_closed
from precgui.engine.profile import kinds
from precgui.engine.torch_private import is_compiled, recorded_events
from precgui.sentences import L_

STEP, WARM_UP, PHASE, MODULE = "precgui step", "precgui warm-up", "precgui phase: ", "precgui module: "
_NO_KERNELS = L_(
    "torch's profiler recorded no kernel of the GPU, so nothing can be said of its time; "
    "end other programs that profile it (Nsight, DCGM), or allow this one to: set the "
    "option NVreg_RestrictProfilingToAdminUsers=0 of the driver, or give a container the "
    "capability SYS_ADMIN"
)
DATA = "data"  # the phase of waiting for a batch, in which the end of an epoch has events of its own
_TYPES = {"float": "fp32", "double": "fp64", "c10::BFloat16": "bf16", "c10::Half": "fp16",
          "c10::Float8_e4m3fn": "e4m3fn", "c10::Float8_e5m2": "e5m2", "signed char": "int8"}  # fmt: skip


@dataclass(slots=True)
class OperationRow:
    """One operation of one module with operands of one shape, summed over the steps. Seconds are its own ones."""

    operation: str
    kind: str
    module: str
    phase: str
    format: str
    shapes: tuple[tuple[int, ...], ...]
    calls: float = 0
    events: float = 0
    cpu_s: float = 0.0
    device_s: float = 0.0
    tensor_cores: bool | None = None


@dataclass(slots=True)
class Profiled:
    """Rows, and what lies between them (`gap_s`), of `steps` steps that took `wall_s` under the profiler.

    `data_s` is what waiting for batches took of that. `events` were recorded in all: each one costs time.
    """

    rows: list[OperationRow]
    steps: int
    wall_s: float
    gap_s: float
    data_s: float
    events: int
    gap_events: int = 0
    markers: int = 0  # of those, around modules
    on_device: bool = False


class ProfilerPhases:
    """Marks the phases of a step for the profiler."""

    def __init__(self) -> None:
        self._open: Any = None

    def begin(self, phase: str) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = None
        if phase != "end":
            self._open = record_function(PHASE + phase)
            self._open.__enter__()

    def hold(self, kind: str, named: Mapping[str, Any]) -> None:
        """Does nothing: this tracker measures times, not memory."""


def record_steps(
    model: nn.Module,
    device: torch.device,
    work: Callable[[ProfilerPhases], None],
    steps: int,
    *,
    detailed: bool = True,
) -> profile:
    """Call `work` so many times under the profiler, and once before that; `work` reports its phases to its argument.

    `detailed`: with the shapes of operands and a marker around each module, which cost more than the events themselves.
    The recording is not read yet, which takes ten times as long: `profile_of_steps` does.
    """
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    phases = ProfilerPhases()
    marked = detailed and not is_compiled(model)  # hooks would split its kernels
    markers = module_markers(model) if marked else contextlib.nullcontext()
    profiler: profile = profile(activities=activities, record_shapes=detailed)
    with stderr_closed(), markers, profiler:
        for number in range(steps + 1):
            with record_function(STEP if number else WARM_UP):
                work(phases)
                phases.begin("end")
                synchronize(device)
    return profiler


def profile_of_steps(profiler: profile, steps: int, device: torch.device) -> Profiled:
    """The operations of so many recorded steps. Raises EngineError where no kernel of a GPU was recorded."""
    sums, wall_s, on_device = _Sums(), 0.0, device.type == "cuda"
    for event, place in in_steps(profiler, on_device=on_device):
        if event.name == STEP:
            wall_s += event.cpu_time_total * 1e-6
        _book(sums, event, place)
    rows = sorted(sums.rows.values(), key=lambda row: -(row.device_s if on_device else row.cpu_s))
    if on_device and not any(row.device_s for row in rows):
        raise EngineError(_NO_KERNELS)
    return Profiled(rows, steps, wall_s, sums.gap_s, sums.data_s, sums.events, sums.gap_events, sums.markers, on_device)


@contextlib.contextmanager
def module_markers(model: nn.Module) -> Iterator[None]:
    """Inside, every forward pass of a module is an event that is called after it."""
    names = {module: name for name, module in model.named_modules()}
    open_markers: list[Any] = []

    def enter(module: nn.Module, _: Any) -> None:
        open_markers.append(record_function(MODULE + names.get(module, "")))
        open_markers[-1].__enter__()

    def leave(*_: Any) -> None:
        open_markers.pop().__exit__(None, None, None)

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(slots=True)
class EventPlace:
    """Where an event lies: the phase and module of its markers, and the event that it is counted under."""

    phase: str = ""
    module: str | None = None
    kind: str | None = None
    owner: Any = None
    in_step: bool = False
    sequence: int = -1


@dataclass(slots=True)
class _Sums:
    rows: dict[tuple[Any, ...], OperationRow] = field(default_factory=dict)
    gap_s: float = 0.0
    data_s: float = 0.0
    events: int = 0
    gap_events: int = 0
    markers: int = 0


def in_steps(profiler: profile, *, on_device: bool = False) -> Iterator[tuple[Any, EventPlace]]:
    """The events of the recorded steps and their places, in the order of time: the forward pass is read before the
    backward pass, whose events get their modules from it."""
    cpu = [event for event in recorded_events(profiler) if event.device_type.name == "CPU"]
    module_of_node: dict[int, str] = {}  # sequence number of an autograd node: its module
    first_thread = next((event.thread for event in cpu if event.name == WARM_UP), 0)
    stack = [(event, EventPlace()) for event in cpu if event.cpu_parent is None]
    stack.sort(key=lambda item: -item[0].time_range.start)
    while stack:
        event, above = stack.pop()
        place = _placed(event, above, module_of_node, on_device, first_thread)
        if place.in_step:
            yield event, place
        children = sorted(event.cpu_children, key=lambda child: -child.time_range.start)
        stack.extend((child, place) for child in children)


def _placed(
    event: Any, above: EventPlace, module_of_node: dict[int, str], on_device: bool, first_thread: int
) -> EventPlace:
    place = EventPlace(above.phase, above.module, above.kind, above.owner, above.in_step, above.sequence)
    name = event.name
    if name == STEP:
        return EventPlace(in_step=True)
    if name.startswith(PHASE):
        place.phase = name.removeprefix(PHASE)
        return place
    if name.startswith(MODULE):
        place.module = name.removeprefix(MODULE)
        return place
    if on_device and event.cpu_parent is None and event.thread != first_thread:
        place.in_step, place.phase = True, "backward"  # it has a thread of its own beside a GPU
    if event.sequence_nr >= 0:
        place.sequence = event.sequence_nr
        if place.phase == "forward":
            module_of_node.setdefault(event.sequence_nr, place.module or "")
    if place.phase == "backward" and place.module is None:
        place.module = module_of_node.get(place.sequence)
    if place.owner is None and kinds.fused_operations(name) is not None:
        place.kind, place.owner = kinds.FUSED, event
    if place.owner is None and name.startswith("aten::"):
        short = name.removeprefix("aten::")
        if (kind := kinds.kind_of(short, converts=_converts(event))) is not None:
            place.kind, place.owner = kind, event
    return place


def _converts(event: Any) -> bool:
    """Whether a copy changes the format, by its own operands or those of the copy inside of it."""
    inner = [event, *event.cpu_children]
    for copied in inner:
        if copied.name == "aten::copy_":
            types = [_TYPES[name] for name in copied.input_dtypes[:2] if name in _TYPES]
            return len(types) == 2 and types[0] != types[1]
    return False


def _book(sums: _Sums, event: Any, place: EventPlace) -> None:
    own_s, device_s = event.self_cpu_time_total * 1e-6, event.self_device_time_total * 1e-6
    sums.events += 1
    if place.phase == DATA:
        sums.data_s += own_s
        return
    if place.owner is None:
        sums.gap_s += own_s
        sums.gap_events += 1
        sums.markers += event.name.startswith(MODULE)
        if device_s == 0:
            return
    owner = place.owner or event
    new = empty_row(owner, place)
    row = sums.rows.setdefault(row_key(new), new)
    row.calls += event is owner
    if place.owner is not None:
        row.events += 1
        row.cpu_s += own_s
    row.device_s += device_s
    for kernel in event.kernels:
        reported = kinds.uses_tensor_cores(kernel.name)
        row.tensor_cores = row.tensor_cores or reported if reported is not None else row.tensor_cores


def empty_row(owner: Any, place: EventPlace) -> OperationRow:
    """An empty row for an operation at its place."""
    shapes = tuple(tuple(shape) for shape in owner.input_shapes if shape)
    kind = kinds.OPTIMIZER if place.phase == "update" else place.kind or kinds.DISPATCH
    return OperationRow(
        owner.name.removeprefix("aten::"), kind, place.module or "", place.phase, _format(owner), shapes
    )


def row_key(row: OperationRow) -> tuple[Any, ...]:
    """All but the figures of a row, by which operations are added up."""
    return row.operation, row.kind, row.module, row.phase, row.shapes, row.format


def _format(event: Any) -> str:
    """The formats of its operands; of a cast, from and to."""
    types = [_TYPES[name] for name in event.input_dtypes if name in _TYPES]
    if event.name in ("aten::_to_copy", "aten::copy_"):
        copied = next((c for c in [event, *event.cpu_children] if c.name == "aten::copy_"), event)
        both = [_TYPES[name] for name in copied.input_dtypes[:2] if name in _TYPES]
        return " to ".join(reversed(both))
    return " x ".join(dict.fromkeys(types))


def by(rows: list[OperationRow], key: Callable[[OperationRow], str]) -> dict[str, float]:
    """Own CPU seconds of rows, added up by a key, largest first."""
    sums: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        sums[key(row)] += row.cpu_s
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
