"""What a sweep may be asked to do, and what is refused with one sentence."""

import shlex
from pathlib import Path

import pytest

from precgui import config
from precgui.errors import SentenceError
from precgui.sweeps.errors import SweepError
from precgui.sweeps.spec import make_spec, members_of, parse_vary, read_spec, repeat_command, spec_toml
from tests.sweeps.sample_sweep import small_spec


def test_that_a_spec_survives_its_file(tmp_path: Path) -> None:
    spec = small_spec(vary={"optimizer.lr": [0.1, 0.05]}, title="mine")
    (tmp_path / "sweep.toml").write_text(spec_toml(spec), encoding="utf-8")
    assert read_spec(tmp_path / "sweep.toml") == spec


def test_that_arms_are_precisions_times_values_and_each_has_its_baseline() -> None:
    spec = small_spec(vary={"optimizer.lr": [0.1, 0.05]})
    assert [arm.name for arm in spec.arms()] == [
        "fp32 optimizer.lr=0.1", "bf16-amp optimizer.lr=0.1", "fp32 optimizer.lr=0.05", "bf16-amp optimizer.lr=0.05",
    ]  # fmt: skip
    assert [arm.name for arm in spec.baselines()] == ["fp32 optimizer.lr=0.1", "fp32 optimizer.lr=0.05"]
    made = spec.config_of(spec.arms()[1], 4)
    assert (made.precision, made.seed, made.optimizer.lr) == ("bf16-amp", 4, 0.1)


def test_that_with_one_precision_the_first_values_are_the_baseline_of_the_others() -> None:
    spec = small_spec(precisions=("bf16-amp",), vary={"optimizer.lr": [0.1, 0.05], "data.workers": [0, 1]})
    assert [arm.name for arm in spec.baselines()] == ["bf16-amp optimizer.lr=0.1 data.workers=0"]
    assert members_of(spec, 3) == 3 * 5


def test_that_the_baseline_is_fp32_else_the_first_else_the_one_that_is_named() -> None:
    base = config.load("digits-quick")
    assert make_spec(base, ["bf16-amp", "fp32"], 3).baseline == "fp32"
    assert make_spec(base, ["bf16-amp", "tf32"], 3).baseline == "bf16-amp"
    assert make_spec(base, ["fp32", "fp64"], 3, baseline="fp64").baseline == "fp64"


def test_that_the_command_that_repeats_a_sweep_names_the_formats_of_layers() -> None:
    base = config.load("digits-quick", ["precision_options.layers=conv*=e4m3fn, head=fp32"])
    words = shlex.split(repeat_command(make_spec(base, ["emulated:bf16"], 3), 3))
    assert config.load("digits-quick", words[words.index("--set") + 1 :: 2][:1]) == base


def test_that_looks_are_fixed_with_the_plan() -> None:
    assert small_spec(seeds=5).looks == [5, 10]
    assert small_spec(seeds=8).looks == [8, 16]


@pytest.mark.parametrize(
    ("precisions", "options", "told"),
    [
        ((), {}, "needs one precision at least"),
        (("fp32", "bf17"), {}, "'bf17' is not one of"),
        (("fp32", "FP32"), {}, "fp32 is named twice"),
        (("fp32",), {"baseline": "bf16-amp"}, "the baseline bf16-amp is not among the precisions fp32"),
        (("fp32",), {"vary": {"precision": ["fp32", "tf32"]}}, "use --precisions"),
        (("fp32",), {"vary": {"seed": [1, 2]}}, "use --seeds"),
        (("fp32",), {"vary": {"optimizer.rate": [1, 2]}}, "--vary optimizer.rate: unknown key"),
        (("fp32",), {"vary": {"optimizer.lr": [0.1]}}, "two different values"),
        (("fp32",), {"vary": {"optimizer.lr": [0.1, 0.1]}}, "two different values"),
        (("fp32",), {"vary": {"optimizer.lr": [0.1, -1]}}, "optimizer.lr=-1 cannot be run"),
        (("fp32",), {"seeds": 0}, "seeds: input should be greater than or equal to 1"),
        (("fp32", "tf32", "fp64"), {"seeds": 900}, "2700 runs are more than 2000"),
    ],
)
def test_that_what_cannot_be_is_one_sentence(
    precisions: tuple[str, ...], options: dict[str, object], told: str
) -> None:
    with pytest.raises(SentenceError) as caught:
        small_spec(**{"seeds": 3, "precisions": precisions, **options})
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_that_values_to_vary_are_read_as_toml_where_they_are_some() -> None:
    assert parse_vary("optimizer.lr=1e-3, 3e-3") == ("optimizer.lr", [1e-3, 3e-3])
    assert parse_vary("model.size=small,medium") == ("model.size", ["small", "medium"])
    assert parse_vary("train.compile=true,false") == ("train.compile", [True, False])
    with pytest.raises(SweepError, match="has no values"):
        parse_vary("optimizer.lr")
    with pytest.raises(SweepError, match="a number has more than 4300 digits"):
        parse_vary(f"seed=1,{'9' * 5000}")
