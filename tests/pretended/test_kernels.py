"""Rounding and telemetry on a pretended GPU: how many kernels are launched, on which device, with how much memory."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from precgui.engine.quantize.torch_form import rounded
from precgui.formats.registry import formats
from precgui.formats.rounding import ROUNDINGS, CastPolicy
from tests.pretended.conftest import Script

_ROUNDING = """
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
from precgui.engine.telemetry import triton_kernels
source = torch.empty(1 << 10, 64, device="cuda")
def rounded(source, name, rounding):
    return (quantize_blocks if name in {blocks!r} else quantize)(source, name, rounding=rounding, seed=3)
for name, rounding in {rows!r}:
    rounded(source, name, rounding)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, launches, copies = torch.cuda.memory_allocated(), triton_launches() + torch_launches(), uploads()
    rounded(source, name, rounding)
    more = (torch.cuda.max_memory_allocated() - before) / source.nbytes
    print(name, rounding, triton_launches() + torch_launches() - launches, uploads() - copies, more)
"""
_NARROW = """
for dtype in (torch.bfloat16, torch.float16):
    for name in ("mxfp4", "mxint8", "nvfp4"):
        for rounding in ("nearest_even", "stochastic"):
            rounded(source.to(dtype), name, rounding)
"""
_TELEMETRY = """
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    ones = [torch.ones(64, device="cuda", dtype=dtype)]
    rows = triton_kernels.measure(ones, [1], [0], 1.0)
    triton_kernels.measure_alone(*ones, 1, 0, 1.0, rows, 0)
    triton_kernels.compare(ones, [1], [0], triton_kernels.keep(ones, [1], [0]))
"""
_OTHER_DTYPES = """
for dtype in (torch.float64, torch.bfloat16, torch.float16):
    for name in ("bf16", "e4m3fn", "e4m3fnuz", "ue4m3", "e9m4", "e8m0", "int8", "nf4"):
        for rounding in ("nearest_even", "up", "to_odd", "stochastic"):
            if (name, rounding, dtype) != ("nf4", "stochastic", torch.float64):
                rounded(source.to(dtype), name, rounding)
"""
_TO_FP8 = """
from precgui.engine.emulation import fused_fp8, native_fp8
from precgui.engine.emulation.operands import AmaxScale, BatchSeed
for rowwise in (False, True):
    for dtype in (native_fp8.FORWARD, native_fp8.BACKWARD):
        scale = AmaxScale(torch.finfo(dtype).max, BatchSeed(0), rowwise=rowwise)
        for turned in (False, True):
            fused_fp8.quantized(source, dtype, scale, 1, turned=turned)
            launches = triton_launches(), torch_launches()
            parts = fused_fp8.quantized(source, dtype, scale, 1, turned=turned)
            more = triton_launches() - launches[0], torch_launches() - launches[1]
            print("FP8", *more, *(part.numel() for part in parts))
"""
# Which code Triton itself would launch is asked at every launch; it looks at each argument for that.
_SAME_CODE = """
from precgui.engine.emulation import fused_fp8, native_fp8, triton_fp8
from precgui.engine.emulation.operands import AmaxScale, BatchSeed
from precgui.engine.quantize import triton_blocks, triton_elements
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
class Told(dict):
    def __getitem__(self, key):
        self.code = super().__getitem__(key)
        return self.code
    def __setitem__(self, key, code):
        super().__setitem__(key, code)
        self.code = code
def launch(kernel, programs, tensors, shape, numbers, kind, own=triton_elements.launch):
    own(kernel, programs, tensors, shape, numbers, kind)
    arguments = (*tensors, *shape, *numbers, *kind)
    wanted = kernel[programs,](*arguments, num_warps=triton_elements.WARPS, enable_fp_fusion=False)
    is_same = triton_elements._machine_code.code is wanted
    print("CODE", kernel.__name__, "same" if is_same else f"another {{[each.dtype for each in tensors]}}")
triton_elements._machine_code = Told()
for module in (triton_elements, triton_blocks, triton_fp8):
    module.launch = launch
source = torch.empty(48, 80, device="cuda")
sources = [source, source[:33, :37], source.t(), source[:, 8:40], source[:, 1:2], source.flatten()[1:2561].view(32, 80)]
sources = sources[:{layouts}]
for rowwise in (False, True):
    for dtype in (native_fp8.FORWARD, native_fp8.BACKWARD):
        scale = AmaxScale(torch.finfo(dtype).max, BatchSeed(0), rowwise=rowwise)
        for each in sources:
            fused_fp8.quantized(each, dtype, scale, 1, turned=True)
for dtype in {dtypes!r}:
    for each in sources:
        for name, rounding in {rows!r}:
            narrow = each.to(getattr(torch, dtype))
            (quantize_blocks if name in {blocks!r} else quantize)(narrow, name, rounding=rounding, seed=3)
"""
_BUILT = """
from pathlib import Path
print("BUILT", *sorted(path.stem for path in Path(os.environ["TRITON_CACHE_DIR"]).glob("**/*.cubin")))
"""
# Element formats by the one whose kernels serve them, too: their constants are arguments.
FORMS = {
    "fp32": ("fp64",),  # hold every number
    "bf16": ("tf32",),  # have its range
    "fp16": (
        "e4m3fn", "e5m2", "e4m3_ieee", "e3m4_ieee", "e3m2", "e2m3", "e2m1", "e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz",
    ),
    "ue4m3": ("ue5m3",),
    "e8m0": (),
    "int8": ("int4", "int2", "int1", "uint8", "uint4", "uint2", "uint1", "mxint8"),
    "nf4": (),
    "sign1": (),  # a search of fewer steps
}  # fmt: skip
OVER_MAIN_MEMORY = {("sign1", "toward_zero")}  # rounded by the host: the gap around zero is entered from both sides
BLOCKS = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "nvfp4")
QUICK_FORMATS = ("bf16", "e4m3fn", "int8", "mxfp4", "nvfp4")
LAUNCHES = {"nvfp4": "3"}  # a 0, the largest magnitude of the tensor, and the rounding
TARGETS = (75, 80, 89, 90, 100, 120)
# With 16 warps, so that a multiprocessor holds 32 of them, and `_change` with 32; others: 128, with 4.
REGISTERS = dict.fromkeys(("_piece", "_alone", "_keep", "_change"), 64)


def _check_rounding(printed: str, rows_wanted: int) -> None:
    """Each rounding is one kernel, of the compiler or of torch, that needs memory for its result alone."""
    rows = [line.split() for line in printed.splitlines()]
    assert len(rows) == rows_wanted, rows
    assert {tuple(row[:2]): row[2:4] for row in rows if row[2:4] != [LAUNCHES.get(row[0], "1"), "0"]} == {}
    assert {tuple(row[:2]): float(row[4]) for row in rows if float(row[4]) > 1.1} == {}


def _check_machine_code(cache: Path) -> set[str]:
    """The kernels that Triton has built flush no subnormals, spill no registers, and need no more than they may."""
    found = sorted(cache.glob("**/*.cubin"))
    for cubin in found:
        flushing = set(re.findall(r"\b[a-z0-9.]+\.ftz[a-z0-9.]*", cubin.with_suffix(".ptx").read_text()))
        assert not flushing, (cubin.stem, flushing)
        usage = _usage(cubin)
        assert usage["STACK"] == usage["LOCAL"] == 0, (cubin.stem, usage)
        assert usage["REG"] <= REGISTERS.get(cubin.stem, 128), (cubin.stem, usage)
    return {cubin.stem for cubin in found}


def _usage(cubin: Path) -> dict[str, int]:
    """Registers of a thread, and bytes of its stack and of local memory, to which registers are spilled."""
    package = importlib.util.find_spec("triton")
    assert package is not None
    assert package.origin is not None
    tool = Path(package.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    done = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True)
    return {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", done.stdout)}


def test_that_rounding_is_one_kernel_that_flushes_and_spills_nothing(
    on_pretended_gpu: Script, pretended_caches: Path
) -> None:
    rows = [(name, "nearest_even") for name in QUICK_FORMATS]
    text = _ROUNDING.format(rows=rows, blocks=BLOCKS) + _TELEMETRY
    _check_rounding(on_pretended_gpu(text), len(QUICK_FORMATS))
    assert {"_piece", "_blocks", "_peak", "_floats", "_integers"} <= _check_machine_code(pretended_caches)


def test_that_a_matrix_is_cast_to_fp8_and_turned_by_two_launches(on_pretended_gpu: Script, tmp_path: Path) -> None:
    """One for its largest value, and one for all else."""
    text = "source = torch.empty(64, 48, device='cuda')\n" + _TO_FP8
    rows = on_pretended_gpu(text, TRITON_CACHE_DIR=str(tmp_path)).splitlines()
    tensorwise = ["FP8 1 1 3072 0 1", "FP8 1 1 3072 3072 1"] * 2
    assert rows == tensorwise + [row[:-1] + "64" for row in tensorwise]
    assert _check_machine_code(tmp_path) == {"_scaled"}


def _check_same_code(printed: str, kernels: set[str]) -> None:
    rows = [line.split(maxsplit=2) for line in printed.splitlines() if line.startswith("CODE")]
    assert {tuple(row[1:]) for row in rows} == {(kernel, "same") for kernel in kernels}


def test_that_a_launch_takes_the_code_that_triton_would_take(on_pretended_gpu: Script) -> None:
    """E4M3 and E5M2, layouts and sizes: what differs in one of them may be compiled apart."""
    rows = [(name, "nearest_even") for name in ("mxfp4", "bf16")]
    printed = on_pretended_gpu(_SAME_CODE.format(layouts=2, dtypes=("float32",), rows=rows, blocks=BLOCKS))
    _check_same_code(printed, {"_scaled", "_blocks", "_floats"})


@pytest.mark.pretended_long
def test_that_each_launch_takes_the_code_that_triton_would_take(on_pretended_gpu: Script) -> None:
    names = [*BLOCKS, *(name for name in formats() if name not in ("fp64", "fp32"))]
    rows = [row for row in itertools.product(names, ROUNDINGS) if row not in OVER_MAIN_MEMORY]
    dtypes = ("float32", "bfloat16", "float16")
    printed = on_pretended_gpu(_SAME_CODE.format(layouts=6, dtypes=dtypes, rows=rows, blocks=BLOCKS))
    _check_same_code(printed, {"_scaled", "_blocks", "_peak", "_floats", "_powers", "_integers", "_entries"})


def test_that_no_element_format_is_left_out() -> None:
    assert sorted([*FORMS, *(name for names in FORMS.values() for name in names)]) == sorted(formats())


@pytest.mark.pretended_long
@pytest.mark.parametrize("capability", TARGETS)
def test_that_rounding_to_elements_is_one_kernel_on_every_gpu(
    on_pretended_gpu: Script, tmp_path: Path, capability: int
) -> None:
    """Formats of one form share their kernels, as their constants are arguments."""
    names = [[*FORMS], [name for others in FORMS.values() for name in others]]
    rows = [[row for row in itertools.product(each, ROUNDINGS) if row not in OVER_MAIN_MEMORY] for each in names]
    text = "".join(_ROUNDING.format(rows=each, blocks=()) + _BUILT for each in rows) + _OTHER_DTYPES
    settings = {"PRETENDED_CAPABILITY": str(capability), "TRITON_CACHE_DIR": str(tmp_path)}
    printed = on_pretended_gpu(text, **settings)
    _check_rounding(re.sub("BUILT.*\n", "", printed), sum(map(len, rows)))
    of_forms, of_all = re.findall("BUILT (.*)", printed)
    assert of_forms == of_all
    assert _check_machine_code(tmp_path) == {"_floats", "_powers", "_integers", "_entries"}


@pytest.mark.pretended_long
def test_that_only_rare_elements_are_rounded_by_the_host() -> None:
    one = torch.ones(1)
    by_host = {
        (name, rounding)
        for name, fmt in formats().items()
        for rounding in ROUNDINGS
        if rounded(one, fmt, CastPolicy(rounding), 0) is None
    }
    assert by_host == OVER_MAIN_MEMORY


@pytest.mark.pretended_long
@pytest.mark.parametrize("capability", TARGETS)
def test_that_rounding_to_blocks_is_one_kernel_on_every_gpu(
    on_pretended_gpu: Script, tmp_path: Path, capability: int
) -> None:
    rows = [*itertools.product(BLOCKS, ROUNDINGS)]
    text = _ROUNDING.format(rows=rows, blocks=BLOCKS) + _NARROW + _TELEMETRY
    printed = on_pretended_gpu(text, PRETENDED_CAPABILITY=str(capability), TRITON_CACHE_DIR=str(tmp_path))
    _check_rounding(printed, len(BLOCKS) * len(ROUNDINGS))
    statistics = {"_piece", "_alone", "_change", "_keep"}
    assert _check_machine_code(tmp_path) == {"_blocks", "_peak", *statistics}


@pytest.mark.pretended_long
def test_that_no_rounding_waits_for_the_device(on_pretended_gpu: Script) -> None:
    printed = on_pretended_gpu(
        """
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
source = torch.empty(64, 64, device="cuda")
roundings = {name: lambda name=name: quantize(source, name) for name in ("bf16", "e4m3fn", "int8")}
roundings |= {name: lambda name=name: quantize_blocks(source, name) for name in ("mxfp8_e4m3", "mxfp4", "nvfp4")}
for name, rounding in roundings.items():
    rounding()
    before = waits()
    rounding()
    print(name, waits() - before)
"""
    )
    assert {name: int(count) for name, count in map(str.split, printed.splitlines()) if count != "0"} == {}
    assert len(printed.splitlines()) == 6


@pytest.mark.parametrize(
    "compiler",
    [
        "fails",
        pytest.param("absent", marks=pytest.mark.pretended_long),
        pytest.param("writes no library", marks=pytest.mark.pretended_long),
    ],
)
def test_that_a_compiler_that_fails_is_told_once_and_rounding_goes_on(
    on_pretended_gpu: Script, tmp_path: Path, compiler: str
) -> None:
    broken = tmp_path / "compiler"
    broken.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && echo nothing > "$2"; shift; done\n')
    broken.chmod(0o755)
    settings = {
        "fails": {"CC": "/bin/false"},
        "absent": {"PATH": str(tmp_path)},
        "writes no library": {"CC": str(broken)},
    }
    told = on_pretended_gpu(
        """
from precgui.engine.quantize.elements import quantize
from precgui.engine.telemetry.backends import stats_backend_for
for name in ("bf16", "e4m3fn"):
    print(quantize(torch.ones(64, device="cuda"), name).shape)
print(stats_backend_for(torch.device("cuda:0"))._fused)
""",
        **settings[compiler],
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
    )
    lines = told.splitlines()
    assert [line for line in lines if line.startswith("torch.Size")] == ["torch.Size([64])"] * 2
    assert lines[-1] == "None"
    assert sum(line.startswith("LOG rounding takes an operation for each of its parts") for line in lines) == 1
    assert sum(line.startswith("LOG tensors are measured by more than one operation each") for line in lines) == 1


# Each prints a list. All of them run in one process, because its start takes longer than they do.
_TWO_GPUS = {
    "kernels": """
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
from precgui.engine.telemetry import triton_kernels
there = torch.ones(64, device="cuda:1")
triton_kernels.measure([there], [1], [0], 1.0)
told = [last_device(), torch.cuda.current_device()]
for rounding, name in ((quantize, "bf16"), (quantize_blocks, "nvfp4")):
    rounding(there, name)
    told += [last_device(), torch.cuda.current_device()]
print(told)
""",
    "run": """
from precgui.engine import backend_flags, device
with backend_flags.restored():
    device.make_current(device.choose("cuda:1"))
    inside = torch.cuda.current_device()
print([inside, torch.cuda.current_device()])
""",
    "norm": """
from precgui.engine.loop import numbers
print([len(numbers(torch.empty((), device="cuda"), torch.ones(())))])
""",
    "model": """
from precgui.engine.telemetry.backends import CudaStats
here, host, other = (torch.ones(64, device=name) for name in ("cuda:0", "cpu", "cuda:1"))
read, told = [], []
class Launch:
    def __getitem__(self, grid):
        return lambda pieces, places, *rest, **words: read.extend(row[0] for row in places.tolist())
triton_kernels._piece = Launch()
for fused in (triton_kernels, None):
    rows = CudaStats(torch.device("cuda:0"), fused).measure([here, host, other], [1, 1, 1], 0)
    told += [str(rows.device), len(rows)]
print([*told, read == [here.data_ptr()]])
""",
}


@pytest.fixture(scope="module")
def on_two_gpus(on_pretended_gpu: Script) -> dict[str, list[Any]]:
    """The list that each of `_TWO_GPUS` prints."""
    printed = on_pretended_gpu("".join(_TWO_GPUS.values()), PRETENDED_GPUS="2")
    lists = [ast.literal_eval(line) for line in printed.splitlines() if line.startswith("[")]
    return dict(zip(_TWO_GPUS, lists, strict=True))


def test_that_kernels_are_launched_on_the_device_of_their_tensors(on_two_gpus: dict[str, list[Any]]) -> None:
    assert on_two_gpus["kernels"] == [1, 0] * 3


def test_that_the_device_of_a_run_is_current_until_its_switches_are_put_back(on_two_gpus: dict[str, list[Any]]) -> None:
    assert on_two_gpus["run"] == [1, 0]


def test_that_the_norm_of_gradients_in_main_memory_joins_a_loss_on_the_gpu(on_two_gpus: dict[str, list[Any]]) -> None:
    assert on_two_gpus["norm"] == [2]


def test_that_a_model_on_several_devices_gives_no_kernel_an_address_of_another(
    on_two_gpus: dict[str, list[Any]],
) -> None:
    assert on_two_gpus["model"] == ["cuda:0", 3, "cuda:0", 3, True]
