"""Memory of the GPU: what the plan says beside what torch measured, and memory that really runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("pydantic", reason="runs are configured with pydantic, which is not installed here")

from precgui import config, open_run
from precgui.events import Event, StepDone
from precgui.job import Job
from tests.devices.commands import command, words_of
from tests.gpu.place import ALL, DEVICE, REHEARSED

pytestmark = pytest.mark.gpu
Tell = Callable[[str], None]
PLANNED = [
    (recipe, precision, size)
    for recipe, size in (("digits-quick", "medium"), ("gpt-quick", "medium"), ("gpt-quick", "large"),
                         ("lstm-quick", "medium"), ("segmentation-quick", "medium"))
    for precision in (("fp32", "bf16-amp", "bf16-pure", "fp8") if ALL else ("fp32", "bf16-amp"))
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "precision", "size"), PLANNED)
def test_that_the_plan_is_near_the_peak_of_memory(
    recipe: str, precision: str, size: str, tmp_path: Path, tell: Tell
) -> None:
    settings = (f"device={DEVICE}", f"precision={precision}", f"model.size={size}", "record.tensors=false")
    planned = command(*words_of("plan", recipe, settings=settings))
    assert planned["code"] == 0, planned["told"]
    if REHEARSED:
        return
    gc.collect()  # of the steps and runs before
    torch._C._cuda_clearCublasWorkspaces()  # which a run in a process of its own takes anew
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    ended = Job(config.load(recipe, [*settings, "train.max_steps=4"]), tmp_path / "a.h5").run()
    assert ended.status == "completed", ended.message
    peak = torch.cuda.max_memory_allocated() - held
    with open_run(tmp_path / "a.h5") as run:
        kept = run.summary["memory_peak_bytes"]
    total = planned["document"]["total_bytes"]
    tell(f"plan {recipe} {size} {precision}: planned {total / 2**20:.1f} MiB, peak {peak / 2**20:.1f} MiB, in the run "
         f"file {kept / 2**20:.1f} MiB, planned / peak {total / peak:.3f}")  # fmt: skip
    assert peak / 2 < total < 2 * peak


@pytest.fixture
def filled() -> Iterator[list[torch.Tensor]]:
    """Tensors that take all memory of the GPU but a little, as soon as they are asked for."""
    held: list[torch.Tensor] = []
    yield held
    held.clear()
    if not REHEARSED:
        torch.cuda.empty_cache()


@pytest.mark.skipif(REHEARSED, reason="needs the memory of a GPU")
def test_that_memory_that_really_runs_out_ends_a_run_in_a_sentence(
    filled: list[torch.Tensor], tmp_path: Path, tell: Tell
) -> None:
    """In a process of xdist others use the GPU, too: this run is limited to 0.5 GiB, which it fills by itself."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.75 * 2**30 / total)

    def take(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 3:
            try:
                while True:
                    filled.append(torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE))
            except torch.OutOfMemoryError:
                del filled[-1:]

    settings = [f"device={DEVICE}", "model.size=large", "train.max_steps=20", "data.batch_size=512"]
    try:
        ended = Job(config.load("digits-quick", settings), tmp_path / "a.h5", [take]).run()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    tell(f"end of memory: {ended.status}. {ended.message}; {len(filled)} MiB were taken away")
    assert ended.status == "failed"
    assert ended.message.startswith("out of memory ")
    assert ended.message.endswith("reduce data.batch_size or model.size, or choose a 16-bit precision")
    with open_run(tmp_path / "a.h5") as run:
        assert (run.status, run.message) == ("failed", ended.message)
        assert len(run.series("loss")[0]) >= 3


@pytest.mark.skipif(REHEARSED, reason="needs the memory of a GPU")
def test_that_a_batch_that_does_not_fit_ends_a_run_in_a_sentence(tmp_path: Path, tell: Tell) -> None:
    """A model whose first pass needs more memory than the GPU has."""
    settings = [f"device={DEVICE}", "model.size=large", "data.batch_size=1024", "data.sequence_length=8192"]
    ended = Job(config.load("gpt-quick", [*settings, "train.max_steps=2"]), tmp_path / "a.h5").run()
    tell(f"end of memory in the first pass: {ended.status}. {ended.message}")
    assert ended.status == "failed"
    assert ended.message.startswith("out of memory ")


@pytest.mark.skipif(REHEARSED, reason="needs the sensors of a GPU")
def test_that_energy_and_power_are_in_the_run_file(tmp_path: Path, tell: Tell) -> None:
    settings = [f"device={DEVICE}", "precision=bf16-amp", "train.max_steps=600", "model.size=large"]
    ended = Job(config.load("gpt-quick", settings), tmp_path / "a.h5").run()
    assert ended.status == "completed", ended.message
    with open_run(tmp_path / "a.h5") as run:
        names = [name for name in run.state_devices() if name.startswith("GPU")]
        tell(f"energy: {run.summary.get('energy_j')} J, devices {names}")
        assert run.summary["energy_j"] > 0
        watts = run.series(f"power:{names[0]}")[1]
        tell(f"power: {np.nanmean(watts):.0f} W in {len(watts)} readings")
        assert 20 < np.nanmean(watts) < 1000
