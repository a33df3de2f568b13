"""Where an operation comes from: the line of Python, the module, the torch function, forward or backward."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from precgui.engine.module_calls import follow_modules
from precgui.engine.shadow.tape import OpOrigin, SourceLine
from precgui.engine.torch_private import autograd_node, node_number, onednn, sequence_number

NO_LINE = SourceLine("", 0)
EMULATED_PRODUCT = "emulated product"
_TORCH = str(Path(torch.__file__).parent)
_ENGINE = Path(__file__).parent.parent
# No user wrote the frames of torch and of this package; models and tasks that come with precgui count as the user's.
_EMULATION = str(_ENGINE / "emulation")
_CALLER = str(Path(__file__).with_name("record.py"))  # calls the step
_USERS = (str(_ENGINE / "models"), str(_ENGINE / "tasks"))


class CauseMode(TorchFunctionMode):
    """Keeps the stack of torch functions that Python called: a cast below `linear` was put there by autocast.

    A fused recurrent layer is run step by step, because its kernel has no FP64 form; `notes` says so.
    """

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.stack: list[str] = []
        self._notes = notes

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        self.stack.append(name)
        try:
            if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and torch.backends.mkldnn.enabled:
                _note(self._notes, f"the fused {name} ran step by step; its own kernel may round differently")
                with onednn(allowed=False), torch.backends.cudnn.flags(enabled=False):
                    return func(*args, **(kwargs or {}))
            if name == "scaled_dot_product_attention":
                _note(
                    self._notes,
                    "fused attention ran as separate products and softmax; its own kernel may round differently",
                )
            return func(*args, **(kwargs or {}))
        finally:
            self.stack.pop()


def _note(notes: list[str], sentence: str) -> None:
    if sentence not in notes:
        notes.append(sentence)


class OriginTracker:
    """Tracks the origin of the running operation; in the backward pass, that of its forward operation."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self._cause = CauseMode(notes)
        self._modules: list[str] = []
        self._names: dict[int, str] = {}
        self._forward: dict[int, OpOrigin] = {}  # by the number that autograd gives to its nodes

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Follow modules and functions inside."""
        with follow_modules(self._enter, self._leave), self._cause:
            yield

    def here(self) -> OpOrigin:
        """The origin of the operation that is being dispatched."""
        cause = self._cause.stack[-1] if self._cause.stack else ""
        module = self._modules[-1] if self._modules else ""
        node: Any = autograd_node()  # None outside of the backward pass
        if node is not None:
            known = self._forward.get(node_number(node))
            return replace(known, backward=True) if known else OpOrigin(NO_LINE, module, cause, True)
        line, emulated = _line()
        origin = OpOrigin(line, module, EMULATED_PRODUCT if emulated else cause, False)
        # The node of an operation has its number before its kernel runs; later operations without a node share it.
        self._forward.setdefault(sequence_number() - 1, origin)
        return origin

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if not self._modules:
            self._names.update((id(part), name) for name, part in module.named_modules())
        if type(module).__name__ == "OptimizedModule":
            _note(self._notes, "the compiled module ran eagerly; compiled kernels may round differently")
        self._modules.append(self._names.get(id(module), type(module).__name__))

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._modules:
            self._modules.pop()


def _line() -> tuple[SourceLine, bool]:
    """The line of the user's that runs, and whether it runs an emulated product of precgui's."""
    frame: Any = sys._getframe(2)
    emulated = False
    while frame is not None and frame.f_code.co_filename != _CALLER:  # a user's line lies further in
        file = frame.f_code.co_filename
        ours = file.startswith((_TORCH, str(_ENGINE), "<")) and not file.startswith(_USERS)
        if not ours:
            return SourceLine(file, frame.f_lineno, frame.f_code.co_qualname), emulated
        emulated = emulated or file.startswith(_EMULATION)
        frame = frame.f_back
    return NO_LINE, emulated
