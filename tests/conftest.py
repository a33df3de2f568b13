"""Settings of every test: no screen, one thread per process, and none of the user's own runs or settings."""

from __future__ import annotations

import atexit
import gc
import getpass
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from precgui.gui.shell.free_memory import return_free_memory
from precgui.process.spawn import forget_safe_path
from tests.warm_children import fork_from_a_warm_process

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["PRECGUI_LANGUAGE"] = "en"  # tests compare English texts, also where the user reads others
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of this process, of its workers and of all that tests start
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("MALLOC_ARENA_MAX", "1")  # else each thread of a test leaves a heap of 64 MB, of glibc
if "ATEN_CPU_CAPABILITY" in os.environ:  # torch 2.15 would take code compiled for other vectors from its cache: garbage
    _USER = getpass.getuser()
    _CODE = Path(tempfile.gettempdir()) / f"torchinductor_{_USER}_{os.environ['ATEN_CPU_CAPABILITY']}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_CODE))

WORKER_BYTES = 2 * 2**30  # of a test process with the process that it trains in
MUCH_BYTES = 2**26
SUMMARY_COLUMNS = 300

# Files that take longest, so that no worker is left with one of them when the others have ended.
LONGEST = (
    "faults/test_faults.py",
    "engine/export/test_repeated_runs.py",
    "engine/tasks/test_tasks.py",
    "faults/test_odd_loops.py",
    "gui/test_study_for_real.py",
    "engine/test_train.py",
    "engine/parallel/test_ranks.py",
    "gui/workers/test_child_process.py",
    "sweeps/test_runner.py",
    "engine/parallel/test_launch.py",
    "gui/panels/setup/test_assign_view.py",
    "engine/profile/test_profile.py",
    "record/test_lives.py",
    "engine/qat/test_qat.py",
    "engine/quantize/test_elements.py",
    "test_readme.py",
    "engine/test_memory.py",
    "engine/test_compile.py",
    "engine/test_execution.py",
    "engine/test_instruction_sets.py",
    "gui/test_main_job.py",
    "test_new_precision.py",
    "record/test_end.py",
    "cli/test_run_cli.py",
    "integrations/test_integrations.py",
    "cli/test_sweep_cli.py",
    "gui/shell/test_window.py",
    "runs/file/test_writer.py",
    "runs/file/test_damage.py",
    "test_layers.py",
    "test_packaging.py",
)

# The same examples everywhere and however long they take: a test must not fail because the machine is busy.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give the list of failures at the end room for reasons where the output goes to a file: 80 columns have none."""
    if config.pluginmanager.has_plugin("terminalreporter") and not sys.stdout.isatty():
        config.get_terminal_writer().fullwidth = SUMMARY_COLUMNS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Number of processes of `-n auto`: one per usable core, and no more than fit into the free memory."""
    asked = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", "")
    if asked.isdecimal():
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, psutil.virtual_memory().available // WORKER_BYTES))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage among modules and tests, and leave them out of every later search for it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries complain of leaks otherwise
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the order within a file stays."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Behind the last test of a file, let what it has left go back to the system: a process runs hundreds of files."""
    yield
    if nextitem is None or nextitem.path != item.path:
        _return_memory()


_returned_bytes = 0  # resident after memory was returned last


def _return_memory() -> None:
    """Where much has come since the last time: a search for garbage takes half a second where torch is loaded."""
    global _returned_bytes
    process = psutil.Process()
    if process.memory_info().rss - _returned_bytes > MUCH_BYTES:
        gc.collect()
        return_free_memory()
        _returned_bytes = process.memory_info().rss


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and state of a test, and of the processes it starts, go to its temporary folder."""
    monkeypatch.setenv("PRECGUI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path / "state"))


@pytest.fixture(autouse=True)
def safe_path_ends_with_its_test() -> Iterator[None]:
    """A test that compiles in this process must not hide the tests from the processes that later ones start."""
    yield
    forget_safe_path()


@pytest.fixture(autouse=True)
def no_dispatch_mode_is_left() -> Iterator[None]:
    """A dispatch mode that a test leaves on torch's stack would watch the operations of the tests behind it."""
    yield
    if (torch := sys.modules.get("torch")) is None:
        return
    left = []
    while torch._C._len_torch_dispatch_stack():
        left.append(type(torch._C._pop_torch_dispatch_stack(None)).__qualname__)
    assert not left, f"left on the stack of dispatch modes: {', '.join(left)}"


@pytest.fixture(scope="session", autouse=True)
def warm_children() -> Iterator[None]:
    """Start-up of child processes is not what most tests are about."""
    with pytest.MonkeyPatch.context() as patch:
        fork_from_a_warm_process(patch)
        yield
