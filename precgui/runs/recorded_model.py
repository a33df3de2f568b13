"""The model of a run as recorded: modules with their classes, parameters, buffers and copies of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from precgui.events import ModelDescribed, ModuleInfo, ParameterInfo, ParameterRole
from precgui.runs.file.contents import RunFileView, decoded
from precgui.runs.file.json_text import cut
from precgui.runs.file.schema import TABLES
from precgui.sentences import L_

NOT_YET = L_("the model is described after the first step")
OLD_FILE = L_("the version of precgui that wrote this file did not record the model")
NO_STEP = L_("the run ended before its model was described")
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class RecordedModel:
    """Modules and parameters in the order of the model; `unavailable` says why there are none, '' where there are."""

    modules: tuple[ModuleInfo, ...] = ()
    parameters: tuple[ParameterInfo, ...] = ()
    unavailable: str = ""

    @cached_property
    def module_types(self) -> Mapping[str, str]:
        """The class of each module by its name."""
        return {module.name: module.type for module in self.modules}

    @cached_property
    def by_name(self) -> Mapping[str, ParameterInfo]:
        """Parameters, buffers and copies of weights by their name."""
        return {parameter.name: parameter for parameter in self.parameters}

    def forward_order(self) -> list[str]:
        """The names of the modules in the order in which they returned in the first step."""
        ran = [module for module in self.modules if module.forward_order >= 0]
        return [module.name for module in sorted(ran, key=lambda module: module.forward_order)]

    def backward_order(self) -> list[str]:
        """The names of the parameters in the order in which the first backward pass completed their gradients."""
        ran = [parameter for parameter in self.parameters if parameter.backward_order >= 0]
        return [parameter.name for parameter in sorted(ran, key=lambda parameter: parameter.backward_order)]


def model_columns(event: ModelDescribed) -> dict[str, Columns]:
    """The description as columns of `/model/modules` and `/model/parameters`."""
    return {
        "model/modules": {
            "name": _texts("model/modules", "name", [each.name for each in event.modules]),
            "type": _texts("model/modules", "type", [each.type for each in event.modules]),
            "forward_order": np.array([each.forward_order for each in event.modules], "<i8"),
        },
        "model/parameters": {
            "name": _texts("model/parameters", "name", [each.name for each in event.parameters]),
            "role": _texts("model/parameters", "role", [each.role for each in event.parameters]),
            "dtype": _texts("model/parameters", "dtype", [each.dtype for each in event.parameters]),
            "shape": _texts("model/parameters", "shape", ["x".join(map(str, each.shape)) for each in event.parameters]),
            "requires_grad": np.array([each.requires_grad for each in event.parameters], "u1"),
            "updated": np.array([each.updated for each in event.parameters], "u1"),
            "backward_order": np.array([each.backward_order for each in event.parameters], "<i8"),
        },
    }


def read_model(contents: RunFileView, *, running: bool) -> RecordedModel:
    """The model as the file has it."""
    if not contents.rows("model/modules"):
        counted = contents.counters()
        known = not counted or "model/modules" in counted
        return RecordedModel(unavailable=OLD_FILE if not known else NOT_YET if running else NO_STEP)
    modules = (
        ModuleInfo(decoded(name), decoded(kind), int(order))
        for name, kind, order in _rows(contents, "model/modules", ("name", "type", "forward_order"))
    )
    columns = tuple(TABLES["model/parameters"].columns)
    parameters = (
        ParameterInfo(
            decoded(name), cast(ParameterRole, decoded(role)), decoded(dtype), _shape(decoded(shape)),
            bool(requires_grad), bool(updated), int(order),
        )
        for name, role, dtype, shape, requires_grad, updated, order in _rows(contents, "model/parameters", columns)
    )  # fmt: skip
    return RecordedModel(tuple(modules), tuple(parameters))


def _rows(contents: RunFileView, table: str, columns: Sequence[str]) -> zip[tuple[Any, ...]]:
    """The rows that every one of the columns has."""
    return zip(*(contents.read(table, column, 0, contents.rows(table)) for column in columns), strict=False)


def _shape(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _texts(table: str, column: str, texts: Sequence[str]) -> NDArray[np.bytes_]:
    dtype = TABLES[table].columns[column].dtype
    return np.array([cut(text, dtype.itemsize).encode(errors="replace") for text in texts], dtype)
