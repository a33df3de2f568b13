"""torch's process-wide switches: set for one run, put back after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from precgui.engine.errors import EngineError

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def set_fp32_arithmetic(*, tf32: bool) -> None:
    """Allow or forbid TF32 for FP32 products, convolutions and RNNs of this process.

    On CUDA through the switches that keep torch's old and new getters consistent; on the CPU per operation, because
    the general oneDNN switch would write cuDNN's, too.
    """
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    _set_onednn(*(["tf32" if tf32 else "ieee"] * 2))


def _set_onednn(matmul: str, conv: str) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = matmul  # type: ignore[attr-defined]
    torch.backends.mkldnn.conv.fp32_precision = conv  # type: ignore[attr-defined]


def set_deterministic(device: torch.device) -> None:
    """Operations without a reproducible form raise from now on, and cuDNN does not choose its kernels by racing them.

    Raises EngineError when cuBLAS has already been set up with a workspace that is not reproducible.
    """
    if device.type == "cuda" and os.environ.setdefault(_CUBLAS, ":4096:8") not in (":4096:8", ":16:8"):
        raise EngineError(f"{_CUBLAS}={os.environ[_CUBLAS]} is not reproducible; set it to :4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Whatever is switched inside is put back at the end: TF32, determinism, threads."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    onednn = torch.backends.mkldnn.matmul.fp32_precision, torch.backends.mkldnn.conv.fp32_precision  # type: ignore[attr-defined]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn
        _set_onednn(*onednn)
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_num_threads(threads)
