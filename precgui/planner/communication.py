"""Bytes and time that several ranks need for the gradients of a step, on paper: no process is started.

The time of a collective is messages x latency + bytes / rate (Thakur, Rabenseifner and Gropp 2005, "Optimization of
Collective Communication Operations in MPICH", section 3). For n bytes on W ranks, with latency a and rate b:

- all-reduce as a ring (Patarasuk and Yuan 2009): 2 (W - 1) a + 2 (W - 1) / W n / b
- all-reduce as two trees (Sanders, Speck and Traeff 2009; NCCL): 2 ceil(log2 W) a + 2 n / b
- codes: all-to-all, sum, all-gather: messages and bytes as the ring, of the codes
- shards (FSDP): two all-gathers of the parameters and a reduce-scatter of the gradients: 3 (W - 1) a and (W - 1) / W of
  the bytes of each. gloo does the reduce-scatter as an all-reduce, and so sends the gradients twice.

Every rank has a link of its own, nobody else uses it, and computing does not slow it down.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from precgui.planner.ledger import mib
from precgui.sentences import L_, Sentence

NOTE = L_(
    "On paper: every rank has a link of its own, sending slows no computing down, and what is sent while the rank "
    "computes costs nothing. Measure two ranks before you believe it."
)
OWN_BATCH = L_("Each rank has a batch like that of one rank.")
COLUMNS = (L_("Ranks"), L_("Sent a step"), L_("Rings"), L_("Trees"))
TIMED_COLUMNS = (L_("Not hidden"), L_("Step"), L_("Computes"))  # where the time of a step of one rank is known
RANKS = tuple(2**power for power in range(11))
# A step multiplies twice as much backward as forward (Kaplan et al. 2020, table 1).
BACKWARD_SHARE = 2 / 3
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(b|B)(?:it)?(?:/s|ps)\s*")


@dataclass(frozen=True, slots=True)
class Link:
    """The connection of one rank: bytes a second in one direction, and seconds from a message's start to its first
    byte at the other end."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages of a step. `gradient_bytes` and `gathered_bytes` are of all gradients and of all parameters
    as they are sent; `pieces` are sent one after the other, each as soon as it is computed. `scatters_by_all_reduce`:
    the ranks sum the gradients of shards over gloo."""

    gradient_bytes: float
    pieces: int = 1
    coded: bool = False
    gathered_bytes: float = 0.0
    scatters_by_all_reduce: bool = False

    def sent_bytes(self, ranks: int) -> float:
        """Bytes that one rank sends in a step."""
        share = (ranks - 1) / ranks
        if self.gathered_bytes:
            return share * (2 * self.gathered_bytes + (1 + self.scatters_by_all_reduce) * self.gradient_bytes)
        return 2 * share * self.gradient_bytes

    def ring_s(self, ranks: int, link: Link) -> float:
        """Seconds on the link with rings, or with all-to-all and all-gather."""
        collectives = 3 + self.scatters_by_all_reduce if self.gathered_bytes else 2
        messages = self.pieces * collectives * (ranks - 1)
        return messages * link.latency_s + self.sent_bytes(ranks) / link.bytes_per_s

    def tree_s(self, ranks: int, link: Link) -> float | None:
        """Seconds on the link with two trees; None where no all-reduce is made."""
        if self.coded or self.gathered_bytes:
            return None
        if ranks == 1:
            return 0.0
        messages = self.pieces * 2 * math.ceil(math.log2(ranks))
        return messages * link.latency_s + 2 * self.gradient_bytes / link.bytes_per_s

    def hidden_behind_s(self, compute_s: float) -> float:
        """Seconds of computing during which pieces can be sent: gradients while backward makes the next ones, gathered
        parameters during the whole step; none of it for the piece that comes last."""
        share = 1.0 if self.gathered_bytes else BACKWARD_SHARE
        return share * compute_s * (1 - 1 / self.pieces)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A step on that many ranks. `exposed_s` is the time on the link that no computing hides; it and `step_s` and
    `efficiency`, the share of the step that computes, are None where the time of a step is not known."""

    ranks: int
    sent_bytes: float
    ring_s: float
    tree_s: float | None
    exposed_s: float | None
    step_s: float | None
    efficiency: float | None

    def texts(self) -> list[str]:
        """The cells under COLUMNS and, where the time of a step is known, TIMED_COLUMNS."""
        cells = [str(self.ranks), mib(self.sent_bytes), _duration(self.ring_s), _duration(self.tree_s)]
        if self.efficiency is None:
            return cells
        return [*cells, _duration(self.exposed_s), _duration(self.step_s), f"{self.efficiency:.0%}"]


def batch_note(shared_batch_size: int | None) -> str:
    """A sentence on who computes which samples."""
    if shared_batch_size is None:
        return OWN_BATCH
    return Sentence("The ranks share the batch of {batch} samples, as they do in a run.", batch=shared_batch_size)


def forecasts(
    traffic: Traffic, link: Link, step_s: float | None, *, shared_batch_size: int | None = None
) -> Iterator[Forecast]:
    """One for each of RANKS. `step_s` is the time of a step of one rank.

    `shared_batch_size`: the samples of a batch that the ranks share, so that each computes a part of it; there are no
    more ranks than samples. None: each rank has a batch like that of one rank.
    """
    for ranks in RANKS:
        if shared_batch_size is not None and ranks > shared_batch_size:
            return
        compute_s = None if step_s is None else step_s / (ranks if shared_batch_size is not None else 1)
        yield _forecast(traffic, link, ranks, compute_s)


def _forecast(traffic: Traffic, link: Link, ranks: int, compute_s: float | None) -> Forecast:
    ring_s, tree_s = traffic.ring_s(ranks, link), traffic.tree_s(ranks, link)
    sent_bytes = traffic.sent_bytes(ranks)
    if compute_s is None:
        return Forecast(ranks, sent_bytes, ring_s, tree_s, None, None, None)
    sending_s = min(ring_s, ring_s if tree_s is None else tree_s)  # libraries choose the faster one
    exposed_s = max(sending_s - traffic.hidden_behind_s(compute_s), sending_s / traffic.pieces)
    total_s = compute_s + exposed_s
    return Forecast(ranks, sent_bytes, ring_s, tree_s, exposed_s, total_s, compute_s / total_s)


def _duration(time_s: float | None) -> str:
    if time_s is None:
        return "-"
    return f"{time_s:.3g} s" if time_s >= 1 else f"{1e3 * time_s:.3g} ms"


def coded_bytes(values: int, bits: int, block: int) -> float:
    """Bytes of gradients in a format of 8 bits or fewer: packed where bits divide a byte, one FP32 scale a block."""
    codes_per_byte = 8 // bits if 8 % bits == 0 else 1
    return values / codes_per_byte + 4 * values / block


def link_rate(text: str) -> float:
    """Bytes a second from text such as 10Gb/s (bits) or 450GB/s (bytes). Raises ValueError with a sentence."""
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            Sentence("{text!r} is not the rate of a link; write 10Gb/s for bits or 450GB/s for bytes", text=text[:40])
        )
    number = float(match[1]) * float(1000 ** " KMGT".index(match[2] or " "))
    return number / 8 if match[3] == "b" else number
