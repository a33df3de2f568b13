"""The training loop of one rank that keeps a part of the model (FSDP2)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from precgui.config import RunConfig
from precgui.config.parallel import ParallelConfig
from precgui.engine import device as devices
from precgui.engine.parallel.group import RankGroup
from precgui.engine.parallel.training import RankTraining
from precgui.engine.setup import RunParts, build_run
from precgui.engine.tasks import Batch
from precgui.engine.update import single_norms, total_norm
from precgui.events import Emit

_DTYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ShardedTraining(RankTraining):
    """Each rank keeps a part of every parameter, its gradient and its optimizer state, and gathers a block to use it.

    No rank records tensors or keeps snapshots, since each has a part of them.
    """

    def __init__(
        self, config: RunConfig, group: RankGroup, emit: Emit, asked_to_stop: Callable[[], bool], start_s: float | None
    ) -> None:
        record = config.record.model_copy(update={"tensors": False, "snapshot_to": ""})
        super().__init__(config.model_copy(update={"record": record}), group, emit, asked_to_stop, start_s)

    def _build_parts(self) -> RunParts:
        mesh = init_device_mesh(devices.choose(self.config.device).type, (self.group.world,))
        return build_run(self.config, self._tell, self.stopped, lambda model: shard(model, mesh, self.config.parallel))

    def _trained_network(self) -> Callable[[Any], Any]:
        self.precision.notes.append("tensors are not recorded and no snapshot is kept: each rank has a part of them")
        return self.model

    def _accumulate(self, batches: list[Batch], samples: int) -> Tensor:
        loss = super()._accumulate(batches, samples)
        self.traffic.unknown()
        return loss

    @contextlib.contextmanager
    def _reducing(self, *, last: bool) -> Iterator[None]:
        assert isinstance(self.model, nn.Module)
        self.model.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield

    def _clip(self) -> Tensor:
        weights = [w for group in self.optimizer.param_groups for w in group["params"] if w.grad is not None]
        norms = _whole_norms(weights)
        norm = total_norm(norms)
        self.callbacks.norms(weights, norms)
        if self.config.train.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(weights, self.config.train.clip_norm, norm)
        return norm

    def _evaluate(self, epoch: int) -> None:
        with torch.no_grad():  # parameters gathered in inference mode could not be trained afterwards
            self._validate(epoch)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The modules with parameters in an nn.ModuleList or nn.Sequential: each is gathered as one."""
    containers = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    return [block for container in containers for block in container if any(True for _ in block.parameters())]


def shard(model: nn.Module, mesh: DeviceMesh, parallel: ParallelConfig) -> None:
    """Shard the blocks of a model over the mesh, then the rest of it, in place."""
    policy = MixedPrecisionPolicy(
        param_dtype=_DTYPES[parallel.param_dtype], reduce_dtype=_DTYPES[parallel.reduce_dtype]
    )
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if parallel.offload else OffloadPolicy()
    for block in blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=offload)
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)


def _whole_norms(weights: list[nn.Parameter]) -> list[Tensor]:
    """The L2 norm of each gradient, from those of its parts on all ranks: one collective for all of them."""
    parts = [w.grad.to_local() for w in weights if isinstance(w.grad, DTensor)]
    squares = torch.stack([norm.double().square() for norm in single_norms(parts)])
    dist.all_reduce(squares)
    return list(squares.sqrt().float().unbind())
