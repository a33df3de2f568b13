"""Limits the cost of telemetry: intervals, sampling strides, and a token bucket in seconds for each kind of tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from precgui.config import RecordConfig

MOST_STRIDE = 256
_PARTS = {"gradient": 4.0, "update": 2.0, "activation": 2.0}  # of the budget; the other kinds have 1
_BETWEEN = 0.25  # of the part of a kind, for measurements between its intervals
_FIRST_BETWEEN = 64  # their stride until their cost is known
_FIXED = 0.5  # of the budget at most, for work of every step, above all the check for NaN and Inf
_SMOOTH = 0.1  # weight of the latest step in the mean of that
_IDLE = 15  # steps without a measurement before the buckets are refilled
_LEAST = 0.2  # of the budget at least, for measurements, however short a step is
_WORTH = 0.8  # a raised stride must cost less than this part of the cost before
_SAVED = 4.0  # intervals whose allowance can be saved up: a burst after a pause stays small


@dataclass
class _TokenBucket:
    """The bucket of one kind: `credit_s` is its content, `last_s` the cost of the latest measurement.

    `before` is the stride from which it was last raised, and the cost at that time; `helpless` says that raising it did
    not help, as with tensors that are too small to be sampled.
    """

    every: int
    part: float
    stride: int = 1
    credit_s: float = 0.0
    last_s: float = 0.0
    before: tuple[int, float] | None = None
    helpless: bool = False

    def finer(self) -> None:
        """Half the stride."""
        self.stride, self.before, self.helpless = max(self.stride // 2, 1), None, False

    def adapt(self, cost: float, afforded: float) -> None:
        """After a measurement: raise the stride if it cost more than `afforded`; undo a raise that saved nothing."""
        if self.before is not None and cost > _WORTH * self.before[1]:
            self.stride, self.helpless = self.before[0], True
        self.before = None
        if cost > afforded and not self.helpless and self.stride < MOST_STRIDE:
            self.before = self.stride, cost
            dearer = min(math.ceil(math.log2(cost / max(afforded, 1e-12))), 3)
            self.stride = min(self.stride << dearer, MOST_STRIDE)


class TokenBuckets:
    """Decides which kinds of tensor a step measures, at which stride, so that all together cost `share` of the time.

    A token bucket per kind, in seconds: each step refills it by share x part x step time, a measurement spends its
    cost. A kind with a negative content is skipped. A measurement that cost more than the refill of an interval raises
    the stride; a content of three times the last cost halves it. The overflow of full buckets goes to the gradients. A
    second, smaller bucket of each kind serves measurements between its intervals, which only the ring buffer keeps.
    """

    OF_STEP: ClassVar[tuple[str, ...]] = ("_used", "_step", "overdue")

    def __init__(
        self, config: RecordConfig, kinds: Mapping[str, int], *, between: bool = False, total_steps: int = 0
    ) -> None:
        """`kinds` maps each kind to its interval in steps, 0 for never; `between` adds measurements between them;
        `total_steps` is 0 where the length of the run is not known."""
        self._share = config.budget
        self._least, self._total_steps = config.least_measurements, total_steps
        self._next = dict.fromkeys(kinds, 1)  # the step from which a kind is overdue
        self._step = 0
        self.overdue: set[str] = set()  # kinds to measure in this step whatever the budget
        self._accounts: dict[str, _TokenBucket] = {}
        self._between: dict[str, _TokenBucket] = {}
        for kind, every in kinds.items():
            part = _PARTS.get(kind, 1.0)
            if every and (every == 1 or not between):
                self._accounts[kind] = _TokenBucket(every, part)
            elif every:
                self._accounts[kind] = _TokenBucket(every, part * (1 - _BETWEEN))
                self._between[kind] = _TokenBucket(1, part * _BETWEEN, _FIRST_BETWEEN)
        self._all = [*self._accounts.values(), *self._between.values()]
        parts = sum(account.part for account in self._all)
        for account in self._all:
            account.part /= parts
        self._used: dict[str, _TokenBucket] = {}
        self._fixed_s, self._fixed_credit_s = -1.0, 0.0
        self._saved_s, self._idle = 0.0, -1  # refill not yet in the buckets, of so many steps; -1 before the first
        self._step_s = 0.0  # of the last step booked by `book_step`
        self.spent_s = self.elapsed_s = 0.0

    def due(self, step: int) -> dict[str, int]:
        """The kinds to measure in this step (counted from 1), each with its stride."""
        self._used, self._step = {}, step
        self.overdue = {kind for kind in self._accounts if self._least and step >= self._next[kind]}
        for kind, account in self._accounts.items():
            if (step - 1) % account.every and kind not in self.overdue:
                if kind not in self._between:
                    continue
                account = self._between[kind]
            if account.credit_s < 0 and kind not in self.overdue:
                continue
            if account.credit_s > 3 * account.last_s:  # half the stride costs up to twice as much
                account.finer()
            self._used[kind] = account
        return {kind: account.stride for kind, account in self._used.items()}

    def leave_step(self) -> None:
        """The next step begins before this one is booked: what is overdue in this one is not so in that one, too."""
        for kind in self.overdue:
            self._next[kind] = self._step + self._gap(self._step)

    def measured(self, kind: str, step: int) -> None:
        """A measurement of this kind in this step went into the record."""
        self._next[kind] = step + self._gap(step)
        self.overdue.discard(kind)

    def _gap(self, step: int) -> int:
        """The most steps between two measurements of a kind that still gives the least number in a run of any length.

        A tenth of the steps so far for 20 of them; of a run of known length a twentieth at most.
        """
        gap = max(2 * step // self._least, 1) if self._least else step
        return min(gap, max(self._total_steps // self._least, 1)) if self._total_steps and self._least else gap

    @property
    def can_guard(self) -> bool:
        """Whether the budget allows a check of all outputs in the next step; of tiny steps, only some are checked."""
        return self._fixed_credit_s >= 0

    @property
    def can_book_idle_step(self) -> bool:
        """Whether `book_idle_step`, the faster one, may book the next step, which has no measurements."""
        return 0 <= self._idle < _IDLE

    def book_idle_step(self, fixed_s: float) -> None:
        """Book a step without measurements, as long as the last one of `book_step`, with a fixed cost of `fixed_s`."""
        self.elapsed_s += self._step_s
        self.spent_s += fixed_s
        allowed = self._share * self._step_s
        self._fixed_credit_s += _FIXED * allowed - fixed_s
        self._saved_s += max(allowed - fixed_s, _LEAST * allowed)
        self._idle += 1

    def book_step(self, step_s: float, costs_s: Mapping[str, float], fixed_s: float = 0.0) -> None:
        """Book a step of `step_s` seconds, in which each kind cost `costs_s` and the work of every step `fixed_s`."""
        for kind in self.overdue:  # there was nothing of it in this step
            self._next[kind] = self._step + max(self._gap(self._step) // 4, 1)
        self.elapsed_s += step_s
        self.spent_s += sum(costs_s.values()) + fixed_s
        self._fixed_s = fixed_s if self._fixed_s < 0 else self._fixed_s + _SMOOTH * (fixed_s - self._fixed_s)
        allowed = self._share * step_s
        self._fixed_credit_s = min(self._fixed_credit_s + _FIXED * allowed, 4 * fixed_s) - fixed_s
        earned = max(allowed - self._fixed_s, _LEAST * allowed) + self._saved_s
        self._step_s, self._saved_s, self._idle = step_s, 0.0, 0
        paid = {id(self._used.get(kind, self._accounts.get(kind))): cost for kind, cost in costs_s.items()}
        spare = sum(self._book(account, earned * account.part, paid.get(id(account), 0.0)) for account in self._all)
        if "gradient" in self._accounts:
            account = self._accounts["gradient"]
            account.credit_s = min(account.credit_s + spare, _most(account, earned * account.part))

    @staticmethod
    def _book(account: _TokenBucket, allowance: float, cost: float) -> float:
        """Refill a bucket by `allowance`, spend `cost`. Returns the seconds by which it overflows."""
        if cost:
            account.adapt(cost, allowance * account.every)
        account.last_s = cost or account.last_s
        credit, most = account.credit_s + allowance, _most(account, allowance)
        account.credit_s = min(credit, most) - cost
        return max(credit - most, 0.0)

    @property
    def strides(self) -> dict[str, int]:
        """The present stride of each kind at its interval."""
        return {kind: account.stride for kind, account in self._accounts.items()}

    @property
    def share(self) -> float:
        """The cost so far, as a share of the time."""
        return self.spent_s / self.elapsed_s if self.elapsed_s else 0.0


def _most(account: _TokenBucket, allowance: float) -> float:
    return max(_SAVED * allowance * account.every, 4 * account.last_s)
