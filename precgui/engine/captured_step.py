"""Forward and backward pass of a step as one CUDA graph: captured once, then launched by a single call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.config.refusals import refusals
from precgui.engine import device as devices
from precgui.engine.casting import tensors_in
from precgui.engine.errors import EngineError
from precgui.engine.tasks.base import Batch
from precgui.engine.torch_private import tree_map
from precgui.sentences import Sentence, first_line

WARM_UP_STEPS = 3  # made without a graph first, as torch asks for: libraries and allocators set themselves up in them
Compute = Callable[[Sequence[Batch]], Tensor]  # gradients of the mean loss over batches; returns the loss


class CapturedStep:
    """Computes the gradients of a step, from the fourth step of a shape on by a graph.

    A graph reads its batches from, and writes gradients and loss to, memory of its own. Batches of another shape, as
    the last ones of an epoch, are computed without it. Where the pass cannot be captured, because it waits for the
    device or uploads, that is told once and all steps are made without a graph.
    """

    def __init__(self, compute: Compute, model: nn.Module, device: torch.device, tell: Callable[[str], None]) -> None:
        self._compute, self._device, self._tell = compute, device, tell
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._shapes: list[Any] = []  # of the batches of the steps so far, or of the graph
        self._warm_steps = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._failed = False

    def __call__(self, batches: Sequence[Batch]) -> Tensor:
        """As `compute`."""
        shapes = [(tensor.shape, tensor.dtype) for batch in batches for tensor in tensors_in(batch)]
        if self._graph is not None and shapes == self._shapes:
            return self._replay(batches)
        if self._failed or self._graph is not None:
            return self._compute(batches)
        if shapes != self._shapes:
            self._shapes, self._warm_steps = shapes, 0
        if self._warm_steps < WARM_UP_STEPS:
            self._warm_steps += 1
            return self._beside(batches)
        return self._capture_and_replay(batches)

    def _beside(self, batches: Sequence[Batch]) -> Tensor:
        """Compute on another stream than that of the run, as a capture does."""
        here, other = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        other.wait_stream(here)
        with torch.cuda.stream(other):
            loss = self._compute(batches)
        here.wait_stream(other)
        for tensor in (loss, *(p.grad for p in self._parameters if p.grad is not None)):
            tensor.record_stream(here)
        return loss

    def _capture_and_replay(self, batches: Sequence[Batch]) -> Tensor:
        self._batches = tree_map(lambda value: self._own(value) if isinstance(value, Tensor) else value, list(batches))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._loss = self._compute(self._batches)
        except RuntimeError as error:
            if devices.is_out_of_memory(error):
                raise
            self._give_up(error)
            return self._compute(batches)
        self._graph = graph
        self._gradients = [parameter.grad for parameter in self._parameters]
        return self._replay(batches)

    def _own(self, tensor: Tensor) -> Tensor:
        """A copy on the device, which the host does not write to again."""
        return devices.upload(tensor, self._device).clone()

    def _give_up(self, error: RuntimeError) -> None:
        self._failed, self._batches = True, []
        for parameter in self._parameters:
            parameter.grad = None
        self._tell(
            Sentence(
                "train.cuda_graph: the step cannot be captured ({error}), so steps are made without a graph; set it "
                "to false",
                error=first_line(error, 200),
            )
        )

    def _replay(self, batches: Sequence[Batch]) -> Tensor:
        assert self._graph is not None
        for own, tensor in zip(tensors_in(self._batches), tensors_in(batches), strict=True):
            own.copy_(devices.upload(tensor, self._device), non_blocking=True)
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._loss.clone()


def captured(
    config: RunConfig, compute: Compute, model: nn.Module, device: torch.device, tell: Callable[[str], None]
) -> Compute:
    """`compute`, as a CUDA graph where `train.cuda_graph` asks for it. Raises EngineError where there can be none."""
    if not config.train.cuda_graph:
        return compute
    if why := refusals(config).get("train.cuda_graph"):
        raise EngineError(why)
    if device.type != "cuda":
        raise EngineError(
            Sentence(
                "train.cuda_graph needs an NVIDIA GPU, and this run is on {device}; set train.cuda_graph = false",
                device=device,
            )
        )
    return CapturedStep(compute, model, device, tell)
