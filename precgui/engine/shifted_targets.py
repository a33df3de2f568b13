"""Targets that are the tokens two places after those that the model reads: shifted twice, where one shift was meant."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from precgui.engine.operation_names import NLL_LOSSES
from precgui.engine.telemetry.readable import unseen
from precgui.engine.watcher import OperationCall, Watcher

_SHIFTS = (0, 1, 2)
_TWICE = 2
_FEWEST = 32  # tokens that are compared
_MOST_READ, _MOST_COMPARED = 8, 16
_MOVING = {"split", "split_with_sizes", "flip", "roll", "index", "index_select"}
_IGNORED = -100


class _Compared(NamedTuple):
    """Targets laid beside tokens that an embedding has read."""

    counts: Tensor  # [shifts, 2]: tokens that differ, and tokens that were compared
    left: Tensor  # whether a target is in the last place
    is_shorter: bool  # the targets are, by one place


class ShiftedTargets(Watcher):
    """Told of each operation outside of the optimizer; compares classes of a loss with indices of embeddings before it.

    Noted are targets that are the tokens two places on, everywhere and in all cross entropies of the step, beside no
    others: heads that predict several tokens have several shifts. Nothing is noted in steps that take places from the
    beginning of a sequence of vectors, since outputs are of other places then.
    """

    fact = "shifted_targets"

    def __init__(self) -> None:
        super().__init__()
        self._read: list[Tensor] = []
        self._compared: list[list[_Compared]] = []  # for each loss
        self._is_moved = False

    def begin(self, step: int) -> None:
        super().begin(step)
        self._forget()

    def _forget(self) -> None:
        self._read, self._compared, self._is_moved = [], [], False

    def observe(self, call: OperationCall) -> None:
        name, args = call.name, call.args
        if name == "embedding":
            if isinstance(args[1], Tensor) and args[1].dim() == 2 and len(self._read) < _MOST_READ:
                self._read.append(args[1])
        elif not self._read or self._is_moved:
            return
        elif name == "slice" or name in _MOVING:
            self._is_moved = _moves(name, args)
        elif name in NLL_LOSSES and args[0].requires_grad:
            self._compare(args[1], int(args[4]) if len(args) > 4 else _IGNORED)
        elif name == "gather" and args[0].requires_grad and args[2].shape[-1] == 1:
            self._compare(args[2], _IGNORED)

    def _compare(self, targets: Tensor, ignored: int) -> None:
        if targets.numel() < _FEWEST or len(self._compared) >= _MOST_COMPARED:
            return
        with unseen():
            found = [each for words in self._read for each in _beside(words, targets.reshape(-1), ignored)]
        if found:
            self._compared.append(found)

    def end(self) -> None:
        read = [] if self._is_moved else [[_read(each) for each in found] for found in self._compared]
        shifts = [{shift for shift, _, _ in each if shift is not None} for each in read]
        if shifts and all(each == {_TWICE} for each in shifts):
            _, tokens, is_shorter = next(each for each in read[0] if each[0] == _TWICE)
            if self._has_room(is_shorter):
                self._rows[is_shorter] = {
                    "step": self._step, "count": self._steps_with(is_shorter), "tokens": tokens, "shorter": is_shorter,
                }  # fmt: skip
        self._forget()
        super().end()


def _moves(name: str, args: Any) -> bool:
    """Whether places of a sequence of vectors come to others."""
    if not isinstance(args[0], Tensor) or args[0].dim() != 3 or not args[0].is_floating_point():
        return False
    if name in ("index", "roll", "flip"):
        return True
    axis = int(args[2 if name.startswith("split") else 1]) if len(args) > (2 if name.startswith("split") else 1) else 0
    if axis % 3 == 2:
        return False
    return name != "slice" or (len(args) > 2 and args[2] not in (None, 0))


def _beside(words: Tensor, targets: Tensor, ignored: int) -> list[_Compared]:
    """Targets beside tokens, whichever axis is that of the places; as many, or one less in each sequence."""
    found = []
    for tokens, is_turned in ((words, False), (words.T, True)):
        sequences, places = tokens.shape
        for length in (places, places - 1):
            if length <= _TWICE or targets.numel() != sequences * length or targets.device != tokens.device:
                continue
            rows = targets.reshape(length, sequences).T if is_turned else targets.reshape(sequences, length)
            is_used = rows != ignored
            counts = []
            for shift in _SHIFTS:
                known = min(length, places - shift)
                valid = is_used[:, :known]
                differs = (rows[:, :known] != tokens[:, shift : shift + known]) & valid
                counts.append(torch.stack((differs.sum(), valid.sum())))
            found.append(_Compared(torch.stack(counts), is_used[:, -1].any(), length < places))
    return found


def _read(compared: _Compared) -> tuple[int | None, int, bool]:
    """The least shift by which all targets are tokens, how many were compared, and whether a place is left out."""
    counts = compared.counts.tolist()
    for shift, (differing, of) in zip(_SHIFTS, counts, strict=True):
        if differing == 0 and of >= _FEWEST:
            return shift, int(of), compared.is_shorter or not bool(compared.left)
    return None, 0, False
