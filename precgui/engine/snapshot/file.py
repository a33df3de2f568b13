"""Safetensors files of named tensors with one line of JSON: https://github.com/huggingface/safetensors, "Format"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.safe_open import open_regular, replaced
from precgui.sentences import L_, Sentence, filled, message_of

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_MOST_HEADER_BYTES = 1 << 26


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], text: str, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors, a text and further texts by name, in full or not at all.

    Raises OSError, and TypeError for a tensor that `require_codes` refuses.
    """
    require_codes(tensors)
    header: dict[str, Any] = {"__metadata__": {"precgui": text, **(metadata or {})}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with replaced(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write(_bytes(tensor))


def require_codes(tensors: Mapping[str, Tensor]) -> None:
    """Raises TypeError for a tensor whose dtype or layout has no code in such a file."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _CODES or tensor.layout is not torch.strided:
            raise TypeError(f"{name} is {tensor.dtype}, {tensor.layout}")


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def read_tensors(path: Path, kind: str = L_("snapshot")) -> tuple[dict[str, Tensor], str]:
    """The tensors and the text of a file of `write_tensors`. Raises EngineError for another or a damaged file."""
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MOST_HEADER_BYTES:
                raise ValueError(Sentence("its header would be {length} bytes long", length=length))
            header = json.loads(file.read(length))
            data = bytearray(file.read())
        text = header.pop("__metadata__")["precgui"]
        if not isinstance(text, str):
            raise TypeError(L_("its metadata is no text"))
        return {str(name): _tensor(entry, data) for name, entry in header.items()}, text
    except OSError as error:
        raise EngineError(
            Sentence("{path} cannot be read: {why}", path=path, why=error.strerror or str(error))
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise EngineError(
            Sentence(
                "{path} is no {kind} of precgui, or is damaged: {error}", path=path, kind=kind, error=message_of(error)
            )
        ) from None


def _tensor(entry: Mapping[str, Any], data: bytearray) -> Tensor:
    dtype = _DTYPES[entry["dtype"]]
    shape = [int(size) for size in entry["shape"]]
    begin, end = (int(place) for place in entry["data_offsets"])
    count = math.prod(shape)
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= len(data) or end - begin != count * dtype.itemsize:
        raise ValueError(L_("a tensor does not fit into the file"))
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=begin).clone().view(dtype).view(shape)


def pack_tree(value: Any, tensors: dict[str, Tensor], prefix: str, refusal: str) -> Any:
    """A tree of plain values that names its tensors, which are put into `tensors` under `prefix` and a number.

    Raises TypeError for what is neither, with the sentence `refusal` about its `{type}`.
    """

    def packed(value: Any) -> Any:
        if isinstance(value, Tensor):
            name = f"{prefix}{len(tensors)}"
            tensors[name] = value
            return {"tensor": name}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: packed(item) for key, item in value.items()}}
        if type(value) in (list, tuple):
            return {type(value).__name__: [packed(item) for item in value]}
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        raise TypeError(filled(refusal, type=type(value).__name__))

    return packed(value)


def unpack_tree(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value of `pack_tree`. Raises ValueError, KeyError, TypeError or AttributeError for another tree."""
    (kind, value), = tree.items()  # fmt: skip
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {str(key): unpack_tree(item, tensors) for key, item in value.items()}
    if kind in ("list", "tuple"):
        items = [unpack_tree(item, tensors) for item in value]
        return items if kind == "list" else tuple(items)
    if kind == "value" and (value is None or isinstance(value, bool | int | float | str)):
        return value
    raise ValueError(L_("it holds a value of an unknown kind"))
