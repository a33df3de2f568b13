"""The base of all that is told of the operations of some steps of a recorded loop."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from precgui.engine.operation_names import base_of, is_elementwise, keeps_numbers
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list

Facts = dict[str, list[dict[str, Any]]]  # rows by the name that the run file has for them


class OperationCall(NamedTuple):
    """An operation that has run."""

    func: Any
    name: str  # see `operation_name`
    args: Any
    kwargs: Any
    out: Any
    module: str | None  # whose forward pass is running; None outside of the model
    in_optimizer: bool = False

    @property
    def base(self) -> str:
        """Its name without the `_` of an operation in place."""
        return base_of(self.name)

    @property
    def is_elementwise(self) -> bool:
        """Whether each element of the result is computed from those at its place in the operands."""
        return is_elementwise(self.func)

    @property
    def keeps_numbers(self) -> bool:
        """Whether the result is the numbers of the first operand in another place, shape or format."""
        return keeps_numbers(self.func, self.name)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among its arguments that have no name, those in lists included."""
        return [each for arg in self.args for each in as_list(arg) if isinstance(each, Tensor)]

    @property
    def second(self) -> Any:
        """The second operand; None where it was called with one."""
        return self.args[1] if len(self.args) > 1 else None


class Watcher:
    """Reads what operations compute, and changes nothing. The mark of a tensor lasts to the end of the step."""

    fact: ClassVar[str]  # the name of its rows, see docs/run-file.md
    most_rows: ClassVar[int] = 8

    def __init__(self) -> None:
        self._step = 1  # the first one, which has no beginning for those that see it, too
        self._rows: dict[Hashable, dict[str, Any]] = {}

    def begin(self, step: int) -> None:
        """A step begins."""
        self._step = step
        self._clear_marks()

    def observe(self, call: OperationCall) -> None:
        """An operation with one operand at least has run outside of a backward pass."""
        raise NotImplementedError

    def end(self) -> None:
        """The step is over."""
        self._clear_marks()

    def facts(self) -> Facts:
        """The rows of all steps up to now."""
        return {self.fact: list(self._rows.values())}

    def _clear_marks(self) -> None:
        for each in vars(self).values():
            if isinstance(each, TensorMarks):
                each.clear()

    def _has_room(self, key: Hashable) -> bool:
        """Whether a row may be kept under a key: in place of one there, or as one of not too many."""
        return key in self._rows or len(self._rows) < self.most_rows

    def _steps_with(self, key: Hashable) -> int:
        """In how many steps a row of a key was noted, this one included; rows keep it as `count`."""
        known = self._rows.get(key)
        return 1 if known is None else int(known["count"]) + (known["step"] != self._step)


def is_weight(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, or a view of one."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
