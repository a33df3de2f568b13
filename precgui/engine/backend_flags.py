"""torch's process-wide switches: set for one run, put back after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precgui.engine.errors import EngineError
from precgui.engine.torch_private import release_unfinished_backward
from precgui.sentences import Sentence

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def set_fp32_arithmetic(*, tf32: bool) -> None:
    """Allow or forbid TF32 for FP32 products, convolutions and RNNs of this process.

    On CUDA through the switches that keep torch's old and new getters consistent; on the CPU per operation, because
    the general oneDNN switch would write cuDNN's, too.
    """
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    onednn: Any = torch.backends.mkldnn
    onednn.matmul.fp32_precision = onednn.conv.fp32_precision = "tf32" if tf32 else "ieee"


def set_deterministic(device: torch.device) -> None:
    """Operations without a reproducible form raise from now on, and cuDNN does not choose its kernels by racing them.

    Raises EngineError when cuBLAS has already been set up with a workspace that is not reproducible.
    """
    if device.type == "cuda" and os.environ.setdefault(_CUBLAS, ":4096:8") not in (":4096:8", ":16:8"):
        raise EngineError(
            Sentence("{name}={value} is not reproducible; set it to :4096:8", name=_CUBLAS, value=os.environ[_CUBLAS])
        )
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def _fp32_switches() -> Callable[[], None]:
    """Remember how FP32 operands are multiplied; returns what puts it back."""
    backends: Any = torch.backends
    onednn = [backends.mkldnn.matmul, backends.mkldnn.conv]
    places = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, *onednn]
    before = {place: place.fp32_precision for place in places}
    try:
        legacy = torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32
    except RuntimeError:  # the new switches were set, after which torch refuses to read the old ones
        legacy = None

    def put_back() -> None:
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy[0])
            backends.cudnn.allow_tf32 = legacy[1]
        for place in places if legacy is None else onednn:
            place.fp32_precision = before[place]

    return put_back


def _current_device() -> Callable[[], None]:
    """Remember which GPU is current, where torch has begun to use GPUs; returns what makes it current again."""
    before = torch.cuda.current_device() if torch.cuda.is_initialized() else 0

    def put_back() -> None:
        if torch.cuda.is_initialized():
            torch.cuda.set_device(before)

    return put_back


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Whatever is switched inside is put back at the end: TF32, determinism, threads, the current GPU.

    What a backward pass that failed inside has left in torch's engine is released.
    """
    put_back, choose_device = _fp32_switches(), _current_device()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    try:
        yield
    finally:
        put_back()
        choose_device()
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_num_threads(threads)
        release_unfinished_backward()
