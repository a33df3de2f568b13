"""The data that meet the first weights which learn: their scale, and what of them the products tell apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.samples import sampled_table
from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, operation_name

_PRODUCTS = {"addmm": (1, 2), "mm": (0, 1), "convolution": (0, 1), "bmm": (0, 1), "linear": (0, 1)}  # data, weights
_KEEPING = {"_to_copy", "clone"}  # as each view
_MOST_ROWS, _MOST_OF_A_STEP = 24, 3
_SAMPLES, _NUMBERS = 512, 1 << 16  # that are looked at
_FEWEST = 8  # samples
_MOST_COLUMNS = 256  # of a table; of what is wider no single column is told
_TWICE = 255.0 * 255.0
_ON_GRID = 0.01  # distance to a whole number
_FEWEST_ON_GRID = 32  # numbers other than 0


class FirstProducts:
    """Told of each operation inside the model; looks at products of a parameter with numbers that have no graph.

    Numbers that the model has normalised before are told as they are then.
    """

    def __init__(self) -> None:
        self._step = 0
        self._weights = TensorMarks[bool]()  # views and casts of parameters
        self._rows: list[dict[str, Any]] = []
        self._seen: set[str] = set()  # modules, in this step

    def begin(self, step: int) -> None:
        self._step = step
        self.end()

    def end(self) -> None:
        """The step is over."""
        self._weights.clear()
        self._seen.clear()

    def observe(self, func: Any, args: Any, out: Any, module: str | None) -> None:
        if graph_task() != -1 or not args or not isinstance(out, Tensor):
            return
        name = operation_name(func)
        if (func.is_view or name in _KEEPING) and self._is_weight(args[0]):
            self._weights[out] = True
        places = _PRODUCTS.get(name)
        if places is None or len(args) <= places[1] or module is None or not torch.is_grad_enabled():
            return
        data, weights = args[places[0]], args[places[1]]
        is_new = module not in self._seen and len(self._seen) < _MOST_OF_A_STEP and len(self._rows) < _MOST_ROWS
        if is_new and self._is_weight(weights) and _is_data(data):
            self._seen.add(module)
            with unseen():
                self._rows.append({"step": self._step, "module": module} | _described(data, out))

    def _is_weight(self, value: Any) -> bool:
        return (isinstance(value, nn.Parameter) and value.requires_grad) or self._weights.get(value) is not None

    def facts(self) -> list[dict[str, Any]]:
        """A row for each module and step, see `first_products` in docs/run-file.md."""
        return self._rows


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
