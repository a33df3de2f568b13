"""Updates of numbers that are stored in 16 bits and live longer than a step: which part of them arrives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import dtype_name
from precgui.engine.samples import sampled
from precgui.engine.torch_private import graph_task, operation_name

_SHORT = (torch.bfloat16, torch.float16)
_KEEPING = ("add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "copy", "_to_copy", "clone")
_KEEPS_SIZE = (0.5, 1.0)  # factors of an average or of a weight decay; another one makes a new quantity
_SAMPLE = 1024  # elements of a tensor that are compared
_MOST_TENSORS, _MOST_GROUPS, _MOST_OPERATIONS = 32, 16, 6
_UPDATING = {"add", "sub", "lerp", "addcmul", "addcdiv", "mul"}
After = Callable[[Any], None]


@dataclass
class _Chain:
    """A stored tensor and what operations make of it: `exact` is the result without rounding to 16 bits."""

    stored: Tensor  # in 16 bits, as it was found at the beginning of the step
    begin: Tensor
    exact: Tensor
    operations: tuple[str, ...] = ()
    module: str | None = None
    in_optimizer: bool = False
    weight: float = 0.0  # of the new value in an average
    is_compensated: bool = False  # what rounding lost is computed, hence kept


@dataclass
class _Group:
    """Tensors that one statement of the loop updates."""

    tensor: str
    format: str
    rows: list[dict[str, float]] = field(default_factory=list)
    tensors: int = 0
    before: dict[int, Tensor] = field(default_factory=dict)  # intended changes in the step that was seen last


class StoredUpdates:
    """Asked before each operation of a step, and told its result; reads samples, and changes nothing.

    A tensor counts as stored where no operation of the step has created its memory. In an optimizer only values that
    are widened, changed and rounded back count: other updates of weights are recorded in full elsewhere.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._step = 0
        self._created: set[int] = set()  # addresses of memory
        self._chains: dict[Hashable, tuple[weakref.ref[Tensor], _Chain]] = {}
        self._written: dict[Hashable, weakref.ref[Tensor]] = {}  # results in 16 bits, in their order
        self._rounded: dict[Hashable, _Chain] = {}  # chains by the wide value that was rounded into storage
        self._groups: dict[tuple[Any, ...], _Group] = {}

    def begin(self, step: int) -> None:
        self._step = step
        self._created.clear()
        for each in (self._chains, self._written, self._rounded):
            each.clear()

    def before(self, func: Any, args: Any, kwargs: Any, module: str | None, *, in_optimizer: bool) -> After | None:
        """An operation is about to run, in the forward pass of `module`, None outside, or in an optimizer."""
        if graph_task() != -1 or torch.is_inference_mode_enabled():
            return None
        name = operation_name(func)
        base = name if name == "_to_copy" else name.removeprefix("_foreach_").removesuffix("_")
        if base not in _KEEPING:
            return None
        calls = [self._stored_first(base, own, more) for own, more in _calls(name, args)]
        if base == "sub":
            self._note_remainders(calls)
        known = [
            (own, chain, more)
            for own, more in calls
            if (chain := self._chain_of(own, module, in_optimizer)) is not None
        ]
        return (lambda out: self._ran(base, name.endswith("_"), kwargs, known, out)) if known else None

    def _stored_first(self, base: str, own: Any, more: list[Any]) -> tuple[Any, list[Any]]:
        """The operands of a sum with the one first that was made of a stored tensor."""
        if base == "add" and more and self._known(own) is None and self._known(more[0]) is not None:
            return more[0], [own, *more[1:]]
        return own, more

    def created(self, out: Any) -> None:
        """Note the memory of the results of an operation that neither views nor writes to its operands."""
        for each in out if isinstance(out, list | tuple) else (out,):
            if isinstance(each, Tensor):
                self._created.add(each.untyped_storage().data_ptr())

    def _key(self, tensor: Tensor) -> Hashable:
        """A stored tensor by its memory, since each view of it is another object; a new one by itself."""
        address = tensor.untyped_storage().data_ptr()
        if tensor.dtype in _SHORT and address not in self._created:
            return address, tensor.storage_offset(), tensor.shape
        return id(tensor)

    def _known(self, tensor: Any) -> _Chain | None:
        known = self._chains.get(self._key(tensor)) if isinstance(tensor, Tensor) else None
        if known is None:
            return None
        same = known[0]()
        return known[1] if same is not None and (same is tensor or tensor.dtype in _SHORT) else None

    def _chain_of(self, own: Any, module: str | None, in_optimizer: bool) -> _Chain | None:
        if (known := self._known(own)) is not None:
            return known
        if not isinstance(own, Tensor) or own.dtype not in _SHORT or not own.numel():
            return None
        learns = own.requires_grad and torch.is_grad_enabled()
        if learns or own.untyped_storage().data_ptr() in self._created:
            return None
        begin = sampled(own, own.shape, _SAMPLE)
        return _Chain(own, begin, begin, module=module, in_optimizer=in_optimizer)

    def _ran(
        self, base: str, in_place: bool, kwargs: Any, known: Sequence[tuple[Tensor, _Chain, Any]], out: Any
    ) -> None:
        outs: Iterator[Any] = iter(out if isinstance(out, list | tuple) else [out])
        for own, chain, more in known:
            result = own if in_place else next(outs, None)
            if isinstance(result, Tensor) and result.shape == own.shape and result.is_floating_point():
                self._changed(result, self._after(base, chain, result, more, kwargs))

    def _after(self, base: str, chain: _Chain, result: Tensor, more: Sequence[Any], kwargs: Any) -> _Chain | None:
        """The chain of a result; None where it is no changed value of the stored tensor."""
        if base == "copy":
            return self._copied(result, chain, more[0])
        factor = _number(more[0]) if base == "mul" else 1.0
        if base == "div" or (factor is not None and not _KEEPS_SIZE[0] <= factor <= _KEEPS_SIZE[1]):
            return None
        if result.dtype not in _SHORT:
            exact = sampled(result, result.shape, _SAMPLE)
        else:
            exact = (
                chain.exact if base in ("_to_copy", "clone") else _exact(base, chain.exact, result.shape, more, kwargs)
            )
        operations = (*chain.operations, base)[-_MOST_OPERATIONS:]
        return replace(chain, exact=exact, operations=operations, weight=chain.weight or _weight(base, more))

    def _copied(self, own: Tensor, chain: _Chain, source: Any) -> _Chain | None:
        """The chain of a stored tensor that is written anew: only from a value that was made of itself."""
        made = self._known(source)
        if made is None or own.dtype not in _SHORT or self._key(made.stored) != self._key(own):
            return None
        result = replace(made, stored=own, operations=(*made.operations, "copy"))
        self._rounded[self._key(source)] = result
        return result

    def _changed(self, result: Tensor, chain: _Chain | None) -> None:
        key = self._key(result)
        self._written.pop(key, None)  # a dead tensor's identity comes back: the order is that of the last writing
        if chain is None:
            self._chains.pop(key, None)
            return
        self._chains[key] = (weakref.ref(result if isinstance(key, int) else chain.stored), chain)
        has_graph = result.requires_grad and not result.is_leaf
        if result.dtype in _SHORT and not has_graph and (not chain.in_optimizer or "copy" in chain.operations):
            self._written[key] = self._chains[key][0]

    def _note_remainders(self, calls: Sequence[tuple[Any, Any]]) -> None:
        """A difference with a value that was just rounded, or with what it was stored as, is the remainder."""
        for own, more in calls:
            for each in (own, *more):
                if not isinstance(each, Tensor):
                    continue
                key = self._key(each)
                if (rounded := self._rounded.get(key)) is not None:
                    rounded.is_compensated = True
                if key in self._written and (chain := self._known(each)) is not None:
                    chain.is_compensated = True

    def end(self) -> None:
        """The step is over: compare the stored tensors with what they should have become."""
        model = self._model()
        places: dict[tuple[Any, ...], list[tuple[str, _Chain, Tensor]]] = {}
        names = _names(model) if model is not None and self._written else {}
        for key, reference in self._written.items():
            chain, result = self._chains[key][1], reference()
            if result is None or chain.is_compensated or not set(chain.operations) & _UPDATING:
                continue
            name = names.get(chain.stored.untyped_storage().data_ptr(), "")
            kind = chain.operations, chain.module, chain.in_optimizer, dtype_name(result.dtype)
            places.setdefault(kind, []).append((name, chain, sampled(result, result.shape, _SAMPLE)))
        for kind, rows in places.items():
            self._count(kind, rows[:_MOST_TENSORS])
        self.begin(self._step)

    def _count(self, key: tuple[Any, ...], rows: list[tuple[str, _Chain, Tensor]]) -> None:
        if key not in self._groups and len(self._groups) >= _MOST_GROUPS:
            return
        name = next((each for each, _, _ in rows if each), "")
        group = self._groups.setdefault(key, _Group(name, key[3]))
        group.tensors = len(rows)
        totals, infinite, count = torch.zeros(7, dtype=torch.float64), 0.0, 0
        before, group.before = group.before, {}
        for place, (_, chain, actual) in enumerate(rows):
            infinite, count = infinite + float(actual.isinf().sum()), count + actual.numel()
            finite = (chain.exact - chain.begin).isfinite() & actual.isfinite()
            begin, exact, after = (
                torch.where(finite, each, 0).double().cpu() for each in (chain.begin, chain.exact, actual)
            )
            group.before[place] = exact - begin
            totals += _sums(begin, exact - begin, after - begin, before.get(place))
        wanted, swallowed, energy, size, product, first, second = totals.tolist()
        if (wanted and size > 0) or infinite:
            group.rows.append({
                "step": self._step, "elements": wanted, "swallowed": swallowed / max(wanted, 1),
                "intended": (energy / size) ** 0.5 if size > 0 else 0.0, "infinite": infinite / max(count, 1),
                "direction": product / (first * second) ** 0.5 if first * second > 0 else 0.0,
                "weight": max(chain.weight for _, chain, _ in rows),
            })  # fmt: skip

    def facts(self) -> list[dict[str, Any]]:
        """A row for each group of tensors: see `stored_updates` in docs/run-file.md."""
        return [
            {
                "tensor": group.tensor, "tensors": group.tensors, "format": group.format,
                "operation": " ".join(key[0]), "module": key[1], "optimizer": key[2],
                "steps": group.rows,
            }
            for key, group in self._groups.items() if group.rows
        ]  # fmt: skip


def _sums(begin: Tensor, intended: Tensor, moved: Tensor, last: Tensor | None) -> Tensor:
    """Elements to be changed, those that stayed, sums of squares of the change and of the tensor; and of the change and
    `last`, that of a step before, the sum of products and those of the squares."""
    wanted = intended != 0
    own = intended.square().sum()
    pair = [torch.zeros((), dtype=torch.float64)] * 3
    if last is not None and last.shape == intended.shape:
        pair = [(last * intended).sum(), last.square().sum(), own]
    counts = [wanted.sum().double(), (wanted & (moved == 0)).sum().double()]
    return torch.stack([*counts, own, begin.square().sum(), *pair])


def _calls(name: str, args: Any) -> Iterator[tuple[Any, list[Any]]]:
    """The first operand and the others of each single call in an operation, of which those on lists have many."""
    if not args:
        return
    if not name.startswith("_foreach_"):
        yield args[0], list(args[1:])
        return
    for place, own in enumerate(args[0]):
        yield own, [each[place] if isinstance(each, list | tuple) and place < len(each) else each for each in args[1:]]


def _exact(base: str, value: Tensor, shape: torch.Size, more: Sequence[Any], kwargs: Any) -> Tensor:
    """The result of an elementwise operation on samples, in FP32."""
    operands = [sampled(each, shape, _SAMPLE) if isinstance(each, Tensor) else each for each in more]
    if base in ("addcmul", "addcdiv") and len(operands) > 2:
        kwargs = {"value": operands.pop()}
    result: Tensor = getattr(value, base)(*operands, **kwargs)
    return result


def _weight(base: str, more: Sequence[Any]) -> float:
    """The weight of the new value in an average, 0 where the operation does not say it."""
    if base == "lerp" and len(more) > 1 and (number := _number(more[1])) is not None:
        return number
    if base == "mul" and (number := _number(more[0])) is not None and 0 < number < 1:
        return 1 - number
    return 0.0


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor) and value.dim() == 0 and value.device.type == "cpu":
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _names(model: nn.Module) -> dict[int, str]:
    """The parameters and buffers of a model in 16 bits, by the address of their memory."""
    every = [*model.named_parameters(), *model.named_buffers()]
    return {tensor.untyped_storage().data_ptr(): name for name, tensor in every if tensor.dtype in _SHORT}
