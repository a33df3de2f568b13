"""The parts of a bench: each measures one kind of work on one device and emits rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from precgui.engine import accumulation
from precgui.engine.backend_flags import set_fp32_arithmetic
from precgui.engine.bench import workloads as work
from precgui.engine.bench.timing import Timing, Work, compare, measure, once, while_busy
from precgui.engine.device import synchronize
from precgui.hardware import nvml
from precgui.hardware.device import Device
from precgui.hardware.free_memory import free_memory_bytes
from precgui.hardware.gauge import ClockProbe
from precgui.hardware.power import GpuSensor, RaplSensor, find_sensors
from precgui.hardware.readings import Missing, known
from precgui.hardware.step_energy import EnergyPlan, measure_step
from precgui.sentences import L_, Sentence, filled, first_line, together

PLAN = EnergyPlan(warm_up_s=3.0, idle_s=3.0, window_s=3.0, windows=3)


def energy_row(run: Work, size: int, device: torch.device, gauge: ClockProbe) -> dict[str, Any]:
    """Joules of one product, gross and above idle, with the operations per joule; a note says why there is none."""
    sensors = sensor_names(device, gauge.uuid)
    if not sensors:
        return {"gross_j": None, "note": L_("no power sensor belongs to this device")}
    result = measure_step(run, sensors, lambda: synchronize(device), PLAN, gauge.remarks)
    if isinstance(result, Missing):
        return {"gross_j": None, "note": result.reason}
    return {
        "gross_j": result.gross_j,
        "net_j": known(result.net_j),
        "net_uncertainty_j": known(result.net_uncertainty_j),
        "idle_w": known(result.idle_w),
        "uncertainty": result.uncertainty,
        "gigaops_per_joule": 2 * size**3 / result.gross_j * 1e-9,
        "method": result.method,
        "note": together(*result.remarks),
    }


def sensor_names(device: torch.device, uuid: str) -> list[str]:
    """The sensors of a GPU by its UUID, or those of the CPU's packages and memory."""
    with nvml.session() as opened:
        sensors, _ = find_sensors(opened)
        if device.type == "cpu":
            return [sensor.device for sensor in sensors if isinstance(sensor, RaplSensor)]
        return [sensor.device for sensor in sensors if isinstance(sensor, GpuSensor) and sensor.uuid() == uuid]


Emit = Callable[[dict[str, Any]], None]
PARTS = ("certificate", "accumulation", "gemm", "alignment", "copy", "conversions", "blocks", "energy")
PROBE, ACCELERATOR_PROBE = 128, 1024  # size of the first product; on an accelerator launches must not count
LONGEST_CALL_S, LONGEST_BLOCK_S = 1.5, 30.0  # a call that would take longer is not made
SUMS_TRIED = 20  # products that tell how a format is added, about
OPERANDS = 4  # matrices of FP32 that are in the host's memory while two are made, rounded and sent
REFERENCE_FROM = 20.0  # times FP32: such a kernel is reference code
_REFERENCE_KERNEL = L_("reference kernel, not measured at this size: about {seconds:.0f} s a call")
_SLOW_KERNEL = L_("slow kernel, not measured at this size: about {seconds:.0f} s a call")
_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError)
# Relative error of a 256^3 product of standard normal operands against FP64, by what can have computed it.
CERTIFICATE_SIZE = 256
_BANDS = (("fp64", 1e-12), ("fp32", 1e-5), ("tf32 or fp16", 1e-3), ("bf16", 8e-3), ("int8", 2e-2), ("e4m3fn", 8e-2))


@dataclass(slots=True)
class Bench:
    """The state of one bench while it runs."""

    formats: Sequence[str]
    sizes: Sequence[int]
    parts: Sequence[str]
    device: torch.device
    about: Device
    gauge: ClockProbe
    emit: Emit
    stopped: Callable[[], bool]
    total: int
    done: int = 0
    probe_s: dict[str, float] = field(default_factory=dict)
    refusal: dict[str, str] = field(default_factory=dict)

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def probe(self) -> int:
        """Size of the product whose time predicts larger ones, until a larger one was measured."""
        return PROBE if self.on_cpu else ACCELERATOR_PROBE

    def step(self, text: str) -> None:
        self.emit({"kind": "progress", "done": self.done, "total": self.total, "text": text})
        self.done += 1

    def row(self, part: str, row: dict[str, Any]) -> dict[str, Any]:
        self.emit({"kind": "row", "part": part, "row": row})
        return row


def steps(formats_: Sequence[str], sizes_: Sequence[int], parts: Sequence[str]) -> int:
    """How many times `step` will be called."""
    formats, sizes = len(formats_), len(sizes_)
    counts = {
        "certificate": formats, "accumulation": len(_summed(formats_)), "gemm": formats * sizes,
        "alignment": formats, "copy": 1,
        "conversions": len(work.CONVERSIONS), "blocks": len(work.BLOCKS) * len(_blocks_of(formats_)), "energy": formats,
    }  # fmt: skip
    return sum(counts[part] for part in {"certificate", *parts})


def measured(bench: Bench) -> dict[str, Any]:
    """Every part of the plan, in order; the parts that were left out are empty."""
    formats, sizes = bench.formats, bench.sizes
    requested = {part: part in bench.parts for part in PARTS}
    blocks = [(block, fmt) for block in work.BLOCKS for fmt in _blocks_of(formats)] if requested["blocks"] else []
    products = [(fmt, size) for fmt in formats for size in sizes] if requested["gemm"] else []
    summed = _summed(formats) if requested["accumulation"] else []
    aligned = _until_stopped(bench, formats if requested["alignment"] else [])
    return {
        "certificate": [_certificate(bench, fmt) for fmt in _until_stopped(bench, formats)],
        "accumulation": [row for fmt in _until_stopped(bench, summed) for row in _accumulation(bench, fmt)],
        "gemm": [_gemm(bench, fmt, size) for fmt, size in _until_stopped(bench, products)],
        "alignment": [row for fmt in aligned for row in _alignment(bench, fmt, sizes)],
        "copy": _copy(bench) if requested["copy"] else None,
        "conversions": [
            _conversion(bench, *pair)
            for pair in _until_stopped(bench, work.CONVERSIONS if requested["conversions"] else ())
        ],
        "blocks": [_block(bench, block, fmt) for block, fmt in _until_stopped(bench, blocks)],
        "energy": [_energy(bench, fmt) for fmt in _until_stopped(bench, formats if requested["energy"] else [])],
    }


def _until_stopped(bench: Bench, items: Sequence[Any]) -> Iterator[Any]:
    for item in items:
        if bench.stopped():
            return
        yield item


def _blocks_of(formats: Sequence[str]) -> list[str]:
    return [fmt for fmt in formats if fmt in work.FLOATS]


def _summed(formats: Sequence[str]) -> list[str]:
    """Those whose sums round: integers are added exactly."""
    return [fmt for fmt in formats if fmt in accumulation.OPERANDS]


def _switch(fmt: str) -> None:
    set_fp32_arithmetic(tf32=fmt == "tf32")


def _certificate(bench: Bench, fmt: str) -> dict[str, Any]:
    """The error of a product against FP64, and a tiny product's time, by which later parts choose what to measure."""
    bench.step(Sentence("{fmt}: which arithmetic runs", fmt=fmt))
    row: dict[str, Any] = {"format": fmt, "m": CERTIFICATE_SIZE, "error": None, "ran_as": None}
    _switch(fmt)
    try:
        bench.probe_s[fmt] = once(work.gemm(fmt, bench.probe, bench.device), bench.device)
        size = CERTIFICATE_SIZE if _predicted_s(bench, fmt, CERTIFICATE_SIZE) < LONGEST_CALL_S else PROBE
        error = _error(fmt, size, bench.device)
    except _REFUSALS as refusal:
        bench.refusal[fmt] = Sentence("torch refuses: {why}", why=first_line(refusal))
        return bench.row("certificate", row | {"note": bench.refusal[fmt]})
    ran_as = next((name for name, most in _BANDS if error <= most), L_("none of the known formats"))
    note = (
        ""
        if fmt in ran_as.split()
        else Sentence("asked for {fmt}, the error is that of {ran_as}", fmt=fmt, ran_as=ran_as)
    )
    return bench.row("certificate", row | {"m": size, "error": error, "ran_as": ran_as, "note": note})


def _accumulation(bench: Bench, fmt: str) -> list[dict[str, Any]]:
    """How the device adds products of a format; those of FP8 as a run makes them forward and backward."""
    bench.step(Sentence("{fmt}: how products are added", fmt=fmt))
    if fmt not in bench.probe_s:
        return []
    if (predicted_s := _predicted_s(bench, fmt, accumulation.SIDE)) > LONGEST_BLOCK_S / SUMS_TRIED:
        slow = filled(_SLOW_KERNEL, seconds=predicted_s)
        return [bench.row("accumulation", {"format": fmt, "fast": False, "bits": None, "note": slow})]
    _switch(fmt)
    calls = [(fmt, False)]
    if fmt == "e4m3fn" and bench.device.type == "cuda":
        calls = [("e4m3fn", True), ("e4m3fn", False), ("e5m2", False)]
    return [bench.row("accumulation", _sums(bench, *call)) for call in calls]


def _sums(bench: Bench, fmt: str, fast: bool) -> dict[str, Any]:
    operands = accumulation.OPERANDS[fmt]
    row: dict[str, Any] = {"format": fmt, "fast": fast, "note": ""}
    try:
        found = accumulation.measure(accumulation.multiply_on(bench.device, operands, fast=fast), operands)
    except _REFUSALS as refusal:
        return row | {"bits": None, "note": Sentence("torch refuses: {why}", why=first_line(refusal))}
    return row | asdict(found)


def _error(fmt: str, size: int, device: torch.device) -> float:
    exact = work.normal(size, 1).double() @ work.normal(size, 2).double()
    return float((work.product(fmt, size, device) - exact).norm() / exact.norm())


def _predicted_s(bench: Bench, fmt: str, size: int) -> float:
    return bench.probe_s[fmt] * (size / bench.probe) ** 3


def _gemm(bench: Bench, fmt: str, size: int) -> dict[str, Any]:
    bench.step(Sentence("{fmt}: {size} x {size} matrix product", fmt=fmt, size=size))
    return bench.row("gemm", _product(bench, fmt, size))


def _product(bench: Bench, fmt: str, size: int) -> dict[str, Any]:
    row: dict[str, Any] = {"format": fmt, "m": size, "seconds": None, "tops": None, "note": bench.refusal.get(fmt, "")}
    if fmt not in bench.probe_s:
        return row
    if unfit := _unfit(bench, fmt, size):
        return row | {"note": unfit}
    _switch(fmt)
    try:
        timing, companion = _timed(bench, work.gemm(fmt, size, bench.device))
    except _REFUSALS as refusal:
        return row | {"note": Sentence("torch refuses this size: {why}", why=first_line(refusal))}
    bench.probe_s[fmt] = timing.seconds * (bench.probe / size) ** 3  # the largest size so far predicts the next best
    tops = 2 * size**3 / timing.seconds * 1e-12
    return row | {"seconds": timing.seconds, "spread": timing.spread, "tops": tops,
                  **_against_peak(bench, fmt, tops), **companion}  # fmt: skip


def _unfit(bench: Bench, fmt: str, size: int) -> str:
    """Why a product of this size is not worth a try, empty when it is."""
    predicted_s, operands_bytes = _predicted_s(bench, fmt, size), 4.0 * OPERANDS * size**2
    if operands_bytes > free_memory_bytes():
        return Sentence(
            "not measured: its operands take {gib:.0f} GiB of the host's memory", gib=operands_bytes / 2**30
        )
    if predicted_s > LONGEST_CALL_S:
        ratio = bench.probe_s[fmt] / bench.probe_s.get("fp32", bench.probe_s[fmt])
        text = _REFERENCE_KERNEL if ratio > REFERENCE_FROM else _SLOW_KERNEL
        return filled(text, seconds=predicted_s)
    return ""


def _timed(bench: Bench, run: Work) -> tuple[Timing, Mapping[str, Any]]:
    """The timing of `run`, and what the gauge reads while the device works on it."""
    timing = measure(run, bench.device, bench.stopped)
    return timing, while_busy(run, bench.device, timing.seconds, bench.gauge.read)


def _against_peak(bench: Bench, fmt: str, tops: float) -> dict[str, Any]:
    cell = bench.about.formats.get(fmt)
    peak = known(cell.peak) if cell else None
    if peak is None:
        return {"peak_tops": None, "share": None}
    share = tops / peak.tops
    note = L_("above the theoretical peak: the peak is wrong for this card") if share > 1 else ""
    return {"peak_tops": peak.tops, "share": share, "note": note}


def _alignment(bench: Bench, fmt: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Cost of sizes that are not multiples of 16, 8, 4, 2: the rate beside that of the next multiple of 16."""
    most = 1024 if bench.on_cpu else 4096
    base = max(32, max([size for size in sizes if size <= most] or [most]) // 16 * 16)
    tried = (base, base - 8, base - 4, base - 2, base - 1)
    bench.step(Sentence("{fmt}: sizes that are not multiples of 8 or 16", fmt=fmt))
    if fmt not in bench.probe_s or _predicted_s(bench, fmt, base) > LONGEST_CALL_S / 4:
        return []
    _switch(fmt)
    works, refused = [], {}
    for size in tried:
        try:
            run = work.gemm(fmt, size, bench.device)
            run()
            works.append((size, run))
        except _REFUSALS as refusal:
            refused[size] = Sentence("torch refuses this size: {why}", why=first_line(refusal))
    result = compare([run for _, run in works], bench.device, bench.stopped) if works and works[0][0] == base else []
    rates = {size: (size / base) ** 3 / ratio for (size, _), ratio in zip(works, result, strict=False)}
    rows = [
        {"format": fmt, "m": size, "multiple_of": next(m for m in (16, 8, 4, 2, 1) if size % m == 0),
         "relative": rates.get(size), "note": refused.get(size, "")}
        for size in tried
    ]  # fmt: skip
    return [bench.row("alignment", row) for row in rows]


def _copy(bench: Bench) -> dict[str, Any] | None:
    """Copy bandwidth in GB/s, read and write counted, with a buffer far larger than the caches."""
    if bench.stopped():
        return None
    bench.step(L_("copy bandwidth"))
    count = (1 << 30) if bench.device.type == "cuda" else (1 << 28)
    row: dict[str, Any] = {"gb_s": None, "bytes": count, "note": ""}
    try:
        timing, companion = _timed(bench, work.copy(count, bench.device))
    except _REFUSALS as refusal:
        return bench.row(
            "copy",
            row | {"note": Sentence("torch refuses: {why}", why=first_line(refusal))},
        )
    rate = 2 * count / timing.seconds * 1e-9
    return bench.row("copy", row | {"gb_s": rate, "seconds": timing.seconds, "spread": timing.spread, **companion})


def _conversion(bench: Bench, source: str, from_: torch.dtype, target: str, to: torch.dtype) -> dict[str, Any]:
    bench.step(Sentence("convert {source} to {target}", source=source, target=target))
    count = 1 << 24 if bench.device.type == "cuda" else 1 << 22
    row = {"from": source, "to": target, "gb_s": None, "values_per_s": None, "note": ""}
    try:
        timing, companion = _timed(bench, work.convert(from_, to, count, bench.device))
    except _REFUSALS as refusal:
        return bench.row(
            "conversions",
            row | {"note": Sentence("torch refuses: {why}", why=first_line(refusal))},
        )
    moved = count * (from_.itemsize + to.itemsize)
    rates = {"gb_s": moved / timing.seconds * 1e-9, "values_per_s": count / timing.seconds}
    return bench.row("conversions", row | rates | {"seconds": timing.seconds, "spread": timing.spread, **companion})


def _block(bench: Bench, block: str, fmt: str) -> dict[str, Any]:
    """Forward and backward of a convolution or attention block; a small one first."""
    bench.step(Sentence("{fmt}: {block}, forward and backward", fmt=fmt, block=block))
    row: dict[str, Any] = {"block": block, "format": fmt, "seconds": None, "tops": None, "note": ""}
    _switch(fmt)
    try:
        small, small_operations = work.BLOCKS[block](fmt, bench.device, True)
        small_s = once(small, bench.device)
        run, operations = work.BLOCKS[block](fmt, bench.device, False)
        predicted_s = small_s * operations / small_operations
        if bench.on_cpu and predicted_s > LONGEST_BLOCK_S:
            return bench.row("blocks", row | {"note": filled(_REFERENCE_KERNEL, seconds=predicted_s)})
        timing, companion = _timed(bench, run)
    except _REFUSALS as refusal:
        return bench.row(
            "blocks",
            row | {"note": Sentence("torch refuses: {why}", why=first_line(refusal))},
        )
    row |= {"seconds": timing.seconds, "spread": timing.spread, "tops": operations / timing.seconds * 1e-12}
    note = L_("timed once: a call takes long") if timing.spread is None else ""
    return bench.row("blocks", row | {"note": note, **companion})


def _energy(bench: Bench, fmt: str) -> dict[str, Any]:
    """Energy of one product of the largest size, without idle power."""
    size = max(bench.sizes)
    bench.step(Sentence("{fmt}: energy of {size} x {size} products", fmt=fmt, size=size))
    row: dict[str, Any] = {"format": fmt, "m": size, "gross_j": None}
    unfit = _unfit(bench, fmt, size) if fmt in bench.probe_s else bench.refusal[fmt]
    if unfit:
        return bench.row("energy", row | {"note": unfit})
    _switch(fmt)
    try:
        results = energy_row(work.gemm(fmt, size, bench.device), size, bench.device, bench.gauge)
    except _REFUSALS as refusal:
        results = {"note": Sentence("torch refuses this size: {why}", why=first_line(refusal))}
    return bench.row("energy", row | results)
