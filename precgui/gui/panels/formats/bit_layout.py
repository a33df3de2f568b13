"""Where the bits and the words of each row of the bit grid go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QFontMetrics

from precgui.formats.model import FloatFormat, Format
from precgui.words import L_, _, translated

BITS_PER_LINE = 32
NAME_WIDTH, WORDS_WIDTH, HEX_WIDTH = 96, 340, 150  # in pixels, at the usual size of letters
ROOMY_WIDTH = 1000  # in pixels; a wider grid has larger letters and cells
GAP = 6
LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)


@dataclass(frozen=True)
class Line:
    """A piece of text: what it says, where it stands."""

    what: str
    rect: QRect
    flags: int = LEFT


@dataclass
class RowLayout:
    """One format: its rectangle, the cell of each bit, and its texts."""

    name: str
    rect: QRect
    cells: dict[int, QRect] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)


def scale_for(width: int) -> float:
    """How much larger than elsewhere letters and cells are in a room of this width in pixels, 1 to 1.6."""
    return min(max(width / ROOMY_WIDTH, 1.0), 1.6)


def lay_out(formats: Mapping[str, Format], width: int, metrics: QFontMetrics, scale: float = 1.0) -> list[RowLayout]:
    """Named rows from top to bottom. Texts stand beside the bits where there is room, else below them.

    `metrics` are those of the letters, which are `scale` times as large as elsewhere.
    """
    name_width, words_width, hex_width = (round(pixels * scale) for pixels in (NAME_WIDTH, WORDS_WIDTH, HEX_WIDTH))
    line_height = metrics.height() + 4
    cell_height = line_height + 4
    cell_width = max(10, min(round(16 * scale), (width - name_width - 3 * GAP) // (BITS_PER_LINE + 2)))
    bits_width = BITS_PER_LINE * cell_width + 3 * GAP + round(GAP * scale)
    companion = width - name_width - bits_width >= words_width
    rows, top = [], 4
    for name, fmt in formats.items():
        bit_lines = -(-fmt.bits // BITS_PER_LINE)
        height = max(bit_lines * (cell_height + 2), 2 * line_height) + 10
        if not companion:
            height = bit_lines * (cell_height + 2) + 2 * line_height + 10
        row = RowLayout(name, QRect(0, top, width, height))
        _place_cells(row, fmt, name_width, QSize(cell_width, cell_height))
        words_left = name_width + bits_width if companion else name_width
        words_top = top + 5 if companion else top + 5 + bit_lines * (cell_height + 2)
        first = QRect(words_left, words_top, width - words_left - 8, line_height)
        _place_words(row, name_width, first, min(hex_width, first.width() // 2))
        rows.append(row)
        top += height
    return rows


def _place_cells(row: RowLayout, fmt: Format, left: int, cell: QSize) -> None:
    x, y = left, row.rect.top() + 5
    for place, bit in enumerate(range(fmt.bits - 1, -1, -1)):
        if place and place % BITS_PER_LINE == 0:
            x, y = left, y + cell.height() + 2
        elif place and field_of(fmt, bit) != field_of(fmt, bit + 1):
            x += GAP
        row.cells[bit] = QRect(QPoint(x, y), cell)
        x += cell.width()


def _place_words(row: RowLayout, name_width: int, first: QRect, hex_width: int) -> None:
    """Two lines: value and code above, error and remark below; the name at the left."""
    height = first.height()
    second = first.translated(0, height)
    split = first.width() - hex_width
    row.lines = [
        Line("name", QRect(8, row.rect.top() + 5, name_width - 12, height)),
        Line("layout", QRect(8, row.rect.top() + 5 + height, name_width - 12, height)),
        Line("value", QRect(first.left(), first.top(), split - 8, height)),
        Line("hex", QRect(first.left() + split, first.top(), hex_width, height), RIGHT),
        Line("error", QRect(second.left(), second.top(), second.width() // 2 - 8, height)),
        Line("class", QRect(second.left() + second.width() // 2, second.top(), second.width() // 2, height), RIGHT),
    ]


FIELDS = {"sign": L_("sign"), "exponent": L_("exponent"), "mantissa": L_("mantissa"), "value": L_("value")}


def field_of(fmt: Format, bit: int) -> str:
    """The field that a bit belongs to: a key of FIELDS."""
    if not isinstance(fmt, FloatFormat):
        return "value"
    if bit < fmt.mantissa_bits:
        return "mantissa"
    return "exponent" if bit < fmt.mantissa_bits + fmt.exponent_bits else "sign"


def field_text(fmt: Format, bit: int) -> str:
    """The field of a bit and its weight, in words."""
    field = field_of(fmt, bit)
    name = translated(FIELDS[field])
    if field == "value":
        weight = f"{'-' if fmt.signed and bit == fmt.bits - 1 else ''}2^{bit}"
    elif isinstance(fmt, FloatFormat) and field == "exponent":
        weight = str(1 << (bit - fmt.mantissa_bits))
        return _("{field}, weight {weight}, bias {bias}").format(field=name, weight=weight, bias=fmt.bias)
    elif isinstance(fmt, FloatFormat) and field == "mantissa":
        weight = f"2^-{fmt.mantissa_bits - bit}"
    else:
        return name
    return _("{field}, weight {weight}").format(field=name, weight=weight)
