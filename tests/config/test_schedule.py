"""`precision_schedule`: its forms, and the settings that it does not go with."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui import config
from precgui.config import ConfigError
from precgui.config.schedule import PrecisionChange, changes_of, gradient_floor


def test_that_a_schedule_is_read_from_a_line_and_written_as_toml(tmp_path: Path) -> None:
    line = "precision_schedule=step:100=bf16-amp, share:0.9=emulated:e4m3fn, plateau:20=fp32"
    read = config.load("digits-quick", [line])
    assert changes_of(read.precision_schedule) == [
        PrecisionChange("step", 100, "bf16-amp"), PrecisionChange("share", 0.9, "emulated:e4m3fn"),
        PrecisionChange("plateau", 20, "fp32"),
    ]  # fmt: skip
    path = tmp_path / "c.toml"
    path.write_text(config.to_toml(read))
    assert config.load(path) == read
    assert read.display_title == "digits cnn fp32 then bf16-amp then emulated:e4m3fn then fp32"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["precision_schedule=stp:5=fp32"], "'stp:5' is no trigger; use step:N, share:X, plateau:N or underflow:X"),
        (["precision_schedule=step:1=fp32"], "'1' of step is not a whole number of 2 or more"),
        (["precision_schedule=share:1.5=fp32"], "'1.5' of share is not between 0 and 1"),
        (["precision_schedule=step:x=fp32"], "'x' of step is not"),
        (["precision_schedule=step:9=bf17"], "'bf17' is not one of"),
        (["precision_schedule=step:9=fp32, step:5=bf16-amp"], "each must be above the one before"),
        (["precision_schedule=step:9=bf16-pure"], "bf16-pure stores weights in bf16"),
        (["precision=int8-qat", "precision_schedule=step:9=fp32"], "int8-qat learns the ranges of its integers"),
        (["precision=mxfp8", "precision_schedule=underflow:0.1=fp32"], "underflow:0.1 cannot be measured in mxfp8"),
        (["train.compile=true", "precision_schedule=step:9=fp32"], "set that to false"),
        (["pruning.method=magnitude", "precision_schedule=step:9=fp32"], "does not go with pruning.method"),
        (["precision_schedule=step 9"], "is not trigger:number=precision, such as step:100=bf16-amp"),
    ],
)
def test_that_a_schedule_that_cannot_be_followed_is_one_sentence(settings: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config.load("digits-quick", settings)
    assert str(raised.value).startswith("precision_schedule: ") and sentence in str(raised.value)


def test_that_the_floor_of_gradients_is_the_smallest_normal_number() -> None:
    assert gradient_floor("fp16-amp") == 2.0**-14
    assert gradient_floor("emulated:e5m2") == 2.0**-14
    assert gradient_floor("fp8") is None and gradient_floor("mxfp4") is None and gradient_floor("emulated:nf4") is None


def test_that_the_same_trigger_may_follow_itself(tmp_path: Path) -> None:
    line = "precision_schedule=plateau:50=bf16-amp, plateau:50=emulated:e4m3fn, plateau: 50 = fp32"
    read = config.load("digits-quick", [line])
    waits = [PrecisionChange("plateau", 50, name) for name in ("bf16-amp", "emulated:e4m3fn", "fp32")]
    assert changes_of(read.precision_schedule) == waits
    path = tmp_path / "c.toml"
    path.write_text(config.to_toml(read))
    assert '"plateau:50#2" = "emulated:e4m3fn"' in path.read_text() and config.load(path) == read
    path.write_text('[precision_schedule]\n"plateau:50" = "bf16-amp"\n"plateau: 50" = "fp32"\n')
    assert changes_of(config.load(path).precision_schedule) == [waits[0], waits[2]]
