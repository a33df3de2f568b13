"""Which tensor is which value: autograd hands saved tensors back as new Python objects, so places in memory decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from precgui.engine.errors import EngineError
from precgui.engine.shadow.tape import Tape
from precgui.engine.torch_private import graph_task, is_traceable_wrapper_subclass
from precgui.sentences import L_, Sentence

_RESIZED = L_("the step resizes the memory of a tensor, as sharded and offloaded weights do")
_UNSEEN = L_("numbers that the step has read were changed during it, and not by torch: a buffer that NumPy fills again")
_MOST_COPIED, _SAMPLE = 1 << 24, 4096  # bytes of foreign memory that are copied, and elements that are compared


class MemoryLayout(NamedTuple):
    """How a tensor lies in its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conjugate: bool = False  # a view whose numbers are the conjugates of those in memory
    negative: bool = False  # a view whose numbers are those in memory times -1

    def apply(self, tensor: Tensor) -> Tensor:
        """The numbers of the view from those in memory, or the other way round."""
        tensor = tensor.conj() if self.conjugate else tensor
        return -tensor if self.negative else tensor


def geometry_of(tensor: Tensor) -> MemoryLayout:
    place = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
    return MemoryLayout(*place, tensor.dtype, tensor.is_conj(), tensor.is_neg())


def flatten(base: Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """The elements of a dense tensor in the order in which the recorded one, of `stride`, had them in memory."""
    order = sorted(range(len(shape)), key=lambda axis: (-stride[axis], -shape[axis]))
    return base.permute(order).reshape(-1)


def write_through(flat: Tensor, part: Tensor, where: MemoryLayout) -> Tensor:
    """A flat storage after `part` was written at its place. By indices: torch's scatter has a wrong derivative here."""
    return flat.index_copy(0, _indices(flat, where), where.apply(part).reshape(-1))


def read_through(flat: Tensor, where: MemoryLayout) -> Tensor:
    """The part of a flat storage that lies at a place."""
    return where.apply(flat.index_select(0, _indices(flat, where)).view(where.shape))


def _indices(flat: Tensor, where: MemoryLayout) -> Tensor:
    """The places of the elements of a tensor in its storage, in the order of the tensor."""
    places = torch.arange(flat.numel(), device=flat.device)
    return places.as_strided(where.shape, where.stride, where.offset).reshape(-1)


def overlap(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Whether two tensors of one dtype in one storage share an element; of different dtypes: True."""
    if a.dtype != b.dtype:
        return True
    if a == b:
        return 0 not in a.shape
    last_a, last_b = _last(a), _last(b)
    if last_a < b.offset or last_b < a.offset:
        return False
    marks = torch.zeros(max(last_a, last_b) + 1, dtype=torch.bool)
    marks.as_strided(a.shape, a.stride, a.offset).fill_(True)
    return bool(marks.as_strided(b.shape, b.stride, b.offset).any())


def _last(where: MemoryLayout) -> int:
    """The place of the last element; one before the first for an empty tensor."""
    if 0 in where.shape:
        return where.offset - 1
    return where.offset + sum((size - 1) * stride for size, stride in zip(where.shape, where.stride, strict=True))


def is_foreign(tensor: Tensor) -> bool:
    """Whether others than torch may write to the memory of a tensor, whose version counter does not tell of it: memory
    of NumPy (`torch.from_numpy`), or shared with it (`tensor.numpy()`), with a file or with another process."""
    is_weight = isinstance(tensor, nn.Parameter) or _is_view_of_parameter(tensor)
    return tensor.device.type == "cpu" and not is_weight and not tensor.untyped_storage().resizable()


@dataclass
class _Foreign:
    """A leaf in such memory, and some of its numbers when it was met."""

    tensor: Tensor
    where: MemoryLayout
    sample: Tensor

    @classmethod
    def of(cls, tensor: Tensor, where: MemoryLayout) -> _Foreign:
        return cls(tensor.detach(), where, _sample(tensor))

    def is_as_it_was(self) -> bool:
        return torch.equal(_sample(self.tensor), self.sample)


def _sample(tensor: Tensor) -> Tensor:
    """A copy of the bytes of at most _SAMPLE elements, evenly spaced."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1) if tensor.numel() <= _SAMPLE else _spread(tensor)
    return flat.clone().view(torch.uint8)


def _spread(tensor: Tensor) -> Tensor:
    places = torch.arange(0, tensor.numel(), tensor.numel() // _SAMPLE)
    return tensor.detach()[torch.unravel_index(places, tensor.shape)].resolve_conj().resolve_neg()


class _Memory:
    """One storage: the values that lie in it and what was written into it since it was last put together."""

    def __init__(self, tensor: Tensor) -> None:
        self._storage = tensor.untyped_storage()
        self._is_virtual = tensor._is_zerotensor()  # zeros without memory, which forward-mode derivatives make
        self._place = self._now()
        self.ids: dict[MemoryLayout, int] = {}
        self.valid: dict[int, MemoryLayout] = {}  # all values whose numbers are still there, several of one layout
        self.stale: set[MemoryLayout] = set()
        self.lent: dict[int, MemoryLayout] = {}  # leaves that share the memory of the tensor of the step
        self.writes: list[tuple[int, MemoryLayout]] = []
        self.flat: int | None = None
        self.base: tuple[int, MemoryLayout] | None = None  # a value that covers the storage, before the writes

    def is_where_it_was(self) -> bool:
        """Whether the storage was not resized since: after `resize_(0)` its tensors have no memory to read."""
        return self._place == self._now()

    def _now(self) -> tuple[int, int]:
        return (0 if self._is_virtual else self._storage.data_ptr()), self._storage.nbytes()


class ValueNumbering:
    """Gives each tensor value a number; a tensor that is written to gets a new one, and so does what overlaps it.

    `emit` puts an operation on the tape that torch did not run: (function, arguments, the tensor that it makes).
    """

    def __init__(
        self,
        tape: Tape,
        emit: Callable[[Callable[..., Any], tuple[Any, ...], int, torch.dtype], None],
        *,
        lends: bool = False,
    ) -> None:
        """`lends`: see `TapeWriter`."""
        self._tape, self._emit, self._lends = tape, emit, lends
        self.held_bytes = 0  # of results, and of copies of leaves
        self._memories: dict[int, _Memory] = {}
        self._foreign: dict[int, _Foreign] = {}  # by number, of leaves
        self._alive: list[Tensor] = []  # so that no storage is given to another tensor meanwhile
        self._count = 0

    def id_of(self, tensor: Tensor) -> int:
        """The number of a value; a value without a number existed before the step and gets one."""
        memory, where = self._memory(tensor), geometry_of(tensor)
        known = memory.ids.get(where)
        if known is not None and where not in memory.stale:
            if self._is_as_it_was(known):
                return known
            if known in memory.lent:
                raise EngineError(_UNSEEN)
            del self._foreign[known]  # what has read it so far has a copy
            return self._leaf(tensor, memory, where)
        if memory.base is not None or memory.flat is not None:
            return self._read(memory, where, tensor)
        id = self._leaf(tensor, memory, where)
        if tensor.grad_fn is not None and not _is_view_of_parameter(tensor):
            self._tape.unrecorded = True
        return id

    def _leaf(self, tensor: Tensor, memory: _Memory, where: MemoryLayout) -> int:
        """The number of a value that was there before the step, or that somebody else than torch has written since."""
        id = self._number(tensor, memory, where)
        leaf = self._tape.leaves[id] = tensor.detach() if self._lends else tensor.detach().clone()
        if self._lends:
            memory.lent[id] = where
            if is_foreign(tensor):
                self._foreign[id] = _Foreign.of(tensor, where)
                if leaf.nbytes <= _MOST_COPIED:
                    self._own(id, memory)
        return id

    def _own(self, id: int, memory: _Memory) -> None:
        """Copy the numbers of a leaf that is only lent."""
        del memory.lent[id]
        self._tape.leaves[id] = self._tape.leaves[id].clone()
        self.held_bytes += self._tape.leaves[id].nbytes

    def _is_as_it_was(self, id: int) -> bool:
        """Whether a leaf has the numbers that it had. In a backward pass it must: what that reads was saved before."""
        foreign = self._foreign.get(id)
        return foreign is None or graph_task() != -1 or foreign.is_as_it_was()

    def known(self, tensor: Tensor) -> int | None:
        """The number of a value of the step that a tensor holds now; None where the step has not met it."""
        memory = self._memories.get(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None
        where = geometry_of(tensor)
        return memory.ids.get(where) if memory is not None and where not in memory.stale else None

    def will_write(self, tensor: Tensor) -> None:
        """A tensor is about to be written to: copy the numbers of leaves that are only lent."""
        memory, where = self._memory(tensor), geometry_of(tensor)
        for id in [id for id, other in memory.lent.items() if overlap(other, where)]:
            self._own(id, memory)
        for id in [id for id in memory.ids.values() if id in self._foreign and overlap(self._foreign[id].where, where)]:
            del self._foreign[id]

    def check_memory(self) -> None:
        """Raises EngineError where a storage was resized, so that the values in it are gone."""
        if not all(memory.is_where_it_was() for memory in self._memories.values()):
            raise EngineError(_RESIZED)

    def check_foreign(self, *, lent_only: bool = False) -> None:
        """Raises EngineError where somebody else than torch has written to numbers that the step has read since.

        `lent_only`: of those that are not copied.
        """
        lent = {id for memory in self._memories.values() for id in memory.lent} if lent_only else self._foreign.keys()
        if not all(each.is_as_it_was() for id, each in self._foreign.items() if id in lent):
            raise EngineError(_UNSEEN)

    def is_result(self, tensor: Tensor) -> bool:
        """Whether a tensor is a value that an operation of the step has made."""
        if tensor.layout is not torch.strided:
            return False
        id = self._memory(tensor).ids.get(geometry_of(tensor))
        return id is not None and id not in self._tape.leaves

    def new(self, tensor: Tensor) -> int:
        """The number of a value that an operation just made, or changed in place."""
        memory, where = self._memory(tensor), geometry_of(tensor)
        if not memory.ids:
            self.held_bytes += tensor.untyped_storage().nbytes()
        return self._number(tensor, memory, where)

    def written(self, tensor: Tensor) -> int:
        """The number of a tensor after it was written to; what overlaps it is put together anew when it is read."""
        memory, where = self._memory(tensor), geometry_of(tensor)
        gone = [id for id, other in memory.valid.items() if overlap(other, where)]
        self._tape.overwritten.update(gone)
        for id in gone:
            del memory.valid[id]
        memory.stale |= {other for other in memory.ids if other != where and overlap(other, where)}
        id = self._number(tensor, memory, where)
        if not _covers(tensor, where):
            if memory.base is None and memory.flat is None:
                self._adopt(memory, tensor)
            memory.writes.append((id, where))
        return id

    def _adopt(self, memory: _Memory, tensor: Tensor) -> None:
        """Take a storage of which only parts are known as it is now: what was not computed in this step."""
        whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
        id = self._next(whole)
        self._tape.leaves[id] = whole.detach().clone()
        memory.flat = id

    def _read(self, memory: _Memory, where: MemoryLayout, tensor: Tensor) -> int:
        """Put the storage together and read the tensor from it."""
        if memory.flat is None and memory.base is not None:
            base, geometry = memory.base
            memory.flat = self._synthetic(flatten, (base, geometry.shape, geometry.stride), geometry.dtype)
        assert memory.flat is not None
        dtype = self._tape.dtypes[memory.flat]
        if dtype != where.dtype:
            self._tape.note(
                Sentence(
                    "a tensor of {stored} was read as {read}; the error that came with it is not followed",
                    stored=dtype,
                    read=where.dtype,
                )
            )
            id = self._number(tensor, memory, where)
            self._tape.leaves[id] = tensor.detach().clone()
            return id
        for part, place in memory.writes:
            memory.flat = self._synthetic(write_through, (memory.flat, part, place), dtype)
        memory.writes.clear()
        flat = memory.flat
        id = self._number(tensor, memory, where)
        self._emit(read_through, (flat, where), id, dtype)
        return id

    def _synthetic(self, function: Callable[..., Any], arguments: tuple[Any, ...], dtype: torch.dtype) -> int:
        id = self._count
        self._count += 1
        self._tape.dtypes[id] = dtype
        self._tape.overwritten.add(id)  # there is no low value to read
        self._emit(function, arguments, id, dtype)
        return id

    def _number(self, tensor: Tensor, memory: _Memory, where: MemoryLayout) -> int:
        id = self._next(tensor)
        memory.ids[where] = id
        memory.valid[id] = where
        memory.stale.discard(where)
        if _covers(tensor, where):
            memory.base, memory.flat = (id, where), None
            memory.writes.clear()
        return id

    def _next(self, tensor: Tensor) -> int:
        id = self._count
        self._count += 1
        self._tape.dtypes[id] = tensor.dtype
        held = tensor.detach()
        self._tape.values[id] = held
        self._alive.append(held)
        return id

    def _memory(self, tensor: Tensor) -> _Memory:
        if tensor.layout is not torch.strided:
            if tensor.is_nested:
                raise EngineError(L_("the shadow cannot follow nested tensors; use padded ones with a mask"))
            raise EngineError(
                L_("the shadow cannot follow sparse tensors; use dense ones, e.g. Embedding(sparse=False)")
            )
        if tensor.is_meta:
            raise EngineError(
                L_("the shadow cannot follow tensors without numbers (device meta), as nested ones have them")
            )
        wraps: bool = is_traceable_wrapper_subclass(tensor)
        if wraps:
            raise EngineError(
                Sentence(
                    "the shadow cannot follow tensors of {class_name}, whose numbers lie in other tensors",
                    class_name=type(tensor).__name__,
                )
            )
        storage = tensor.untyped_storage()
        known = self._memories.get(storage._cdata)
        if known is None:
            known = self._memories[storage._cdata] = _Memory(tensor)
        if self._lends and not known.is_where_it_was():
            raise EngineError(_RESIZED)
        return known


def _is_view_of_parameter(tensor: Tensor) -> bool:
    """Whether a tensor has the numbers of one that nothing has computed, such as a slice of a flat parameter."""
    return tensor._base is not None and tensor._base.is_leaf


def _covers(tensor: Tensor, where: MemoryLayout) -> bool:
    """Whether a tensor takes up its whole storage."""
    return where.offset == 0 and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
