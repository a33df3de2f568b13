"""Numbers that a recording needs of a device, but not at once: they are read together, when a step ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from precgui.engine.telemetry.backends import fetched

Number = float | Tensor  # a tensor of one element, on any device
_MOST = 512  # numbers that wait; a loop may make many passes before it ends a step


class LaterNumbers:
    """A queue of questions, each with tensors of one element and a function that gets their numbers."""

    def __init__(self) -> None:
        self._asked: list[tuple[list[Number], Callable[[list[float]], None]]] = []
        self._waiting = 0

    def ask(self, numbers: Sequence[Number], use: Callable[[list[float]], None]) -> None:
        """Call `use` with the numbers later on, in the order of the questions. Nobody may write to the tensors."""
        self._asked.append((list(numbers), use))
        self._waiting += len(numbers)
        if self._waiting > _MOST:
            self.take([array.item() for array in fetched(self.tensors())])

    def tensors(self) -> list[Tensor]:
        """The tensors whose numbers `take` needs."""
        return [number for numbers, _ in self._asked for number in numbers if isinstance(number, Tensor)]

    def take(self, values: Sequence[float]) -> None:
        """Answer all questions; `values` are those of `tensors`."""
        asked, self._asked, self._waiting = self._asked, [], 0
        left = iter(values)
        for numbers, use in asked:
            use([next(left) if isinstance(number, Tensor) else number for number in numbers])
