"""The page of one run: verdict, pictures, machine, then folded details; and what its pictures draw."""

from __future__ import annotations

import re
from html import escape

import numpy as np

from precgui.events import RunEnded, RunStarted, StepDone, TensorStats
from precgui.runs.diagnosis import examine
from precgui.runs.facts import run_facts
from precgui.runs.page import page
from precgui.runs.run_pictures import curve_picture, exponent_picture
from precgui.sentences import ENGLISH, Sentence, Wording
from tests.runs.synthetic import live_run

STEPS = np.arange(1.0, 6.0)
NAN = float("nan")


def gradients(step: int, exponent: int, values: int = 10) -> TensorStats:
    """A tensor of which all values have one exponent."""
    bins = np.zeros((1, 256), np.uint32)
    bins[0, exponent + 127] = values
    stats = np.zeros((1, 16))
    stats[0, :2], stats[0, 9] = 2.0**exponent, values
    table, counts = stats.astype("<f8").tobytes(), bins.astype("<u4").tobytes()
    return TensorStats(step, 0.1 * step, "gradient", ("w",), (1,), table, counts)


def test_that_a_curve_is_drawn_in_logarithms_and_says_what_is_left_out() -> None:
    picture = curve_picture("Loss", STEPS, np.array([100.0, 10.0, 1.0, 0.0, NAN]), 10)
    points = re.findall(r"[\d.]+,([\d.]+)", picture.split('points="')[1])
    assert [float(point) for point in points] == [0.0, 0.0, 100.0, 100.0, 200.0, 200.0]
    assert "100 to 1 on a log10 axis, steps 1 to 3; 2 steps with NaN, Inf or 0 are not drawn" in picture
    assert curve_picture("Scale", STEPS, np.full(5, 2.0), 2) == ""
    assert ">2^16<" in curve_picture("Scale", STEPS, 2.0 ** np.arange(16, 11, -1.0), 2)
    assert curve_picture("Loss", STEPS, np.full(5, NAN)) == ""


def test_that_exponents_are_cells_between_the_limits_of_fp16() -> None:
    run = live_run([RunStarted(0.0, 2, 2, "cpu"), gradients(1, -3), gradients(2, -30)])
    picture = exponent_picture(run)
    rows = [float(y) for y in re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', picture)]
    limits = [float(y) for y in re.findall(r'class="limit" x1="70" x2="800" y1="([\d.]+)"', picture)]
    assert len(rows) == 2 and len(limits) == 3
    assert limits[0] < rows[0] < limits[1] < limits[2] <= rows[1] + 0.1
    assert exponent_picture(live_run([RunStarted(0.0, 2, 2, "cpu"), gradients(1, -3)])) == ""


def test_that_the_page_begins_with_the_verdict_and_folds_the_details() -> None:
    steps = [StepDone(n, 0.1 * n, 1 / n, 2.0 ** (16 - n), False, 0.1, 1.0, 0.1, 0.0, 8, NAN) for n in range(1, 30)]
    run = live_run([RunStarted(0.0, 29, 29, "cpu", {"device_name": "a GPU"}), *steps, gradients(1, -3),
                    gradients(2, -4), RunEnded(3.0, "completed")])  # fmt: skip
    text = page(run)
    order = [text.index(mark) for mark in ("<h2>", "Training loss", "Loss scale", "Exponents", ">Machine<", "<details")]
    assert order == sorted(order) and text.count("<svg") == 3
    assert "a GPU" in text and "<details open" not in text


def test_that_the_page_is_written_in_the_language_of_its_reader() -> None:
    steps = [StepDone(n, 0.1 * n, 1 / n, 2.0 ** (16 - n), False, 0.1, 1.0, 0.1, 0.0, 8, NAN) for n in range(1, 30)]
    lost = [StepDone(n, 0.1 * n, NAN, 1.0, True, 0.1, NAN, 0.1, 0.0, 8, NAN) for n in range(30, 60)]
    run = live_run([RunStarted(0.0, 59, 59, "cpu", {"device_name": "loss"}), *steps, *lost, gradients(1, -3),
                    gradients(2, -4), RunEnded(6.0, "completed")])  # fmt: skip
    asked: list[str] = []
    text = page(run, Wording("zh-CN", lambda text: asked.append(text) or f"[{text}]"))
    assert 'lang="zh-CN"' in text
    assert {"Details", "Machine", *(fact.name for group in run_facts(run) for fact in group.facts)} <= {*asked}
    found = examine(run)
    assert found.problems
    for shown in (found.sentence, *(each.title for each in found.problems), *(each.fix for each in found.problems)):
        assert escape(shown) in text
    pictures = [each for each in asked if each.startswith(("Training loss, 1", "Loss scale, ", "Exponents of every"))]
    assert len(pictures) == 3
    assert all(isinstance(each, Sentence) for each in pictures)
    assert "<p>loss</p>" in text  # a name stays as it is
    assert page(run) == page(run, ENGLISH)
