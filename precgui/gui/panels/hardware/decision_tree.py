"""The decision tree as a picture: questions as boxes, answers on the lines, the path taken in colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from PySide6.QtCore import QPointF, QRectF, QSizeF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPainterPath, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from precgui.gui.theme import themes
from precgui.hardware.advice import START, TREE, Advice, Outcome, Question
from precgui.words import _, translated

BOX_W, BOX_H, GAP_X, GAP_Y = 140.0, 60.0, 74.0, 14.0
MARGIN = 14.0
SMALLEST_SCALE, LARGEST_SCALE = 0.6, 1.2
FONT_SCALE = 1.15  # the picture is mostly drawn smaller than its own size


Tree = Mapping[str, Question | Outcome]


def layout(tree: Tree = TREE, start: str = START) -> tuple[dict[str, QRectF], QSizeF]:
    """(box of each node, size of the picture): a column per depth, each node beside the middle of its children."""
    depth: dict[str, int] = {}
    row: dict[str, float] = {}
    _place(tree, start, 0, depth, row, count())
    boxes = {
        key: QRectF(MARGIN + depth[key] * (BOX_W + GAP_X), MARGIN + row[key] * (BOX_H + GAP_Y), BOX_W, BOX_H)
        for key in row
    }
    right, bottom = max(b.right() for b in boxes.values()), max(b.bottom() for b in boxes.values())
    return boxes, QSizeF(right + MARGIN, bottom + MARGIN)


def _targets(tree: Tree, key: str) -> dict[str, str]:
    """The nodes below, each with the answers that lead to it in one text."""
    node = tree[key]
    results: dict[str, str] = {}
    if isinstance(node, Question):
        for answer, target in node.branches.items():
            shown = translated(answer)
            results[target] = f"{results[target]} / {shown}" if target in results else shown
    return results


def _place(
    tree: Tree, key: str, level: int, depth: dict[str, int], row: dict[str, float], leaves: Iterator[int]
) -> float:
    depth[key] = level
    below = [_place(tree, target, level + 1, depth, row, leaves) for target in _targets(tree, key)]
    row[key] = sum(below) / len(below) if below else float(next(leaves))
    return row[key]


class TreeView(QWidget):
    """The tree, scaled to the widget."""

    def __init__(self) -> None:
        super().__init__()
        self._tree: Tree = TREE
        self._boxes, self._size = layout()
        self.path: list[str] = []
        self.setAccessibleName(_("Decision tree"))
        self.setMinimumSize((self._size * SMALLEST_SCALE).toSize())
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        themes().follow(self, self.update)

    def show_tree(self, tree: Tree, start: str) -> None:
        """Draw another tree; its path comes with `show_path`."""
        if tree is not self._tree:
            self._tree = tree
            self._boxes, self._size = layout(tree, start)
            self.setMinimumSize((self._size * SMALLEST_SCALE).toSize())

    def show_path(self, advice: Advice) -> None:
        """Mark the path of this advice."""
        self.path = [*(step.node for step in advice.path), advice.outcome]
        text = " ".join(f"{translated(step.question)} {translated(step.answer)}." for step in advice.path)
        self.setAccessibleDescription(f"{text} {advice.precision}")
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        scale = min(self.width() / self._size.width(), self.height() / self._size.height(), LARGEST_SCALE)
        free = QPointF(self.width() - scale * self._size.width(), self.height() - scale * self._size.height()) / 2
        font = painter.font()
        font.setPointSizeF(font.pointSizeF() * FONT_SCALE)
        painter.setFont(font)
        painter.translate(free)
        painter.scale(scale, scale)
        edges = [(key, target, words) for key in self._tree for target, words in _targets(self._tree, key).items()]
        for start, end, words in sorted(edges, key=lambda edge: self._taken(edge[0], edge[1])):
            self._line(painter, start, end, words)
        for key in self._tree:
            self._box(painter, key)
        painter.end()

    def _taken(self, start: str, end: str) -> bool:
        return start in self.path and end in self.path

    def _line(self, painter: QPainter, start: str, end: str, words: str) -> None:
        theme, taken = themes().theme, self._taken(start, end)
        a, b = self._boxes[start], self._boxes[end]
        source, target = QPointF(a.right(), a.center().y()), QPointF(b.left(), b.center().y())
        path = QPainterPath(source)
        bend = QPointF((target.x() - source.x()) / 2, 0)
        path.cubicTo(source + bend, target - bend, target)
        painter.setPen(QPen(QColor(theme.accent if taken else theme.line), 2.4 if taken else 1.4))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPath(path)
        flags = int(Qt.AlignmentFlag.AlignCenter) | int(Qt.TextFlag.TextWordWrap)
        width = min(QFontMetricsF(painter.font()).horizontalAdvance(words) + 6, GAP_X - 10)
        text = painter.boundingRect(QRectF(0, 0, width, 100), flags, words)
        text.moveCenter(target - QPointF(text.width() / 2 + 5, 0))
        painter.fillRect(text, QColor(theme.window))
        painter.setPen(QColor(theme.text if taken else theme.muted))
        painter.drawText(text, flags, words)

    def _box(self, painter: QPainter, key: str) -> None:
        theme, node, box = themes().theme, self._tree[key], self._boxes[key]
        taken, leaf = key in self.path, isinstance(node, Outcome)
        fill = theme.blend(theme.accent, 0.24 if leaf else 0.10) if taken else theme.base
        painter.setPen(QPen(QColor(theme.accent if taken else theme.line), 2.0 if taken else 1.0))
        painter.setBrush(QColor(fill))
        corner = BOX_H / 2 if leaf else 6.0
        painter.drawRoundedRect(box, corner, corner)
        painter.setPen(QColor(theme.text if taken else theme.muted))
        text = _leaf_text(node) if isinstance(node, Outcome) else translated(node.text)
        flags = int(Qt.AlignmentFlag.AlignCenter) | int(Qt.TextFlag.TextWordWrap)
        painter.drawText(box.adjusted(5, 2, -5, -2), flags, text)


def _leaf_text(node: Outcome) -> str:
    return (
        _("{precision}\nthen {then}").format(precision=node.precision, then=node.then) if node.then else node.precision
    )
