"""Take the pictures of docs/images of the real window: `pictures.py` has the table of them.

    screenshots.py [FOLDER] [--only NAME,...] [--stale] [--grid [--language LANGUAGE]]

FOLDER is docs/images by default. Most pictures show the bundled examples; those of Live and Compare train in four
precisions first, through the window's own queue. With --stale it takes those whose sources have changed since. With
--grid it takes all eight places in both themes and three sizes instead, to look at. It draws offscreen where there is
no display. `sources.json` in the folder keeps the hash of the sources of each picture. Pictures in Chinese need a font
that has it.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
from event_turns import turn, until
from numpy.typing import NDArray
from pictures import IMAGES, LARGE, PICTURES, SMALL, WIDE, Language, Mode, Picture, State, keep_hashes, stale_pictures
from PIL import Image
from PySide6.QtCore import QBuffer, QIODevice, QLocale, QPoint, QTimer
from PySide6.QtGui import QFontDatabase, QImage, QPainter
from PySide6.QtWidgets import QApplication, QWidget
from staged_place import StagedPlace
from staged_study import study_with_jobs

from precgui import config
from precgui.examples import EXAMPLES
from precgui.gui.answer import Answer
from precgui.gui.notices import Notices
from precgui.gui.panels.compare.panel import ComparePanel
from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.panels.hardware.panel import HardwarePanel
from precgui.gui.panels.hardware.places_tab import PlacesTab
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.tensors.panel import TensorsPanel
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.first_paths import PATHS
from precgui.gui.shell.guide import Guide
from precgui.gui.shell.language import use_language
from precgui.gui.shell.startup import StartupStages
from precgui.gui.shell.window import PANELS, Window
from precgui.gui.theme import themes
from precgui.places.machine import machine_asked
from precgui.words import _

STATES: tuple[State, ...] = ("empty", "first-run", "examples", "study", "jobs", "stopped", "runs", "place")
MOST_APART = 40  # of a colour of a picture from that in its file, in steps of 256
SETTLE_S, SETTLE_LIMIT_S = 0.6, 20  # redraws are staggered over some ticks
DRAWN_LIMIT_S, SOON_MS = 180, 1000  # the machine may be busy; a timer of more has nothing to do with drawing
RUN_LIMIT_S = 900
NO_FONT = (
    "no font of this machine has Chinese: install Noto Sans CJK (fonts-noto-cjk of Debian and Ubuntu, "
    "google-noto-sans-cjk-fonts of Fedora, noto-fonts-cjk of Arch)"
)
PRECISIONS = ("fp32", "tf32", "bf16-amp", "fp16-amp")
RECIPE, SETTINGS = "digits-scale-demo", ("scaling.mode=auto", "train.epochs=40")


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    table = grid(asked.language) if asked.grid else PICTURES
    names = asked.only.split(",") if asked.only else stale_pictures(asked.folder) if asked.stale else list(table)
    if unknown := [name for name in names if name not in table]:
        sys.stderr.write(f"no picture {unknown[0]}; the table in packaging/pictures.py has all of them\n")
        return 2
    chosen = {name: table[name] for name in names}
    if any(picture.language == "zh_CN" for picture in chosen.values()) and not _has_chinese_font():
        sys.stderr.write(f"{NO_FONT}\n")
        return 2
    for language in dict.fromkeys(picture.language for picture in chosen.values()):
        of_language = {name: picture for name, picture in chosen.items() if picture.language == language}
        with tempfile.TemporaryDirectory() as own:
            os.environ.update(HOME=own, PRECGUI_STATE=f"{own}/state", PRECGUI_LANGUAGE=language)
            os.environ.pop("PRECGUI_RUNS", None)
            _take_all(of_language, asked.folder, kept=not asked.grid)
    return 0


def _take_all(chosen: Mapping[str, Picture], folder: Path, kept: bool) -> None:
    """Take pictures of one language; with `kept`, write the hashes of their sources down."""
    gallery = Gallery(folder)
    gallery.open()
    for state in STATES:
        if shown := {name: picture for name, picture in chosen.items() if picture.state == state}:
            gallery.enter(state)
            for name, picture in sorted(shown.items(), key=lambda item: item[1].mode):  # few changes of the theme
                gallery.take(name, picture)
            if kept:
                keep_hashes(shown, folder)
    gallery.close()


def _application() -> QApplication:
    """The one of this process."""
    made = QApplication.instance() or QApplication(sys.argv[:1])
    assert isinstance(made, QApplication)
    made.setApplicationName("precgui")
    made.setStyle("Fusion")
    return made


def _has_chinese_font() -> bool:
    _application()
    return bool(QFontDatabase.families(QFontDatabase.WritingSystem.SimplifiedChinese))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Take pictures of the window.")
    parser.add_argument("folder", type=Path, nargs="?", default=IMAGES, help="where the PNG files go")
    parser.add_argument("--only", default="", help="which pictures, by name")
    parser.add_argument("--stale", action="store_true", help="those whose sources have changed")
    parser.add_argument("--grid", action="store_true", help="all places in both themes and three sizes, to look at")
    parser.add_argument("--language", default="en", choices=get_args(Language), help="that of the grid")
    return parser


def grid(language: Language = "en") -> dict[str, Picture]:
    """All eight places, each in both themes, in a small, a usual and a large window."""
    modes: tuple[Mode, ...] = ("light", "dark")
    return {
        f"{panel.id}-{size[0]}-{mode}": Picture(
            "study" if panel.id in ("live", "compare") else "examples", panel.id, mode, size, language=language
        )
        for panel in PANELS
        for size in (SMALL, LARGE, WIDE)
        for mode in modes
    }


class Gallery:
    """The application without its event loop: `until` turns it while something is awaited."""

    def __init__(self, folder: Path) -> None:
        QLocale.setDefault(QLocale.c())
        self._app = _application()
        use_language(self._app, "system")  # PRECGUI_LANGUAGE
        self._folder = folder
        self._window = Window(Settings(fresh=True), Notices())
        self._start: StartupStages | None = None

    @property
    def _session(self) -> Session:
        session = self._window.session
        assert session is not None
        return session

    def open(self) -> None:
        """Show the empty window and wait until every panel is made."""
        self._start = StartupStages(self._window, [])
        self._window.resize(*LARGE)
        self._window.show()
        until(lambda: self._window.session is not None and not self._window.host.waiting(), 120)

    def enter(self, state: State) -> None:
        """Open what the pictures of a state show."""
        session = self._session
        if state == "examples":
            for example in EXAMPLES:
                if not example.is_study:
                    session.runs.open_file(example.path)
            until(lambda: len(session.runs) == sum(not example.is_study for example in EXAMPLES), 60)
        elif state == "study":
            self._close_runs()
            session.open_study(next(example.path for example in EXAMPLES if example.is_study))
            self._window.show_panel("compare/groups")
            compare = self._window.host.panels["compare"]
            assert isinstance(compare, ComparePanel)
            until(lambda: compare.groups.report_content is not None, 120)
        elif state == "jobs":
            self._close_runs()
            session.open_study(study_with_jobs(Path(os.environ["HOME"]) / "cluster-study"))
            until(lambda: session.study.grid is not None, 60)
        elif state == "stopped":
            self._close_runs()
            self._train_and_stop()
        elif state == "runs":
            self._close_runs()
            self._train()
        elif state == "place":
            self._close_runs()
            self._train_at_a_place()

    def take(self, name: str, picture: Picture) -> None:
        """Save NAME.png of a picture."""
        session = self._session
        themes().set_mode(picture.mode)
        self._window.resize(*picture.size)
        panel, _, tab = picture.place.partition("/")
        if picture.run:
            path = next(example.path for example in EXAMPLES if example.name == picture.run)
            key = session.runs.key_of(path)
            assert key is not None
            session.runs.choose(key)
        if picture.state == "first-run":
            self._window.show_panel(picture.place)
            self._guide(picture.view)
        elif panel == "inspect" and session.runs.current:
            session.requests.inspect(session.runs.current, tab)
        else:
            self._window.show_panel(picture.place)
        self._choose_view(picture)
        self._save(name)
        if (menu := QApplication.activePopupWidget()) is not None:
            menu.close()
        if picture.state == "first-run":
            if (sheet := self._window.guide.sheet) is not None:
                sheet.skip()
            self._window.guide.end()
            self._close_runs()

    def _choose_view(self, picture: Picture) -> None:
        diagnose = self._window.host.panels["diagnose"]
        if picture.state == "examples" and picture.place == "diagnose":
            assert isinstance(diagnose, DiagnosePanel)
            until(lambda: len(diagnose.diagnoses) == len(self._session.runs), 120)
        compare = self._window.host.panels["compare"]
        if picture.state == "study" and picture.view:
            assert isinstance(compare, ComparePanel)
            compare.groups.view.choose(picture.view)
        if picture.state == "stopped" and picture.place == "library":
            library = self._window.host.panels["library"]
            assert isinstance(library, LibraryPanel)
            until(lambda: library.table.rowCount() > 0, 60)
            library.view.select_rows([0])
        setup, hardware = self._window.host.panels["setup"], self._window.host.panels["hardware"]
        if picture.state == "place":
            self._staged.find()
            until(lambda: not self._session.training.link_state, 120)
        if picture.view == "where":
            assert isinstance(setup, SetupPanel)
            setup.where.read()
            setup.where.choose(self._staged.place.name)
            until(lambda: machine_asked(self._staged.place) is not None, 240)
        if picture.place == "hardware/places":
            assert isinstance(hardware, HardwarePanel)
            places = next(tab for tab in hardware.findChildren(PlacesTab))
            places.test()
            until(lambda: places.table.texts()[0][1] == _("answers"), 120)
        if picture.view == "lost":
            self._staged.lose()
            until(lambda: "next try" in self._session.training.link_state, 60)
        inspect = self._window.host.panels["inspect"]
        if picture.view == "Export":
            assert isinstance(inspect, InspectPanel)
            self._settled()
            inspect.exports.menu.popup(QPoint())
        if picture.place == "inspect/tensors":
            assert isinstance(inspect, InspectPanel)
            tensors = inspect.tab("tensors")
            assert isinstance(tensors, TensorsPanel)
            tensors.bar.kind_choice.setCurrentText("Gradients")

    def _guide(self, view: str) -> None:
        """Show the sheet of the first start, or a step of a path: "PATH: WORDS OF ITS STEP"."""
        guide = self._window.guide
        if not view:
            guide.open()
            until(lambda: guide.sheet is not None and "Advised" in guide.sheet.advice.text(), 60)
            return
        name, _, step = view.partition(": ")
        guide.follow(next(each for each in PATHS if each.name == name))
        until(lambda: _is_told(guide, step), 60)

    def _close_runs(self) -> None:
        for key in list(self._session.runs):
            self._session.runs.close(key)

    def _train(self) -> None:
        """Queue one run for each precision; return when the last one is half done."""
        training = self._session.training
        for precision in PRECISIONS:
            training.start(config.load(RECIPE, [f"precision={precision}", *SETTINGS]))

        def last_is_half_done() -> bool:
            progress = training.progress()
            return not training.waiting and (progress is None or progress.step > progress.total_steps // 2)

        until(last_is_half_done, RUN_LIMIT_S)

    def _train_and_stop(self) -> None:
        """Stop a run at a third of its way, so that a checkpoint lies beside it."""
        training, runs = self._session.training, self._session.runs
        training.start(config.load(RECIPE, [*SETTINGS, "title=Digits in FP16"]))

        def is_at_a_third() -> bool:
            progress = training.progress()
            return progress is not None and 3 * progress.step > progress.total_steps

        until(is_at_a_third, RUN_LIMIT_S)
        training.stop()
        until(lambda: not training.is_training and runs[runs.current or ""].run.status == "stopped", 60)

    def _train_at_a_place(self) -> None:
        """Let a long run go on at a place."""
        training = self._session.training
        self._staged = StagedPlace(Path(os.environ["HOME"]))
        training.start(config.load(RECIPE, [*SETTINGS, "train.epochs=400", "title=Digits in FP16"]), self._staged.place)

        def has_begun() -> bool:
            progress = training.progress()
            return progress is not None and progress.step > 100

        until(has_begun, RUN_LIMIT_S)

    def close(self) -> None:
        if hasattr(self, "_staged"):
            self._staged.end()
        ended: list[bool] = []
        self._session.shutdown(lambda: ended.append(True))
        until(lambda: bool(ended), 30)
        self._window.deleteLater()
        turn(0.1)

    def _save(self, name: str) -> None:
        buffer = QBuffer()
        buffer.open(QIODevice.OpenModeFlag.WriteOnly)
        self._settled().save(buffer, "PNG")  # type: ignore[call-overload]
        path = self._folder / f"{name}.png"
        save_picture(Image.open(io.BytesIO(buffer.data().data())).convert("RGB"), path)
        sys.stdout.write(f"{path} {path.stat().st_size / 1000:.0f} kB\n")

    def _settled(self) -> QImage:
        """The window when nothing in it waits and it is twice the same; while a run goes on, after a while."""
        limit_s = SETTLE_LIMIT_S if self._session.training.is_training else DRAWN_LIMIT_S
        end, before = time.monotonic() + limit_s, QImage()
        while True:
            turn(SETTLE_S)
            now = self._grabbed()
            if (now == before and not is_drawing(self._window)) or time.monotonic() > end:
                return now
            before = now

    def _grabbed(self) -> QImage:
        """The window, with the menu of exports where that is open: it is a window of its own, on a smaller screen."""
        picture = self._window.grab()
        if (menu := QApplication.activePopupWidget()) is not None:
            inspect = self._window.host.panels["inspect"]
            assert isinstance(inspect, InspectPanel)
            corner = inspect.export_button.mapTo(self._window, inspect.export_button.rect().bottomRight())
            painter = QPainter(picture)
            painter.drawPixmap(corner - menu.rect().topRight(), menu.grab())
            painter.end()
        return picture.toImage()


def is_drawing(window: QWidget) -> bool:
    """Whether a part of the window waits for its turn, for a timer or for an answer from a thread."""
    timers = (each for each in window.findChildren(QTimer) if each.isSingleShot() and each.isActive())
    is_due = any(each.interval() <= SOON_MS for each in timers)
    return themes().is_changing or is_due or any(each.busy for each in window.findChildren(Answer))


def _is_told(guide: Guide, words: str) -> bool:
    """Whether the call-out stands beside its target."""
    call_out = guide.call_out
    return call_out is not None and words in call_out.text.text() and call_out.frame.isVisible()


def save_picture(image: Image.Image, path: Path) -> None:
    """With its 256 most frequent colours: a third of the size, exact but for some pixels at the edges of letters.

    Where these are far from some pixels, as in pictures with translucent areas, with the 128 most frequent ones, so
    that backgrounds stay as they are, and 128 that cover the rest.
    """
    pixels = np.asarray(image).reshape(-1, 3)
    colours, where, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    frequent = colours[np.argsort(-counts)]
    palette = frequent[:256]
    if _distances(colours, palette).min(axis=1).max() > MOST_APART**2:
        palette = np.concatenate((frequent[:128], _covering(frequent[128:], 128)))
    indices = _distances(colours, palette).argmin(axis=1).astype(np.uint8)[where.ravel()]
    few = Image.fromarray(indices.reshape(image.height, image.width))
    few.putpalette(palette.tobytes())
    few.save(path, optimize=True)


def _distances(colours: NDArray[np.uint8], palette: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Squared distances, of shape [colours, palette]."""
    return np.asarray(((colours[:, None].astype(int) - palette) ** 2).sum(axis=2))


def _covering(colours: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Colours, at most `count`, that are near to all of `colours`, rare ones, too."""
    strip = Image.fromarray(colours[None]).quantize(count, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    return np.asarray(strip.getpalette(), np.uint8).reshape(-1, 3)


if __name__ == "__main__":
    sys.exit(main())
