"""Before a run: what the machine makes of a precision, and the time it will take, from what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precgui import words
from precgui.config import PRECISIONS, RunConfig, build
from precgui.hardware.device import Device
from precgui.hardware.support import FORMATS, Support
from precgui.runs.identity import why_not_comparable
from precgui.runs.outlook import outlook, time_estimate
from precgui.runs.step_times import keep_step_time, step_time
from tests.runs.synthetic import live_run, synthetic_events


def device(kind: Any = "cpu", **levels: str) -> Device:
    formats = {name: Support(levels.get(name, "native"), f"{name} says why.") for name in FORMATS}
    return Device("cpu" if kind == "cpu" else "cuda:0", kind, "Chip", "", "", formats)


def bench(spread: float = 0.03, **tops: float) -> list[dict[str, Any]]:
    rows = [{"format": name, "m": 512, "tops": value, "spread": spread} for name, value in tops.items()]
    return [{"device": {"name": "Chip"}, "started": "2026-11-20T10:00:00", "gemm": rows}]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path))


def test_that_a_measured_factor_decides_whatever_a_table_says() -> None:
    found = outlook("bf16-amp", device(), bench(fp32=1.0, bf16=0.02, spread=0.1))
    assert (found.level, found.factor) == ("slow", 0.02)
    assert found.sentence == (
        "Slow here: BF16 products take 50 times their FP32 time (measured 2026-11-20, spread 10%)."
    )
    fast = outlook("bf16-amp", device(bf16="emulated"), bench(fp32=1.0, bf16=4.0))
    assert (fast.level, fast.factor) == ("native", 4.0)


def test_that_a_table_is_not_taken_for_a_measurement() -> None:
    native, slow = outlook("bf16-amp", device(), []), outlook("bf16-pure", device(bf16="emulated"), [])
    assert (native.level, native.factor, slow.level, slow.factor) == ("native", None, "slow", None)
    assert "bf16 says why. How fast it is here was not measured" in slow.sentence
    assert outlook("bf16-sr", device(bf16="unknown"), []).level == "unknown"


@pytest.mark.parametrize(
    ("precision", "where", "level"),
    [
        ("fp16-amp", device(), "emulated"),
        ("fp16-amp", device("cuda"), "native"),
        ("fp8", device(), "emulated"),
        ("fp8", device("cuda"), "native"),
        ("fp8", device("cuda", e4m3fn="none"), "emulated"),
        ("tf32", device(tf32="none"), "emulated"),
        ("mxfp4", device("cuda"), "emulated"),
        ("int8-qat", device("cuda"), "emulated"),
        ("emulated:e4m3fn", device("cuda"), "emulated"),
    ],
)
def test_that_what_precgui_emulates_is_called_so(precision: str, where: Device, level: str) -> None:
    assert outlook(precision, where, bench(fp32=1.0, fp16=2.0, bf16=2.0)).level == level


def test_that_every_precision_has_a_sentence() -> None:
    assert all(outlook(name, device(), []).sentence.endswith((".", "does it.")) for name in PRECISIONS)


@pytest.fixture
def chinese() -> Iterator[None]:
    words.use("zh_CN")
    yield
    words.use("en")


def test_that_the_outlook_is_in_the_readers_language_where_it_is_shown(chinese: None, tmp_path: Path) -> None:
    sentences = [
        outlook(name, where, results).sentence
        for name in PRECISIONS
        for where in (device(), device("cuda"), device("cuda", bf16="emulated", e4m3fn="none"), device(bf16="unknown"))
        for results in ([], bench(fp32=1.0, bf16=0.02), bench(fp32=1.0, bf16=2.0))
    ]
    config = build({"precision": "bf16-amp"})
    sentences += [time_estimate(config, None, place).sentence for place in ("", "box")]
    kept("fp32", tmp_path / "a.h5")
    sentences += [time_estimate(config, factor).sentence for factor in (None, 2.0)]
    kept("bf16-amp", tmp_path / "b.h5")
    sentences.append(time_estimate(config, None).sentence)
    left = [text for text in map(words.translated, sentences) if re.search("[a-z]{2,} [a-z]{2,} [a-z]{2,}", text)]
    assert [text for text in left if "says why" not in text] == []  # the reason that `device` above pretends
    assert len({*map(words.translated, sentences)}) == len({*sentences})


def kept(precision: str, path: Path) -> None:
    run = live_run(synthetic_events(50), build({"precision": precision}))
    run.path, run.created = path, "2026-11-22T10:00:00"
    keep_step_time(run)


def test_that_the_time_comes_from_the_same_work_in_the_same_precision(tmp_path: Path) -> None:
    config = build({"precision": "bf16-amp", "train": {"epochs": 4}})
    assert time_estimate(config, None).sentence.startswith("Time: not measured, no run of this work")
    kept("fp32", tmp_path / "a.h5")
    waiting = time_estimate(config, None)
    assert waiting.seconds is None
    assert waiting.sentence == "Time: not measured in bf16-amp; in fp32 the same work takes about 1 s here."
    scaled = time_estimate(config, 0.1)
    assert scaled.seconds == pytest.approx(10.0)
    assert scaled.sentence.startswith("Between 1 s and 10 s here")
    kept("bf16-amp", tmp_path / "b.h5")
    assert time_estimate(config, 0.1).sentence == (
        "About 1 s on this machine: the same work took 10 ms a step in bf16-amp (2026-11-22)."
    )
    short = build({"precision": "bf16-amp", "train": {"max_steps": 10}})
    assert time_estimate(short, None).seconds == pytest.approx(0.1)


def test_that_other_work_has_no_step_time(tmp_path: Path) -> None:
    kept("fp32", tmp_path / "a.h5")
    assert step_time(RunConfig(), "fp32") is not None
    assert step_time(build({"optimizer": {"lr": 1.0}, "title": "x", "seed": 3}), "fp32") is not None
    for other in ({"data": {"batch_size": 32}}, {"model": {"size": "medium"}}, {"task": "text"}, {"threads": 3}):
        assert step_time(build(other), "fp32") is None


def test_that_a_damaged_step_time_is_none(tmp_path: Path) -> None:
    kept("fp32", tmp_path / "a.h5")
    (path,) = (tmp_path / "step-times").iterdir()
    for text in ("", "[]", '{"step_s": -1, "steps_per_epoch": 3, "measured": ""}', '{"step_s": "x"}'):
        path.write_text(text, encoding="utf-8")
        assert step_time(RunConfig(), "fp32") is None


def test_that_other_work_is_named() -> None:
    digits, text = RunConfig(), build({"task": "text"})
    assert why_not_comparable(digits, build({"precision": "fp64", "seed": 2})) == ""
    assert why_not_comparable(text, digits) == "another task: text, not digits"
    assert why_not_comparable(build({"model": {"size": "medium"}}), digits) == "another model size: medium, not small"
