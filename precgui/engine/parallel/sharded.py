"""The strategy of ranks that keep a part of the model each (FSDP2)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from precgui.config import RunConfig
from precgui.config.parallel import ParallelConfig
from precgui.engine import device as devices
from precgui.engine.parallel.group import RankGroup
from precgui.engine.parallel.hooks import GradientTraffic
from precgui.engine.parallel.replicated import Replicated
from precgui.engine.update import single_norms
from precgui.sentences import L_

_DTYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Sharded(Replicated):
    """Each rank keeps a part of every parameter, its gradient and its optimizer state, and gathers a block to use it.

    No rank records tensors or keeps snapshots, since each has a part of them.
    """

    shared = L_(
        "{count} processes share each batch, each with a part of the model; the other settings are those of one process"
    )

    def __init__(self, config: RunConfig, group: RankGroup, asked_to_stop: Callable[[], bool]) -> None:
        record = config.record.model_copy(update={"tensors": False, "snapshot_to": ""})
        super().__init__(config.model_copy(update={"record": record}), group, asked_to_stop)

    @contextlib.contextmanager
    def building(self, config: RunConfig) -> Iterator[None]:
        with super().building(config):
            self._mesh = init_device_mesh(devices.choose(config.device).type, (self.group.world,))
            yield

    def shard(self, model: nn.Module) -> None:
        shard(model, self._mesh, self.config.parallel)
        timed = self._mesh.device_type == "cpu"  # on CUDA a call returns before its work is done
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(CountedAllGather(self.traffic, timed=timed))  # type: ignore[arg-type]
                module.set_custom_reduce_scatter(CountedReduceScatter(self.traffic, timed=timed))  # type: ignore[arg-type]

    def _trained_network(self) -> Callable[[Any], Any]:
        note = L_("tensors are not recorded and no snapshot is kept: each rank has a part of them")
        self.run.parts.precision.notes.append(note)
        return self.model

    def _is_measured(self, step: int) -> bool:
        return False  # no hook compares the reduced gradient with its FP32 sum

    @contextlib.contextmanager
    def _reducing(self, *, last: bool) -> Iterator[None]:
        self.model.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield

    def norms(self, weights: Sequence[nn.Parameter]) -> Sequence[Tensor]:
        """The L2 norm of each gradient, from those of its parts on all ranks: one collective for all of them."""
        parts = [w.grad.to_local() for w in weights if isinstance(w.grad, DTensor)]
        squares = torch.stack([norm.double().square() for norm in single_norms(parts)])
        dist.all_reduce(squares)
        return squares.sqrt().float().unbind()

    def evaluation(self) -> contextlib.AbstractContextManager[None]:
        return torch.no_grad()  # parameters gathered in inference mode could not be trained afterwards


class _CountedCollective:
    """A collective of FSDP2 on plain buffers, with its bytes and, where `timed`, the seconds until it returns."""

    def __init__(self, traffic: GradientTraffic, *, timed: bool) -> None:
        self._traffic, self._timed = traffic, timed

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The buffer that FSDP2 asks for."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _counted(self, call: Callable[[], dist.Work | None]) -> dist.Work | None:
        begin = time.perf_counter()
        work = call()
        if self._timed:
            self._traffic.wait_s += time.perf_counter() - begin
        return work


class CountedAllGather(_CountedCollective):
    """`torch.distributed.all_gather_into_tensor`; for `FSDPModule.set_custom_all_gather`."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        def call() -> dist.Work | None:
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)

        self._traffic.gathered(output_tensor.nbytes)
        return self._counted(call)


class CountedReduceScatter(_CountedCollective):
    """`torch.distributed.reduce_scatter_tensor`; for `FSDPModule.set_custom_reduce_scatter`."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        def call() -> dist.Work | None:
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)

        self._traffic.scattered(input_tensor.nbytes, by_all_reduce=input_tensor.device.type == "cpu")
        return self._counted(call)


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
