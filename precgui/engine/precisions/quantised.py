"""The end of every quantised run: convert, measure, save."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from precgui.engine.errors import EngineError
from precgui.engine.precisions.base import Precision
from precgui.engine.qat.conversion import Converted
from precgui.engine.qat.measure import evaluate, measure, sentences, sizes, some_batches
from precgui.engine.qat.onednn import arithmetic_note

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.engine.tasks.base import Batch, Task


class Quantised(Precision):
    """A precision whose result is a model on integers."""

    keeps = True

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.qat = config.qat
        if self.qat.save_to and not self.qat.measure:
            raise EngineError(
                "qat.save_to keeps the converted model, which qat.measure = false does not make; set it true"
            )
        if self.qat.save_to:
            from precgui.engine.qat import saved_model

            saved_model.check_place(self.qat.save_to)

    @abstractmethod
    def quantise_fully(self) -> None:
        """Let every layer round, although the epoch in which this begins may not have come."""

    @abstractmethod
    def converted(self, model: nn.Module, task: Task, batches: Sequence[Batch]) -> Converted:
        """The trained model, in evaluation, on integers."""

    @abstractmethod
    def bits(self) -> Mapping[str, tuple[int, int | None]]:
        """The bits of weights and of inputs of each layer."""

    def finish(
        self, model: nn.Module, task: Task, stopped: Callable[[], bool]
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        if not self.qat.measure:
            return
        batches = some_batches(task)
        model.eval()
        self.quantise_fully()
        fake = evaluate(model, task, batches, self.device)
        if stopped():
            return
        converted = self.converted(model, task, batches)
        facts = measure(converted, fake, task, batches, sizes(self.config.data.batch_size, batches), stopped)
        facts["backend"] = self.config.quantised_by
        facts["arithmetic"] = arithmetic_note(self.bits(), converted.native)
        told = sentences(facts, task.metric) if "integer" in facts["evaluation"] else []
        told.append(facts["arithmetic"])
        if self.qat.save_to:
            told.append(self._save(converted, facts))
        yield {"quantised": facts}, told

    def _save(self, converted: Converted, facts: dict[str, Any]) -> str:
        from precgui.engine.qat import saved_model

        path = Path(self.qat.save_to).expanduser().absolute()
        evaluation = facts["evaluation"].get("integer", {})
        try:
            saved_model.save(path, self.config, converted.state, self.bits(), evaluation)
        except (OSError, RuntimeError) as error:
            return f"qat.save_to: {path} could not be written ({str(error).splitlines()[0]})"
        facts["file"] = str(path)
        return f"the converted model is in {path}; `precgui evaluate` reads it"
