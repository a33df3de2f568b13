"""The precision: large cards for the usual ones, and a row of names for each group of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QMouseEvent, QResizeEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QRadioButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.parts import label
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.words import L_, _, paragraph, translated

GAP = 8
LARGE_PX = 244
FAMILY_GROUP = L_("Any format")


class ChoiceCard(QFrame):
    """A radio button in a frame; a click anywhere in it chooses it. Its sentence is the tool tip."""

    def __init__(self, name: str, text: str, parent: QWidget) -> None:
        super().__init__(parent)
        text = translated(text)
        self.setProperty("kind", "choice")
        self.setToolTip(plain_tip(text))
        self.text = text
        self.button = QRadioButton(name, self)
        self.button.setAccessibleDescription(text)
        self.button.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.button.toggled.connect(self._on_toggled)
        self.lines = QVBoxLayout(self)
        self.lines.setContentsMargins(12, 8, 12, 8)
        self.lines.setSpacing(4)
        self.head = QHBoxLayout()
        self.head.setSpacing(4)
        self.lines.addLayout(self.head)
        self.head.addWidget(self.button)
        self.word = PlainLabel(self)
        self.word.setProperty("kind", "muted")
        self.word.hide()
        self.head.addWidget(self.word)

    def set_word(self, word: str, sentence: str) -> None:
        """A word beside the name, and the sentence that it stands for."""
        self.word.setText(word)
        self.word.setVisible(bool(word))
        self.setToolTip(plain_tip(f"{self.text}\n{sentence}" if sentence else self.text))
        self.button.setAccessibleDescription(paragraph(self.text, sentence))

    def _on_toggled(self, checked: bool) -> None:
        focus = Qt.FocusPolicy.StrongFocus if checked else Qt.FocusPolicy.ClickFocus
        self.button.setFocusPolicy(focus)  # Tab enters the precisions at the chosen one
        self.setProperty("chosen", checked)
        self.style().polish(self)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.button.setFocus()
        self.button.click()


class LargeCard(ChoiceCard):
    """A card with its sentence, and with what this machine makes of it."""

    def __init__(self, name: str, text: str, parent: QWidget) -> None:
        super().__init__(name, text, parent)
        self.setMinimumWidth(LARGE_PX)
        self.button.setProperty("kind", "heading")
        self.head.addStretch(1)
        self.about = label(self.text)
        self.here = label("", "muted")
        for part in (self.about, self.here):
            self.lines.addWidget(part)
        self.lines.addStretch(1)
        self.here.hide()

    def set_word(self, word: str, sentence: str) -> None:
        super().set_word(word, sentence)
        self.here.setText(sentence)
        self.here.setVisible(bool(sentence))


class OpenCard(ChoiceCard):
    """The card of a family of names: a prefix, and a line for what follows it."""

    def __init__(self, prefix: str, text: str, example: str, parent: QWidget) -> None:
        super().__init__(prefix, text, parent)
        self.prefix = prefix
        self.suffix = QLineEdit(example, self)
        self.suffix.setAccessibleName(_("What follows {prefix}").format(prefix=prefix))
        self.suffix.textEdited.connect(lambda _: self.button.setChecked(True))
        self.head.addWidget(self.suffix, 1)


class ChoiceRow(QWidget):
    """Cards or check boxes from left to right, in as many lines as they need; with `fills` they share the width."""

    def __init__(self, cards: Sequence[QWidget], parent: QWidget, *, fills: bool = False) -> None:
        super().__init__(parent)
        self._cards, self._fills = cards, fills
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(GAP)
        self._columns = 0
        self._arrange(len(cards))

    def minimumSizeHint(self) -> QSize:
        """The size of the widest card: the others wrap below it."""
        return QSize(self._widest(), super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.arrange_again()

    def arrange_again(self) -> None:
        """Fit the cards into the width that there is."""
        fitting = (self.width() + GAP) // (self._widest() + GAP)
        self._arrange(max(1, min(len(self._cards), fitting)))

    def _widest(self) -> int:
        return max(card.minimumWidth() or card.sizeHint().width() for card in self._cards)

    def _arrange(self, columns: int) -> None:
        if columns == self._columns:
            return
        for column in range(self._columns + 1):
            self._grid.setColumnStretch(column, 0)
        self._columns = columns
        for n, card in enumerate(self._cards):
            self._grid.addWidget(card, n // columns, n % columns)
        if self._fills:
            for column in range(columns):
                self._grid.setColumnStretch(column, 1)
        else:
            self._grid.setColumnStretch(columns, 1)


class ChoiceCards(QWidget):
    """An editor for names in groups; `family` is the prefix of more names, its text, and an example.

    The names of `usual` stand before all as large cards; the others are then folded until one of them is chosen.
    """

    edited = Signal()

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, str]],
        family: tuple[str, str, str] | None = None,
        parent: QWidget | None = None,
        *,
        usual: Sequence[str] = (),
    ) -> None:
        super().__init__(parent)
        self._usual = frozenset(usual)
        self.rest = QWidget(self)
        self.fold = QToolButton(self)
        self._group = QButtonGroup(self)
        texts = {name: text for names in groups.values() for name, text in names.items()}
        large = [LargeCard(name, texts[name], self) for name in usual]
        created = {
            title: [ChoiceCard(n, text, self) for n, text in names.items() if n not in self._usual]
            for title, names in groups.items()
        }
        rows: list[Sequence[ChoiceCard]] = [large, *created.values()]
        self.cards: dict[str, ChoiceCard] = {card.button.text(): card for cards in rows for card in cards}
        self.family = OpenCard(*family, self) if family else None
        if self.family:
            created[FAMILY_GROUP] = [self.family]
            self.cards[self.family.prefix] = self.family
            self.family.suffix.textChanged.connect(self.edited)
        self.description = PlainLabel(self)
        self.description.setProperty("kind", "muted")
        self.description.setWordWrap(True)
        self.description.setTextFormat(Qt.TextFormat.PlainText)
        for card in self.cards.values():
            self._group.addButton(card.button)
        self._group.buttonToggled.connect(self._on_toggled)
        self._lay_out(large, {title: cards for title, cards in created.items() if cards})

    def _lay_out(self, large: Sequence[LargeCard], created: Mapping[str, list[ChoiceCard]]) -> None:
        grid = QGridLayout(self.rest)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(16)
        grid.setVerticalSpacing(GAP)
        grid.setColumnStretch(1, 1)
        for line, (title, cards) in enumerate(created.items()):
            name = PlainLabel(translated(title), self)
            name.setFixedHeight(cards[0].sizeHint().height())
            grid.addWidget(name, line, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(ChoiceRow(cards, self), line, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(GAP)
        if large:
            layout.addWidget(ChoiceRow(large, self, fills=True))
            self.fold.setText(_("All precisions ({count})").format(count=len(self.cards)))
            self.fold.setProperty("kind", "fold")
            self.fold.setCheckable(True)
            self.fold.toggled.connect(self.rest.setVisible)
            layout.addWidget(self.fold)
        self.fold.setVisible(bool(large))
        self.rest.setVisible(not large)
        layout.addWidget(self.rest)
        layout.addWidget(self.description)

    def set_words(self, words: Mapping[str, tuple[str, str]]) -> None:
        """Put a word and its sentence beside names."""
        for name, (word, sentence) in words.items():
            if name in self.cards:
                self.cards[name].set_word(word, sentence)
        for row in self.findChildren(ChoiceRow):
            row.arrange_again()

    def get(self) -> Any:
        chosen = self._chosen()
        if self.family and chosen is self.family:
            return self.family.prefix + self.family.suffix.text().strip()
        return chosen.button.text() if chosen else None

    def set(self, value: Any) -> None:
        if self.family and value not in self.cards:
            self.family.suffix.setText(str(value).removeprefix(self.family.prefix))
            value = self.family.prefix
        self.cards[value].button.setChecked(True)

    def _chosen(self) -> ChoiceCard | None:
        return next((card for card in self.cards.values() if card.button.isChecked()), None)

    def _on_toggled(self, _: QRadioButton, checked: bool) -> None:
        chosen = self._chosen()
        if checked and chosen:
            self.description.setText(chosen.text)
            self.description.setVisible(not isinstance(chosen, LargeCard))
            if self._usual and not isinstance(chosen, LargeCard):
                self.fold.setChecked(True)
            self.edited.emit()
