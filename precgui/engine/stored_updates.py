"""Updates of numbers that are stored in 16 bits and live longer than a step: which part of them arrives."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import DIGITS, SHORT_DTYPES, dtype_name
from precgui.engine.exact_scalars import ExactScalars
from precgui.engine.operation_names import COPIES, UPDATES, base_of
from precgui.engine.samples import sampled
from precgui.engine.telemetry.readable import address_of
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, operation_name
from precgui.engine.watcher import Facts
from precgui.engine.write_times import WriteTimes

_FOLLOWED = UPDATES | COPIES | {"copy"}
_KEEPS_SIZE = (0.5, 1.0)  # factors of an average or of a weight decay; another one makes a new quantity
_SAMPLE = 1024  # elements of a tensor that are compared
_MOST_TENSORS, _MOST_GROUPS, _MOST_OPERATIONS = 32, 16, 6
_NORMS = ("linalg_vector_norm", "norm", "_foreach_norm", "sum", "mean", "amax", "max", "linalg_matrix_norm")
_NORMALISING = (
    "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm", "miopen_batch_norm",
)  # fmt: skip
_OF_TWO = UPDATES - {"mul", "div"} | {"batch_norm"}  # these add something to what is updated
_DITHER = (0.15, 1.0)  # rms in ulp, uniform between -1/2 and 1/2 has 0.29
_COUNTING, _STORING = {"add", "sub"}, {"copy", "clone"}
_MOST_ENDS = 4  # steps of a run that are watched because a count may stand still from there on
_UPDATING = _OF_TWO | {"mul"}
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
    address: int = 0  # of the memory of the result
    is_compensated: bool = False  # what rounding lost is computed, hence kept
    format: str = ""
    is_void: bool = False  # a factor in 16 bits is 1, or that of what is added 0, and without rounding it is not
    is_times_one: bool = False  # multiplied by a number that is 1 in 16 bits, and may have been less
    is_dithered: bool = False  # random numbers were added: rounding to a neighbour by chance, which keeps the mean


@dataclass
class _Group:
    """Tensors that one statement of the loop updates."""

    tensor: str
    format: str
    rows: list[dict[str, float | None]] = field(default_factory=list)
    tensors: int = 0
    before: dict[int, Tensor] = field(default_factory=dict)  # intended changes in the step that was seen last


class StoredUpdates:
    """Asked before each operation of a step, and told its result; reads samples, and changes nothing.

    A tensor counts as stored where no operation of the step has created its memory. In an optimizer only values that
    are widened, changed and rounded back count: other updates of weights are recorded in full elsewhere.
    """

    def __init__(self, model: nn.Module, writes: WriteTimes) -> None:
        self._model, self._writes = weakref.ref(model), writes
        self._step = 0
        self.created_memory: set[int] = set()  # addresses
        self._chains: dict[Hashable, tuple[weakref.ref[Tensor], _Chain]] = {}
        self._written: dict[Hashable, weakref.ref[Tensor]] = {}  # results in 16 bits, in their order
        self._rounded: dict[Hashable, _Chain] = {}  # chains by the wide value that was rounded into storage
        self._random, self._scalars = TensorMarks[bool](), ExactScalars(self._is_stored)
        self._finished: list[tuple[_Chain, Tensor]] = []  # with their results, which the optimizer has changed since
        self._measured: set[Hashable] = set()  # stored tensors of which a norm or a mean was computed
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._ends: set[int] = set()  # steps in which a count may have reached the last number that it can add to

    def begin(self, step: int) -> None:
        self._step = step
        self.created_memory.clear()
        for each in (self._chains, self._written, self._rounded, self._random, self._measured):
            each.clear()
        self._finished.clear()
        self._scalars.begin()

    def before(self, func: Any, args: Any, kwargs: Any, module: str | None, *, in_optimizer: bool) -> After | None:
        """An operation is about to run, in the forward pass of `module`, None outside, or in an optimizer."""
        if graph_task() != -1:
            return None
        name = operation_name(func)
        base = base_of(name.removeprefix("_foreach_"))
        if name in _NORMALISING:
            return self._normalised(args, module)
        if base not in _FOLLOWED:
            return None
        calls = [self._stored_first(base, own, more) for own, more in _calls(name, args)]
        if base == "sub":
            self._note_remainders(calls)
        known = [
            (own, chain, more)
            for own, more in calls
            if (chain := self._chain_of(own, module, in_optimizer, base, more)) is not None
        ]
        return (lambda out: self._ran(base, name.endswith("_"), kwargs, known, out)) if known else None

    def _normalised(self, args: Any, module: str | None) -> After | None:
        """The updates of running statistics in 16 bits, which a batch normalisation makes by itself."""
        x, statistics, rest = args[0], args[3:5], args[5:]
        factor = next((each for each in rest if isinstance(each, float)), 0.0)
        is_short = all(isinstance(each, Tensor) and each.dtype in SHORT_DTYPES for each in statistics)
        if not is_short or rest[0] is False or not factor or x.numel() <= x.shape[1]:
            return None
        rows = x.detach().float().transpose(0, 1).flatten(1)
        chains = []
        for stored, now in zip(statistics, (rows.mean(1), rows.var(1)), strict=True):
            begin = sampled(stored, stored.shape, _SAMPLE)
            exact = begin.lerp(sampled(now, stored.shape, _SAMPLE), factor)
            chains.append(_Chain(
                stored, begin, exact, ("batch_norm",), module, weight=factor, format=dtype_name(stored.dtype),
            ))  # fmt: skip

        def after(_: Any) -> None:
            for chain in chains:
                self._changed(chain.stored, chain)

        return after

    def _stored_first(self, base: str, own: Any, more: list[Any]) -> tuple[Any, list[Any]]:
        """The operands of a sum with the one first that was made of a stored tensor."""
        if base == "add" and more and self._known(own) is None and self._known(more[0]) is not None:
            return more[0], [own, *more[1:]]
        return own, more

    def after(self, func: Any, args: Any, out: Any, module: str | None) -> None:
        """An operation has run: note new memory, and outside of the model what is made of random numbers, of what a
        norm is computed, and factors without rounding."""
        results = out if isinstance(out, list | tuple) else (out,)
        if not func.is_view and not func._schema.is_mutable:
            for each in results:
                if isinstance(each, Tensor):
                    self.created_memory.add(address_of(each))
        if module is None and graph_task() == -1 and args and operation_name(func) in _NORMS:
            for each in args[0] if isinstance(args[0], list | tuple) else args[:1]:
                known = self._known(each)
                self._measured.add(self._key(known.stored if known is not None else each))
        self._scalars.observe(func, args, out)
        if module is None and graph_task() == -1 and not isinstance(out, list):
            is_random = torch.Tag.nondeterministic_seeded in func.tags
            for each in results:
                if (
                    isinstance(each, Tensor)
                    and not each.requires_grad
                    and address_of(each) in self.created_memory
                    and (
                        is_random
                        or any(self._random.get(operand) and operand.shape == each.shape for operand in args[:3])
                    )
                ):
                    self._random[each] = True

    def _is_stored(self, tensor: Tensor) -> bool:
        return address_of(tensor) not in self.created_memory

    def _key(self, tensor: Tensor) -> Hashable:
        """A stored tensor by its memory, since each view of it is another object; a new one by itself."""
        address = address_of(tensor)
        if tensor.dtype in SHORT_DTYPES and address not in self.created_memory:
            return address, tensor.storage_offset(), tensor.shape
        return id(tensor)

    def _is_origin(self, tensor: Any, chain: _Chain) -> bool:
        return isinstance(tensor, Tensor) and self._key(tensor) == self._key(chain.stored)

    def _known(self, tensor: Any) -> _Chain | None:
        known = self._chains.get(self._key(tensor)) if isinstance(tensor, Tensor) else None
        if known is None:
            return None
        same = known[0]()
        return known[1] if same is not None and (same is tensor or tensor.dtype in SHORT_DTYPES) else None

    def _chain_of(self, own: Any, module: str | None, in_optimizer: bool, base: str, more: list[Any]) -> _Chain | None:
        known = self._known(own)
        if known is not None and (known.in_optimizer == in_optimizer or self._key(own) != self._key(known.stored)):
            return known
        if known is not None and self._written.pop(key := self._key(own), None) is not None:
            self._finished.append((known, sampled(own, own.shape, _SAMPLE)))
            self._chains.pop(key)
        stored = self._format(own, base, more)
        if not stored or (own.requires_grad and torch.is_grad_enabled()) or not self._is_stored(own):
            return None
        begin = sampled(own, own.shape, _SAMPLE)
        return _Chain(own, begin, begin, module=module, in_optimizer=in_optimizer, format=stored)

    def _format(self, own: Any, base: str, more: list[Any]) -> str:
        """In which an update of a tensor is rounded: its own, or that of a factor in 16 bits; '' for another one."""
        if not isinstance(own, Tensor) or not own.is_floating_point() or not own.numel():
            return ""
        if own.dtype in SHORT_DTYPES:
            return dtype_name(own.dtype)
        factor = self._scalars.get(more[-1]) if base in ("mul", "lerp") and more else None
        return dtype_name(more[-1].dtype) if factor is not None and factor.is_void else ""

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
        factor = self._number(more[0]) if base == "mul" else 1.0
        if base == "div" or (factor is not None and not _KEEPS_SIZE[0] <= factor <= _KEEPS_SIZE[1]):
            return None
        return replace(
            self._computed(base, chain, result, more, kwargs),
            operations=(*chain.operations, base)[-_MOST_OPERATIONS:], address=address_of(result),
            is_dithered=chain.is_dithered or any(self._is_dither(each, chain) for each in more),
        )  # fmt: skip

    def _is_dither(self, operand: Any, chain: _Chain) -> bool:
        """Whether an operand is random and of the size of the distance between two numbers of the stored format."""
        if self._random.get(operand) is None or operand.shape != chain.stored.shape:
            return False
        ulp = 2.0 ** (chain.begin.abs().log2().floor() - DIGITS.get(chain.stored.dtype, 24) + 1)
        share = (sampled(operand, operand.shape, _SAMPLE) / ulp).square().mean().sqrt()
        return bool((share > _DITHER[0]) & (share < _DITHER[1]))

    def _computed(self, base: str, chain: _Chain, result: Tensor, more: Sequence[Any], kwargs: Any) -> _Chain:
        """The chain with the exact result of an operation."""
        if base in COPIES:
            return (
                chain if result.dtype in SHORT_DTYPES else replace(chain, exact=sampled(result, result.shape, _SAMPLE))
            )
        scalars = [each for value in more if (each := self._scalars.get(value)) is not None]
        product = self._scalars.product(more[0]) if base == "add" and more else None
        if base == "mul" and scalars and scalars[0].is_assumed:
            return replace(chain, is_times_one=True)
        weight = chain.weight or self._weight(base, more)
        if product is not None and product[1].is_assumed:
            if not chain.is_times_one:
                product = None
            else:
                weight, chain = product[1].value, replace(chain, exact=chain.exact * (1 - product[1].value))
        if result.dtype not in SHORT_DTYPES and not scalars and product is None:
            return replace(chain, exact=sampled(result, result.shape, _SAMPLE), weight=weight)
        operands = [self._sampled(each, result.shape) for each in more]
        if product is not None:
            operands[0] = sampled(product[0], result.shape, _SAMPLE) * product[1].value
        is_void = any(each.is_void for each in scalars) or (product is not None and product[1].is_void)
        exact = _exact(base, chain.exact, operands, kwargs)
        return replace(chain, exact=exact, weight=weight, is_void=chain.is_void or is_void)

    def _sampled(self, operand: Any, shape: torch.Size) -> Any:
        """Elements of an operand, or its number without rounding."""
        if (scalar := self._scalars.get(operand)) is not None:
            return scalar.value
        return sampled(operand, shape, _SAMPLE) if isinstance(operand, Tensor) else operand

    def _weight(self, base: str, more: Sequence[Any]) -> float:
        """The weight of the new value in an average, 0 where the operation does not say it."""
        if base == "lerp" and len(more) > 1 and (number := self._number(more[1])) is not None:
            return number
        if base == "mul" and (number := self._number(more[0])) is not None and 0 < number < 1:
            return 1 - number
        return 0.0

    def _number(self, value: Any) -> float | None:
        if (scalar := self._scalars.get(value)) is not None:
            return scalar.value
        if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
            return float(value.detach())
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def _copied(self, own: Tensor, chain: _Chain, source: Any) -> _Chain | None:
        """The chain of a stored tensor that is written anew: only from a value that was made of itself."""
        made = self._known(source)
        if made is None or own.dtype not in SHORT_DTYPES or self._key(made.stored) != self._key(own):
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
        is_short = result.dtype in SHORT_DTYPES or (result is chain.stored and (chain.is_void or chain.is_times_one))
        if is_short and not has_graph and (not chain.in_optimizer or "copy" in chain.operations):
            self._written[key] = self._chains[key][0]

    def _note_remainders(self, calls: Sequence[tuple[Any, Any]]) -> None:
        """A difference with a value that was just rounded, or with what it was stored as, is the remainder."""
        for own, more in calls:
            self._note_widened_remainder(own, more)
            chain = self._known(own) if isinstance(own, Tensor) and own.dtype in SHORT_DTYPES else None
            if chain is not None and any(self._is_origin(each, chain) for each in more if each is not own):
                chain.is_compensated = True
            for each in (own, *more):
                if not isinstance(each, Tensor):
                    continue
                key = self._key(each)
                if (rounded := self._rounded.get(key)) is not None:
                    rounded.is_compensated = True
                if key in self._written and (chain := self._known(each)) is not None:
                    chain.is_compensated = True

    def _note_widened_remainder(self, own: Any, more: Sequence[Any]) -> None:
        """The difference of a stored tensor after it was written and a copy of it from before, both widened."""
        after = self._known(own)
        if after is None or "copy" not in after.operations:
            return
        key = self._key(after.stored)
        before = [chain for each in more if (chain := self._known(each)) is not None]
        if key in self._chains and any(set(c.operations) <= COPIES and self._key(c.stored) == key for c in before):
            self._chains[key][1].is_compensated = True

    def end(self) -> None:
        """The step is over: compare the stored tensors with what they should have become."""
        model = self._model()
        places: dict[tuple[Any, ...], list[tuple[str, _Chain, Tensor]]] = {}
        names = _names(model) if model is not None and (self._written or self._finished) else {}
        for name, chain, result in self._results(names):
            if chain.is_compensated or chain.is_dithered or not set(chain.operations) & _UPDATING:
                continue
            if not set(chain.operations) & _OF_TWO and self._key(chain.stored) in self._measured:
                continue  # scaled to a norm: once what is missing is larger than half an ulp, the factor changes it
            kind = chain.operations, chain.module, chain.in_optimizer, chain.format
            places.setdefault(kind, []).append((name, chain, result))
        for kind, rows in places.items():
            self._count(kind, rows[:_MOST_TENSORS])
        self.begin(self._step)

    def _results(self, names: Mapping[int, str]) -> Iterator[tuple[str, _Chain, Tensor]]:
        """The names of updated tensors, their chains, and what they have become."""
        for chain, values in self._finished:
            yield names.get(address_of(chain.stored), ""), chain, values
        for key, reference in self._written.items():
            chain, result = self._chains[key][1], reference()
            now = result if result is not None else self._became(chain)
            if now is not None:
                yield names.get(address_of(now), ""), chain, sampled(now, now.shape, _SAMPLE)

    def _became(self, chain: _Chain) -> Tensor | None:
        """The tensor whose data was replaced by a result."""
        now = self._writes.replacement(address_of(chain.stored))
        return now if now is not None and address_of(now) == chain.address else None

    def _count(self, key: tuple[Any, ...], rows: list[tuple[str, _Chain, Tensor]]) -> None:
        if key not in self._groups and len(self._groups) >= _MOST_GROUPS:
            return
        name = next((each for each, _, _ in rows if each), "")
        group = self._groups.setdefault(key, _Group(name, key[3]))
        group.tensors = len(rows)
        earlier = [self._writes.count(address_of(chain.stored)) for _, chain, _ in rows]
        known = [each for each in earlier if each is not None]
        totals, infinite, count = torch.zeros(7, dtype=torch.float64), 0.0, 0
        before, group.before = group.before, {}
        for place, (_, chain, actual) in enumerate(rows):
            infinite, count = infinite + float(actual.isinf().sum()), count + actual.numel()
            finite = (chain.exact - chain.begin).isfinite() & actual.isfinite()
            begin, exact, after = (
                torch.where(finite, each, 0).cpu().double() for each in (chain.begin, chain.exact, actual)
            )
            group.before[place] = exact - begin
            totals += _sums(begin, exact - begin, after - begin, before.get(place))
        wanted, swallowed, energy, size, product, first, second = totals.tolist()
        if (wanted and size > 0) or infinite:
            group.rows.append({
                "step": self._step, "elements": wanted, "swallowed": swallowed / max(wanted, 1),
                "intended": (energy / size) ** 0.5 if size > 0 else 0.0, "infinite": infinite / max(count, 1),
                "direction": product / (first * second) ** 0.5 if first * second > 0 else 0.0,
                "weight": max(chain.weight for _, chain, _ in rows) if set(key[0]) & _OF_TWO else 0.0,
                "void": any(chain.is_void for _, chain, _ in rows),
                "writes": max(known) if known else None,
            })  # fmt: skip
            is_count = set(key[0]) <= _COUNTING | _STORING and set(key[0]) & _COUNTING
            if is_count and wanted > swallowed and energy > 0:
                term, count = (energy / wanted) ** 0.5, (size / energy) ** 0.5
                self._expect_end(rows, term, count, max(known, default=float(self._step)))

    def _expect_end(self, rows: list[tuple[str, _Chain, Tensor]], term: float, count: float, writes: float) -> None:
        """Plan to watch the step after which whole numbers that are counted up stand still: half an ulp of a sum of
        `count` terms is as large as a term once it has reached 2^digits times the next power of two."""
        digits = DIGITS.get(rows[0][1].stored.dtype)
        if digits is None or not all(_is_whole(each.begin) and _is_whole(each.exact) for _, each, _ in rows):
            return
        left = 2.0 ** (math.ceil(math.log2(term)) + digits) / term - count
        step = self._step + math.ceil(left * self._step / max(writes, 1.0)) + 1
        if left > 0 and len(self._ends) < _MOST_ENDS:
            self._ends.add(step)

    def is_expected(self, step: int) -> bool:
        """Whether a count in 16 bits may stand still from a step on."""
        return step in self._ends

    def are_continual(self) -> bool:
        """Whether an update outside of the optimizer was seen in several steps."""
        return any(len(group.rows) > 1 and not key[2] for key, group in self._groups.items())

    def facts(self) -> Facts:
        """A row for each group of tensors, see docs/run-file.md."""
        rows: list[dict[str, Any]] = [
            {
                "tensor": group.tensor, "tensors": group.tensors, "format": group.format,
                "operation": " ".join(key[0]), "module": key[1], "optimizer": key[2],
                "steps": group.rows,
            }
            for key, group in self._groups.items() if group.rows
        ]  # fmt: skip
        return {"stored_updates": rows}


def _is_whole(values: Tensor) -> bool:
    return bool((values == values.round()).all())


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


def _exact(base: str, value: Tensor, operands: list[Any], kwargs: Any) -> Tensor:
    """The result of an elementwise operation on samples, in FP32."""
    if base in ("addcmul", "addcdiv") and len(operands) > 2:
        kwargs = {"value": operands.pop()}
    result: Tensor = getattr(value, base)(*operands, **kwargs)
    return result


def _names(model: nn.Module) -> dict[int, str]:
    """The parameters and buffers of a model, by the address of their memory."""
    every = [*model.named_parameters(), *model.named_buffers()]
    return {address_of(tensor): name for name, tensor in every if tensor.layout is torch.strided}
