"""Advice for inference and on memory: every branch leads somewhere, and sums are those of the planner."""

from pathlib import Path

import pytest

from precgui.config import PRECISIONS, load
from precgui.hardware import tables
from precgui.hardware.advice import Outcome, Question
from precgui.hardware.datasheet import datasheet_devices, device_of_card
from precgui.hardware.device import Device
from precgui.job import _placed
from precgui.runs import inference_advice
from precgui.runs.inference_advice import NO_FORMAT, RUN_PRECISION, START, TREE, InferenceQuestion, advise_inference
from precgui.runs.model_memory import state_bytes, training_sentence

GIB = 2**30


def card(name: str) -> Device:
    return device_of_card(next(known for known in tables.cards() if known.name == name))


def test_that_every_node_is_reached_in_one_way_and_every_answer_can_be_trained_for() -> None:
    reached, waiting = [], [START]
    while waiting:
        key = waiting.pop()
        reached.append(key)
        node = TREE[key]
        if isinstance(node, Question):
            waiting += set(node.branches.values())
    assert sorted(reached) == sorted(TREE)
    outcomes = {node.precision for node in TREE.values() if isinstance(node, Outcome)}
    assert {RUN_PRECISION[name] for name in outcomes - {NO_FORMAT}} <= set(PRECISIONS)


@pytest.mark.parametrize("device", datasheet_devices(), ids=lambda device: device.name)
def test_that_every_card_gets_advice(device: Device) -> None:
    for parameters, memory in ((None, None), (7 * 10**9, 24 * GIB), (10**12, 8 * GIB)):
        advice = advise_inference(InferenceQuestion(device, parameters, memory))
        assert advice.code
        assert advice.reason


@pytest.mark.parametrize(
    ("name", "parameters", "memory", "precision"),
    [
        ("A100 SXM4 80GB", None, None, "bf16"),
        ("Tesla T4", 10**9, 16 * GIB, "fp16"),
        ("Tesla T4", 13 * 10**9, 16 * GIB, "int8"),
        ("A100 SXM4 80GB", 25 * 10**9, 16 * GIB, "int4"),
        ("A100 SXM4 80GB", 70 * 10**9, 16 * GIB, "none"),
        ("Tesla P40", None, None, "int8"),
    ],
)
def test_that_memory_and_native_formats_decide(
    name: str, parameters: int | None, memory: int | None, precision: str
) -> None:
    assert advise_inference(InferenceQuestion(card(name), parameters, memory)).precision == precision


def test_that_the_states_of_a_training_are_sixteen_bytes_and_autocast_keeps_two_more() -> None:
    assert state_bytes(1000, "fp32") == 16_000
    assert state_bytes(1000, "bf16-amp") == 18_000


def test_that_what_does_not_fit_comes_with_what_would() -> None:
    assert "of 24 GiB about" in training_sentence(124 * 10**6, "bf16-amp", 24 * GIB)
    assert "8-bit AdamW they take" in training_sentence(14 * 10**8, "bf16-amp", 24 * GIB)
    assert "Only adapters (LoRA) fit" in training_sentence(7 * 10**9, "bf16-amp", 24 * GIB)
    assert "use several devices" in training_sentence(10**12, "bf16-amp", 24 * GIB)
    assert "not known" in training_sentence(10**6, "fp32", None)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        (10**9, "are left for those."),
        (10**10, "ZeRO-2 from 8 on, ZeRO-3 from 4 on."),
        (10**11, "before any activation: ZeRO-3 from 32 on."),
        (10**14, "Not even ZeRO-3 over 1024 such devices fits: use larger ones."),
    ],
)
def test_that_a_model_too_large_for_one_device_is_given_its_stage_of_zero(parameters: int, told: str) -> None:
    assert training_sentence(parameters, "bf16-amp", 80 * 10**9).endswith(told)


def test_that_the_advice_names_the_file_that_its_run_keeps() -> None:
    code = inference_advice._CODE["int8"]
    run, evaluate = (line.partition("#")[0].split() for line in code.splitlines())
    assert run[:3] == ["precgui", "run", "digits-int8"]
    placed = _placed(load(run[2], []), Path(run[-1]))
    assert Path(placed.qat.save_to).name == evaluate[-1]
    assert evaluate[:2] == ["precgui", "evaluate"]
