"""Which formats really ran: the FLOPs of one step by module and executed format, and every operation by format."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.module_tracker import ModuleTracker

from precgui.engine.dtype_names import SHORT_DTYPES, dtype_name
from precgui.engine.emulation.labels import ATTENTION, current_label
from precgui.engine.lost_digits import After, LostDigits
from precgui.engine.module_calls import ModuleStack
from precgui.engine.shadow.loop_tape import LoopTape
from precgui.engine.telemetry.guard import LET_THROUGH, Guard, guarded
from precgui.engine.torch_private import TorchDispatchMode, flop_formula, graph_task, operation_name, packet_name
from precgui.sentences import L_, Sentence, together

_MOST_MODULES = 300  # in the record; the rest is summed up
OTHERS = "(others)"
BACKWARD = "(backward)"
_ANGLES = ("aten.sin", "aten.cos", "aten.sin_", "aten.cos_")
_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")


@dataclass(frozen=True)
class AutocastState:
    """The state of autocast: of the devices for which it is on, the first; '' when it is off for all."""

    device_type: str = ""
    dtype: str = ""
    cache_enabled: bool = False


def autocast_now() -> AutocastState:
    """The state at this moment, in this thread."""
    for device_type in _AUTOCAST_DEVICES:
        if torch.is_autocast_enabled(device_type):
            dtype = dtype_name(torch.get_autocast_dtype(device_type))
            return AutocastState(device_type, dtype, torch.is_autocast_cache_enabled())
    return AutocastState()


Observer = Callable[[Any, Any, Any, Any], None]  # called with an operation, its arguments, and its result


class Census(TorchDispatchMode):
    """Counts while it is entered. `labels` names the format of modules whose operands are rounded and held in FP32.

    `fp32` is the format in which this device multiplies FP32 operands (see `certificate`). `outside` says that it is
    entered in the user's own loop, perhaps inside the forward pass: then no tensor is hooked, and operations of the
    backward pass count for BACKWARD instead of a module. `observers` are told of each operation.
    """

    def __init__(
        self,
        model: nn.Module,
        labels: Mapping[str, str],
        fp32: str = "fp32",
        *,
        outside: bool = False,
        guard: Guard = LET_THROUGH,
        observers: Sequence[Observer] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.guard = guard
        self._labels, self._fp32 = labels, fp32
        self._modules = ModuleStack(model, self._on_call, guard)
        self._tracker: Any = None if outside else ModuleTracker()  # knows the backward pass, too
        self.autocast: Counter[AutocastState] = Counter()  # at the calls of modules without children
        self._stopped, self._observers = False, observers
        self.tape: LoopTape | None = None
        self.in_optimizer = False  # an optimizer steps now: its products are none of the model
        self._lost: LostDigits | None = LostDigits() if outside else None
        self._optimizer_flops: defaultdict[str, int] = defaultdict(int)
        self._angle: tuple[float, str, str] = (0.0, "", "")  # the largest in 16 bits, its format, its module
        self._flops: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._calls: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))

    def __enter__(self) -> Census:
        if self._tracker is not None:
            self._tracker.__enter__()
        self._modules.follow()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._modules.close()
        if self._tracker is not None:
            self._tracker.__exit__(*error)

    def _on_call(self, module: nn.Module) -> None:
        if self._lost is not None and graph_task() == -1:
            self._lost.called(self._modules.innermost or "")
        if next(module.children(), None) is None and graph_task() == -1:
            self.autocast[autocast_now()] += 1

    @property
    def innermost(self) -> str | None:
        """The module whose forward pass is running; None outside of the model."""
        return self._modules.innermost

    def stop(self) -> None:
        """Count nothing any more, though it may still be entered."""
        self._stopped, self.tape = True, None
        self._modules.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        after = self._before(func, args, kwargs)
        begun = self.tape.before(func, args, kwargs) if self.tape is not None else None
        out = func(*args, **kwargs)
        if self.tape is not None:
            self.tape.after(begun, out)
        if not self._stopped:
            self._after(after, out)
            self._tell(func, args, kwargs, out)
            self._count(func, args, kwargs, out)
        return out

    @guarded
    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        operands = [t for arg in args for t in (arg if isinstance(arg, list | tuple) else [arg])
                    if isinstance(t, Tensor) and t.is_floating_point()]  # fmt: skip
        if not operands or func.is_view:
            return
        self._calls[operation_name(func)][_format(operands)] += 1
        if operands[0].dtype in SHORT_DTYPES and packet_name(func) in _ANGLES and operands[0].numel():
            largest = float(operands[0].detach().abs().max())
            self._angle = max(self._angle, (largest, dtype_name(operands[0].dtype), self._module()))
        count = flop_formula(func) or _RECURRENT.get(packet_name(func))
        if count is not None:
            module = self._module()
            place = ATTENTION if "attention" in str(func) and ATTENTION in self._labels else module
            try:
                flops = int(count(*args, **kwargs, out_val=out))
            except Exception:  # noqa: BLE001 - torch's formulas know not all shapes; the training must go on
                return
            executed = self._executed(place, operands)
            (self._optimizer_flops if self.in_optimizer else self._flops[module])[executed] += flops

    @guarded
    def _before(self, func: Any, args: Any, kwargs: Any) -> After | None:
        """The count of lost digits of an operation that is about to run; one that fails is the last."""
        if self._lost is None or self._stopped:
            return None
        try:
            return self._lost.before(func, args, kwargs, self._modules.innermost, in_optimizer=self.in_optimizer)
        except Exception:  # noqa: BLE001 - whatever a tensor of somebody's class raises; the training goes on
            self._lost = None
            return None

    @guarded
    def _after(self, after: After | None, out: Any) -> None:
        try:
            if after is not None:
                after(out)
        except Exception:  # noqa: BLE001 - as above
            self._lost = None

    @guarded
    def _tell(self, *operation: Any) -> None:
        """Tell the observers of an operation; one that fails is told of no more: the training goes on."""
        for observe in self._observers:
            try:
                observe(*operation)
            except Exception:  # noqa: BLE001 - whatever a tensor of somebody's class raises
                self._observers = [each for each in self._observers if each is not observe]

    def _module(self) -> str:
        if (module := self._modules.innermost) is not None:
            return module
        if self._tracker is None:
            return BACKWARD if graph_task() != -1 else ""
        return max((name.partition(".")[2] for name in self._tracker.parents), key=len, default="")

    def _executed(self, module: str, operands: Sequence[Tensor]) -> str:
        # The first two matrices are multiplied; what follows is read beside them, like attention's row sums in FP32.
        executed: str = _format([t for t in operands if t.dim() > 1][:2] or operands)
        if executed != "fp32":
            return executed
        label = current_label() or self._labels.get(module)
        return f"{label} (emulated)" if label else self._fp32

    def facts(self) -> dict[str, Any]:
        """The counts as built-in types.

        `flops` is their number, `formats` the share of each executed format, `modules` the same for each module (with
        its share of all FLOPs as `share`), `operations` the calls of each operation by the format of its operands.
        `angle` is the largest operand of a sine or cosine in 16 bits, in radians, with its format and its module; not
        there without one. `optimizer` has the FLOPs inside optimizers by executed format, which are in none of the
        others; `additions` and `optimizer_loss` are those of `LostDigits`.
        """
        total = sum(sum(formats.values()) for formats in self._flops.values())
        modules = sorted(self._flops.items(), key=lambda item: -sum(item[1].values()))
        kept = dict(modules[:_MOST_MODULES])
        if remainder := modules[_MOST_MODULES:]:
            kept[OTHERS] = _summed([formats for _, formats in remainder])
        return (
            {
                "flops": total,
                "formats": _shares(_summed(list(self._flops.values()))),
                "modules": {
                    name or "(model)": {"share": sum(formats.values()) / max(total, 1), **_shares(formats)}
                    for name, formats in kept.items()
                },
                "operations": {name: dict(formats) for name, formats in sorted(self._calls.items())},
            }
            | (
                {"angle": dict(zip(("radians", "format", "module"), self._angle, strict=True))}
                if self._angle[1]
                else {}
            )
            | ({"optimizer": dict(self._optimizer_flops)} if self._optimizer_flops else {})
            | (self._lost.facts() if self._lost is not None else {})
        )


def _of_recurrent(passes: int) -> Callable[..., int]:
    """FLOPs of a fused recurrent layer: every matrix once a time step; twice backward, for both gradients."""

    def count(sequence: Tensor, *more: Any, out_val: Any, **_: Any) -> int:
        matrices = [t for part in more[:4] for t in (part if isinstance(part, list | tuple) else [part])
                    if isinstance(t, Tensor) and t.dim() == 2]  # fmt: skip
        return 2 * passes * sequence.numel() // sequence.shape[-1] * sum(t.numel() for t in matrices)

    return count


_RECURRENT = {
    "aten.mkldnn_rnn_layer": _of_recurrent(1),
    "aten.mkldnn_rnn_layer_backward": _of_recurrent(2),
    "aten._cudnn_rnn": _of_recurrent(1),
    "aten._cudnn_rnn_backward": _of_recurrent(2),
}


def sentence(facts: Mapping[str, Any]) -> str:
    """The census as one sentence."""
    parts = [Sentence("{share:.1%} in {format}", share=share, format=name) for name, share in facts["formats"].items()]
    if not parts:
        return L_("no matrix products were seen in the step")
    return Sentence(
        "of {flops:.3g} FLOPs in matrix products of one step, {parts}",
        flops=facts["flops"],
        parts=together(*parts, between=", "),
    )


def _format(tensors: Sequence[Tensor]) -> str:
    names = dict.fromkeys(dtype_name(t.dtype) for t in tensors)
    return " x ".join(names)


def _summed(parts: Sequence[Mapping[str, int]]) -> defaultdict[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for part in parts:
        for name, count in part.items():
            total[name] += count
    return total


def _shares(formats: Mapping[str, int]) -> dict[str, float]:
    total = max(sum(formats.values()), 1)
    return {name: count / total for name, count in sorted(formats.items(), key=lambda item: -item[1])}
