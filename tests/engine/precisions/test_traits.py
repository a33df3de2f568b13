"""The table of precisions in `config` against the classes that train in them."""

from __future__ import annotations

import pytest
import torch

from precgui import config
from precgui.config.names import PRECISIONS
from precgui.config.precision_traits import TRAITS, traits
from precgui.engine import precisions
from precgui.engine.precisions.low import LowPrecisionMatmul

STORAGE = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def test_that_every_precision_has_its_row() -> None:
    assert TRAITS.keys() == PRECISIONS.keys()


@pytest.mark.parametrize("name", [*PRECISIONS, "emulated:e3m2"])
def test_that_a_row_says_what_the_precision_does(name: str) -> None:
    precision = precisions.make(config.load("digits-quick", [f"precision={name}", "device=cpu"]), torch.device("cpu"))
    row = traits(name)
    assert precision.storage is STORAGE[row.storage]
    assert precision.scaling == row.loss_scaling
    if isinstance(precision, LowPrecisionMatmul):
        assert precision.formats == {
            "weight": row.operand, "activation": row.operand, "gradient": row.gradient_operand
        }  # fmt: skip
    assert getattr(precision, "weight_bits", None) == row.weight_bits


def test_that_an_unknown_precision_has_no_row() -> None:
    with pytest.raises(KeyError):
        traits("fp17")
