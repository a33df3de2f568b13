"""The tape of one training step: every operation that ran, forward and backward, as a straight-line program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from precgui.engine.shadow.nested import leaves_of
from precgui.sentences import L_, filled


@dataclass(frozen=True)
class ValueRef:
    """Stands for a tensor in the arguments of an operation on the tape."""

    id: int


# Products of matrices. They may add partial results in the low format: that is what a product costs, not what a line
# adds to it.
KERNELS = ("mm.", "bmm.", "addmm.", "baddbmm.", "convolution", "_scaled_mm", "scaled_mm", "_scaled_dot_product")
NO_LINE_LABEL = L_("(no line)")


@dataclass(frozen=True, order=True)
class SourceLine:
    """A line of a Python file and the function that it is in; `number` 0 where no line is known.

    A lambda or a comprehension in a line is part of it: lines are equal where file and number are.
    """

    file: str
    number: int
    function: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """`file.py:12`, the path relative to the working directory where it is below it."""
        if not self.number:
            return filled(NO_LINE_LABEL)
        package = Path(__file__).parents[3]  # so that a model of precgui has the same name everywhere
        relative = os.path.relpath(self.file, package if self.file.startswith(str(package / "precgui")) else None)
        return f"{self.file if relative.startswith('..') else relative}:{self.number}"


NO_LINE = SourceLine("", 0)


@dataclass(frozen=True)
class OpOrigin:
    """Where an operation comes from. `cause` is the torch function that Python called, or "" for none.

    For an operation of the backward pass all but `backward` are those of its forward operation.
    """

    line: SourceLine
    module: str
    cause: str
    backward: bool


@dataclass
class TapeOp:
    """One operation as it ran.

    `local_errors` holds, for each output, the low result minus the wide result on the same inputs (None: exact, no
    float or not known; of complex numbers both parts, [..., 2]). `local_error` and
    `rounding_error` are relative L2 norms over all outputs: what the operation really lost, and what rounding its exact
    result once would have lost.
    """

    index: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    input_dtypes: tuple[torch.dtype, ...]
    origin: OpOrigin
    is_view: bool = False
    writes: tuple[int, ...] = ()  # places of tensors among the flat arguments that the operation overwrites
    is_random: bool = False
    onednn: bool = True  # whether oneDNN was allowed
    local_errors: tuple[Tensor | None, ...] = ()
    local_error: float = 0.0
    rounding_error: float = 0.0
    decision: Any = None  # what the low run decided here: which elements are on, which indices were taken
    nonfinite: str = ""  # "", "meant", "producer" or "carrier"
    exact_is_finite: bool | None = None  # of a producer: whether FP64 on the same inputs is finite
    opaque: str = ""  # why there is no FP64 counterpart
    held: list[Any] | None = None  # the outputs, where the operation must not run again
    undifferentiable: bool = False  # torch has no derivative of it, so what comes before it gets no share through it
    constants: set[str] = field(default_factory=set)  # names of the arguments by which torch has no derivative

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", self.function)).removeprefix("aten.")

    @property
    def argument_names(self) -> list[str]:
        """The names that torch gives to the arguments; none for functions of this package."""
        schema = getattr(self.function, "_schema", None)
        return [] if schema is None else [argument.name for argument in schema.arguments]


@dataclass
class Tape:
    """A step: operations in order, the tensors that existed before it, and the values that it made."""

    operations: list[TapeOp] = field(default_factory=list)
    leaves: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)  # as they are now
    overwritten: set[int] = field(default_factory=set)
    dtypes: dict[int, torch.dtype] = field(default_factory=dict)
    magnitudes: dict[int, float] = field(default_factory=dict)  # largest finite or infinite magnitude of a value
    kinds: dict[int, str] = field(default_factory=dict)  # which of n, + and - (NaN, Inf, -Inf) a value holds
    notes: list[str] = field(default_factory=list)
    unrecorded: bool = False  # whether values were read that an operation outside of the record had computed

    def note(self, sentence: str) -> None:
        """Add a sentence on what was followed otherwise than usual, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @cached_property
    def is_fp32(self) -> bool:
        """Whether all floats of the finished step are FP32."""
        return all(dtype is torch.float32 for dtype in self.dtypes.values() if dtype.is_floating_point)

    def value(self, id: int) -> Tensor | None:
        """The low value as the step made it, or None where it was overwritten later."""
        if id in self.leaves:
            return self.leaves[id]
        return None if id in self.overwritten else self.values.get(id)

    def last_uses(self, kept: set[int]) -> list[list[int]]:
        """For each operation, the values that no later operation reads; those in `kept` are never listed."""
        last: dict[int, int] = {}
        for operation in self.operations:
            for id in (*operation.inputs, *(o for o in operation.outputs if o is not None)):
                last[id] = operation.index
        ends: list[list[int]] = [[] for _ in self.operations]
        for id, index in last.items():
            if id not in kept:
                ends[index].append(id)
        return ends


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """All tensors of nested arguments or results, in order."""
    return (leaf for leaf in leaves_of(values) if isinstance(leaf, Tensor))
