"""FLOPs, bytes and executed format of every operation of a step, counted by the census."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from precgui.engine.census import Census
from precgui.engine.profile.recorded_call import RecordedCall, RecordedUse, recorded_call
from precgui.engine.torch_private import graph_task, operation_name, tree_leaves


@dataclass(slots=True)
class Count:
    """Sums over the calls of one operation in one module; `formats` are calls by executed format."""

    calls: int = 0
    flops: int = 0
    bytes: int = 0
    formats: dict[str, int] = field(default_factory=dict)


class OperationCounts(Census):
    """The census by operation and module. Bytes are those of operands and results, each read or written
    once, which is the least that an operation moves."""

    def __init__(self, model: nn.Module, labels: Mapping[str, str], fp32: str = "fp32") -> None:
        super().__init__(model, labels, fp32)
        self.counts: dict[tuple[str, str], Count] = {}
        self.recorded: dict[RecordedCall, RecordedUse] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        tensors = [t for t in tree_leaves((args, kwargs or {}, out)) if isinstance(t, Tensor)]
        if not tensors or func.is_view:
            return out
        module, name = self._module(), operation_name(func)
        count = self.counts.setdefault((name, module), Count())
        count.calls += 1
        count.bytes += sum(t.numel() * t.element_size() for t in tensors)
        operands = [t for t in tree_leaves(args) if isinstance(t, Tensor) and t.is_floating_point()]
        if operands and (flops := flop_registry.get(func.overloadpacket)) is not None:
            flops_of_call = int(flops(*args, **(kwargs or {}), out_val=out))
            count.flops += flops_of_call
            call = recorded_call(func, args, kwargs or {}, out, flops_of_call)
            use = self.recorded.setdefault(call, RecordedUse(phase="forward" if graph_task() == -1 else "backward"))
            use.calls += 1
            use.modules[module] = None
            executed = self._executed(module, operands)
            count.formats[executed] = count.formats.get(executed, 0) + 1
        return out

    def _module(self) -> str:
        return self._modules.of_operation()
