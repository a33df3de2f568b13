"""The only module that uses NVIDIA's management library (nvidia-ml-py). It raises nothing: a failure is `Missing`.

Calls fail one by one (a laptop has no power limit, WSL answers half of them, MIG hides utilisation), so each
reading is asked for on its own. Handles must not cross a fork; a session belongs to the process that opened it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import ArgumentError
from types import ModuleType
from typing import Any

from precgui.hardware.readings import Missing, Reading
from precgui.sentences import L_, Sentence

# Fields of nvmlDeviceGetFieldValues and error codes by number: old releases of the binding lack some of the names.
FIELD_POWER_AVERAGE = 185
FIELD_POWER_INSTANT = 186
_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND, _GPU_IS_LOST, _RESET_REQUIRED = 3, 4, 13, 15, 16
_NO_DRIVER = (9, 12)
_MISMATCH = 18
_SCOPE_GPU = 0
_UNION_MEMBER = dict(enumerate(("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")))  # nvmlValueType_t

NO_RIGHTS = L_("the driver asks for more rights (run as root, or ask the administrator)")
_REASONS = {
    _NOT_SUPPORTED: L_("the device does not report it"),
    _NO_PERMISSION: NO_RIGHTS,
    _FUNCTION_NOT_FOUND: L_("the driver is too old to know it"),
    _GPU_IS_LOST: L_("the GPU has fallen off the bus; a reboot brings it back"),
    _RESET_REQUIRED: L_("the GPU must be reset before it answers"),
}


def _why(error: Exception) -> Missing:
    if isinstance(error, AttributeError):
        return Missing(L_("the installed nvidia-ml-py is too old to know it"), lasting=True)
    return _absent(getattr(error, "value", 0), str(error))


def bare_uuid(uuid: str) -> str:
    """The UUID of a device without the prefix that NVML gives it and torch does not."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def _absent(code: int, answer: str) -> Missing:
    lost = code in (_GPU_IS_LOST, _RESET_REQUIRED)
    lasting = code in (_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND)
    return Missing(_REASONS.get(code, Sentence("NVML answers: {answer}", answer=answer)), lost, lasting)


class Gpu:
    """One GPU of an open session."""

    def __init__(self, library: ModuleType, index: int, handle: Any) -> None:
        self.library = library
        self.index = index
        self.handle = handle

    def ask(self, function: str, *arguments: Any) -> Reading[Any]:
        """The answer of `pynvml.<function>(handle, *arguments)`, in NVML's own units."""
        return call(self.library, function, self.handle, *arguments)

    def name(self) -> str:
        """The name of the GPU as NVML gives it; `NVIDIA GPU` where it gives none."""
        name = self.ask("nvmlDeviceGetName")
        if isinstance(name, Missing):
            return "NVIDIA GPU"
        return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)

    def field(self, number: int) -> Reading[float]:
        """One field of nvmlDeviceGetFieldValues for the GPU itself (not the module around it), in NVML's units."""
        answers = self.ask("nvmlDeviceGetFieldValues", [(number, _SCOPE_GPU)])
        if isinstance(answers, Missing):
            return answers
        answer = answers[0]
        if answer.nvmlReturn:
            return _absent(answer.nvmlReturn, f"error {answer.nvmlReturn}")
        member = _UNION_MEMBER.get(answer.valueType)
        return (
            Missing(L_("NVML answers in a type of its own")) if member is None else float(getattr(answer.value, member))
        )

    def memory(self) -> Reading[Any]:
        """`total` and `used` bytes. What the driver keeps for itself is not used, as in nvidia-smi; drivers before 510
        count it."""
        version = getattr(self.library, "nvmlMemory_v2", None)
        result = Missing(L_("no second version")) if version is None else self.ask("nvmlDeviceGetMemoryInfo", version)
        return self.ask("nvmlDeviceGetMemoryInfo") if isinstance(result, Missing) else result


class NvmlSession:
    """NVML between init and shutdown."""

    def __init__(self, library: ModuleType) -> None:
        self.library = library

    def ask(self, function: str, *arguments: Any) -> Reading[Any]:
        """The answer of `pynvml.<function>(*arguments)` for the system as a whole."""
        return call(self.library, function, *arguments)

    def gpus(self) -> list[Reading[Gpu]]:
        """Every GPU in NVML's order; one that cannot be opened stands as `Missing` in its place."""
        count = self.ask("nvmlDeviceGetCount")
        if isinstance(count, Missing):
            return [count]
        handles = [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        return [
            handle if isinstance(handle, Missing) else Gpu(self.library, index, handle)
            for index, handle in enumerate(handles)
        ]

    def close(self) -> None:
        self.ask("nvmlShutdown")


def open_session() -> Reading[NvmlSession]:
    """Load and initialise NVML. The caller closes the session."""
    try:
        library = importlib.import_module("pynvml")
    except (ImportError, OSError, SyntaxError):
        return Missing(L_("the package nvidia-ml-py is not installed"))
    try:
        library.nvmlInit()
    except _errors(library) as error:
        return Missing(_why_no_session(error))
    return NvmlSession(library)


@contextmanager
def session() -> Iterator[Reading[NvmlSession]]:
    """An open session that is closed at the end of the block, or `Missing`."""
    opened = open_session()
    try:
        yield opened
    finally:
        if isinstance(opened, NvmlSession):
            opened.close()


def _why_no_session(error: Exception) -> str:
    code = getattr(error, "value", None)
    if code in _NO_DRIVER:
        return L_("no NVIDIA driver on this machine")
    if code == _MISMATCH:
        return L_("the NVIDIA driver in the kernel and its library have different versions; reboot to load the new one")
    if code == _NO_PERMISSION:
        return L_("this user may not talk to the NVIDIA driver (check the permissions of /dev/nvidia*)")
    return Sentence("NVML does not start: {error}", error=error)


def call(library: ModuleType, function: str, *arguments: Any) -> Reading[Any]:
    """`library.function(*arguments)`, or why it failed."""
    try:
        return getattr(library, function)(*arguments)
    except _errors(library) as error:
        return _why(error)


def _errors(library: ModuleType) -> tuple[type[Exception], ...]:
    """The exceptions of the binding: its own errors, and those of ctypes and of decoding half-filled answers."""
    own = [getattr(library, name, None) for name in ("NVMLError", "NVMLLibraryMismatchError")]
    return (
        *(kind for kind in own if isinstance(kind, type)),
        AttributeError, OSError, TypeError, ValueError, ArgumentError,
    )  # fmt: skip
