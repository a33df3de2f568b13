"""Lines of one precision share its colour and differ in their dash."""

from precgui.runs.line_styles import DASHES, HUES, SHADES, LineStyle, format_place, line_styles, precision_place


def test_that_lines_of_one_precision_share_its_colour_and_differ_in_their_dash() -> None:
    styles = line_styles({"a": "fp32", "b": "bf16-amp", "c": "fp32", "d": "bf16-sr"})
    assert styles["a"].colour == styles["c"].colour != styles["b"].colour == styles["d"].colour
    assert styles["a"].dash != styles["c"].dash and styles["b"].dash != styles["d"].dash
    assert styles["a"] == LineStyle(format_place("fp32"), 0)


def test_that_many_lines_of_one_precision_stay_apart_by_shade_when_all_dashes_are_taken() -> None:
    styles = line_styles({str(number): "fp16-amp" for number in range(DASHES * SHADES)})
    assert len(set(styles.values())) == DASHES * SHADES and len({style.colour for style in styles.values()}) == 1


def test_that_a_colour_does_not_depend_on_the_other_lines() -> None:
    assert line_styles({"a": "fp8"})["a"].colour == line_styles({"b": "fp32", "a": "fp8"})["a"].colour


def test_that_the_name_of_a_precision_of_others_has_a_colour_too() -> None:
    assert 0 <= precision_place("fp7-of-another-tool") < 2 * HUES
