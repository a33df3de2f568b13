"""Bounds from data sheets for cards that are not at hand: the time of products and of a training step, and its memory.

A product takes at least its operations over the peak rate, and at least its bytes over the bandwidth of the memory
(Williams et al. 2009, "Roofline"). Nothing is measured: real kernels take longer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from precgui.hardware.datasheet import datasheet_devices
from precgui.hardware.device import Device
from precgui.hardware.readings import Missing
from precgui.planner.network import NETWORKS, Transformer
from precgui.planner.plan import PlanRequest, plan, usable_bytes
from precgui.sentences import L_, Sentence

NOTE = L_("From the data sheets, not measured: lower bounds, which real kernels do not reach.")
USUAL_CARDS = ("V100-SXM2", "T4", "A100 SXM4 80GB", "RTX 4090", "L40S", "H100 SXM5", "H200 SXM", "B200", "MI300X")
# Bits of an operand as it lies in memory, scales of blocks included, and of a result.
BITS: dict[str, tuple[float, int]] = {
    "fp64": (64, 64), "fp32": (32, 32), "tf32": (32, 32), "bf16": (16, 16), "fp16": (16, 16), "e4m3fn": (8, 16),
    "mxfp8_e4m3": (8.25, 16), "mxfp4": (4.25, 16), "nvfp4": (4.5, 16), "int8": (8, 32), "int4": (4, 32),
}  # fmt: skip
FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "e4m3fn", "nvfp4", "int8")
_PRECISIONS = {"fp64": "fp64", "fp32": "fp32", "tf32": "tf32", "bf16": "bf16-amp", "fp16": "fp16-amp", "e4m3fn": "fp8"}
_STEP = 3  # a step multiplies once forward and twice backward (Kaplan et al. 2020, table 1)
_MOST_SIZE, _MOST_PRODUCTS = 10**7, 1000
Limit = Literal["products", "memory"]


@dataclass(frozen=True, slots=True)
class CardProduct:
    """Products of the same sizes: operations of all, and numbers that all read and write."""

    flops: float
    read: float
    written: float


@dataclass(frozen=True, slots=True)
class Work:
    """The products to be made. `network` and `batch` belong to a training step, whose memory the planner foretells."""

    title: str
    products: tuple[CardProduct, ...]
    network: Transformer | None = None
    batch: int = 1

    @property
    def flops(self) -> float:
        return sum(each.flops for each in self.products)


@dataclass(frozen=True, slots=True)
class Bound:
    """One card and format. `time_s` is None where `why` says so; `limit` is what takes most of it.

    `fits` is None where the memory of the work or of the card is not known.
    """

    card: str
    format: str
    support: str
    time_s: float | None
    limit: Limit | None
    memory_bytes: float | None
    fits: bool | None
    why: str = ""


def work_of(text: str, batch: int = 1) -> Work:
    """The work in a text: 4096 for two square matrices, 64x4096x11008 (rows x inner x columns, several with commas),
    or a training step of a network of the planner with sequences in a batch. Raises ValueError with a sentence."""
    if batch < 1:
        raise ValueError("the batch is at least 1")
    if text in NETWORKS:
        network = NETWORKS[text]
        title = Sentence(
            "a training step of {text}, {batch} x {sequence} tokens", text=text, batch=batch, sequence=network.sequence
        )
        return Work(title, tuple(_step_products(network, batch)), network, batch)
    sizes = [_sizes(part) for part in text.split(",")]
    if len(sizes) > _MOST_PRODUCTS:
        raise ValueError(f"{len(sizes)} products are more than {_MOST_PRODUCTS}")
    return Work(", ".join(" x ".join(map(str, each)) for each in sizes), tuple(_product(*each) for each in sizes))


def _sizes(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"\s*(\d+)(?:\s*[xX×]\s*(\d+)\s*[xX×]\s*(\d+))?\s*", text)
    numbers = [int(each) for each in match.groups() if each is not None] if match is not None else []
    if not numbers or min(numbers) < 1 or max(numbers) > _MOST_SIZE:
        names = ", ".join(NETWORKS)
        raise ValueError(f"{text[:40]!r} is no product; write 4096, 64x4096x11008 or one of {names}")
    return (numbers[0],) * 3 if len(numbers) == 1 else (numbers[0], numbers[1], numbers[2])


def _product(rows: int, inner: int, columns: int, times: int = 1) -> CardProduct:
    read, written = rows * inner + inner * columns, rows * columns
    return CardProduct(2.0 * times * rows * inner * columns, float(times * read), float(times * written))


def _step_products(network: Transformer, batch: int) -> list[CardProduct]:
    """The products of a step: the matrices of all blocks, the head, and attention, whose scores stay on the chip."""
    tokens, width = batch * network.sequence, network.width
    each = _STEP * network.layers
    hidden = network.feed_forward
    matrices = [(width, width, 2), (width, network.kv_width, 2)]
    matrices += [(width, hidden, 2 if network.gated else 1), (hidden, width, 1)]
    made = [_product(tokens, inner, columns, each * count) for inner, columns, count in matrices]
    made.append(_product(tokens, width, network.vocabulary, _STEP))
    attention = 2 * 2.0 * each * tokens * network.sequence * width
    read, written = each * tokens * (width + 2.0 * network.kv_width), each * tokens * float(width)
    return [*made, CardProduct(attention, read, written)]


def cards_of(words: Sequence[str]) -> list[Device]:
    """The cards of the table whose names hold one of these texts from the start of a word, oldest first.

    Spaces and hyphens are alike. Raises ValueError for a text that is in no name.
    """
    devices = datasheet_devices()
    found = {word: [each for each in devices if _plain(word) in _plain(each.name)] for word in words}
    for word, known in found.items():
        if not known:
            raise ValueError(f"no card of the table is called {word[:40]!r}; precgui cards --list names all")
    return [each for each in devices if any(each in known for known in found.values())]


def _plain(text: str) -> str:
    """The text in capitals, with one space before each word, so that B200 is not in GB200."""
    return re.sub(r"[\s-]+", " ", f" {text.strip()}").upper()


def bound(work: Work, device: Device, name: str) -> Bound:
    """The least time of a work on a card in a format, and its memory. Raises ValueError for another format."""
    memory = memory_bytes(work, name)
    known = device.memory_bytes
    fits = None if memory is None or isinstance(known, Missing) else memory <= usable_bytes(known)
    cell = device.formats.get(name)
    if cell is None or cell.support not in ("native", "slow"):
        reason = cell.reason if cell is not None else L_("the table has no such format")
        return Bound(device.name, name, cell.support if cell else "unknown", None, None, memory, fits, reason)
    if isinstance(cell.peak, Missing) or isinstance(device.bandwidth_gbs, Missing):
        why = cell.peak.reason if isinstance(cell.peak, Missing) else L_("the bandwidth is not known")
        return Bound(device.name, name, cell.support, None, None, memory, fits, why)
    rate, bandwidth = cell.peak.tops * 1e12, device.bandwidth_gbs * 1e9
    times = [(each.flops / rate, _bytes(each, name) / bandwidth) for each in work.products]
    by_memory = sum(moving for computing, moving in times if moving > computing)
    total = sum(max(pair) for pair in times)
    limit: Limit = "memory" if by_memory > total / 2 else "products"
    return Bound(device.name, name, cell.support, total, limit, memory, fits)


def memory_bytes(work: Work, name: str) -> float | None:
    """Bytes of operands and results, or of the peak of a training step; None for a format that no training has."""
    if name not in BITS:
        raise ValueError(f"{name} is no format of the calculator; choose {', '.join(BITS)}")
    if work.network is None:
        return sum(_bytes(each, name) for each in work.products)
    if name not in _PRECISIONS:
        return None
    return plan(PlanRequest(work.network, work.batch, _PRECISIONS[name])).total_bytes


def _bytes(product: CardProduct, name: str) -> float:
    read, written = BITS[name]
    return (product.read * read + product.written * written) / 8


def time_text(bound: Bound) -> str:
    """The cell of a table: milliseconds and what limits them, or the word for what the card makes of the format."""
    if bound.time_s is None:
        return bound.support if bound.support not in ("native", "slow") else L_("rate not known")
    time_ms = 1e3 * bound.time_s
    number = f"{time_ms:,.0f}" if time_ms >= 1000 else f"{time_ms:.3g}"
    notes = ["memory-bound"] * (bound.limit == "memory") + [L_("does not fit")] * (bound.fits is False)
    return f"{number} ms{''.join(f', {note}' for note in notes)}"
