"""Instruction sets from /proc/cpuinfo texts, and what they mean for each format.

`ice_lake_recorded.txt` was recorded as it is, less the number of cores. The others were put together from listings of
these processors that people have published, cut to what is read here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.hardware import cpu
from precgui.hardware.cpu_support import cpu_row
from precgui.hardware.readings import Absent
from precgui.hardware.support import FORMATS

NO_AMX = Absent("this processor has no AMX")
TEXTS = Path(__file__).parent / "cpuinfo"


def row(name: str, amx: bool | Absent = NO_AMX):
    told, generation, features = cpu.parse_cpuinfo((TEXTS / f"{name}.txt").read_text())
    return cpu_row(cpu.Cpu(told, "x86_64", generation, features, amx))


@pytest.mark.parametrize(
    ("name", "generation", "there", "missing"),
    [
        ("ice_lake", "Ice Lake-SP", {"avx512_vnni"}, {"avx512_bf16", "amx_tile"}),
        (
            "ice_lake_recorded",
            "Ice Lake-SP",
            {"avx512f", "avx512_vnni", "f16c"},
            {"avx512_bf16", "avx_vnni", "amx_tile"},
        ),
        ("sapphire_rapids", "Sapphire Rapids", {"amx_bf16", "amx_int8", "avx512_fp16"}, {"amx_fp16"}),
        ("zen4", "Zen 4", {"avx512_bf16", "avx512_vnni"}, {"avx512_fp16", "avx_vnni", "amx_tile"}),
        ("graviton2", "Neoverse N1 (Graviton2, Altra)", {"arm_fp16", "arm_dotprod"}, {"arm_bf16", "sve"}),
        ("graviton3", "Neoverse V1 (Graviton3)", {"arm_bf16", "arm_i8mm", "sve"}, {"sve2"}),
    ],
)
def test_that_the_instructions_of_known_processors_are_found(name, generation, there, missing):
    _, found, features = cpu.parse_cpuinfo((TEXTS / f"{name}.txt").read_text())
    assert found == generation
    assert there <= features
    assert not missing & features


def test_that_sapphire_rapids_multiplies_bf16_and_int8_in_amx_when_the_kernel_lets_it():
    allowed = row("sapphire_rapids", amx=True)
    assert allowed["bf16"].support == allowed["int8"].support == "native"
    assert "AMX" in allowed["bf16"].reason
    assert "kernel lets" in allowed["bf16"].reason
    assert allowed["fp16"].support == "native"
    assert allowed["e4m3fn"].support == "emulated"
    refused = row("sapphire_rapids", amx=False)
    assert "does not let" in refused["bf16"].reason
    assert "VDPBF16PS" in refused["bf16"].reason
    assert "VNNI" in refused["int8"].reason


def test_that_granite_rapids_has_the_tiles_that_linux_does_not_list():
    text = (TEXTS / "sapphire_rapids.txt").read_text().replace("model\t\t: 143", "model\t\t: 173")
    _, generation, features = cpu.parse_cpuinfo(text)
    assert generation == "Granite Rapids"
    assert "amx_fp16" in features
    masked = text.replace(" amx_bf16", "").replace(" amx_tile amx_int8", "")
    assert "amx_fp16" not in cpu.parse_cpuinfo(masked)[2]


def test_that_what_linux_leaves_out_is_added_by_model_on_client_processors():
    lines = ["vendor_id\t: GenuineIntel", "cpu family\t: 6", "model\t\t: 189", "flags\t\t: avx2 avx_vnni f16c"]
    _, generation, features = cpu.parse_cpuinfo("\n".join(lines))
    assert generation == "Lunar Lake"
    assert "VPDPBSSD" in cpu_row(cpu.Cpu("", "x86_64", generation, features, NO_AMX))["int8"].reason


@pytest.mark.parametrize("name", ["ice_lake", "ice_lake_recorded"])
def test_that_ice_lake_emulates_bf16_and_fp16_and_multiplies_int8(name):
    found = row(name)
    assert [found[fmt].support for fmt in ("bf16", "fp16", "int8")] == ["emulated", "emulated", "native"]
    assert "slower than FP32" in found["bf16"].reason
    assert "VNNI" in found["int8"].reason


def test_that_graviton2_has_no_bf16_and_graviton3_has():
    assert row("graviton2")["bf16"].support == "emulated"
    assert "BFMMLA" in row("graviton3")["bf16"].reason


def test_that_every_format_has_an_answer_with_a_reason():
    found = row("zen4")
    assert set(found) == set(FORMATS)
    assert all(cell.reason and cell.source for cell in found.values())
    assert found["tf32"].support == "none"


def test_that_an_unknown_system_has_unknown_formats(monkeypatch):
    monkeypatch.setattr(cpu.platform, "system", lambda: "Windows")
    found = cpu.read_cpu()
    assert isinstance(found.features, Absent)
    assert {cell.support for cell in cpu_row(found).values()} == {"unknown"}
    told = cpu.read_cpu({"avx512_f": True, "avx512_bf16": True, "num_sockets": 1, "amx_tile": False})
    assert cpu_row(told)["bf16"].support == "native"


def test_that_torch_is_not_believed_where_the_kernel_tells(monkeypatch):
    monkeypatch.setattr(cpu.platform, "system", lambda: "Linux")
    monkeypatch.setattr(cpu, "CPUINFO", TEXTS / "sapphire_rapids.txt")
    monkeypatch.setattr(cpu, "amx_permission", lambda features: True)
    assert not cpu.read_cpu({"amx_fp16": True}).has("amx_fp16")


def test_that_a_processor_without_amx_is_not_asked_for_permission():
    assert isinstance(cpu.amx_permission(frozenset({"avx2"})), Absent)
