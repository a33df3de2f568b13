"""Whole runs on the pretended device: the numbers are those of the CPU, whatever torch calls around the kernels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from precgui.config import PRECISIONS
from precgui.config.recipes import RECIPES
from tests.devices.runs import DOWNLOADED, EVERY_PRECISION, SMALL, refusal
from tests.pretended.conftest import Script

_BEGIN = """
from tests.pretended import host_math
host_math.install()
host_math.install_compiled()
"""
_TRAINING = "from tests.pretended.training import print_native_fp8, print_run\n"
# Relative distance of losses: the CPU emulates the products of FP16, and adds those of BF16 in another order.
CLOSE = {"fp16-amp": 1e-2, "fp16-pure": 1e-2, "bf16-pure": 2e-2, "bf16-amp": 1e-3}
# The cart's: a small sum of both signs. That of speech is 3e-6 from the CPU's where this has AVX-512.
CLOSE_RECIPES = {"gpt-qlora": 1e-4, "cartpole-quick": 1e-5, "gan-quick": 1e-5, "speech-quick": 1e-5}
# The first batch norm takes a spectrogram that is transposed, whose numbers it adds in another order on a GPU; where
# the last digit of FP32 has changed, rounding to TF32 may change one that is 2^13 times larger.
# FP8 products take their scales behind the sum, their emulation before it; the same with rounding to E4M3.
# The cell of an LSTM here rounds each of its parts to BF16, that of the CPU fewer of them.
CLOSE_CELLS = {("speech-quick", "tf32"): 1e-4, ("gpt-quick", "fp8"): 1e-3, ("lstm-quick", "bf16-sr"): 1e-3}
# By precision, of a step of digits-quick with telemetry: waits of the host, and copies from main memory, which are two
# of the batch and one for each measurement of a module or of a kind of tensor.
WAITS = {"fp16-amp": 3, "fp16-pure": 3}
UPLOADS = 32
STEPS = 5  # the first is counted operation by operation, the next two fill torch's caches of pinned memory
# Updates that are queued when the host waits for a step, beyond its own: none where a gradient scaler decides on them.
AHEAD = {"fp16-amp": 0, "fp16-pure": 0}
FP8_SCALINGS = ("tensorwise", "rowwise")
SCHEDULE = "precision_schedule=step:3=bf16-amp, step:4=fp16-amp"
QUICK_PRECISIONS = ("fp32", "fp16-amp", "bf16-sr", "fp8", "nvfp4")
QUICK_RECIPES = ("regression-precise", "digits-pruned", "cartpole-quick", "digits-scale-demo")
# The weights grow beyond all bounds, or a step does not go on where the loss is not finite.
DIVERGING = {
    "diverging": ("precision=fp16-amp", "scaling.mode=none", "optimizer.lr=10"),
}
if os.environ.get("PRETENDED_LONG"):
    DIVERGING["stopping"] = (*DIVERGING["diverging"], "train.stop_at_nonfinite=true")
LONG_RECIPES = {name: settings for name, settings in SMALL.items() if name not in ("digits-quick", *QUICK_RECIPES)}
# Not 270 skipped tests in `make test`.
IN_EVERY_PRECISION = (*QUICK_RECIPES, *LONG_RECIPES) if os.environ.get("PRETENDED_LONG") else ()
# Recipes that the pretended device cannot run, each with the reason.
CANNOT = {
    "gpt-two-ranks": "NCCL does not start without a GPU", **dict.fromkeys(DOWNLOADED, "its data are downloaded"),
}  # fmt: skip


def rows_of(
    on_pretended_gpu: Script, calls: list[str], gpus: int = 1, begin: str = _TRAINING, *, in_children: bool = False
) -> list[dict[str, Any]]:
    """The rows that these calls print, one each, in a process after `begin`, and `in_children` of it."""
    if not hasattr(torch.library, "get_kernel"):
        pytest.skip("the pretended CUDA device computes with torch 2.15 and later: this one cannot replace its kernels")
    settings = {"PRETENDED_GPUS": str(gpus), **({"PRETENDED_NUMBERS": "1"} if in_children else {})}
    printed = on_pretended_gpu(_BEGIN + begin + "\n".join(calls), **settings)
    rows = [json.loads(line.removeprefix("ROW ")) for line in printed.splitlines() if line.startswith("ROW ")]
    assert len(rows) == len(calls), printed
    return rows


def check_row(row: dict[str, Any], close: float, *, nan_ok: bool = False) -> None:
    assert row["refused"] == {}
    own, cpu = row["losses"].values()  # of the GPU, of the CPU
    assert len(own) == len(cpu) == len(row["steps"])
    assert own == pytest.approx(cpu, rel=close, nan_ok=nan_ok)
    assert row["lost"] == 0, "a kernel was launched that nothing has computed"
    assert row["elsewhere"] == {}, "the device of a run is the current one in all of it"


def _close(recipe: str, precision: str) -> float:
    return max(CLOSE.get(precision, 1e-6), CLOSE_RECIPES.get(recipe, 0), CLOSE_CELLS.get((recipe, precision), 0))


def _call(recipe: str, *settings: str, **words: object) -> str:
    return f"print_run({recipe!r}, *{settings!r}, **{words!r})"


def _in(precision: str) -> str:
    return _call("digits-quick", f"precision={precision}", to_the_end=precision == "fp32", steps=STEPS)


@pytest.fixture(scope="module")
def quick(on_pretended_gpu: Script) -> dict[str, dict[str, Any]]:
    """The rows of the short table, all of one process, because its start takes longer than they do."""
    calls = {precision: _in(precision) for precision in QUICK_PRECISIONS}
    calls |= {recipe: _call(recipe, *SMALL[recipe]) for recipe in QUICK_RECIPES}
    calls |= {name: _call("digits-quick", *settings, steps=7) for name, settings in DIVERGING.items()}
    calls["schedule"] = _call("digits-quick", "precision=fp32", SCHEDULE, steps=STEPS)
    calls |= {f"fp8 {name}": f"print_native_fp8('precision_options.fp8_scaling={name}')" for name in FP8_SCALINGS}
    calls["second"] = _call("digits-quick", "precision=fp32", device="cuda:1", steps=STEPS)
    return dict(zip(calls, rows_of(on_pretended_gpu, list(calls.values()), gpus=2), strict=True))


@pytest.mark.parametrize("name", [*QUICK_PRECISIONS, *QUICK_RECIPES])
def test_that_runs_on_a_gpu_have_the_losses_of_the_cpu(quick: dict[str, dict[str, Any]], name: str) -> None:
    precision = name if name in PRECISIONS else RECIPES[name][1].precision
    check_row(quick[name], CLOSE.get(precision, 1e-6))


def test_that_a_run_on_a_gpu_goes_on_where_its_gradients_are_not_finite(quick: dict[str, dict[str, Any]]) -> None:
    row = quick["digits-scale-demo"]
    assert [step["skipped"] for step in row["steps"]] == [True, True, True]
    assert len(row["losses"]["cuda:0"]) == 3


@pytest.mark.parametrize("name", DIVERGING)
def test_that_what_is_not_finite_is_told_of_the_step_in_which_it_was(
    quick: dict[str, dict[str, Any]], name: str
) -> None:
    """A run goes on with a step that is queued already, unless it stops there."""
    row = quick[name]
    of_gpu, of_cpu = row["incidents"].values()
    assert of_gpu == of_cpu
    bad, *_ = of_gpu[0]
    steps = bad if name == "stopping" else 7
    assert bad == 4
    assert [len(losses) for losses in row["losses"].values()] == [steps] * 2
    assert row["gradients"]["cuda:0"] == [*range(1, steps + 1)]


def _check_counts(row: dict[str, Any], precision: str) -> None:
    """A step waits once, for its loss and the telemetry together; a gradient scaler asks for two numbers more."""
    for step in row["steps"][1:]:
        assert step["waits"] == WAITS.get(precision, 1), step["waiting"]
        assert step["unpinned"] == 0, step["uploading"]
    after_first = row["steps"][1:]
    assert sum(step["uploads"] for step in after_first) <= UPLOADS * len(after_first), after_first[0]["uploading"]
    ahead = AHEAD.get(precision, 1)
    assert [step["ahead"] for step in row["steps"]] == [0, *[ahead] * (len(row["steps"]) - 2), 0]
    assert [(step["allocations"], step["pins"]) for step in row["steps"][-2:]] == [(0, 0)] * 2


@pytest.mark.parametrize("precision", QUICK_PRECISIONS)
def test_that_a_step_waits_and_uploads_no_more_than_it_must(quick: dict[str, dict[str, Any]], precision: str) -> None:
    _check_counts(quick[precision], precision)


@pytest.mark.parametrize("name", FP8_SCALINGS)
def test_that_fp8_products_of_a_gpu_are_their_emulation_to_the_digits_of_fp32(
    quick: dict[str, dict[str, Any]], name: str
) -> None:
    row = quick[f"fp8 {name}"]
    assert row["note"].startswith("FP8 is native in 1 layer")
    assert len(row["errors"]) == 4
    assert max(row["errors"]) < 1e-6


def test_that_the_precision_of_a_run_on_a_gpu_changes_by_its_schedule(quick: dict[str, dict[str, Any]]) -> None:
    row, plain = quick["schedule"], quick["fp32"]["losses"]["cuda:0"]
    check_row(row, CLOSE["fp16-amp"])
    changed = [own != other for own, other in zip(row["losses"]["cuda:0"], plain, strict=False)]
    assert changed == [False, False, True, True, True]
    assert [step["ahead"] for step in row["steps"]] == [0] * STEPS, "the precision of a step may depend on the last"


def test_that_a_run_on_the_second_gpu_launches_each_kernel_there(quick: dict[str, dict[str, Any]]) -> None:
    """A kernel whose operands are on another device than the current one raises, see `host_math`."""
    check_row(quick["second"], 1e-6)
    _check_counts(quick["second"], "fp32")


@pytest.mark.pretended_long
def test_that_runs_in_every_precision_have_the_losses_of_the_cpu(on_pretended_gpu: Script) -> None:
    names = [name for name in PRECISIONS if name not in QUICK_PRECISIONS]
    for name, row in zip(names, rows_of(on_pretended_gpu, list(map(_in, names))), strict=True):
        check_row(row, CLOSE.get(name, 1e-6))
        _check_counts(row, name)


@pytest.mark.pretended_long
@pytest.mark.parametrize("precision", EVERY_PRECISION)
@pytest.mark.parametrize("recipe", IN_EVERY_PRECISION)
def test_that_a_task_has_the_losses_of_the_cpu_in_every_precision(
    on_pretended_gpu: Script, recipe: str, precision: str
) -> None:
    """Each in a process of its own, whose end hides no other; `digits-quick` has a row for each precision above."""
    (row,) = rows_of(on_pretended_gpu, [_call(recipe, *SMALL[recipe], f"precision={precision}")])
    if sentence := refusal(recipe, precision):
        assert row["refused"] == {"cuda:0": sentence, "cpu": sentence}
    else:
        nan_ok = precision == "fp16-pure"  # in which AdamW's epsilon of 1e-8 is 0
        check_row(row, _close(recipe, precision), nan_ok=nan_ok)


_BLOCKS = """
import json, torch
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.formats.registry import blocks
from precgui.formats.rounding import ROUNDINGS
values = torch.randn(33, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2.0 ** torch.arange(70)
values[0, :5] = torch.tensor([0.0, -0.0, torch.inf, torch.nan, 5e-324])
def print_blocks():
    row, there = {}, values.to("cuda")
    for name in blocks():
        for rounding in ROUNDINGS:
            own = quantize_blocks(there, name, rounding=rounding, seed=3).cpu()
            same = own.view(torch.int64) == quantize_blocks(values, name, rounding=rounding, seed=3).view(torch.int64)
            row[f"{name} {rounding}"] = int((~same & ~own.isnan()).sum())
    print("ROW " + json.dumps(row))
"""


@pytest.mark.pretended_long
def test_that_blocks_of_fp64_on_a_gpu_are_rounded_as_on_the_cpu(on_pretended_gpu: Script) -> None:
    """There is no kernel for them: they are rounded operation by operation."""
    (row,) = rows_of(on_pretended_gpu, ["print_blocks()"], begin=_BLOCKS)
    assert len(row) >= 7 * 5
    assert {name: count for name, count in row.items() if count} == {}


_WITHOUT_FP64 = """
from precgui.engine import device
from precgui.engine.telemetry import backends
from tests.pretended.loops import print_loop
from tests.pretended.training import print_run
host_math.refused.add(torch.float64)
device.has_fp64 = backends.has_fp64 = lambda device: device.type == "cpu"
backends._fused_for = lambda device: None  # the kernel is for CUDA, which has FP64
"""
# The scaler of torch computes in FP64 on all devices but Apple's.
PRECISIONS_WITHOUT_FP64 = ("fp32", "bf16-sr", "fp8")


@pytest.mark.pretended_long
def test_that_runs_need_no_fp64_of_a_device_that_has_none(on_pretended_gpu: Script, tmp_path: Path) -> None:
    """As GPUs of Apple and some of Intel: each operation on it that has an operand or a result in FP64 raises."""
    calls = {
        name: _call("digits-quick", f"precision={name}", to_the_end=name == "fp32") for name in PRECISIONS_WITHOUT_FP64
    }
    calls["loop"] = f"print_loop('plain', {str(tmp_path)!r})"
    rows = dict(zip(calls, rows_of(on_pretended_gpu, list(calls.values()), begin=_WITHOUT_FP64), strict=True))
    loop = rows.pop("loop")
    assert loop["losses"]["recorded"] == loop["losses"]["alone"]
    for name, row in rows.items():
        check_row(row, CLOSE.get(name, 1e-6))


def test_that_no_recipe_is_left_out_without_a_reason() -> None:
    covered = {"digits-quick", *QUICK_RECIPES, *LONG_RECIPES}
    assert covered | CANNOT.keys() == RECIPES.keys()
    assert not covered & CANNOT.keys()
