"""Bytes of the planner against the formats of the one table of precisions."""

from __future__ import annotations

import pytest

from precgui.config.precision_traits import TRAITS
from precgui.planner.storage import STORAGE, storage_of

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


@pytest.mark.parametrize("precision", TRAITS)
def test_that_weights_and_gradients_take_the_bytes_of_their_storage_format(precision: str) -> None:
    stored = storage_of(precision)
    assert stored.weight == stored.gradient == BYTES[TRAITS[precision].storage]


@pytest.mark.parametrize("precision", [name for name, row in TRAITS.items() if row.operand in ("fp64", "bf16", "fp16")])
def test_that_operands_take_the_bytes_of_their_format(precision: str) -> None:
    assert storage_of(precision).products == BYTES[TRAITS[precision].operand]


@pytest.mark.parametrize("precision", TRAITS)
def test_that_only_autocast_keeps_copies_of_weights(precision: str) -> None:
    assert bool(storage_of(precision).cached) == TRAITS[precision].autocast


def test_that_every_precision_can_be_planned_and_an_unknown_one_is_none_of_them() -> None:
    assert TRAITS.keys() | {"bf16-master"} == STORAGE.keys()
    assert storage_of("emulated:bf16") == storage_of("fp32")  # its operands are held in FP32
    assert storage_of("bf16-pure", master_weights=True) == STORAGE["bf16-master"]
    assert storage_of("bf16-master", master_weights=True) == STORAGE["bf16-master"]
    with pytest.raises(KeyError):
        storage_of("bf17")
