"""Detection, the support matrix and peaks, with fake NVML cards."""

from __future__ import annotations

import json

import pytest

from precgui.hardware import support, tables
from precgui.hardware.datasheet import datasheet_devices, device_of_card
from precgui.hardware.detect import best_device, detect
from precgui.hardware.device import device_json
from precgui.hardware.peak import with_peaks
from precgui.hardware.readings import Missing
from tests.hardware import cards
from tests.hardware.fake_nvml import GPU_IS_LOST, LIBRARY_NOT_FOUND, MISMATCH, Fails, install


def first_gpu(monkeypatch, *fake, **options):
    install(monkeypatch, *fake, **options)
    return detect().devices[0]


def levels(device, *formats):
    return [device.level(name) for name in formats]


def test_that_an_a100_has_tf32_and_bf16_but_no_fp8(monkeypatch):
    device = first_gpu(monkeypatch, cards.a100())
    assert levels(device, "fp64", "tf32", "bf16", "fp16", "int8", "int4") == ["native"] * 6
    assert levels(device, "e4m3fn", "e5m2", "nvfp4", "int2") == ["none"] * 4
    assert "Ada 8.9" in device.formats["e4m3fn"].reason
    assert device.formats["bf16"].peak.tops == pytest.approx(312, rel=0.002)
    assert "108 SMs x 1410 MHz x 2048" in device.formats["bf16"].peak.formula
    assert device.formats["bf16"].peak.datasheet_tops == 312
    assert device.bandwidth_gbs == pytest.approx(2039, rel=0.001)
    assert dict(device.details)["ECC"] == "on"
    assert dict(device.details)["CUDA of the driver"] == "13.0"


def test_that_hopper_has_fp8_and_emulates_int4(monkeypatch):
    for card, bandwidth in ((cards.h100(), 3352), (cards.h200(), 4917)):
        device = first_gpu(monkeypatch, card)
        assert levels(device, "e4m3fn", "e5m2", "int8") == ["native"] * 3
        assert "never two E5M2" in device.formats["e5m2"].reason
        assert "E4M3.E4M3" not in device.formats["e5m2"].reason
        assert levels(device, "int4", "e2m1", "mxfp4") == ["emulated", "none", "none"]
        assert device.formats["e4m3fn"].peak.tops == pytest.approx(132 * 1.980 * 8192 / 1e3)
        assert device.formats["e4m3fn"].peak.datasheet_tops == 1978.9
        assert device.bandwidth_gbs == pytest.approx(bandwidth, rel=0.001)


def test_that_geforce_halves_the_rate_of_fp32_accumulation(monkeypatch):
    device = first_gpu(monkeypatch, cards.rtx_4090())
    per_sm = {name: device.formats[name].peak.tops / (128 * 3.105) * 1e3 for name in ("bf16", "tf32", "e4m3fn")}
    assert per_sm == pytest.approx({"bf16": 512, "tf32": 256, "e4m3fn": 2048})
    assert device.formats["bf16"].peak.datasheet_tops == 165.2
    assert "allow_fp16_accumulation" in device.formats["fp16"].reason
    assert device.level("fp64") == "slow"
    assert device.formats["fp64"].peak.tops == pytest.approx(128 * 3.105 * 4 / 1e3)


def test_that_volta_and_turing_emulate_bf16_whatever_torch_says(monkeypatch):
    for card in (cards.v100(), cards.t4()):
        device = first_gpu(monkeypatch, card)
        assert levels(device, "fp16", "bf16", "tf32") == ["native", "emulated", "none"]
        assert "is_bf16_supported" in device.formats["bf16"].reason
    assert first_gpu(monkeypatch, cards.v100()).formats["fp16"].peak.tops == pytest.approx(125, rel=0.01)
    assert first_gpu(monkeypatch, cards.t4()).formats["fp16"].peak.tops == pytest.approx(65, rel=0.01)


def test_that_a_gtx_1660_has_no_tensor_cores_although_it_reports_7_5(monkeypatch):
    device = first_gpu(monkeypatch, cards.gtx_1660())
    assert device.capability == "7.5"
    assert levels(device, "fp16", "int8", "int4") == ["native", "native", "none"]
    assert "CUDA cores" in device.formats["fp16"].reason
    assert "no tensor cores" in device.formats["int4"].reason
    assert device.formats["fp16"].peak.tops == pytest.approx(22 * 2.145 * 256 / 1e3)


def test_that_an_unknown_card_borrows_nothing_from_its_elders(monkeypatch):
    device = first_gpu(monkeypatch, cards.future())
    assert {cell.support for cell in device.formats.values()} == {"unknown"}
    assert all(isinstance(cell.peak, Missing) for cell in device.formats.values())
    assert "19.3" in device.formats["bf16"].reason


def test_that_mig_slices_are_devices_of_their_own_size(monkeypatch):
    install(monkeypatch, cards.a100_mig())
    whole, three, one, *_ = detect().devices
    assert "divided by MIG" in whole.problem
    assert "3g.40gb" in three.name
    assert one.formats["bf16"].peak.tops == pytest.approx(14 * 1.410 * 2048 / 1e3)
    assert three.memory_bytes == 40192 << 20


def test_that_wsl_shows_what_it_can_and_gives_a_reason_for_the_rest(monkeypatch):
    device = first_gpu(monkeypatch, cards.wsl_laptop())
    assert device.level("bf16") == "native"
    assert device.formats["bf16"].peak.datasheet_tops is None
    details = dict(device.details)
    assert isinstance(details["Power limit"], Missing)
    assert isinstance(device.bandwidth_gbs, Missing)
    found = device_json(device)
    assert found["details"]["Power limit"] is None
    assert "does not report" in found["not_available"]["Power limit"]


@pytest.mark.parametrize(("code", "words"), [(LIBRARY_NOT_FOUND, "no NVIDIA driver"), (MISMATCH, "reboot")])
def test_that_without_a_driver_the_cpu_is_found_and_the_reason_told(monkeypatch, code, words):
    install(monkeypatch, init=code)
    machine = detect()
    assert [device.id for device in machine.devices] == ["cpu"]
    assert any(words in sensor.message for sensor in machine.sensors)
    assert best_device(machine.devices).id == "cpu"


def test_that_a_gpu_that_cannot_be_opened_is_shown_with_its_problem(monkeypatch):
    device = first_gpu(monkeypatch, cards.a100(open=Fails(GPU_IS_LOST)), cards.t4())
    assert "fallen off the bus" in device.problem


def test_that_torch_gives_ids_sms_and_missing_kernels(monkeypatch):
    card = cards.v100(nvmlDeviceGetUUID="GPU-aa-bb", nvmlDeviceGetNumGpuCores=Fails(3))
    install(monkeypatch, card)
    row = {"id": "cuda:1", "kind": "cuda", "name": card.name, "capability": "7.0", "sms": 80,
           "memory_bytes": 1, "uuid": "aa-bb", "kernels": False}  # fmt: skip
    device = detect({"devices": [row], "cpu_features": {}}).devices[0]
    assert device.id == "cuda:1"
    assert dict(device.details)["SMs"] == "80"
    assert "not built for capability 7.0" in device.problem


@pytest.mark.parametrize(
    ("facts", "driver_cuda", "words"),
    [
        ({"cuda": None, "hip": None}, 13000, "built without CUDA"),
        ({"cuda": None, "hip": "6.3"}, 13000, "built for ROCm"),
        ({"cuda": "13.2", "hip": None}, 12040, "built for CUDA 13.2, the driver knows CUDA 12.4. Update the driver"),
        ({"cuda": "13.2", "hip": None}, 13000, "CUDA_VISIBLE_DEVICES is set to '7'"),
        ({"cuda": "13.2", "hip": None, "refusals": {"cuda:0": "device is busy"}}, 13020, "cuda:0: device is busy"),
    ],
)
def test_that_a_gpu_that_torch_does_not_see_says_why(monkeypatch, facts, driver_cuda, words):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    install(monkeypatch, cards.a100(), cuda=driver_cuda)
    assert detect().devices[0].problem == ""
    gpu, cpu = detect({"devices": [], **facts}).devices
    assert words in gpu.problem
    assert cpu.problem == ""


def test_that_torch_sees_one_slice_of_a_divided_gpu_and_the_cure_is_told(monkeypatch):
    install(monkeypatch, cards.a100_mig())
    row = {"id": "cuda:0", "kind": "cuda", "name": "MIG 3g.40gb", "capability": "8.0", "sms": 42,
           "memory_bytes": 1, "uuid": "0", "kernels": True}  # fmt: skip
    _, three, one, _ = detect({"devices": [row], "cuda": "13.0", "hip": None}).devices
    assert (three.id, three.problem) == ("cuda:0", "")
    assert "CUDA_VISIBLE_DEVICES=MIG-1" in one.problem
    assert "part of that of the GPU" in one.bandwidth_gbs.reason


def test_that_a_slice_is_found_by_its_name_where_cuda_tells_the_uuid_of_the_whole_gpu(monkeypatch):
    card = cards.a100_mig(nvmlDeviceGetUUID="GPU-aa")
    card.mig.append(dict(card.mig[1]))
    install(monkeypatch, card)
    row = {"id": "cuda:0", "kind": "cuda", "name": card.mig[1]["name"], "capability": "8.0", "sms": 14,
           "memory_bytes": 1, "uuid": "aa", "kernels": True}  # fmt: skip
    machine = detect({"devices": [row], "cuda": "13.0", "hip": None})
    assert [device.id for device in machine.devices] == ["gpu:0", "gpu:0/0", "cuda:0", "gpu:0/2", "cpu"]
    assert best_device(machine.devices).name == row["name"]


def test_that_a_device_of_torch_that_nobody_else_knows_is_never_lost(monkeypatch):
    install(monkeypatch, cards.a100_mig(nvmlDeviceGetUUID="GPU-aa"))
    row = {"id": "cuda:0", "kind": "cuda", "name": "A100 slice", "capability": "8.0", "sms": 14, "memory_bytes": 1,
           "uuid": "aa", "kernels": True}  # fmt: skip
    assert detect({"devices": [row], "cuda": "13.0", "hip": None}).device("cuda:0").name == "A100 slice"


def test_that_a_gpu_that_only_torch_sees_is_a_device(monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    row = {"id": "cuda:0", "kind": "cuda", "name": "Orin", "capability": "8.7", "sms": 16, "memory_bytes": 1 << 36,
           "uuid": "x", "kernels": True}  # fmt: skip
    device = detect({"devices": [row]}).devices[0]
    assert device.level("bf16") == "native"
    assert device.formats["fp16"].peak.formula.startswith("datasheet")


@pytest.mark.parametrize(
    ("row", "native", "missing"),
    [
        ({"kind": "rocm", "name": "AMD Instinct MI300X", "capability": "gfx942", "sms": 304}, "e4m3fnuz", "e4m3fn"),
        ({"kind": "rocm", "name": "AMD Instinct MI355X", "capability": "gfx950", "sms": 256}, "e4m3fn", "tf32"),
        ({"kind": "rocm", "name": "AMD Radeon RX 7900 XTX", "capability": "gfx1100", "sms": 96}, "bf16", "e4m3fn"),
        ({"kind": "xpu", "name": "Intel(R) Arc(TM) A770 Graphics"}, "bf16", "fp64"),
        ({"kind": "xpu", "name": "Intel(R) Data Center GPU Max 1550"}, "tf32", "e4m3fn"),
    ],
)
def test_that_amd_and_intel_gpus_follow_their_own_tables(monkeypatch, row, native, missing):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    full = {"id": f"{row['kind']}:0", "memory_bytes": 16 << 30, "uuid": "", "capability": "", "sms": 0} | row
    device = detect({"devices": [full]}).devices[0]
    assert levels(device, native, missing) == ["native", "none"]


def test_that_an_apple_gpu_has_no_fp64(monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    monkeypatch.setattr("precgui.hardware.detect.read_cpu", lambda told: _apple_m2())
    device = detect({"devices": [{"id": "mps:0", "kind": "mps", "name": "Apple GPU"}]}).devices[0]
    assert levels(device, "fp64", "fp16", "bf16") == ["none", "native", "emulated"]


def _apple_m2():
    from precgui.hardware.cpu import Cpu

    return Cpu("Apple M2 Pro", "arm64", "Apple M2 Pro", frozenset({"arm_bf16"}), Missing("not Intel"))


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4070 Laptop GPU", "NVIDIA A10G", "NVIDIA GeForce RTX 3080 Ti",
     "NVIDIA GeForce RTX 2080 SUPER", "Quadro RTX 6000 with Max-Q Design", "NVIDIA A40-48Q"],
)  # fmt: skip
def test_that_a_card_with_another_name_has_no_datasheet(name):
    assert tables.card(name) is None


@pytest.mark.parametrize(
    ("name", "sheet"),
    [("NVIDIA L4", "L4"), ("NVIDIA L40S", "L40S"), ("NVIDIA H200 NVL", "H200 NVL"), ("NVIDIA H200", "H200 SXM 141GB"),
     ("NVIDIA GeForce RTX 5060 Ti", "GeForce RTX 5060 Ti 16GB"), ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
     ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"), ("NVIDIA B300 SXM6 AC", "B300"),
     ("NVIDIA GH200 144G HBM3e", "GH200 144GB HBM3e"), ("NVIDIA GH200 480GB", "GH200 96GB HBM3"),
     ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server"),
     ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell WS"),
     ("NVIDIA GeForce RTX 4080 SUPER", "GeForce RTX 4080 SUPER"), ("NVIDIA TITAN RTX", "TITAN RTX"),
     ("NVIDIA A800-SXM4-80GB", "A800 SXM4 80GB"), ("NVIDIA A800 80GB PCIe", "A800 PCIe 80GB")],
)  # fmt: skip
def test_that_the_longest_name_wins(name, sheet):
    assert tables.card(name).name == sheet


def test_that_computed_peaks_agree_with_the_datasheets():
    """SMs x boost clock x rate against the printed numbers: two transcriptions, one of them by formula."""
    disagree = []
    for card in tables.cards():
        architecture = tables.by_capability("nvidia", card.capability)
        if architecture is None or not card.sms or not card.boost_mhz or card.capability == "9.0":
            continue  # Hopper's sheets use two clocks
        row = support.nvidia(architecture, card.name)
        kind = support.product_class(card.name, card.capability)
        for name, cell in row.items():
            ops = architecture.units[cell.unit].ops if cell.unit in architecture.units else {}
            rate, sheet = ops.get("all", ops.get(kind)), card.peak_tops.get(cell.unit)
            if rate and sheet and abs(card.sms * card.boost_mhz * rate * 1e-6 / sheet - 1) > 0.05:
                disagree.append((card.name, name))
    # The L40's sheet prints half of what the same chip has elsewhere; the B200's clock is that of its tensor cores.
    assert {card for card, _ in disagree} == {"L40", "B200 180GB"}
    assert {name for card, name in disagree if card.startswith("B200")} == {"fp32", "fp64"}


def test_that_every_card_of_the_table_can_be_asked_about():
    devices = datasheet_devices()
    assert len({device.id for device in devices}) == len(devices) > 60
    v100 = next(device for device in devices if device.name.startswith("Tesla V100 SXM2"))
    assert levels(v100, "fp16", "bf16", "e4m3fn") == ["native", "emulated", "none"]
    assert v100.formats["fp16"].peak.tops == 125
    assert v100.formats["int8"].peak.tops == pytest.approx(80 * 1.530 * 512 / 1e3)
    spark = next(device for device in devices if device.name.startswith("GB10"))
    assert spark.formats["bf16"].peak.reason.startswith("peak unknown")
    rtx_5090 = next(device for device in devices if device.name == "GeForce RTX 5090")
    assert rtx_5090.formats["mxfp4"].peak.tops == pytest.approx(170 * 2.407 * 4096 / 1e3)
    assert all(json.dumps(device_json(device)) for device in devices)


def test_that_b300_lost_int8_and_blackwell_lost_int4():
    b300 = device_of_card(next(card for card in tables.cards() if card.name == "B300"))
    assert levels(b300, "int8", "int4", "nvfp4") == ["slow", "emulated", "native"]


def test_that_every_source_that_a_fact_names_is_explained():
    for vendor in ("nvidia", "amd", "intel", "apple"):
        for architecture in tables.architectures(vendor):
            for key, unit in architecture.units.items():
                assert tables.source_text(unit.sources), (architecture.name, key)


@pytest.mark.parametrize("name", ["Quadro T2000", "Quadro T2000 with Max-Q Design", "CMP 30HX"])
def test_that_small_turing_cards_have_no_tensor_cores(name):
    assert not support.has_tensor_cores(name, "7.5")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("NVIDIA A10G", "limited_tensor"), ("NVIDIA H20", "limited"), ("NVIDIA L40", "limited_tensor")],
)
def test_that_no_peak_is_computed_for_units_that_the_maker_slows_down(name, kind):
    capability = {"NVIDIA A10G": "8.6", "NVIDIA L40": "8.9"}.get(name, "9.0")
    architecture = tables.by_capability("nvidia", capability)
    assert support.product_class(name, capability) == kind
    row = with_peaks(support.nvidia(architecture, name), architecture, kind, 72, 1700.0, None)
    assert isinstance(row["bf16"].peak, Missing)
    assert not isinstance(row["fp32"].peak, Missing)


def test_that_limits_of_cards_say_where_they_come_from():
    limited = {card["name"]: card["source"] for card in tables.limited_cards()}
    assert set(limited) == {"A10G", "L40", "H20", "H800"}
    assert all(
        any(word in source for word in ("datasheet", "no sheet", "not confirmed")) for source in limited.values()
    )
    assert "69.5" in limited["A10G"]


def test_that_server_cards_do_not_borrow_the_sheet_of_workstations():
    server = tables.card("NVIDIA RTX PRO 6000 Blackwell Server Edition")
    assert server.name == "RTX PRO 6000 Blackwell Server"
    assert server.bandwidth_gbs is None
    assert tables.card("NVIDIA RTX PRO 6000 Blackwell Workstation Edition") is not None


@pytest.mark.parametrize(
    ("sms", "memory_gib", "is_its"),
    [(68, 10, True), (None, 10, True), (70, 12, False), (None, 12, False), (70, None, False)],
)
def test_that_a_card_with_other_sms_or_memory_does_not_borrow_the_sheet(sms, memory_gib, is_its):
    sheet = tables.card("NVIDIA GeForce RTX 3080")
    assert tables.is_sheet_of(sheet, sms, memory_gib and memory_gib << 30) == is_its


@pytest.mark.parametrize(
    "name",
    [
        "H20",
        "Instinct MI350X",
        "Intel Arc B580",
        "RTX PRO 6000 Blackwell WS",
        "L40",
        "GH200 144GB HBM3e",
        "TITAN RTX",
        "RTX PRO 6000 Blackwell Server",
    ],
)
def test_that_disputed_figures_of_cards_say_where_they_come_from(name):
    source = next(card.note for card in tables.cards() if card.name == name)
    assert "not confirmed" in source or "computed" in source or "datasheet" in source


def test_that_a_peak_that_no_sheet_confirms_says_so() -> None:
    card = next(device for device in datasheet_devices() if device.name == "H20")
    peak = card.formats["bf16"].peak
    assert not isinstance(peak, Missing)
    assert "not confirmed by a sheet of the maker" in peak.formula
