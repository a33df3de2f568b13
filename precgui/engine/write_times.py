"""In which steps tensors in 16 bits that live longer than a step are written, and when they may be written again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import SHORT_DTYPES
from precgui.engine.samples import evenly_spaced
from precgui.engine.telemetry.readable import address_of

_PLAIN = (Tensor, nn.Parameter)
_MOST_OF_MODEL, _MOST = 256, 320
_PROBED, _ELEMENTS = 8, 16  # tensors whose elements are compared, and how many of each
_WANTED = 2  # writes of a tensor that are to be watched
_FIRST = 5  # step of a first write from which the next one is expected before a second one
_BUDGET = 8  # steps of a run that are watched because of rare writes


@dataclass
class _Held:
    """A tensor and when it was written."""

    tensor: weakref.ref[Tensor]
    of_model: bool
    state: tuple[int, int] = (0, 0)  # version and address; the version does not count what is written through `.data`
    memory: int = 0  # the address of the storage, of which the tensor may be a part
    count: int = 0
    steps: list[int] = field(default_factory=list)  # the last two
    watched: int = 0
    since: int = 0  # the step at whose end, or in which, it was first seen
    usual: int = 0  # of a trained weight: by how much its version grows in a step

    @staticmethod
    def of(tensor: Tensor, *, of_model: bool) -> _Held:
        return _Held(weakref.ref(tensor), of_model, _state(tensor), address_of(tensor))


class WriteTimes:
    """Compares version counters after each step, and a few elements of at most 8 tensors; reads no others.

    A write through `.data` does not count as a version, and changes no element where all of it is lost. So trained
    weights tell, too: those that are written more often than in other steps, as small matrices that begin anew when
    their product has been merged.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._held: dict[int, _Held] = {}
        self._trained: set[int] = set()  # by id
        self._addresses: set[int] = set()  # of the memory of all that is followed, and of the trained weights
        self._weights: list[_Held] = []
        self._probed: list[tuple[_Held, Tensor]] = []  # with a view of some elements
        self._elements: Tensor | None = None
        self._bits = 0  # of the probed tensors whose elements have changed
        self._planned: set[int] = set()
        self._step = 0

    def follow(self, trained: Iterable[Tensor]) -> None:
        """Follow the tensors of the model, but for `trained`, which optimizers write in each step."""
        model = self._model()
        own = [*model.parameters(), *model.buffers()] if model is not None else []
        self._trained, self._addresses = set(), {held.memory for held in self._held.values()}
        weights = [each for each in trained if _is_plain(each)]
        for each in weights:
            self._trained.add(id(each))
            self._addresses.add(address_of(each))
        if not self._weights:
            chosen = weights[:: (len(weights) // _PROBED) | 1][:_PROBED]  # an odd stride: such matrices come in pairs
            self._weights = [_Held.of(each, of_model=False) for each in chosen]
        for each in [each for each in own if _is_followed(each)][:_MOST_OF_MODEL]:
            self._add(each, of_model=True)
        self._choose()

    def met(self, args: Any, created: set[int]) -> None:
        """Follow operands of an operation that are older than the step, whose new memory is `created`."""
        for each in args:
            if isinstance(each, list | tuple):
                self.met(each, created)
            elif isinstance(each, Tensor) and _is_followed(each) and len(self._held) < _MOST:
                address = address_of(each)
                if address not in created and address not in self._addresses:
                    self._add(each, of_model=False)

    def _add(self, tensor: Tensor, *, of_model: bool) -> None:
        known = self._held.get(id(tensor))
        if id(tensor) not in self._trained and (known is None or known.tensor() is not tensor):
            self._held[id(tensor)] = held = _Held.of(tensor, of_model=of_model)
            held.since = self._step
            self._addresses.add(held.memory)

    def _choose(self) -> None:
        """Take evenly spaced tensors of one device whose elements are compared."""
        able = [(held, t) for held in self._held.values() if (t := held.tensor()) is not None and t.is_contiguous()]
        able = [(held, t.detach().view(torch.int16).view(-1)) for held, t in able if t.device == able[0][1].device]
        self._probed, self._elements = evenly_spaced(able, _PROBED), None
        size = min((len(row) for _, row in self._probed), default=0)
        count = min(size, _ELEMENTS)
        self._probed = [(held, row[:: len(row) // count][:count]) for held, row in self._probed] if count else []

    def probe(self) -> Tensor | None:
        """A number for `changed`, on its device; None where there is nothing to compare."""
        if not self._probed:
            return None
        before, self._elements = self._elements, torch.stack([view for _, view in self._probed])
        if before is None or (before.is_cpu and torch.equal(before, self._elements)):
            return None
        changed = (before != self._elements).any(1)
        return (changed << torch.arange(len(changed), device=changed.device)).sum()

    def changed(self, bits: float) -> None:
        """The number that `probe` has returned for the step that ends."""
        self._bits = int(bits)

    def begin(self, step: int) -> None:
        """A step begins of which operations are watched."""
        self._step = step

    def end(self, step: int, *, watched: bool) -> None:
        """A step is over, of which operations were `watched`, or not."""
        probed = {id(held) for place, (held, _) in enumerate(self._probed) if self._bits >> place & 1}
        self._bits, is_replaced = 0, False
        for key, held in list(self._held.items()):
            tensor = held.tensor()
            if tensor is None:
                is_replaced |= held.of_model
                del self._held[key]
                continue
            state = _state(tensor)
            if state != held.state or id(held) in probed:
                is_replaced |= state[1] != held.state[1]
                held.state, held.memory = state, address_of(tensor)
                self._written(held, step, watched)
        if is_replaced:
            self._choose()
        for held in self._weights if self._held else ():
            self._end_of_weight(held, step, watched)

    def _end_of_weight(self, held: _Held, step: int, watched: bool) -> None:
        tensor = held.tensor()
        if tensor is None:
            return
        state = _state(tensor)
        growth, held.state = state[0] - held.state[0], state
        if not held.usual:
            held.usual = growth
        elif growth > held.usual:
            self._written(held, step, watched)
            held.usual = growth if step - held.steps[0] == 1 else held.usual

    def _written(self, held: _Held, step: int, watched: bool) -> None:
        held.count, held.steps, held.watched = held.count + 1, [*held.steps[-1:], step], held.watched + watched
        gap = step - held.steps[0]
        if (
            gap != 1 and held.watched < _WANTED and (gap or step >= _FIRST)
        ):  # after one: twice its step, or what follows step 1
            again = {step + gap} if gap else {2 * step - 1, 2 * step}  # of multiples, or of what comes one step later
            if len(self._planned | again) <= _BUDGET:
                self._planned |= again

    def is_expected(self, step: int) -> bool:
        """Whether a tensor that is rarely written may be written in a step."""
        return step in self._planned

    def count(self, address: int) -> float | None:
        """In how many steps, this one included, the tensor was written that is at an address, or was before this step:
        as often before it was followed as since then. None where it is new or not known."""
        held = next((held for held in self._held.values() if held.memory == address), None)
        if held is None or held.since >= self._step:
            return None
        return min((held.count + 1) * self._step / (self._step - held.since), float(self._step))

    def replacement(self, address: int) -> Tensor | None:
        """The tensor that has got new memory in this step in place of that at an address."""
        for held in self._held.values():
            tensor = held.tensor() if held.memory == address else None
            if tensor is not None and address_of(tensor) != address:
                return tensor
        return None


def _is_followed(tensor: Tensor) -> bool:
    return tensor.dtype in SHORT_DTYPES and _is_plain(tensor) and tensor.numel() > 0


def _is_plain(tensor: Tensor) -> bool:
    is_strided = type(tensor) in _PLAIN and tensor.layout is torch.strided
    return is_strided and not (tensor.is_meta or tensor.is_inference() or tensor.is_nested)


def _state(tensor: Tensor) -> tuple[int, int]:
    return tensor._version, tensor.data_ptr()
