"""Weights that a quantiser has stored as several tensors, codes beside their scales: shown as the one that they are.

Layouts: compressed-tensors (pack-quantized, nvfp4 and mxfp4 packed, float- and int-quantized), ModelOpt (NVFP4, FP8),
torchao (a byte a number), DeepSeek's FP8 blocks, GPT-OSS's MXFP4 and bitsandbytes (NF4, FP4, INT8). Layouts of GPTQ
and AWQ are named, not read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from precgui.formats.checkpoints.tensor import (
    CheckpointError,
    CheckpointTensor,
    ReadSingles,
    Singles,
    Words,
    code_values,
    nibbles,
)
from precgui.sentences import L_, Sentence

MOST_SMALL = 1 << 16
MOST_UNIT = 1 << 22
_USUAL_BITS = (4, 8, 2, 3, 5, 6, 7, 1)  # of rows below 32 numbers, several fit the same words
DEEPSEEK_BLOCK = 128


@dataclass(frozen=True)
class StoredPart:
    """A tensor as it stands in its file, with a way to its words; those of floats are codes or FP32 numbers."""

    tensor: CheckpointTensor
    words: Callable[[int, int], Words]

    def small(self) -> Words:
        """All words of a part that must be small: a shape, a table, the state of bitsandbytes."""
        if self.tensor.size > MOST_SMALL:
            raise CheckpointError(
                Sentence(
                    "{tensor} has {count} numbers; {most} are the most here",
                    tensor=self.tensor.name,
                    count=self.tensor.size,
                    most=MOST_SMALL,
                )
            )
        return self.words(0, self.tensor.size)

    def table(self) -> Singles:
        """The numbers of such a part."""
        self.small()
        return self.tensor.read(0, self.tensor.size)


Parts = dict[str, StoredPart]
Shape = tuple[int, ...]


def joined(parts: Parts) -> list[CheckpointTensor]:
    """The tensors of a checkpoint, those that belong together as one, in the order of the file.

    Raises CheckpointError for parts that do not fit together.
    """
    taken: dict[str, CheckpointTensor] = {}
    used: set[str] = set()
    for name in parts:
        for suffix, join in _JOINERS.items():
            if not name.endswith(suffix) or name in used:
                continue
            if (result := join(parts, name, name.removesuffix(suffix))) is not None:
                tensor, names = result
                taken[name] = tensor
                used.update(names)
                break
    return [taken.get(name, part.tensor) for name, part in parts.items() if name in taken or name not in used]


Joined = tuple[CheckpointTensor, list[str]] | None


def _whole(
    parts: Parts, name: str, others: Iterable[str], shape: Shape, dtype: str, stored_as: str,
    read: ReadSingles | None, unit: int = 1, why_not: str = "",
) -> Joined:  # fmt: skip
    names = [each for each in others if each in parts]
    members = [parts[each].tensor for each in names]
    files = tuple(dict.fromkeys(file for each in members for file in each.files))
    size = sum(each.nbytes for each in members)
    facts = name, shape, dtype, stored_as, size, files, max(unit, 1)
    if unit > MOST_UNIT:
        read, why_not = None, Sentence("packed rows of {count} numbers", count=unit)
    if not math.prod(shape):
        read, why_not = None, L_("no numbers")
    return (CheckpointTensor(*facts, why_not=why_not) if read is None else CheckpointTensor(*facts, read=read)), names


def _misfit(name: str, why: str) -> CheckpointError:
    return CheckpointError(Sentence("the parts of {tensor!r} do not fit together: {why}", tensor=name, why=why))


def _scaled(codes: ReadSingles, shape: Shape, scale: Shape, read_scale: ReadSingles) -> ReadSingles:
    """Whole rows of codes times their scales, (rows, groups) or one for all; read for the rows that are asked."""
    width, groups = shape[-1], scale[-1] if len(scale) > 1 else 1
    per_row = math.prod(scale) > groups or len(scale) > 1 == math.prod(shape[:-1])

    def read(start: int, stop: int) -> Singles:
        first, last = start // width, stop // width
        scales = read_scale(first * groups, last * groups) if per_row else read_scale(0, groups)
        values = codes(start, stop).reshape(last - first, groups, -1)
        return (values * scales.reshape(-1, groups, 1)).reshape(-1)

    return read


def _check_scale(name: str, shape: Shape, scale: Shape) -> None:
    rows = math.prod(shape[:-1])
    groups = scale[-1] if scale else 1
    if not shape or not groups or math.prod(scale) not in (groups, rows * groups) or shape[-1] % groups:
        raise _misfit(
            name,
            Sentence(
                "scales of shape {scales} for weights of shape {weights}", scales=list(scale), weights=list(shape)
            ),
        )


def _numbers(values: Words, bits: int, count: int) -> Words:
    """`count` codes of some bits from rows of 32-bit words, dense, the lowest bits first."""
    digits = np.unpackbits(np.ascontiguousarray(values).view(np.uint8), axis=-1, bitorder="little")
    digits = digits[:, : count * bits].reshape(len(values), count, bits)
    codes: Words = (digits << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)
    return codes


def _compressed_packed(parts: Parts, name: str, stem: str) -> Joined:
    packed, scale = parts[name], parts.get(f"{stem}.weight_scale")
    whole = f"{stem}.weight"
    if scale is None:
        return None
    others = [name, *(f"{stem}.weight_{each}" for each in ("scale", "shape", "zero_point", "global_scale", "g_idx"))]
    if packed.tensor.stored_as == "U8":
        return _fp4(parts, whole, name, scale, parts.get(f"{stem}.weight_global_scale"), others, divided=True)
    if f"{stem}.weight_shape" not in parts or len(packed.tensor.shape) != 2:
        raise _misfit(whole, L_("its shape is missing"))
    shape = tuple(int(n) for n in parts[f"{stem}.weight_shape"].small())
    rows, columns = packed.tensor.shape
    bits = next((b for b in _USUAL_BITS if len(shape) == 2 and shape[1] > 0 and -(-shape[1] * b // 32) == columns), 0)
    if not bits or shape[0] != rows:
        raise _misfit(
            whole, Sentence("packed as {packed}, said to be {said}", packed=[rows, columns], said=list(shape))
        )
    facts = parts, whole, others, shape, f"int{bits}", f"compressed-tensors, {bits} bits"
    if f"{stem}.weight_g_idx" in parts:
        return _whole(*facts, None, why_not=L_("reordered groups (g_idx)"))
    _check_scale(whole, shape, scale.tensor.shape)
    zero, groups = _zero_points(parts.get(f"{stem}.weight_zero_point"), bits, rows, whole)

    def codes(start: int, stop: int) -> Singles:
        first, last = start // shape[1], stop // shape[1]
        words = packed.words(first * columns, last * columns).reshape(-1, columns)
        plain = _numbers(words, bits, shape[1]).astype(np.float32) - np.float32(1 << (bits - 1))
        if zero is None:
            return plain.reshape(-1)
        return (plain.reshape(last - first, groups, -1) - zero(first, last)[..., None]).reshape(-1)

    read = _scaled(codes, shape, scale.tensor.shape, scale.tensor.read)
    return _whole(*facts, read, shape[1])


def _zero_points(
    part: StoredPart | None, bits: int, rows: int, name: str
) -> tuple[Callable[[int, int], Singles] | None, int]:
    """Zero points of rows, packed along them, relative to the middle of the codes; and how many a row has."""
    if part is None:
        return None, 1
    form = part.tensor.shape
    if len(form) != 2 or -(-rows * bits // 32) != form[0] or not form[1]:
        raise _misfit(name, Sentence("zero points of shape {shape}", shape=list(form)))
    groups = form[1]

    def read(first: int, last: int) -> Singles:
        begin, end = first // 32 * bits, min(-(-last // 32) * bits, form[0])  # 32 rows take whole words
        words = part.words(begin * groups, end * groups).reshape(-1, groups)
        codes = _numbers(np.ascontiguousarray(words.T), bits, min(-(-last // 32) * 32, rows) - first // 32 * 32).T
        return codes[first % 32 :][: last - first].astype(np.float32) - np.float32(1 << (bits - 1))

    return read, groups


def _fp4(
    parts: Parts, whole: str, name: str, scale: StoredPart, factor: StoredPart | None, others: list[str], *,
    divided: bool,
) -> Joined:  # fmt: skip
    """NVFP4 and MXFP4: two codes a byte, E4M3 scales times one FP32 factor, or powers of two as bytes."""
    packed = parts[name]
    if not packed.tensor.shape:
        raise _misfit(whole, L_("a single byte"))
    shape = (*packed.tensor.shape[:-1], 2 * packed.tensor.shape[-1])
    _check_scale(whole, shape, scale.tensor.shape)
    if factor is not None and factor.tensor.size != 1:
        raise _misfit(whole, Sentence("{count} factors of the tensor", count=factor.tensor.size))
    power = scale.tensor.stored_as in ("U8", "F8_E8M0")
    kind = "mxfp4" if power else "nvfp4"

    def codes(start: int, stop: int) -> Singles:
        return code_values("e2m1")[nibbles(packed.words(start // 2, stop // 2))]

    def scales(start: int, stop: int) -> Singles:
        read = code_values("e8m0")[scale.words(start, stop)] if power else scale.tensor.read(start, stop)
        if factor is None:
            return read
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return read / factor.table() if divided else read * factor.table()

    owner = "compressed-tensors" if divided else "ModelOpt"
    read = _scaled(codes, shape, scale.tensor.shape, scales)
    return _whole(parts, whole, others, shape, kind, f"{owner}, {kind.upper()}", read, shape[-1])


def _gpt_oss(parts: Parts, name: str, stem: str) -> Joined:
    """`_blocks` [..., groups, 16] of codes and `_scales` [..., groups] of powers of two."""
    blocks, scale = parts[name], parts.get(f"{stem}_scales")
    if scale is None or blocks.tensor.stored_as != "U8":
        return None
    form = blocks.tensor.shape
    if len(form) < 3 or form[:-1] != scale.tensor.shape or scale.tensor.stored_as != "U8":
        raise _misfit(
            stem,
            Sentence(
                "blocks of shape {blocks} and scales of {scales}", blocks=list(form), scales=list(scale.tensor.shape)
            ),
        )
    shape = (*form[:-2], form[-2] * form[-1] * 2)
    group = 2 * form[-1]

    def read(start: int, stop: int) -> Singles:
        powers = code_values("e8m0")[scale.words(start // group, stop // group)]
        values = code_values("e2m1")[nibbles(blocks.words(start // 2, stop // 2))].reshape(-1, group)
        return (values * powers[:, None]).reshape(-1)

    return _whole(parts, stem, [name, f"{stem}_scales"], shape, "mxfp4", "GPT-OSS, MXFP4", read, group)


def _one_byte(parts: Parts, name: str, stem: str) -> Joined:
    """A weight of one byte a number with scales beside: FP8 and INT8 of several tools, NF4 and FP4 of bitsandbytes."""
    weight = parts[name]
    if f"{name}.absmax" in parts or weight.tensor.stored_as == "U8":
        return _bitsandbytes(parts, name) or _modelopt(parts, name, stem)
    if weight.tensor.stored_as not in ("F8_E4M3", "F8_E5M2", "I8"):
        return None
    shape = weight.tensor.shape
    for suffix, tool in (
        (".weight_scale", "scaled"),
        (".weight_scale_inv", "DeepSeek blocks"),
        (".SCB", "bitsandbytes"),
    ):
        if (scale := parts.get(f"{stem}{suffix}")) is None or not shape:
            continue
        codes, form, read_scale = _codes_of(weight), scale.tensor.shape, scale.tensor.read
        facts = (
            shape,
            "int8" if weight.tensor.stored_as == "I8" else weight.tensor.dtype,
            f"{weight.tensor.stored_as}, {tool}",
        )
        others = [name, f"{stem}{suffix}", f"{stem}.weight_zero_point"]
        if f"{stem}.weight_zero_point" in parts:
            return _whole(parts, name, others, *facts, None, why_not=L_("INT8 with a zero point"))
        if suffix == ".SCB":
            read_scale = partial(_of_127, read_scale)
        elif _is_grid(shape, form):
            return _whole(parts, name, others, *facts, _grid(codes, shape, read_scale), shape[-1])
        if len(form) == 1 and form[0] == shape[0] > 1:
            form = (*form, 1)
        _check_scale(name, shape, form)
        return _whole(parts, name, others, *facts, _scaled(codes, shape, form, read_scale), shape[-1])
    return None


def _of_127(read: ReadSingles, start: int, stop: int) -> Singles:
    return read(start, stop) / np.float32(127)


def _codes_of(weight: StoredPart) -> ReadSingles:
    if weight.tensor.stored_as == "I8":
        return lambda start, stop: weight.words(start, stop).astype(np.float32)
    return weight.tensor.read


def _is_grid(shape: Shape, scale: Shape) -> bool:
    """Whether there is a scale for each square of 128 x 128 weights."""
    return len(shape) == len(scale) == 2 and scale == tuple(-(-n // DEEPSEEK_BLOCK) for n in shape) and scale != (1, 1)


def _grid(codes: ReadSingles, shape: Shape, read_scale: ReadSingles) -> ReadSingles:
    across = -(-shape[1] // DEEPSEEK_BLOCK)

    def read(start: int, stop: int) -> Singles:
        rows = np.arange(start // shape[1], stop // shape[1]) // DEEPSEEK_BLOCK
        scales = read_scale(int(rows[0]) * across, int(rows[-1] + 1) * across).reshape(-1, across)
        wide = np.repeat(scales, DEEPSEEK_BLOCK, axis=1)[:, : shape[1]]
        values: Singles = codes(start, stop).reshape(-1, shape[1]) * wide[rows - rows[0]]
        return values.reshape(-1)

    return read


def _modelopt(parts: Parts, name: str, stem: str) -> Joined:
    scale, second = parts.get(f"{stem}.weight_scale"), parts.get(f"{stem}.weight_scale_2")
    if scale is None or (second is None and scale.tensor.stored_as != "U8"):
        return None
    return _fp4(
        parts, name, name, scale, second, [name, f"{stem}.weight_scale", f"{stem}.weight_scale_2"], divided=False
    )


def _bitsandbytes(parts: Parts, name: str) -> Joined:
    state_name = next((f"{name}.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")
                       if f"{name}.quant_state.bitsandbytes__{kind}" in parts), "")  # fmt: skip
    needed = [name, f"{name}.absmax", f"{name}.quant_map", state_name]
    if not state_name or any(each not in parts for each in needed):
        return None
    state = _state(parts[state_name], name)
    shape, block = tuple(state["shape"]), state["blocksize"]
    packed, table = parts[name], parts[f"{name}.quant_map"]
    if table.tensor.size != 16 or packed.tensor.size != -(-math.prod(shape) // 2) or block % 2:
        raise _misfit(
            name, Sentence("{count} bytes for the shape {shape}", count=packed.tensor.size, shape=list(shape))
        )
    nested = [f"{name}.nested_absmax", f"{name}.nested_quant_map"]
    if parts[f"{name}.absmax"].tensor.size != -(-math.prod(shape) // block):
        raise _misfit(
            name,
            Sentence(
                "{count} scales for the shape {shape}", count=parts[f"{name}.absmax"].tensor.size, shape=list(shape)
            ),
        )
    scales = _absmax(parts, name, state, nested)

    def read(start: int, stop: int) -> Singles:
        wide = np.repeat(scales(start // block, -(-stop // block)), block)[: stop - start]
        halves = nibbles(packed.words(start // 2, -(-stop // 2))).reshape(-1, 2)[:, ::-1].reshape(-1)[: stop - start]
        values: Singles = table.table()[halves] * wide
        return values

    kind = state_name.rpartition("__")[2]
    dtype = "nf4" if kind == "nf4" else "e2m1"
    return _whole(parts, name, [*needed, *nested], shape, dtype, f"bitsandbytes, {kind.upper()}", read, block)


def _state(part: StoredPart, name: str) -> dict[str, Any]:
    try:
        state = json.loads(bytes(part.small().astype(np.uint8)))
        shape, block = state["shape"], state["blocksize"]
        nested, offset = state.get("nested_blocksize") or 1, float(state.get("nested_offset") or 0)
        whole = all(type(n) is int and 0 <= n < 1 << 40 for n in (*shape, block, nested)) and block > 0 and shape
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise _misfit(name, L_("its state is not readable"))
    return {"shape": shape, "blocksize": block, "nested_blocksize": nested, "nested_offset": offset}


def _absmax(parts: Parts, name: str, state: dict[str, Any], nested: list[str]) -> ReadSingles:
    """The scales of blocks; those that were quantised themselves are looked up and scaled back."""
    part = parts[f"{name}.absmax"]
    if part.tensor.stored_as != "U8":
        return part.tensor.read
    if any(each not in parts for each in nested):
        raise _misfit(name, L_("its scales are quantised and their own scales are missing"))
    outer, table = parts[nested[0]], parts[nested[1]]
    block, offset = state["nested_blocksize"], np.float32(state["nested_offset"])
    if table.tensor.size != 256 or outer.tensor.size != -(-part.tensor.size // block):
        raise _misfit(name, Sentence("{count} scales of scales", count=outer.tensor.size))

    def read(start: int, stop: int) -> Singles:
        wide = np.repeat(outer.tensor.read(start // block, -(-stop // block)), block)[start % block :]
        values: Singles = table.table()[part.words(start, stop)] * wide[: stop - start] + offset
        return values

    return read


def _gptq_or_awq(parts: Parts, name: str, stem: str) -> Joined:
    packed, scale = parts[name].tensor, parts.get(f"{stem}.scales")
    if scale is None or len(packed.shape) != 2 or len(scale.tensor.shape) != 2:
        return None
    outputs = scale.tensor.shape[1]
    gptq = packed.shape[1] == outputs
    others = [name, *(f"{stem}.{each}" for each in ("scales", "qzeros", "g_idx", "bias_q"))]
    inputs = packed.shape[0] * (8 if gptq else 1)
    return _whole(parts, f"{stem}.weight", others, (outputs, inputs), "int4", "GPTQ" if gptq else "AWQ", None,
                  why_not=Sentence("the layout of {layout}", layout='GPTQ' if gptq else 'AWQ'))  # fmt: skip


def _torchao(parts: Parts, name: str, stem: str) -> Joined:
    """`_weight_qdata` of one byte a number, its scale, and zero points and a factor of inputs where there are any."""
    codes, scale = parts[name], parts.get(f"{stem}._weight_scale")
    is_whole = codes.tensor.stored_as == "I8"
    if scale is None or not codes.tensor.shape or codes.tensor.stored_as not in ("I8", "F8_E4M3", "F8_E5M2"):
        return None
    whole, shape, form = f"{stem}.weight", codes.tensor.shape, scale.tensor.shape
    zero = parts.get(f"{stem}._weight_zero_point")
    factor = parts.get(f"{stem}._weight_act_pre_scale")
    others = [name, f"{stem}._weight_scale", f"{stem}._weight_zero_point", f"{stem}._weight_act_pre_scale"]
    _check_scale(whole, shape, form)
    read_codes = _codes_of(codes)
    if zero is not None:
        if zero.tensor.shape != form or len(form) != 2:
            raise _misfit(whole, Sentence("zero points of shape {shape}", shape=list(zero.tensor.shape)))
        read_codes = _less(read_codes, shape[-1], form[-1], _codes_of(zero))
    read = _scaled(read_codes, shape, form, scale.tensor.read)
    if factor is not None:
        if factor.tensor.shape != shape[-1:]:
            raise _misfit(whole, Sentence("a scale of inputs of shape {shape}", shape=list(factor.tensor.shape)))
        read = _by_columns(read, shape[-1], factor.tensor.read)
    return _whole(
        parts, whole, others, shape, "int8" if is_whole else codes.tensor.dtype, "torchao, a byte a number", read,
        shape[-1],
    )  # fmt: skip


def _by_columns(read: ReadSingles, width: int, read_factor: ReadSingles) -> ReadSingles:
    """Whole rows times the factor of each column."""
    return lambda start, stop: (read(start, stop).reshape(-1, width) * read_factor(0, width)).reshape(-1)


def _less(codes: ReadSingles, width: int, groups: int, read_zero: ReadSingles) -> ReadSingles:
    """Whole rows of codes less the zero points of their groups."""

    def read(start: int, stop: int) -> Singles:
        first, last = start // width, stop // width
        zeros = read_zero(first * groups, last * groups).reshape(last - first, groups, 1)
        return (codes(start, stop).reshape(last - first, groups, -1) - zeros).reshape(-1)

    return read


_JOINERS: dict[str, Callable[[Parts, str, str], Joined]] = {
    ".weight_packed": _compressed_packed, "_blocks": _gpt_oss, ".qweight": _gptq_or_awq, ".weight": _one_byte,
    "._weight_qdata": _torchao,
}  # fmt: skip
