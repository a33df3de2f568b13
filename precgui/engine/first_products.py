"""The data that meet the first weights which learn: their scale, and what of them the products tell apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.samples import sampled_table
from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_PRODUCTS = {"addmm": (1, 2), "mm": (0, 1), "convolution": (0, 1), "bmm": (0, 1), "linear": (0, 1)}  # data, weights
_MOST_OF_A_STEP = 3
_SAMPLES, _NUMBERS = 512, 1 << 16  # that are looked at
_FEWEST = 8  # samples
_MOST_COLUMNS = 256  # of a table; of what is wider no single column is told
_TWICE = 255.0 * 255.0
_ON_GRID = 0.01  # distance to a whole number
_FEWEST_ON_GRID = 32  # numbers other than 0


class FirstProducts(Watcher):
    """Told of each operation inside the model; looks at products of a parameter with numbers that have no graph.

    Numbers that the model has normalised before are told as they are then. A row for each module and step.
    """

    fact, most_rows = "first_products", 24

    def __init__(self) -> None:
        super().__init__()
        self._weights = TensorMarks[bool]()  # views and casts of parameters
        self._count = 0  # in this step

    def begin(self, step: int) -> None:
        super().begin(step)
        self._count = 0

    def observe(self, call: OperationCall) -> None:
        name, args, out, module = call.name, call.args, call.out, call.module
        if not isinstance(out, Tensor):
            return
        if call.keeps_numbers and self._is_weight(args[0]):
            self._weights[out] = True
        places = _PRODUCTS.get(name)
        if places is None or len(args) <= places[1] or module is None or not torch.is_grad_enabled():
            return
        data, weights = args[places[0]], args[places[1]]
        key = self._step, module
        is_new = key not in self._rows and self._count < _MOST_OF_A_STEP and self._has_room(key)
        if is_new and self._is_weight(weights) and _is_data(data):
            self._count += 1
            with unseen():
                self._rows[key] = {"step": self._step, "module": module} | _described(data, out)

    def _is_weight(self, value: Any) -> bool:
        return (isinstance(value, nn.Parameter) and value.requires_grad) or self._weights.get(value) is not None


def _is_data(value: Tensor) -> bool:
    """Whether these are numbers without a graph, of several samples."""
    is_plain = value.is_floating_point() and value.layout is torch.strided and readable(value) is value
    return is_plain and not value.requires_grad and value.dim() > 1 and len(value) >= _FEWEST and value.numel() > 0


def _described(data: Tensor, results: Tensor) -> dict[str, Any]:
    values, answers = _table(data), _table(results)
    finite = values.isfinite()
    values = torch.where(finite, values, 0.0)
    sizes, middle = values.square().mean(0).sqrt(), values.mean(0)
    grid = values * _TWICE
    on_grid = ((grid - grid.round()).abs() < _ON_GRID).all() & (grid.abs() <= 255.5).all()
    on_grid &= (grid.round() != 0).sum() >= _FEWEST_ON_GRID
    numbers = torch.stack([each.double() for each in (
        sizes.square().mean().sqrt(), middle.mean(), _spread(values), values.abs().amax(),
        sizes.amax(), sizes.argmax(), sizes.median(), on_grid,
        answers.square().mean().sqrt(), _spread(answers),
    )]).tolist()  # fmt: skip
    names = ("rms", "mean", "spread", "largest", "largest_column", "column", "usual_column", "divided_twice",
             "result_rms", "result_spread")  # fmt: skip
    row = dict(zip(names, numbers, strict=True)) | {"samples": len(data), "columns": data[0].numel()}
    if data.dim() > 2 or row["columns"] > _MOST_COLUMNS:
        row["largest_column"] = row["usual_column"] = row["rms"]
    return row | {"column": int(row["column"]), "divided_twice": bool(row["divided_twice"])}


def _table(tensor: Tensor) -> Tensor:
    """Some samples in FP64, a row for each."""
    return in_fp64(sampled_table(tensor, _SAMPLES, _NUMBERS))


def _spread(table: Tensor) -> Tensor:
    """The root mean square of what is left of each column without its mean."""
    return (table - table.mean(0)).square().mean().sqrt()
