"""Colours of groups depend on their names."""

from precgui.runs.study.colour_places import colour_places

NAMES = ("fp32", "bf16-amp", "fp16-amp", "int8-qat", "int2-qat")


def test_that_the_order_of_the_groups_does_not_change_their_colours() -> None:
    assert colour_places(NAMES, 7) == colour_places(NAMES[::-1], 7)


def test_that_no_two_groups_share_a_place() -> None:
    many = [f"group {number}" for number in range(30)]
    places = colour_places(many, 7)
    assert len(set(places.values())) == 30
    assert {place % 7 for place in places.values()} == set(range(7))


def test_that_a_group_alone_has_the_colour_that_it_has_among_others_where_that_is_free() -> None:
    both = colour_places(("fp32", "bf16-amp"), 7)
    alone = colour_places(("fp32",), 7)["fp32"]
    assert both["fp32"] == alone or both["bf16-amp"] == alone
