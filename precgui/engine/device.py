"""Which device a run uses, and how many CPU threads."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable

import psutil
import torch
from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.hardware.free_memory import free_memory_bytes
from precgui.sentences import L_, Sentence, first_line


def choose(requested: str) -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda`, `cuda:1`, `mps` or `xpu`. Raises EngineError when it is not there."""
    if requested == "cpu":
        return torch.device("cpu")
    present, why_not = _present()
    if requested == "auto":
        if why_not:
            logging.getLogger(__name__).warning("the CPU trains, because torch cannot use the GPU: %s", why_not)
        return torch.device("cpu") if present is None else torch.device(present.type, 0)
    device = torch.device(requested)
    if present is None or present.type != device.type:
        seen = L_("only the CPU") if present is None else Sentence("the CPU and {type}", type=present.type)
        if why_not:
            refused = Sentence(
                "device {device} is not there: torch sees {seen} ({why}); choose device = auto or cpu",
                device=requested,
                seen=seen,
                why=why_not,
            )
        else:
            refused = Sentence(
                "device {device} is not there: torch sees {seen}; choose device = auto or cpu",
                device=requested,
                seen=seen,
            )
        raise EngineError(refused)
    count = torch.accelerator.device_count()
    if (device.index or 0) >= count:
        raise EngineError(
            Sentence("device {device} is not there: there are {count}, numbered from 0", device=requested, count=count)
        )
    return torch.device(device.type, device.index or 0)


def _present() -> tuple[torch.device | None, str]:
    """The accelerator that torch can use, and the first sentence of its warning where a driver refuses one.

    torch warns once in a process.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        # Without check_available a CUDA build answers "cuda" on a machine without a GPU.
        present = torch.accelerator.current_accelerator(check_available=True)
    said = " ".join(str(told[0].message).split()) if told else ""
    return present, re.split(r"\.\s| \(found| \(Triggered", said)[0].rstrip(".")


def make_current(device: torch.device) -> None:
    """Make an accelerator the one of this process to which kernels, streams and events go that name no device."""
    if device.type in ("cuda", "xpu"):
        torch.accelerator.set_device_index(device)


def random_state(device: torch.device) -> Tensor | None:
    """The state of torch's generator of an accelerator; None on the CPU."""
    if device.type == "cpu":
        return None
    state: Tensor = torch.get_device_module(device).get_rng_state(*_place(device))
    return state


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Set torch's generator of an accelerator. Raises RuntimeError or TypeError for what is no state of it."""
    torch.get_device_module(device).set_rng_state(state, *_place(device))


def _place(device: torch.device) -> tuple[torch.device, ...]:
    """The argument that names the device; there is one Apple GPU, whose functions take none."""
    return () if device.type == "mps" else (device,)


def name(device: torch.device) -> str:
    """The device as a person knows it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return {"cpu": "CPU", "mps": "Apple GPU", "xpu": "Intel GPU"}.get(device.type, device.type)


def pin_threads(asked: int | None) -> int:
    """Set the number of torch's CPU threads and return it. None: as many as `default_threads` says."""
    threads = asked or default_threads()
    torch.set_num_threads(threads)
    return threads


def default_threads() -> int:
    """All physical cores but one, which is left to the window, and no more than OMP_NUM_THREADS allows."""
    threads = max(1, physical_cores() - 1)
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one number for each level of nesting
    return min(threads, int(limit)) if limit.isdecimal() and int(limit) > 0 else threads


def physical_cores() -> int:
    """Cores this process may use, hyper-threads counted once where the system reports them."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = (
        torch.cpu.get_capabilities().get("num_physical_cores") if hasattr(torch.cpu, "get_capabilities") else None
    )
    return min(usable, physical) if isinstance(physical, int) and physical > 0 else usable


def has_fp64(device: torch.device) -> bool:
    """Whether the device computes in FP64, as Apple's GPUs and some of Intel's do not."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def free_bytes(device: torch.device) -> int:
    """Bytes that tensors on a device may still take; of a GPU with those that torch holds for tensors to come."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    return free_memory_bytes()


def in_fp64(tensor: Tensor) -> Tensor:
    """The tensor in FP64, in main memory where its own device has none."""
    return tensor.double() if has_fp64(tensor.device) else tensor.cpu().double()


def work_clock(device: torch.device) -> Callable[[], float]:
    """A clock, in seconds, of what the calling thread does on a device.

    On the CPU time in which others have the processor does not count, so that what depends on it is the same on a busy
    machine; for another device the thread waits.
    """
    return time.thread_time if device.type == "cpu" else time.perf_counter


def synchronize(device: torch.device) -> None:
    """Wait for the work queued on an accelerator; nothing to wait for on the CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; where it comes from main memory, the host does not wait for the copy.

    CUDA copies pageable memory only when the work that is queued has ended, so the way leads over pinned memory. A view
    with gaps, such as all tokens but the last, is packed before: CUDA would pack it into pageable memory.
    """
    plain = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.requires_grad
    if plain and tensor.is_cpu and device.type == "cuda":
        tensor = (tensor if _is_packed(tensor) else tensor.contiguous()).pin_memory()
    return tensor.to(device, non_blocking=device.type != "cpu")  # on its way back the CPU would read it too early


def _is_packed(tensor: Tensor) -> bool:
    """Whether the elements lie side by side in the order of the dimensions, or in that of channels last."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def forget_peak_memory(device: torch.device) -> None:
    """Let the allocator of the device count its peak anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> float:
    """Peak of the device's allocator since the run began; NaN where torch does not measure it."""
    if device.type == "cuda":
        # `max_memory_allocated` flattens all statistics by name, at every step
        return float(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"])
    return float("nan")


def fault_text(error: torch.AcceleratorError, when: str) -> str:
    """One sentence on a GPU that ended its work `when`, and the cure."""
    if "assert" in str(error):
        cure = L_("an index or a label lies outside of its table; the same run with device = cpu names the line")
    else:
        cure = L_("start the run again, and if it recurs look for the GPU in the log of the system (dmesg, Xid)")
    return Sentence("the GPU gave up {when}: {error}; {cure}", when=when, error=first_line(error), cure=cure)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch means that memory ran out; its CPU allocator raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def out_of_memory_text(error: RuntimeError) -> str:
    """One sentence on the memory that was asked for and the peak before it."""
    asked = str(error).strip().splitlines()[0].partition("DefaultCPUAllocator: ")
    words = (asked[2] or asked[0]).removesuffix(".").partition(". Error code")[0]
    words = re.sub(r"(\d+) bytes", lambda result: f"{int(result[1]) / 2**30:.2f} GiB", words)
    return Sentence("{asked} (the most in use before: {gib:.2f} GiB)", asked=words, gib=_most_in_use() / 2**30)


def page_faults() -> int:
    """Page faults of this process so far that needed no disk; 0 where the operating system does not count them."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().num_page_faults)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _most_in_use() -> int:
    """Peak bytes of the accelerator's allocator, or of this process where there is none."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
