"""Instruction sets from /proc/cpuinfo texts, and what they mean for each format.

The texts are recordings, cut to the lines that are read here. `ice_lake` and `rocket_lake_with_amx` (a guest whose
host gives the model number of an older processor) were recorded for these tests. The others are what people have
published of machines of their own: `ice_lake_without_vnni` of a CI runner (tests of ParaTest), `sapphire_rapids` by
lscpu (a Hugging Face article on Stable Diffusion), `sapphire_rapids_without_amx` of an OpenStack guest,
`granite_rapids`, `arrow_lake` and `graviton2` in the tests of archspec-json, `zen4` of an m7a instance, `graviton3`
in the sources of compspec-go, `grace` on the Linux kernel's mailing list.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.hardware import cpu
from precgui.hardware.cpu_support import cpu_row
from precgui.hardware.readings import Missing
from precgui.hardware.support import FORMATS

NO_AMX = Missing("this processor has no AMX")
TEXTS = Path(__file__).parent / "cpuinfo"


def row(name: str, amx: bool | Missing = NO_AMX):
    told, generation, features = cpu.parse_cpuinfo((TEXTS / f"{name}.txt").read_text())
    return cpu_row(cpu.Cpu(told, "x86_64", generation, features, amx))


@pytest.mark.parametrize(
    ("name", "generation", "there", "missing"),
    [
        ("ice_lake", "Ice Lake-SP", {"avx512f", "avx512_vnni", "f16c"}, {"avx512_bf16", "avx_vnni", "amx_tile"}),
        ("ice_lake_without_vnni", "Ice Lake-SP", {"avx512f", "f16c"}, {"avx512_vnni", "avx512_bf16"}),
        ("sapphire_rapids", "Sapphire Rapids", {"amx_bf16", "amx_int8", "avx512_fp16"}, {"amx_fp16", "avx10_1"}),
        ("sapphire_rapids_without_amx", "Sapphire Rapids", {"avx512_bf16", "avx512_fp16"}, {"amx_tile", "amx_bf16"}),
        ("rocket_lake_with_amx", "Sapphire Rapids or later", {"amx_bf16", "avx512_fp16"}, {"amx_fp16", "avx10_1"}),
        ("granite_rapids", "Granite Rapids", {"amx_bf16", "amx_fp16", "avx10_1"}, {"amx_complex", "amx_fp8"}),
        ("arrow_lake", "Arrow Lake", {"avx2", "avx_vnni", "avx_vnni_int8"}, {"avx512f", "amx_tile"}),
        ("zen4", "Zen 4", {"avx512_bf16", "avx512_vnni"}, {"avx512_fp16", "avx_vnni", "amx_tile"}),
        ("graviton2", "Neoverse N1 (Graviton2, Altra)", {"arm_fp16", "arm_dotprod"}, {"arm_bf16", "sve"}),
        ("graviton3", "Neoverse V1 (Graviton3)", {"arm_bf16", "arm_i8mm", "sve"}, {"sve2"}),
        ("grace", "Neoverse V2 (Graviton4, Grace)", {"arm_bf16", "arm_i8mm", "sve2"}, {"sme", "arm_fp8"}),
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
    text = (TEXTS / "granite_rapids.txt").read_text()
    assert "AMX-FP16" in row("granite_rapids", amx=True)["fp16"].reason
    masked = text.replace(" amx_bf16", "").replace(" amx_tile amx_int8", "")
    assert "amx_fp16" not in cpu.parse_cpuinfo(masked)[2]


def test_that_what_linux_leaves_out_is_added_by_model_on_client_processors():
    lines = ["vendor_id\t: GenuineIntel", "cpu family\t: 6", "model\t\t: 189", "flags\t\t: avx2 avx_vnni f16c"]
    _, generation, features = cpu.parse_cpuinfo("\n".join(lines))
    assert generation == "Lunar Lake"
    assert "VPDPBSSD" in cpu_row(cpu.Cpu("", "x86_64", generation, features, NO_AMX))["int8"].reason


def test_that_ice_lake_emulates_bf16_and_fp16_and_multiplies_int8_unless_its_host_hides_vnni():
    found = row("ice_lake")
    assert [found[fmt].support for fmt in ("bf16", "fp16", "int8")] == ["emulated", "emulated", "native"]
    assert "slower than FP32" in found["bf16"].reason
    assert "VNNI" in found["int8"].reason
    assert row("ice_lake_without_vnni")["int8"].support == "emulated"


def test_that_a_guest_without_amx_multiplies_bf16_in_avx512():
    found = row("sapphire_rapids_without_amx")
    assert [found[fmt].support for fmt in ("bf16", "fp16", "int8")] == ["native"] * 3
    assert "no AMX tiles" in found["bf16"].reason


def test_that_graviton2_has_no_bf16_and_graviton3_has():
    assert row("graviton2")["bf16"].support == "emulated"
    assert "BFMMLA" in row("graviton3")["bf16"].reason


def test_that_every_format_has_an_answer_with_a_reason():
    found = row("zen4")
    assert set(found) == set(FORMATS)
    assert all(cell.reason and cell.source for cell in found.values())
    assert found["tf32"].support == "none"


def test_that_an_unknown_system_has_unknown_formats(monkeypatch):
    monkeypatch.setattr(cpu.platform, "system", lambda: "Windows")  # type: ignore[attr-defined]
    found = cpu.read_cpu()
    assert isinstance(found.features, Missing)
    assert {cell.support for cell in cpu_row(found).values()} == {"unknown"}
    told = cpu.read_cpu({"avx512_f": True, "avx512_bf16": True, "num_sockets": 1, "amx_tile": False})
    assert cpu_row(told)["bf16"].support == "native"


def test_that_torch_is_not_believed_where_the_kernel_tells(monkeypatch):
    monkeypatch.setattr(cpu.platform, "system", lambda: "Linux")  # type: ignore[attr-defined]
    monkeypatch.setattr(cpu, "CPUINFO", TEXTS / "sapphire_rapids.txt")
    monkeypatch.setattr(cpu, "amx_permission", lambda features: True)
    assert not cpu.read_cpu({"amx_fp16": True}).has("amx_fp16")


def test_that_a_processor_without_amx_is_not_asked_for_permission():
    assert isinstance(cpu.amx_permission(frozenset({"avx2"})), Missing)
