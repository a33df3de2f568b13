"""The products of a kept profile, read without torch."""

from __future__ import annotations

from precgui.runs.speedup.products import products_of, sizes_text
from tests.cli.test_profile_cli import document


def test_that_roofs_are_the_best_rates_of_a_format() -> None:
    measured = products_of(document())
    assert measured is not None
    assert measured.roofs == {"fp32": 5e9, "bf16": 1e9, "fp16": 1e9}
    assert measured.products[1].rates["fp16"].note.startswith("not measured")
    assert measured.products[0].modules_text == "head, blocks.0.up + 1"
    assert measured.products[1].modules_text == "(model)"


def test_that_an_older_profile_has_no_products() -> None:
    older = document()
    del older["products"]
    assert products_of(older) is None


def test_that_sizes_are_those_of_the_matrices_or_all_shapes() -> None:
    assert sizes_text("addmm", [[3], [2, 8], [8, 3]]) == "2 x 8 x 3"
    assert sizes_text("bmm", [[5, 2, 8], [5, 8, 3]]) == "5 x 2 x 8 x 3"
    assert sizes_text("convolution", [[4, 3, 8, 8], [16, 3, 3, 3], [16]]) == "4 x 3 x 8 x 8, 16 x 3 x 3 x 3"
    backward = [[4, 16, 8, 8], [4, 3, 8, 8], [16, 3, 3, 3]]  # gradient of the result, input, weight
    assert sizes_text("convolution_backward", backward) == "4 x 3 x 8 x 8, 16 x 3 x 3 x 3"
