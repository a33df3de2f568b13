"""Texts of incidents: whole clauses for every combination of facts."""

from __future__ import annotations

import pytest

from precgui.engine.incident_text import gradients_text, loss_text, scale_text, skipped_text
from precgui.sanitize import some_names


@pytest.mark.parametrize(
    ("module", "rank", "why", "text"),
    [
        ("", None, "", "the loss is nan"),
        ("fc", None, "", "the loss is nan; the first output that is not finite is that of fc"),
        ("fc", 1, "", "the loss in process 1 is not finite; the first output that is not finite is that of fc"),
        (
            "fc",
            None,
            "the model is compiled",
            "the loss is nan; of the outputs that were checked, the first that is not finite is that of fc; "
            "the model is compiled",
        ),
        ("", 0, "the model is compiled", "the loss in process 0 is not finite; the model is compiled"),
    ],
)
def test_that_a_loss_that_is_not_finite_names_process_module_and_what_was_not_checked(
    module: str, rank: int | None, why: str, text: str
) -> None:
    assert loss_text(module, "nan" if rank is None else "", rank, why) == text


def test_that_gradients_name_the_first_parameter_or_say_that_their_norm_overflows() -> None:
    assert gradients_text("fc.weight") == "some gradients are not finite; the first is that of fc.weight"
    assert gradients_text("", 2) == "some gradients are not finite in process 2"
    assert gradients_text("", norm_overflows=True) == "each gradient is finite, but their norm overflows FP32"


def test_that_a_skipped_step_says_how_much_was_skipped_and_why() -> None:
    assert skipped_text(1024.0) == "no weights were updated in this step, whose gradients are not finite at scale 1024"
    assert skipped_text(None, partly=True).startswith("some weights were not updated in this step: not every")
    assert skipped_text(None, unchecked=True).endswith("was not checked")
    assert scale_text(8.0, 4.0) == "the loss scale was lowered from 8 to 4"
    assert scale_text(4.0, 8.0) == "the loss scale was raised from 4 to 8"


def test_that_names_beyond_the_first_are_counted() -> None:
    assert some_names(["a", "b", "c"], 3) == "a, b, c"
    assert some_names(["a", "b", "c", "d", "e"], 2) == "a, b and 3 more"
