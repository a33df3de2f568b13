"""Where an operation comes from: the line of Python, the module, the torch function, forward or backward."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from precgui.engine.module_calls import follow_modules
from precgui.engine.shadow.semantics import is_float
from precgui.engine.shadow.tape import NO_LINE, OpOrigin, SourceLine, Tape
from precgui.engine.torch_private import autograd_node, backward_code, cudnn, node_number, onednn, sequence_number
from precgui.sentences import L_, Sentence

EMULATED_PRODUCT = "emulated product"
_TORCH = str(Path(torch.__file__).parent)
_ENGINE = Path(__file__).parent.parent
# No user wrote the frames of torch and of this package; models and tasks that come with precgui count as the user's.
_EMULATION = str(_ENGINE / "emulation")
_CALLER = str(Path(__file__).with_name("record.py"))  # calls the step, and must not be the room of a dispatch mode
_WRAPPERS = tuple(str(Path(_TORCH, name)) for name in ("_dynamo", "_compile.py", "overrides.py"))
_TAKING_OUT = frozenset({"item", "tolist", "numpy", "__array__", "__float__"})
_INLINE = re.compile(r"(\.<locals>)?(\.?<(lambda|genexpr|listcomp|setcomp|dictcomp)>)+$")  # part of the function around
_OURS = (_TORCH, str(_ENGINE), str(_ENGINE.with_name("record")), "<")
_USERS = (str(_ENGINE / "models"), str(_ENGINE / "tasks"))


class CauseMode(TorchFunctionMode):
    """Keeps the stack of torch functions that Python called: a cast below `linear` was put there by autocast.

    A fused recurrent layer is run step by step, because its kernel has no FP64 form; `notes` says so.
    """

    def __init__(self, note: Callable[[str], None], is_result: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.stack: list[str] = []
        self._note, self._is_result = note, is_result

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in _TAKING_OUT and args:
            self._note_taken_out(args[0])
        self.stack.append(name)
        try:
            if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and torch.backends.mkldnn.enabled:
                self._note(
                    Sentence("the fused {kernel} ran step by step; its own kernel may round differently", kernel=name)
                )
                with onednn(allowed=False), cudnn(allowed=False):
                    return func(*args, **(kwargs or {}))
            if name == "scaled_dot_product_attention":
                self._note(
                    L_("fused attention ran as separate products and softmax; its own kernel may round differently")
                )
            return func(*args, **(kwargs or {}))
        finally:
            self.stack.pop()

    def _note_taken_out(self, tensor: Any) -> None:
        """Say that numbers leave the tape, where a user's line takes them out of a result of the step."""
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(_WRAPPERS):
            frame = frame.f_back
        if is_float(tensor) and self._is_result(tensor) and not frame.f_code.co_filename.startswith(_TORCH):
            line, _ = _line()
            self._note(
                Sentence(
                    "{line} takes numbers out of a tensor (.item(), .numpy() or the like): what is computed "
                    "of them is the same on both sides, so its error is not in these figures",
                    line=line.label,
                )
            )


class OriginTracker:
    """Tracks the origin of the running operation; in the backward pass, that of its forward operation.

    Python code that the backward pass calls (a hook, the forward pass of a checkpoint, the backward pass of a function
    of the user's) has lines of its own.
    """

    def __init__(self, tape: Tape, is_result: Callable[[Tensor], bool]) -> None:
        """`is_result` tells whether a tensor holds a value that the step has computed."""
        self._tape = tape
        self._cause = CauseMode(tape.note, is_result)
        self._modules: list[str] = []
        self.module: Callable[[], str | None] = lambda: self._modules[-1] if self._modules else None  # that runs
        self._names: dict[int, str] = {}
        self._forward: dict[int, OpOrigin] = {}  # by the number that autograd gives to its nodes
        self._thread = threading.get_ident()
        self._numbered = sequence_number()  # nodes below this number have an origin

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Follow modules and functions inside."""
        with follow_modules(self._enter, self._leave), self._cause:
            yield

    def here(self, implied: str = "") -> OpOrigin:
        """The origin of the operation that is being dispatched; `implied`: its cause where no function is known."""
        cause = self._cause.stack[-1] if self._cause.stack else implied
        module = self.module() or ""
        node: Any = autograd_node()  # None outside of the backward pass
        line, emulated = _line()
        cause = EMULATED_PRODUCT if emulated else cause
        if node is None:
            origin = OpOrigin(line, module, cause, False)
        else:
            known = self._forward.get(node_number(node), OpOrigin(NO_LINE, module, cause, True))
            origin = OpOrigin(line, module or known.module, cause, True) if line.number else known
            origin = replace(origin, backward=True)
        self._number_nodes(origin)
        return origin

    def _number_nodes(self, origin: OpOrigin) -> None:
        """Remember the origin of the nodes that autograd made for the running operation.

        They have their numbers before its kernel runs: one for each level of torch.func and of `create_graph`, and none
        where no gradient is asked for. A later operation without a node leaves the last number as it is.
        """
        if threading.get_ident() != self._thread:  # each thread counts for itself
            return
        for number in range(self._numbered, sequence_number()):
            self._forward[number] = origin
        self._numbered = sequence_number()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if not self._modules:
            self._names.update((id(part), name) for name, part in module.named_modules())
        if type(module).__name__ == "OptimizedModule":
            self._tape.note(L_("the compiled module ran eagerly; compiled kernels may round differently"))
        self._modules.append(self._names.get(id(module), type(module).__name__))

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._modules and threading.get_ident() == self._thread:
            self._modules.pop()


def line_of_user() -> SourceLine:
    """The line of the user's that runs; `NO_LINE` where there is none."""
    return _line()[0]


def _line() -> tuple[SourceLine, bool]:
    """The line of the user's that runs, and whether it runs an emulated product of precgui's.

    No line where torch runs the backward pass and no Python of the user's in it.
    """
    frame: Any = sys._getframe(2)
    emulated = False
    while frame is not None and frame.f_code.co_filename != _CALLER:  # a user's line lies further in
        if frame.f_code is backward_code:
            break
        file = frame.f_code.co_filename
        ours = file.startswith(_OURS) and not file.startswith(_USERS)
        if not ours:
            return SourceLine(file, frame.f_lineno, _INLINE.sub("", frame.f_code.co_qualname)), emulated
        emulated = emulated or file.startswith(_EMULATION)
        frame = frame.f_back
    return NO_LINE, emulated
