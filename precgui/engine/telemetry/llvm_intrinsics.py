"""Counting bytes with vector instructions, and other LLVM code inside numba functions.

numba's own loops add up in 64 bits, so that a vector holds 4 or 8 numbers; with a lane of 8 bits for each byte it holds
eight times as many. LLVM splits the vectors of GROUP bytes into what the processor has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

GROUP = 64  # bytes at a time
LINE = 64  # bytes that come into the cache together
MOST_GROUPS = 255  # before a lane of 8 bits overflows
_BYTE, _WORD, _INDEX, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_BYTES, _WORDS = ir.VectorType(_BYTE, GROUP), ir.VectorType(_WORD, GROUP)
_Match = Callable[[Any], Any]  # the number of a group to a vector of GROUP booleans


def _pointer_to_float(context: Any, address: Any) -> Any:
    """An address as a pointer to float32."""
    return _pointer(types.float32)


def _pointer_to_word(context: Any, address: Any) -> Any:
    """An address as a pointer to uint16."""
    return _pointer(types.uint16)


def _pointer_to_long(context: Any, address: Any) -> Any:
    """An address as a pointer to uint64."""
    return _pointer(types.uint64)


def _pointer(kind: Any) -> Any:
    signature = types.CPointer(kind)(types.intp)  # type: ignore[no-untyped-call]

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

    return signature, code


def _prefetch(context: Any, address: Any) -> Any:
    """Have the memory at `address` brought into the cache while other things are done; any address will do."""
    signature = types.void(types.intp)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _INDEX, _INDEX, _INDEX])
        bring: Any = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, kind, "llvm.prefetch.p0i8"
        )
        to_read_in_all_caches_as_data = [ir.Constant(_INDEX, number) for number in (0, 3, 1)]
        builder.call(bring, [builder.inttoptr(arguments[0], pointer), *to_read_in_all_caches_as_data])
        return target.get_dummy_value()

    return signature, code


def _count_equal(context: Any, address: Any, groups: Any, requested: Any) -> Any:
    """How many of `groups` x GROUP bytes at `address` are `requested`."""
    signature = types.int64(types.intp, types.int64, types.uint8)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, groups, choice = arguments
        same = _splat(builder, choice)
        return _count(builder, groups, lambda place: builder.icmp_unsigned("==", _load(builder, address, place), same))

    return signature, code


def _count_below(context: Any, address: Any, groups: Any, others: Any, down: Any, least: Any) -> Any:
    """How many of the bytes at `address` are below max(byte at `others` - `down`, `least`), not below 0."""
    signature = types.int64(types.intp, types.int64, types.intp, types.uint8, types.uint8)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, groups, others, down, least = arguments
        downs, leasts = _splat(builder, down), _splat(builder, least)

        def below(place: Any) -> Any:
            other = _load(builder, others, place)
            lower = builder.select(builder.icmp_unsigned(">", other, downs), builder.sub(other, downs), _zeros())
            limit = builder.select(builder.icmp_unsigned(">", lower, leasts), lower, leasts)
            return builder.icmp_unsigned("<", _load(builder, address, place), limit)

        return _count(builder, groups, below)

    return signature, code


def _count(builder: Any, groups: Any, match: _Match) -> Any:
    """The loop over groups: lanes count up by one where they match, and are added up at the end."""
    before, loop, done = builder.block, builder.append_basic_block("count"), builder.append_basic_block("counted")
    builder.branch(loop)
    builder.position_at_end(loop)
    place, lanes = builder.phi(_LONG), builder.phi(_BYTES)
    more = builder.sub(lanes, builder.sext(match(place), _BYTES))
    next_place = builder.add(place, ir.Constant(_LONG, 1))
    for phi, first, later in ((place, ir.Constant(_LONG, 0), next_place), (lanes, _zeros(), more)):
        phi.add_incoming(first, before)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", next_place, groups), loop, done)
    builder.position_at_end(done)
    add: Any = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, ir.FunctionType(_WORD, [_WORDS]), f"llvm.vector.reduce.add.v{GROUP}i16"
    )
    return builder.zext(builder.call(add, [builder.zext(more, _WORDS)]), _LONG)


def _load(builder: Any, address: Any, place: Any) -> Any:
    loaded = builder.load(builder.gep(builder.inttoptr(address, _BYTES.as_pointer()), [place]))
    loaded.align = 1
    return loaded


def _splat(builder: Any, byte: Any) -> Any:
    nothing = ir.Constant(_BYTES, ir.Undefined)
    first = builder.insert_element(nothing, byte, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_INDEX, GROUP), [0] * GROUP))


def _zeros() -> Any:
    return ir.Constant(_BYTES, [0] * GROUP)


as_floats: Any = intrinsic(_pointer_to_float)
as_words: Any = intrinsic(_pointer_to_word)
as_longs: Any = intrinsic(_pointer_to_long)
prefetch: Any = intrinsic(_prefetch)
count_equal: Any = intrinsic(_count_equal)
count_below: Any = intrinsic(_count_below)
