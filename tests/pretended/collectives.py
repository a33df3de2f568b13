"""NCCL on the pretended CUDA device: each collective by gloo, over the same memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Backend, ProcessGroupGloo, Work, _create_work_from_future

from tests.pretended.host_math import check_current, memory_of, record, runtime


def install() -> None:
    """Give `torch.distributed` this backend where it asks for NCCL."""
    dist.Backend.register_backend(
        "nccl", _make, extended_api=True, devices=["cuda"], _backend_type=dist.ProcessGroup.BackendType.NCCL
    )


def _make(options: Any, _: object) -> Backend:
    return PretendedNccl(options.store, options.group_rank, options.group_size, options.timeout)


class PretendedNccl(Backend):
    """Collectives that are done when the call returns; operands that are not on the current device raise."""

    supports_splitting = False  # torch's own property would ask this class, and so itself

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo: Any = ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "nccl"

    def broadcast(self, tensors: Sequence[Tensor], options: Any) -> Work:
        own = _opened("broadcast", tensors)
        self._gloo.broadcast(own, options).wait()
        return _done(tensors)

    def allreduce(self, tensors: Sequence[Tensor], options: Any) -> Work:
        self._summed("allreduce", tensors, options)
        return _done(tensors)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], options: Any) -> Work:
        for tensor in tensors:
            self._summed("allreduce", [tensor], options)
        return _done(tensors)

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], options: Any) -> Work:
        own = _opened("allgather", inputs)
        self._gloo.allgather([_opened("", row) for row in outputs], own, options).wait()
        return _done(outputs[0])

    def all_gather_single(self, output: Tensor, source: Tensor, options: Any) -> Work:
        (own,) = _opened("allgather", [source])
        self._gloo.allgather([list(memory_of(output).view(self.size(), -1).unbind())], [own.reshape(-1)]).wait()
        return _done([output])

    def reduce_scatter_single(self, output: Tensor, source: Tensor, options: Any) -> Work:
        (own,) = _opened("reduce_scatter", [source])
        whole = own.clone()
        self._sum(whole, options.reduceOp)
        memory_of(output).copy_(whole.reshape(self.size(), -1)[self.rank()].view_as(output))
        return _done([output])

    def all_to_all_single(self, output: Tensor, source: Tensor, to: list[int], of: list[int], options: Any) -> Work:
        (own,) = _opened("alltoall", [source])
        self._gloo.alltoall_base(memory_of(output), own, to, of).wait()
        return _done([output])

    def barrier(self, options: Any) -> Work:
        self._gloo.barrier().wait()
        return _done([])

    def _summed(self, name: str, tensors: Sequence[Tensor], options: Any) -> None:
        for own in _opened(name, tensors):
            self._sum(own, options.reduceOp)

    def _sum(self, own: Tensor, operation: Any) -> None:
        is_mean = operation == dist.ReduceOp.AVG  # which gloo has not
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM if is_mean else operation
        self._gloo.allreduce([own], options).wait()
        if is_mean:
            own.div_(self.size())


def _opened(name: str, tensors: Iterable[Tensor]) -> list[Tensor]:
    """The memory of the operands of a collective, which is counted under its name."""
    tensors = list(tensors)
    check_current(tensors)
    if name:
        record.operations[name] += 1
        runtime.pretended_queue()
    return [memory_of(tensor) for tensor in tensors]


def _done(tensors: Sequence[Tensor]) -> Work:
    future: torch.futures.Future[Any] = torch.futures.Future(devices=[tensors[0].device] if tensors else None)
    future.set_result(list(tensors))
    return _create_work_from_future(future)
