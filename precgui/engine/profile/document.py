"""The profile of a config as one document of plain values: both sides, operations with their counts, layers, memory."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine.backend_flags import restored
from precgui.engine.census import Census
from precgui.engine.certificate import executed_fp32, gemm_error
from precgui.engine.errors import EngineError
from precgui.engine.profile import floors, kinds, layer_rates
from precgui.engine.profile.measure import measured_ledger
from precgui.engine.profile.one_step import step
from precgui.engine.profile.operations import OperationRow, Profiled
from precgui.engine.profile.paired import (
    LEAST_ROUNDS,
    EventCost,
    Side,
    anchored,
    clock_name,
    gap_cost_s,
    paired,
    share_of,
    typical,
)
from precgui.engine.profile.predict import predicted_ledger
from precgui.engine.profile.recorded_call import RecordedCall, RecordedUse, recorded_call
from precgui.engine.torch_private import flop_formula, graph_task, named_fused_kernels, operation_name, tree_leaves
from precgui.planner.ledger import difference_sentence, residual
from precgui.sentences import L_, Sentence

SCHEMA = 1
_MOST_ROWS = 80
_MOST_PADDED = 3
_MOST_ACCOUNTS = 5  # that are repeated
_SHARED_OUT = ("products", "casts", "others", "gaps")  # the parts of a step

Say = Callable[[str], None]
Stopped = Callable[[], bool]


def profile_config(
    config: RunConfig,
    say: Say = lambda _: None,
    stopped: Stopped = lambda: False,
    rounds: int = LEAST_ROUNDS,
    *,
    seconds: float,
) -> dict[str, Any]:
    """Measure in so many rounds, for up to so many `seconds` more, and take apart. Raises EngineError, MemoryError."""
    with restored(), named_fused_kernels() if config.train.compile else contextlib.nullcontext():
        threads = devices.pin_threads(config.threads)
        device = devices.choose(config.device)
        memory = _memory(config, say)
        fp32, other = paired(config, say, stopped, rounds, seconds=seconds)
        say(L_("this device's peaks"))
        emulated = bool(other.parts.precision.labels)
        peak = floors.peak_ratio(config.precision, device, emulated=emulated, stopped=stopped)
        call_floors = floors.call_floors(floors.product_format(config.precision), device)
        other.parts.precision.prepare()
        counted = _counts(other)
        run = _dissected(other)
        twin = run if fp32 is other else _dissected(fp32)
        document: dict[str, Any] = {
            **_heading(config, device, threads),
            "fp32": side_times(fp32, twin, call_floors) | {"repeated": repeated_parts(fp32, call_floors)},
            "run": side_times(other, run, call_floors) | {"repeated": repeated_parts(other, call_floors)},
            "rounds": _ratios(fp32, other),
            "peak": asdict(peak),
            "profiler": asdict(other.cost),
            "clock": clock_name(device),
            "cpu_share": statistics.median(other.cpu_shares) if device.type == "cpu" else None,
            "operations": _operations(run.profiled, counted.counts, run.cost),
            "layers": _layers(twin, run),
            "padding": _padding(run.profiled, run.cost, device, stopped),
            "products": layer_rates.rates(counted.recorded, device, say, stopped),
            "memory": memory,
            "notes": _notes(config, device, other, memory),
        }  # fmt: skip
    return document


def _heading(config: RunConfig, device: torch.device, threads: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "title": config.display_title,
        "precision": config.precision,
        "settings": {"batch_size": config.data.batch_size, "workers": config.data.workers,
                     "compile": config.train.compile, "channels_last": config.train.channels_last,
                     "keep_fp32": list(config.precision_options.keep_fp32)},
        "device": {"type": device.type, "name": devices.name(device), "threads": threads,
                   "torch": str(torch.__version__)},
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class DissectedStep:
    """A step with its rows, what the profiler adds to an event of it, and how far that is known."""

    profiled: Profiled
    cost: EventCost
    uncertainty: float = 0.0


def _dissected(side: Side, profiles: list[Profiled] | None = None) -> DissectedStep:
    profiled, cost = typical(profiles or side.profiles), side.cost
    if profiled.on_device:
        return DissectedStep(profiled, cost)
    share = share_of(side)
    own = EventCost(cost.operation_s * share.factor, cost.marker_s * share.factor)
    return DissectedStep(anchored(profiled, share), own, share.uncertainty)


def _ratios(fp32: Side, other: Side) -> list[float]:
    return [a / b for a, b in zip(fp32.block_s, other.block_s, strict=True)]


def _notes(config: RunConfig, device: torch.device, other: Side, memory: dict[str, Any]) -> list[str]:
    notes = [*other.parts.precision.notes, *memory.get("notes", ())]
    if device.type == "cpu":
        notes.append(L_("these are figures of a CPU: they say nothing about a GPU"))
    if config.train.compile:
        notes.append(
            L_("compiled: a fused kernel is one operation, in no module of its own, and holds those that are listed")
        )
    return notes


def side_times(side: Side, step: DissectedStep, call_floors: dict[str, float]) -> dict[str, Any]:
    """Seconds of one step by what they were spent on. They add up to `profiled_s`, the profiled step without what the
    profiler adds; `step_s` and `data_s` are medians of steps without it. `uncertainty` is the share of the step by
    which `profiled_s` may be off."""
    profiled, cost = step.profiled, step.cost
    kind_s: dict[str, float] = {}
    launches_s = 0.0
    for row in profiled.rows:
        own_s = _own_s(row, profiled, cost)
        floor_s = min(own_s, floors.floor_of(row, call_floors) * row.calls / profiled.steps)
        launches_s += floor_s
        kind_s[row.kind] = kind_s.get(row.kind, 0.0) + own_s - floor_s
    gap_s = max(0.0, profiled.gap_s - gap_cost_s(profiled, cost)) / profiled.steps
    if profiled.on_device:  # kernels run beside the CPU: what they leave of the wall time is idle
        busy_s, wall_s = sum(kind_s.values()), profiled.wall_s / profiled.steps
        gap_s, launches_s = max(0.0, wall_s - busy_s - profiled.data_s / profiled.steps), 0.0
    return {
        "step_s": statistics.median(side.step_s),
        "data_s": statistics.median(side.data_s),
        "step_spread": _spread(side.step_s),
        "kinds": kind_s,
        "products_s": sum(kind_s.get(kind, 0.0) for kind in kinds.MULTIPLIED),
        "casts_s": kind_s.get(kinds.CAST, 0.0),
        "others_s": sum(s for kind, s in kind_s.items() if kind not in (*kinds.MULTIPLIED, kinds.CAST)),
        "gaps_s": gap_s + launches_s,
        "calls": round(sum(row.calls for row in profiled.rows) / profiled.steps),
        "profiled_s": sum(kind_s.values()) + gap_s + launches_s,
        "uncertainty": step.uncertainty,
    }


def repeated_parts(side: Side, call_floors: dict[str, float]) -> dict[str, list[float]]:
    """Shares of the step that each part has in accounts of its own, of stretches of the recorded steps in their order.

    They show how far a part may be off where the account as a whole closes. Empty where there are fewer than two.
    """
    count = min(_MOST_ACCOUNTS, len(side.profiles))
    if count < 2:
        return {}
    bounds = [round(place * len(side.profiles) / count) for place in range(count + 1)]
    accounts = [
        side_times(side, _dissected(side, side.profiles[begin:end]), call_floors)
        for begin, end in itertools.pairwise(bounds)
    ]
    return {name: [each[f"{name}_s"] / max(each["profiled_s"], 1e-12) for each in accounts] for name in _SHARED_OUT}


def _spread(values: list[float]) -> float | None:
    if len(values) < 4:
        return None
    quarters = statistics.quantiles(values, n=4)
    return (quarters[2] - quarters[0]) / statistics.median(values)


def _own_s(row: OperationRow, profiled: Profiled, cost: EventCost) -> float:
    """Seconds of a row in one step, without what the profiler adds to each event."""
    if profiled.on_device:
        return row.device_s / profiled.steps
    return max(0.0, row.cpu_s - cost.operation_s * row.events) / profiled.steps


def _counts(side: Side) -> OperationCounts:
    """The operations of a step with the first batches of an epoch, which are full."""
    side.parts.batches = list(itertools.islice(side.parts.task.train_batches(), side.parts.config.train.accumulation))
    error = gemm_error(side.parts.device)
    counts = OperationCounts(side.parts.model, side.parts.precision.labels, executed_fp32(error))
    with counts:
        step(side.parts)
    return counts


def _operations(profiled: Profiled, counted: dict[tuple[str, str], Count], cost: EventCost) -> list[dict[str, Any]]:
    """The rows of a step, largest first, joined with the census; the rest is summed up by kind."""
    calls: dict[tuple[str, str], float] = {}
    for row in profiled.rows:
        calls[row.operation, row.module] = calls.get((row.operation, row.module), 0) + row.calls
    reported = []
    for row in sorted(profiled.rows, key=lambda r: -_own_s(r, profiled, cost)):
        count = counted.get((row.operation, row.module), Count())
        share = row.calls / max(calls[row.operation, row.module], 1)
        executed = max(count.formats, key=lambda name: count.formats[name], default=row.format)
        reported.append(
            {
                "operation": row.operation, "kind": row.kind, "module": row.module, "phase": row.phase,
                "format": row.format, "executed": executed, "shapes": [list(shape) for shape in row.shapes],
                "calls": row.calls / profiled.steps, "seconds": _own_s(row, profiled, cost),
                "flops": _flops(row, count, share, profiled.steps), "bytes": round(count.bytes * share),
                "tensor_cores": row.tensor_cores, "holds": list(kinds.fused_operations(row.operation) or ()),
            }
        )  # fmt: skip
    return [*reported[:_MOST_ROWS], *_summed_by_kind(reported[_MOST_ROWS:])]


def _flops(row: OperationRow, count: Count, share: float, steps: int) -> int:
    sizes = floors.matrix_sizes(row)
    if sizes is None:
        return round(count.flops * share)
    batch, m, k, n = sizes
    return round(2 * batch * m * k * n * row.calls / steps)


def _summed_by_kind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = sums.setdefault(row["kind"], {**row, "operation": "(others)", "module": "", "shapes": [], "phase": "",
                                              "format": "", "executed": "", "calls": 0, "seconds": 0.0, "flops": 0,
                                              "bytes": 0, "tensor_cores": None, "holds": []})  # fmt: skip
        for name in ("calls", "seconds", "flops", "bytes"):
            known[name] += row[name]
    return list(sums.values())


def _layers(fp32: DissectedStep, run: DissectedStep) -> list[dict[str, Any]]:
    """Seconds of the products of each module and phase, in FP32 and in the precision of the run, largest first."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, dissected in (("fp32_s", fp32), ("run_s", run)):
        for row in dissected.profiled.rows:
            if row.kind not in kinds.MULTIPLIED:
                continue
            known = rows.setdefault(
                (row.module, row.phase),
                {"module": row.module, "phase": row.phase, "kind": row.kind, "fp32_s": 0.0, "run_s": 0.0, "sizes": []},
            )
            known[name] += _own_s(row, dissected.profiled, dissected.cost)
            sizes = floors.matrix_sizes(row)
            if sizes is not None and list(sizes) not in known["sizes"]:
                known["sizes"].append(list(sizes))
    ordered = sorted(rows.values(), key=lambda row: -max(row["fp32_s"], row["run_s"]))
    return ordered[:_MOST_ROWS]


def _padding(profiled: Profiled, cost: EventCost, device: torch.device, stopped: Stopped) -> list[dict[str, Any]]:
    """The largest products with sizes that are no multiple of 8, and what padding them would save, tried here."""
    odd = [row for row in profiled.rows if (sizes := floors.matrix_sizes(row)) and any(floors.odd_sizes(sizes)["8"])]
    results = []
    for row in sorted(odd, key=lambda r: -_own_s(r, profiled, cost))[: 2 * _MOST_PADDED]:
        gain = floors.padding_gain(row, device, stopped)
        if gain is None:
            continue
        sizes = floors.matrix_sizes(row)
        seconds = _own_s(row, profiled, cost)
        results.append({"module": row.module, "phase": row.phase, "sizes": list(sizes or ()), "padded": list(gain[0]),
                      "seconds": seconds, "gain": gain[1], "gain_s": max(0.0, gain[1]) * seconds})  # fmt: skip
    return results


def _memory(config: RunConfig, say: Say) -> dict[str, Any]:
    """The ledgers before and in the step, of the run and of FP32, and the sentence between them."""
    say(L_("the ledger of memory from shapes"))
    predicted = predicted_ledger(config)
    say(L_("the ledger of memory of a real step"))
    measured = measured_ledger(config)
    results: dict[str, Any] = {
        "predicted": predicted.to_json(),
        "measured": measured.to_json(),
        "residual": residual(predicted, measured),
        "notes": [],
    }
    if config.precision != "fp32":
        try:
            fp32 = predicted_ledger(config.model_copy(update={"precision": "fp32"}))
        except EngineError as error:
            results["notes"].append(Sentence("the ledger of FP32 could not be made: {error}", error=error))
            return results
        results |= {"fp32": fp32.to_json(), "difference": difference_sentence(fp32, predicted, config.precision)}
    return results


@dataclass(slots=True)
class Count:
    """Sums over the calls of one operation in one module; `formats` are calls by executed format."""

    calls: int = 0
    flops: int = 0
    bytes: int = 0
    formats: dict[str, int] = field(default_factory=dict)


class OperationCounts(Census):
    """The census by operation and module. Bytes are those of operands and results, each read or written
    once, which is the least that an operation moves."""

    def __init__(self, model: nn.Module, labels: Mapping[str, str], fp32: str = "fp32") -> None:
        super().__init__(model, labels, fp32)
        self.counts: dict[tuple[str, str], Count] = {}
        self.recorded: dict[RecordedCall, RecordedUse] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        tensors = [t for t in tree_leaves((args, kwargs or {}, out)) if isinstance(t, Tensor)]
        if not tensors or func.is_view:
            return out
        module, name = self._module(), operation_name(func)
        count = self.counts.setdefault((name, module), Count())
        count.calls += 1
        count.bytes += sum(t.numel() * t.element_size() for t in tensors)
        operands = [t for t in tree_leaves(args) if isinstance(t, Tensor) and t.is_floating_point()]
        if operands and (flops := flop_formula(func)) is not None:
            flops_of_call = int(flops(*args, **(kwargs or {}), out_val=out))
            count.flops += flops_of_call
            call = recorded_call(func, args, kwargs or {}, out, flops_of_call)
            use = self.recorded.setdefault(call, RecordedUse(phase="forward" if graph_task() == -1 else "backward"))
            use.calls += 1
            use.modules[module] = None
            executed = self._executed(module, operands)
            count.formats[executed] = count.formats.get(executed, 0) + 1
        return out

    def _module(self) -> str:
        return self._modules.of_operation()
