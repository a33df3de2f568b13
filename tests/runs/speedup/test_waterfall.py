"""The account of a speed-up: arithmetic on plain profiles, and the side file in which they are kept."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from precgui import words
from precgui.runs.errors import RunFileError
from precgui.runs.speedup.profile_file import profile_of, profile_path, read_profile, write_profile
from precgui.runs.speedup.waterfall import repeated_sentence, rows, verdict, waterfall
from tests import needs


def side(products: float, others: float, casts: float = 0.0, gaps: float = 0.0, data: float = 0.0) -> dict[str, Any]:
    """Seconds of a step that is what its parts add up to."""
    step_s = products + others + casts + gaps
    return {
        "step_s": step_s, "data_s": data, "products_s": products, "others_s": others, "casts_s": casts, "gaps_s": gaps,
        "kinds": {"product": products, "element-wise": others, "cast": casts}, "calls": 100, "profiled_s": step_s,
    }  # fmt: skip


def profile(fp32: dict[str, Any], run: dict[str, Any], ratio: float | None = 4.0, **more: Any) -> dict[str, Any]:
    observed = (fp32["step_s"] + fp32["data_s"]) / (run["step_s"] + run["data_s"])
    return {
        "schema": 1, "title": "planted", "precision": "bf16-amp", "fp32": fp32, "run": run, "rounds": [observed] * 5,
        "peak": {"format": "bf16", "ratio": ratio, "size": 1024, "note": "emulated" if ratio is None else ""},
        "settings": {"batch_size": 8, "workers": 0, "compile": False, "channels_last": False},
        "device": {"type": "cpu", "name": "CPU", "threads": 1}, "operations": [], "layers": [], "padding": [],
        "memory": {}, "notes": [], **more,
    }  # fmt: skip


def layer(module: str, fp32_s: float, run_s: float, phase: str = "backward") -> dict[str, Any]:
    return {"module": module, "phase": phase, "kind": "attention", "fp32_s": fp32_s, "run_s": run_s, "sizes": []}


IDEAL = side(10, 2), side(2.5, 2)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "small products": ("products", profile(side(10, 2), side(9, 2))),
    "odd sizes": (
        "alignment",
        profile(
            side(10, 2), side(6, 2),
            padding=[{"module": "head", "phase": "forward", "sizes": [1, 512, 768, 50257],
                      "padded": [1, 512, 768, 50304], "seconds": 4.0, "gain": 0.85, "gain_s": 3.4}],
        ),
    ),
    "casts": ("casts", profile(side(10, 2), side(2.5, 2, casts=5))),
    "launches": ("gaps", profile(side(10, 2, gaps=60), side(2.5, 2, gaps=60))),
    "slow loader": ("data", profile(side(10, 2, data=60), side(2.5, 2, data=60))),
    "no fast kernels": ("peak", profile(side(10, 2, gaps=10), side(60, 2, gaps=10), ratio=0.02)),
    "slow operations": ("others", profile(side(10, 2), side(2.5, 8))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_that_the_planted_cause_comes_first(name: str) -> None:
    expected, document = CASES[name]
    account = waterfall(document)
    first = account.causes()[0]
    assert first.key == expected
    assert first.fix
    assert first.title.lower() in verdict(account, "bf16-amp")


@pytest.mark.parametrize("name", CASES)
def test_that_the_factors_multiply_to_the_observed_speedup(name: str) -> None:
    account = waterfall(CASES[name][1])
    assert math.prod(factor.value for factor in account.factors) == pytest.approx(account.observed)
    assert account.factors[-1].after == pytest.approx(account.observed)
    assert account.closes


@pytest.mark.parametrize("name", CASES)
def test_that_an_account_is_in_the_readers_language_where_it_is_shown(name: str) -> None:
    document = CASES[name][1] | {"cpu_share": 0.5, "clock": "CPU time of the thread"}
    document |= {"run": document["run"] | {"repeated": {"products": [0.1, 0.2], "casts": [0.3, 0.4]}}}
    tried = [{"settings": dict(each.settings), "gains": [0.9, 1.2, 1.0], "fault": ""}
             for each in waterfall(document).factors if each.settings]  # fmt: skip
    account = waterfall(document | {"trials": tried})
    texts = [verdict(account, "bf16-amp"), account.closing, repeated_sentence(document)]
    texts += [text for each in account.factors for text in (each.title, each.detail, each.remedy)]
    try:
        words.use("zh_CN")
        shown = [words.translated(text) for text in texts if text]
    finally:
        words.use("en")
    assert len(shown) > 20
    assert [text for text in shown if re.search("[a-z]{2,} [a-z]{2,}", text)] == []


def test_that_amdahl_bounds_what_products_can_gain() -> None:
    """12 / (10 / 4 + 2) = 2.67 times with four times faster products (Amdahl 1967)."""
    account = waterfall(profile(*IDEAL))
    after = {factor.key: factor.after for factor in account.factors}
    assert after["peak"] == 4
    assert after["amdahl"] == pytest.approx(12 / (10 / 4 + 2)) == account.observed
    assert [cause.key for cause in account.causes()] == ["amdahl"]
    assert "nothing else loses more" in verdict(account, "bf16-amp")


def test_that_what_the_profile_does_not_hold_is_unexplained() -> None:
    run = side(2.5, 2)
    document = profile(side(10, 2), {**run, "step_s": 9.0})
    account = waterfall(document)
    assert account.unexplained == pytest.approx(-0.5)
    assert not account.closes
    assert account.factors[-1].key == "unexplained"


def test_that_the_headline_has_the_interval_of_its_paired_rounds_and_says_that_others_were_busy() -> None:
    document = profile(*IDEAL, rounds=[2.5, 2.6, 2.7, 2.8, 2.9], cpu_share=0.4, clock="CPU time of the thread")
    account = waterfall(document)
    assert account.interval is not None
    low, high = account.interval
    assert 2.4 < low < account.observed < high < 3.0
    sentence = verdict(account, "bf16-amp")
    assert f"{account.observed:.2f} [{low:.2f}, {high:.2f}] times as fast" in sentence
    assert sentence.endswith("had the CPU for 40% of its steps, so times are CPU time of the thread.")
    assert "busy" not in verdict(waterfall(profile(*IDEAL, cpu_share=0.99)), "bf16-amp")
    assert waterfall(profile(*IDEAL, rounds=[2.0])).interval is None


def test_that_an_account_that_is_not_known_well_enough_is_not_said_to_close() -> None:
    sides = [{**side, "uncertainty": 0.2} for side in IDEAL]
    assert "leave ±28% open" in waterfall(profile(*sides)).closing
    assert "so the account closes" in waterfall(profile(*IDEAL)).closing


def test_that_without_a_ratio_of_peaks_one_is_taken_and_told() -> None:
    account = waterfall(profile(*IDEAL, ratio=None))
    assert account.factors[0].value == 1
    assert any("not measured: emulated" in note for note in account.notes)


def test_that_a_layer_with_an_odd_size_is_named_with_its_padding() -> None:
    factor = next(f for f in waterfall(CASES["odd sizes"][1]).factors if f.key == "alignment")
    assert "head forward: 50257 to 50304 saves 85%" in factor.detail
    assert factor.fix.startswith("Pad head: 50257 to 50304")


def test_that_a_fix_names_settings_of_the_config() -> None:
    account = waterfall(CASES["launches"][1])
    gaps = next(f for f in account.factors if f.key == "gaps")
    assert gaps.settings == {"data.batch_size": "32"}
    assert next(f for f in account.factors if f.key == "data").settings == {"data.workers": "2"}


def test_that_rows_are_plain() -> None:
    assert json.loads(json.dumps(rows(waterfall(profile(*IDEAL)))))[0]["factor"] == "peak"


def test_that_a_profile_beside_a_run_is_read_again(tmp_path: Path) -> None:
    run = tmp_path / "run.h5"
    assert profile_of(run) is None
    assert profile_of(None) is None
    write_profile(profile_path(run), profile(*IDEAL))
    assert profile_of(run) == json.loads(json.dumps(profile(*IDEAL)))
    assert profile_path(run).name == "run.h5.profile.json"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not a profile"),
        ("[]", "is not a profile"),
        ("{}", "is not a profile"),
        (json.dumps(profile(*IDEAL, schema=2)), "its schema is 2"),
        (json.dumps(profile(*IDEAL, rounds=["fast"])), "is not a profile"),
        (json.dumps(profile(*IDEAL) | {"fp32": {"step_s": 1}}), "is not a profile"),
        (json.dumps(profile(*IDEAL) | {"notes": None}), r"notes: Input should be a valid list"),
        (json.dumps(profile(side(10, -2), side(2.5, 2))), r"fp32.others_s: Input should be greater than or equal to 0"),
        (json.dumps(profile(*IDEAL, layers=[layer("a", 1, True)])), r"layers.0.run_s: Input should be a valid number"),
        (json.dumps(profile(*IDEAL, layers=[layer("a", 1, 1e308)])), r"layers.0.run_s: Input should be less than"),
        (json.dumps(profile(*IDEAL, layers=[layer("a" * 2000, 1, 1)])), r"layers.0.module: String should have at most"),
        (json.dumps(profile(*IDEAL, cpu_share=math.nan)), r"cpu_share: Input should be"),
        (json.dumps(profile(*IDEAL, ratio=math.inf)), r"peak.ratio: Input should be"),
        (json.dumps(profile(*IDEAL, memory={"residual": "much"})), r"memory.residual: Input should be a valid number"),
        (json.dumps(profile(*IDEAL, operations=[{"kind": "product"}])), "is not a profile"),
        ("[" * 100_000, "is not a profile"),
        (json.dumps(profile(*IDEAL, rounds=[10**400] * 3)), "is not a profile"),
    ],
)
def test_that_what_is_no_profile_is_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "run.h5.profile.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RunFileError, match=sentence):
        read_profile(path)


@needs.named_pipes
def test_that_a_pipe_or_a_file_without_end_is_no_profile(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.h5.profile.json")
    (tmp_path / "endless.h5.profile.json").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        assert profile_of(tmp_path / f"{name}.h5") is None
        with pytest.raises(RunFileError, match="not a regular file"):
            read_profile(tmp_path / f"{name}.h5.profile.json")


def test_that_a_missing_profile_is_told_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="make it with precgui profile"):
        read_profile(tmp_path / "none.json")


def test_that_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="cannot be written"):
        write_profile(tmp_path / "nowhere" / "run.json", {})


def test_that_a_format_without_fast_products_is_named_as_that_and_never_as_a_small_batch() -> None:
    account = waterfall(CASES["no fast kernels"][1])
    sentence = verdict(account, "bf16-amp")
    assert "its products are slower than those of FP32 on this device, 69% of the step" in sentence
    assert "allows" not in sentence
    first = account.causes()[0]
    assert first.detail.startswith("This device multiplies two 1024 x 1024 matrices in bf16 at 0.02 times the rate")
    assert (first.fix, first.settings) == (
        "Train in fp32 here, or on a device with fast products in bf16.", {"precision": "fp32"}
    )  # fmt: skip
    assert next(each for each in account.factors if each.key == "products").cost == 0


SLOW_ATTENTION = [
    layer("blocks.0.attention", 1, 5), layer("blocks.1.attention", 1, 4), layer("blocks.0.attention.qkv", 2, 0.5),
    layer("blocks.0.up", 3, 1), layer("blocks.1.up", 2, 1.5),
]  # fmt: skip


def test_that_modules_with_products_slower_than_in_fp32_are_better_kept_in_fp32() -> None:
    document = profile(side(9, 2), side(12, 2), layers=SLOW_ATTENTION)
    document["settings"]["keep_fp32"] = ["head"]
    first = waterfall(document).causes()[0]
    assert first.key == "products"
    assert first.settings == {"precision_options.keep_fp32": "head,blocks.*.attention"}
    assert first.fix == (
        "Keep blocks.*.attention in FP32 (precision_options.keep_fp32): the products there take 2.4 times as long in "
        "bf16 as in FP32 on this device, and about 39% of the step is saved."
    )


@pytest.mark.parametrize(
    ("layers", "ratio"),
    [
        (SLOW_ATTENTION, 0.5),  # the format is slow as a whole
        (SLOW_ATTENTION, None),  # emulated: times say nothing
        ([layer("blocks.0.attention", 1, 1.1)], 4.0),  # noise
        ([layer("blocks.0.attention", 0.01, 0.05)], 4.0),  # too little to matter
        ([layer("blocks.0.attention", 1, 2), layer("blocks.0.attention.qkv", 9, 3)], 4.0),  # faster with all it holds
        ([layer("", 1, 5)], 4.0),  # the model itself
        ([layer("body.0", 1, 5), layer("body.2", 1, 3), layer("head", 1, 1)], 4.0),  # nothing else gains
    ],
)
def test_that_no_module_is_kept_where_that_saves_nothing(layers: list[dict[str, Any]], ratio: float | None) -> None:
    account = waterfall(profile(side(9, 2), side(12, 2), ratio=ratio, layers=layers))
    assert not any("keep_fp32" in path for factor in account.factors for path in factor.settings)


def test_that_parts_are_told_with_the_range_of_repeated_accounts() -> None:
    side = {"repeated": {"products": [0.45, 0.58, 0.5], "gaps": [0.48, 0.34, 0.4], "casts": [0.0, 0.001, 0.0]}}
    assert repeated_sentence({"run": side}) == (
        "Of the step, in 3 accounts one after the other: products 45% to 58%, between operations and launches 34% to "
        "48%."
    )
    assert repeated_sentence({"run": {}}) == ""
    assert repeated_sentence({"run": {"repeated": {"products": [0.5]}}}) == ""
