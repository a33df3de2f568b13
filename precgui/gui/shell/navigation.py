"""The column on the left: one button a panel, with its icon and name, or the icon alone where space is short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QButtonGroup, QFrame, QSizePolicy, QToolButton, QVBoxLayout, QWidget

from precgui.gui.kit.icons import icon
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import themes
from precgui.words import _, translated


@dataclass(frozen=True)
class PanelSpec:
    """A panel as data: `place` is `module:Class`, imported when the panel is first needed."""

    id: str
    title: str
    icon: str
    place: str
    hint: str


class Navigation(QFrame):
    """Exactly one panel is chosen. Tab reaches the column, the arrow keys move in it."""

    chosen = Signal(str)
    narrow_requested = Signal(bool)

    def __init__(self, specs: Sequence[PanelSpec], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("navigation")
        self._specs = {spec.id: spec for spec in specs}
        self._group = QButtonGroup(self)
        self._narrow = False
        self.buttons = {spec.id: self._button(spec, key) for key, spec in enumerate(specs, 1)}
        self._fold = QToolButton(self)
        self._fold.setProperty("kind", "navigation")
        self._fold.setIconSize(QSize(20, 20))
        self._fold.clicked.connect(lambda: self.narrow_requested.emit(not self._narrow))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 12, 8, 8)
        layout.setSpacing(4)
        for button in self.buttons.values():
            layout.addWidget(button)
        layout.addStretch(1)
        layout.addWidget(self._fold)
        themes().follow(self, self._recolour)
        self.set_narrow(False)

    def _button(self, spec: PanelSpec, key: int) -> QToolButton:
        button = QToolButton(self)
        button.setText(f"  {translated(spec.title)}")
        button.setAccessibleName(translated(spec.title))
        button.setAccessibleDescription(translated(spec.hint))
        button.setToolTip(plain_tip(f"{translated(spec.title)} (Ctrl+{key}): {translated(spec.hint)}"))
        button.setProperty("kind", "navigation")
        button.setCheckable(True)
        button.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        button.setIconSize(QSize(20, 20))
        button.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        button.toggled.connect(lambda checked: self._on_toggled(spec.id, checked))
        self._group.addButton(button)
        return button

    def _on_toggled(self, panel: str, checked: bool) -> None:
        self._recolour()
        focus = Qt.FocusPolicy.StrongFocus if checked else Qt.FocusPolicy.ClickFocus
        self.buttons[panel].setFocusPolicy(focus)  # Tab enters the column at the chosen panel
        if checked:
            self.chosen.emit(panel)

    def choose(self, panel: str) -> None:
        self.buttons[panel].setChecked(True)
        if any(button.hasFocus() for button in self.buttons.values()):
            self.buttons[panel].setFocus()  # the frame of the focus goes where the selection is

    @property
    def narrow(self) -> bool:
        return self._narrow

    def set_narrow(self, narrow: bool) -> None:
        """Show icons alone, or icons with names."""
        self._narrow = narrow
        style = Qt.ToolButtonStyle
        for button in self.buttons.values():
            button.setToolButtonStyle(style.ToolButtonIconOnly if narrow else style.ToolButtonTextBesideIcon)
        widest = max(self.fontMetrics().horizontalAdvance(translated(spec.title)) for spec in self._specs.values())
        self.setFixedWidth(56 if narrow else widest + 84)
        reported = _("Show the names of the panels") if narrow else _("Show icons only")
        self._fold.setToolTip(plain_tip(f"{reported} (Ctrl+B)"))
        self._fold.setAccessibleName(reported)
        self._recolour()

    def _recolour(self) -> None:
        theme = themes().theme
        for name, button in self.buttons.items():
            button.setIcon(icon(self._specs[name].icon, theme.accent if button.isChecked() else theme.muted))
        self._fold.setIcon(icon("expand" if self._narrow else "collapse", theme.muted))
