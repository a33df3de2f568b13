"""A theme as Qt takes it: a palette for what the style draws by itself, and a style sheet for the shapes."""

from __future__ import annotations

from PySide6.QtGui import QColor, QPalette

from precgui.gui.colours import Theme
from precgui.gui.kit.measures import CLOSE_TAB_MARGIN_PX, TAB_MARGIN_PX, points
from precgui.paths import resources


def palette(theme: Theme) -> QPalette:
    """The theme as a Qt palette, for everything that the style draws by itself."""
    role = QPalette.ColorRole
    button = theme.blend(theme.window, 0.5)
    active = {
        role.Window: theme.window,
        role.WindowText: theme.text,
        role.Base: theme.base,
        role.AlternateBase: theme.blend(theme.window, 0.6),
        role.Text: theme.text,
        role.Button: button,
        role.ButtonText: theme.text,
        role.BrightText: theme.error,
        role.PlaceholderText: theme.muted,
        role.ToolTipBase: theme.base,
        role.ToolTipText: theme.text,
        role.Highlight: theme.accent,
        role.HighlightedText: theme.on_accent,
        role.Accent: theme.accent,
        role.Link: theme.accent,
        role.LinkVisited: theme.accent,
        role.Light: theme.base,
        role.Midlight: theme.blend(theme.line, 0.5),
        role.Mid: theme.line,
        role.Dark: theme.blend(theme.muted, 0.5),
        role.Shadow: theme.shadow,
    }
    created = QPalette()
    for part, colour in active.items():
        created.setColor(part, QColor(colour))
    faint = QColor(theme.blend(theme.muted, 0.7))
    for part in (role.WindowText, role.Text, role.ButtonText, role.HighlightedText):
        created.setColor(QPalette.ColorGroup.Disabled, part, faint)
    created.setColor(QPalette.ColorGroup.Disabled, role.Highlight, QColor(theme.line))
    return created


def style_sheet(theme: Theme) -> str:
    """The shapes that a palette cannot say: corners, padding, focus lines. Sizes of text come from `measures`."""
    colours = {
        "name": theme.name,
        "window": theme.window,
        "base": theme.base,
        "text": theme.text,
        "muted": theme.muted,
        "line": theme.line,
        "accent": theme.accent,
        "on_accent": theme.on_accent,
        "info": theme.info,
        "warning": theme.warning,
        "error": theme.error,
        "hover": theme.blend(theme.accent, 0.08),
        "chosen": theme.chosen,
        "accent_hover": theme.blend(theme.text, 0.15, theme.accent),
        "edge": theme.blend(theme.muted, 0.55),
        "faint": theme.blend(theme.muted, 0.7),
    }
    values = {
        **colours,
        "icons": (resources() / "icons").as_posix(),
        "title_points": str(points("title")),
        "answer_points": str(points("answer")),
        "tab_px": f"{TAB_MARGIN_PX}px",
        "close_tab_px": f"{CLOSE_TAB_MARGIN_PX}px",
    }
    sheet = _SHEET
    for name, value in values.items():
        sheet = sheet.replace(f"@{name}@", value)
    return sheet


_SHEET = """
QToolTip { color: @text@; background: @base@; border: 1px solid @line@; padding: 4px; }
QMenu { background: @base@; border: 1px solid @line@; padding: 4px; }
QMenu::item { padding: 5px 24px 5px 12px; border-radius: 4px; }
QMenu::item:selected { background: @chosen@; color: @text@; }
QMenu::item:disabled { color: @faint@; }
QMenu::separator { height: 1px; background: @line@; margin: 4px 8px; }
QMenuBar { background: @window@; border-bottom: 1px solid @line@; }
QMenuBar::item { padding: 4px 10px; border-radius: 4px; background: transparent; }
QMenuBar::item:selected { background: @chosen@; }
QStatusBar { background: @window@; border-top: 1px solid @line@; }
QStatusBar::item { border: none; }
QPushButton { padding: 5px 14px; border: 1px solid @edge@; border-radius: 5px; background: @base@; color: @text@; }
QPushButton:hover { background: @hover@; border-color: @accent@; }
QPushButton:pressed, QPushButton:checked { background: @chosen@; }
QPushButton:focus { border: 1px solid @accent@; }
QPushButton:disabled { color: @faint@; border-color: @line@; background: @window@; }
QPushButton[kind="primary"] { background: @accent@; color: @on_accent@; border-color: @accent@; font-weight: 600; }
QPushButton[kind="primary"]:hover { background: @accent_hover@; }
QPushButton[kind="primary"]:focus { border: 2px solid @text@; padding: 4px 13px; }
QPushButton[kind="primary"]:disabled { background: @line@; color: @muted@; border-color: @line@; }
QPushButton[kind="danger"] { color: @error@; }
QPushButton[kind="danger"]:hover, QPushButton[kind="danger"]:focus { border-color: @error@; }
QToolButton { padding: 4px; border: 1px solid transparent; border-radius: 5px; }
QToolButton:hover { background: @hover@; }
QToolButton:checked, QToolButton:pressed { background: @chosen@; }
QToolButton:focus { border-color: @accent@; }
QToolButton[kind="corner"] { padding: 1px 6px; }
QToolButton[kind="corner"][popupMode="2"] { padding-right: 20px; }
QToolButton[kind="fold"] { padding: 3px 6px 3px 0; color: @muted@; }
QToolButton[kind="picture"] { background: @window@; border-color: @line@; border-radius: 8px; padding: 6px; }
QToolButton[kind="picture"]:hover, QToolButton[kind="picture"]:focus { border-color: @accent@; }
QToolButton[kind="link"] { color: @accent@; padding: 2px 6px; }
QToolButton:disabled { color: @faint@; }
QToolButton[popupMode="2"] { padding-right: 20px; }
QToolButton::menu-indicator { image: url("@icons@/chevron-down.svg"); width: 10px; height: 10px;
  subcontrol-origin: padding; subcontrol-position: center right; right: 6px; }
QLineEdit, QPlainTextEdit, QTextEdit, QComboBox {
  background: @base@; color: @text@; border: 1px solid @edge@; border-radius: 5px; padding: 4px 7px;
  selection-background-color: @accent@; selection-color: @on_accent@; }
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QComboBox:focus { border-color: @accent@; }
QLineEdit:disabled, QComboBox:disabled { background: @window@; color: @faint@; border-color: @line@; }
QLineEdit[faulty="true"] { border-color: @error@; }
QSpinBox { min-height: 20px; }
QComboBox::drop-down { border: none; width: 24px; }
QComboBox::down-arrow { image: url("@icons@/chevron-down.svg"); width: 12px; height: 12px; }
QComboBoxPrivateContainer { border: none; background: @base@; }
QComboBox QAbstractItemView { background: @base@; border: 1px solid @edge@; border-radius: 0; outline: none; }
QRadioButton, QCheckBox { spacing: 8px; }
QRadioButton::indicator, QCheckBox::indicator, QAbstractItemView::indicator {
  width: 14px; height: 14px; border: 1px solid @edge@; background: @base@; }
QRadioButton::indicator { border-radius: 8px; }
QCheckBox::indicator, QAbstractItemView::indicator { border-radius: 4px; }
QAbstractItemView::indicator { width: 11px; height: 11px; border-radius: 3px; }
QRadioButton::indicator:checked { width: 6px; height: 6px; border: 5px solid @accent@; background: @on_accent@; }
QCheckBox::indicator:checked, QAbstractItemView::indicator:checked {
  border-color: @accent@; background: @accent@; image: url("@icons@/check-@name@.svg"); }
QRadioButton::indicator:hover, QCheckBox::indicator:hover { border-color: @accent@; }
QCheckBox::indicator:focus { border: 2px solid @accent@; width: 12px; height: 12px; }
QCheckBox::indicator:disabled, QRadioButton::indicator:disabled { border-color: @line@; background: @window@; }
QTabBar::tab, QPushButton[kind="tab"] { background: transparent; color: @muted@; border: none; border-radius: 0;
  border-bottom: 2px solid transparent; padding: 6px @tab_px@; }
QTabBar[close="true"]::tab { padding: 6px @close_tab_px@; }
QTabBar::tab:hover, QPushButton[kind="tab"]:hover { color: @text@; border-bottom-color: @edge@; }
QTabBar::tab:selected, QPushButton[kind="tab"]:checked { color: @text@; border-bottom-color: @accent@; }
QTabBar::tab:focus, QPushButton[kind="tab"]:focus { color: @accent@; border-bottom-color: @accent@; }
QTabBar::tab:disabled { color: @faint@; }
QGroupBox { background: @base@; border: 1px solid @line@; border-radius: 8px; margin-top: 28px; padding: 12px; }
QGroupBox::title { subcontrol-origin: margin; subcontrol-position: top left; left: 2px; padding: 4px 0; }
QFrame[kind="card"] { background: @base@; border: 1px solid @line@; border-radius: 8px; }
QFrame#navigation { background: @window@; border: none; border-right: 1px solid @line@; }
QToolButton[kind="navigation"] { padding: 7px 10px; border-radius: 6px; color: @muted@; }
QToolButton[kind="navigation"]:hover { background: @hover@; color: @text@; }
QToolButton[kind="navigation"]:checked { background: @chosen@; color: @text@; }
QFrame[kind="banner"] { background: @base@; border: 1px solid @edge@; border-left: 4px solid @info@; }
QFrame[kind="banner"][severity="warning"] { border-left-color: @warning@; }
QFrame[kind="banner"][severity="error"] { border-left-color: @error@; }
QFrame[kind="overlay"] { background: @base@; border: 1px solid @edge@; border-radius: 8px; }
QFrame[kind="choice"] { background: @base@; border: 1px solid @line@; border-radius: 8px; }
QFrame[kind="choice"]:hover { border-color: @edge@; }
QFrame[kind="choice"][chosen="true"] { background: @hover@; border-color: @accent@; }
QFrame[kind="footer"] { background: @base@; border: none; border-top: 1px solid @line@; }
QRadioButton[kind="heading"] { font-weight: 600; }
QLabel[kind="title"] { font-size: @title_points@pt; font-weight: 600; }
QLabel[kind="answer"] { font-size: @answer_points@pt; font-weight: 600; }
QLabel[kind="heading"] { font-weight: 600; }
QLabel[kind="muted"] { color: @muted@; }
QLabel[kind="error"] { color: @error@; }
QTableView, QTreeView, QListView {
  background: @base@; border: 1px solid @line@; border-radius: 8px; outline: none;
  selection-background-color: @chosen@; selection-color: @text@; }
QTableView:focus, QTreeView:focus, QListView:focus { border-color: @accent@; }
QTreeView[kind="menu"]::item, QListView[kind="menu"]::item { padding: 5px 6px; }
QTreeView[kind="menu"]::item:selected, QListView[kind="menu"]::item:selected { background: @chosen@; color: @text@; }
QTreeView[kind="facts"]::item { padding: 3px 4px; }
QTableView::item { padding: 0 5px; border: none; }
QTableView::item:selected { background: @chosen@; color: @text@; }
QTableCornerButton::section { background: @base@; border: none; border-bottom: 1px solid @line@; }
QHeaderView { background: transparent; }
QHeaderView::section { background: @base@; color: @muted@; border: none;
  border-bottom: 1px solid @line@; padding: 6px 8px; }
QHeaderView::section:vertical { border: none; color: @text@; padding: 0 10px; }
QScrollArea { border: none; background: transparent; }
QGraphicsView { border: 1px solid transparent; border-radius: 4px; }
QGraphicsView:focus { border-color: @accent@; }
QAbstractScrollArea::corner { background: transparent; border: none; }
QScrollBar:vertical { width: 12px; background: transparent; margin: 0; }
QScrollBar:horizontal { height: 12px; background: transparent; margin: 0; }
QScrollBar::handle { background: @edge@; border-radius: 4px; margin: 2px; min-height: 24px; min-width: 24px; }
QScrollBar::handle:hover { background: @muted@; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: none; }
QSlider::groove:horizontal { height: 4px; border-radius: 2px; background: @edge@; }
QSlider::sub-page:horizontal { background: @accent@; border-radius: 2px; }
QSlider::handle:horizontal { width: 14px; margin: -6px 0; border-radius: 7px; background: @base@;
  border: 2px solid @accent@; }
QSlider::handle:horizontal:focus { border-color: @text@; }
QProgressBar { background: @line@; border: none; border-radius: 3px; max-height: 6px; }
QProgressBar::chunk { background: @accent@; border-radius: 3px; }
QSplitter::handle { background: @line@; }
QSplitter::handle:hover { background: @accent@; }
"""
