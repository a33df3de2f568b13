"""The decision tree: every branch leads somewhere, and known devices get the advice that is right for them."""

from __future__ import annotations

import pytest

from precgui.hardware import tables
from precgui.hardware.advice import SIZES, START, TASKS, TREE, Outcome, Question, Situation, advice_json, advise
from precgui.hardware.cpu import Cpu
from precgui.hardware.cpu_support import cpu_row
from precgui.hardware.datasheet import datasheet_devices, device_of_card
from precgui.hardware.device import Device
from precgui.hardware.readings import Missing

NO_AMX = Missing("this processor has no AMX")


def card(name: str) -> Device:
    return device_of_card(next(known for known in tables.cards() if known.name == name))


def gtx_1660() -> Device:
    return card("GeForce GTX 1660 Ti")


def processor(*features: str, amx: bool | Missing = NO_AMX) -> Device:
    cpu = Cpu("some CPU", "x86_64", "", frozenset(features), amx)
    return Device("cpu", "cpu", cpu.name, "", "", cpu_row(cpu))


def test_that_it_is_a_tree_every_node_is_reached_in_one_way():
    reached, waiting = [], [START]
    while waiting:
        key = waiting.pop()
        reached.append(key)
        node = TREE[key]
        if isinstance(node, Question):
            waiting += set(node.branches.values())
    assert sorted(reached) == sorted(TREE)


@pytest.mark.parametrize("device", datasheet_devices(), ids=lambda device: device.name)
def test_that_every_card_gets_advice_for_every_task(device):
    for task in TASKS:
        for size in SIZES:
            advice = advise(Situation(device, task, size))
            assert isinstance(TREE[advice.outcome], Outcome)
            assert advice.reason
            assert advice.code.endswith(("step()", "update()"))


@pytest.mark.parametrize(
    ("device", "task", "size", "precision", "outcome"),
    [
        (card("H200 SXM 141GB"), "transformer", "large", "bf16-amp", "bf16-then-fp8"),
        (card("A100 SXM4 80GB"), "transformer", "large", "bf16-amp", "bf16-attention"),
        (card("A100 SXM4 80GB"), "classification", "small", "tf32", "tf32-small"),
        (card("A100 SXM4 80GB"), "gan", "large", "bf16-amp", "bf16-careful"),
        (card("Tesla V100 SXM2 16/32GB"), "classification", "large", "fp16-amp", "fp16"),
        (card("Tesla V100 SXM2 16/32GB"), "rnn", "large", "fp16-amp", "fp16-careful"),
        (card("Tesla T4"), "detection", "small", "fp32", "fp32-small-fp16"),
        (gtx_1660(), "classification", "large", "fp32", "fp32-no-matrix"),
        (card("Tesla P40"), "segmentation", "large", "fp32", "fp32-only"),
        (card("Instinct MI300X"), "transformer", "large", "bf16-amp", "bf16-attention"),
        (processor("amx_tile", "amx_bf16", amx=True), "transformer", "large", "bf16-amp", "bf16-attention"),
        (processor("avx2", "f16c"), "transformer", "large", "fp32", "fp32-only"),
    ],
    ids=lambda value: value.name if isinstance(value, Device) else str(value),
)
def test_that_known_devices_get_known_advice(device, task, size, precision, outcome):
    advice = advise(Situation(device, task, size))
    assert (advice.precision, advice.outcome) == (precision, outcome)
    assert advice.path[0].node == START


def test_that_a_measurement_overrules_the_table():
    device = processor("avx512f", "avx512_bf16")
    assert advise(Situation(device, "transformer", "large", gain=0.9)).outcome == "fp32-measured"
    assert advise(Situation(device, "transformer", "large", gain=1.9)).precision == "bf16-amp"


def test_that_a_processor_without_bf16_is_told_fp32_for_every_task_and_int8_for_inference():
    device = processor("avx512f", "avx512_vnni", "f16c")
    for task in TASKS:
        for size in SIZES:
            advice = advise(Situation(device, task, size, gain=0.28))
            assert (advice.precision, advice.then) == ("fp32", "")
            assert "slower than FP32" in advice.path[0].why
            assert advice.path[0].why.endswith("The bench measured BF16 0.28 times as fast as FP32.")
            assert advice.watch == ("For inference INT8 is native here: the precision int8-qat trains a model for it.",)
            assert "cudnn" not in advice.code


def test_that_the_code_fits_the_device():
    assert 'torch.autocast("cpu"' in advise(Situation(processor("avx512_bf16"), "rl", "large")).code
    assert "cudnn" in advise(Situation(card("A100 SXM4 80GB"), "rl", "small")).code
    assert "cudnn" not in advise(Situation(processor(), "rl", "small")).code
    assert "GradScaler" in advise(Situation(card("Tesla T4"), "rl", "large")).code
    found = advice_json(advise(Situation(card("Tesla T4"), "gan", "large")))
    assert found["path"][0]["question"]
    assert any("discriminator" in line for line in found["watch"])
