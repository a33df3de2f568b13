"""A CUDA device that is not there: torch's own CUDA build over a runtime of two small C files.

Scripts run in processes of their own, because the runtime is preloaded, see `warm`. Triton and Inductor compile for
real, down to the machine code of the GPU; launches are counted and compute nothing, so tests here ask how often, where
and with how much memory something is launched, never which numbers come out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pretended.warm import WarmProcess

HERE = Path(__file__).parent
Script = Callable[..., str]
_BEGIN = """
import ctypes, logging, os, sys
import torch
torch.set_num_threads(1)
logging.basicConfig(level=logging.WARNING, format="LOG %(message)s", stream=sys.stdout)
runtime = ctypes.CDLL(os.environ["LD_PRELOAD"])
driver = ctypes.CDLL("libcuda.so.1")
def triton_launches(): return ctypes.c_long.in_dll(driver, "pretended_triton_launches").value
def torch_launches(): return ctypes.c_long.in_dll(runtime, "pretended_launches").value
def uploads(): return ctypes.c_long.in_dll(runtime, "pretended_uploads").value
def waits(): return ctypes.c_long.in_dll(runtime, "pretended_waits").value
def last_device(): return ctypes.c_int.in_dll(driver, "pretended_last_device").value
"""


def _lacks() -> str:
    """Why there can be no pretended device here, as a sentence; empty where there can."""
    if sys.platform != "linux":
        return "the pretended CUDA device needs Linux"
    if shutil.which("gcc") is None:
        return "the pretended CUDA device needs gcc, and there is none on the PATH"
    if not (_headers("nvidia") and _headers("triton")):
        return "the pretended CUDA device needs torch's CUDA build with its headers and Triton"
    return ""


def _headers(package: str) -> list[str]:
    found = importlib.util.find_spec(package)
    roots = [Path(root) for root in found.submodule_search_locations or ()] if found else []
    inside = ("cu13/include", "cuda_runtime/include", "backends/nvidia/include")
    return [str(root / name) for root in roots for name in inside if (root / name).is_dir()]


@pytest.fixture(scope="session")
def pretended_libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The runtime to preload, and the folder of the driver library."""
    if lacks := _lacks():
        pytest.skip(lacks)
    folder = tmp_path_factory.mktemp("pretended")
    includes = [f"-I{place}" for place in (*_headers("nvidia"), *_headers("triton"))]
    runtime, driver = folder / "runtime.so", folder / "libcuda.so.1"
    for source, library, words in (
        ("cuda_runtime.c", runtime, ()),
        ("cuda_driver.c", driver, ("-Wl,-soname,libcuda.so.1", "-ldl")),
    ):
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", *includes, str(HERE / source), "-o", str(library), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the pretended CUDA device cannot be built with these headers: {done.stderr.splitlines()[0]}")
    return runtime, folder


@pytest.fixture(scope="session")
def pretended_caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the kernels that Triton has compiled for scripts that name none of their own."""
    return tmp_path_factory.getbasetemp() / "pretended-caches"


@pytest.fixture(scope="session")
def on_pretended_gpu(
    pretended_libraries: tuple[Path, Path], pretended_caches: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Script]:
    """Runs the text of a script over the pretended runtime and returns what it printed."""
    runtime, folder = pretended_libraries
    paths = [str(HERE.parents[1]), str(HERE / "everywhere"), os.environ.get("PYTHONPATH", "")]
    settings = {
        **os.environ, "LD_PRELOAD": str(runtime), "LD_LIBRARY_PATH": str(folder), "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": str(pretended_caches / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(pretended_caches / "inductor"),
    }  # fmt: skip
    with WarmProcess(settings) as process:

        def run(text: str, **environment: str) -> str:
            own = tmp_path_factory.mktemp("pretended-script")
            code, printed, told = process.run(_BEGIN + text, {**settings, **environment}, own)
            assert code == 0, f"exit code {code}: {told[-4000:]}"
            return printed

        yield run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the long tables to `make pretended`."""
    if os.environ.get("PRETENDED_LONG"):
        return
    for item in items:
        if item.get_closest_marker("pretended_long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: it is part of `make pretended`"))
