"""Take pictures of the real window with real runs: every panel in both themes, and in a small window.

    screenshots.py FOLDER [RUN.h5 ...] [--panels live,setup] [--runs fp32,bf16-amp] [--recipe NAME]
    screenshots.py FOLDER --study DIR

Without run files it trains in each precision first, through the window's own queue, and leaves the last run going
while it takes the pictures of Live, with a logarithmic loss. With the folder of a study it takes pictures of the
places that show one, and trains nothing. It draws offscreen where there is no display. With --shown it leaves out the
pictures that no document shows.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PySide6.QtCore import QBuffer, QIODevice, QLocale
from PySide6.QtWidgets import QApplication

from precgui import config, paths
from precgui.gui.notices import Notices
from precgui.gui.panels.compare.groups import CLAIMS, CURVES, FIGURES, TRADE_OFF
from precgui.gui.panels.compare.panel import ComparePanel
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.plots.frame import PlotFrame
from precgui.gui.settings import Settings
from precgui.gui.shell.first_paths import PATHS
from precgui.gui.shell.guide import Guide
from precgui.gui.shell.startup import Start
from precgui.gui.shell.window import PANELS, Window
from precgui.gui.theme import themes
from precgui.sweeps.folder import SweepFolder

ROOT = Path(__file__).resolve().parent.parent
_PICTURE = re.compile(r"images/([\w.-]+\.(?:png|svg))")
LARGE, SMALL, WIDE = (1280, 800), (800, 560), (1920, 1080)
FIRST_RUN = "first-run"  # the sheet of the first start, and steps of its paths
MOST_APART = 40  # of a colour of a picture from that in its file, in steps of 256
SETTLE_S = 0.6  # redraws are staggered over some ticks
RUN_LIMIT_S = 900
PRECISIONS = "fp32,tf32,bf16-amp,fp16-amp"
SETTINGS = ("scaling.mode=auto", "train.epochs=40")
Mode = Literal["light", "dark"]


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as own:
        os.environ.update(HOME=own, PRECGUI_STATE=f"{own}/state")
        os.environ.pop("PRECGUI_RUNS", None)
        gallery = Gallery(asked.folder, shown_pictures() if asked.shown else None)
        if asked.study is not None:
            shutil.copytree(asked.study, paths.runs_dir() / asked.study.name)
        gallery.open(asked.files)
        if asked.study is not None:
            gallery.take_study(paths.runs_dir() / asked.study.name)
        else:
            panels = asked.panels.split(",")
            others = [name for name in panels if name != FIRST_RUN]
            if others != panels and not asked.files:
                gallery.take_first_run()
            if others and not asked.files:
                gallery.train(asked.recipe, asked.runs.split(","))
            gallery.take(others)
        gallery.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Take pictures of the window.")
    parser.add_argument("folder", type=Path, help="where the PNG files go")
    parser.add_argument("files", type=Path, nargs="*", help="run files to show instead of training")
    parser.add_argument(
        "--panels",
        default=",".join([*(spec.id for spec in PANELS), "inspect/tensors", FIRST_RUN]),
        help="which panels, by name",
    )
    parser.add_argument("--runs", default=PRECISIONS, help="precisions to train in, one run each")
    parser.add_argument("--recipe", default="digits-scale-demo", help="what to train")
    parser.add_argument("--study", type=Path, help="the folder of a study to show instead of runs")
    parser.add_argument("--shown", action="store_true", help="take only the pictures that a document shows")
    return parser


def shown_pictures() -> set[str]:
    """The file names of the pictures that README.md and docs/ show."""
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {name for path in documents for name in _PICTURE.findall(path.read_text(encoding="utf-8"))}


class Gallery:
    """The application without its event loop: `_until` turns it while something is awaited."""

    def __init__(self, folder: Path, names: set[str] | None = None) -> None:
        """`names` are those of the files to write; None for all."""
        QLocale.setDefault(QLocale.c())
        self._app = QApplication.instance() or QApplication(sys.argv[:1])
        assert isinstance(self._app, QApplication)
        self._app.setApplicationName("precgui")
        self._app.setStyle("Fusion")
        self._folder, self._names = folder, names
        self._window = Window(Settings(fresh=True), Notices())
        self._start: Start | None = None

    def open(self, files: Sequence[Path]) -> None:
        """Show the window with these files and wait until every panel is made."""
        self._start = Start(self._window, list(files))
        self._window.resize(*LARGE)
        self._window.show()
        self._until(lambda: self._window.session is not None and not self._window.host.waiting(), 60)

    def train(self, recipe: str, precisions: Sequence[str]) -> None:
        """Queue one run for each precision; return when the last one is half done."""
        session = self._window.session
        assert session is not None
        for precision in precisions:
            session.training.start(config.load(recipe, [f"precision={precision}", *SETTINGS]))

        def last_is_half_done() -> bool:
            progress = session.training.progress()
            return not session.training.waiting and (progress is None or progress.step > progress.total_steps // 2)

        self._until(last_is_half_done, RUN_LIMIT_S)

    def take(self, panels: Sequence[str]) -> None:
        """Save NAME-light.png and NAME-dark.png of each panel, and NAME-small.png of a small window.

        Live comes first, while the last run is still going on. `inspect/tensors` is a tab of Inspect.
        """
        for place in sorted(panels, key=lambda name: name != "live"):
            panel, _, tab = place.partition("/")
            self._window.show_panel(panel)
            name = tab or panel
            self._show_tab(tab)
            for frame in self._window.host.panels[panel].findChildren(PlotFrame)[:1]:
                frame.log_button.setChecked(True)
            self._picture(f"{name}-dark", "dark", LARGE)
            self._picture(f"{name}-light", "light", LARGE)
            self._picture(f"{name}-small", "light", SMALL)

    def take_study(self, study: Path) -> None:
        """Save study-NAME-light.png and -dark.png of the places that show a study, and the groups in a small window."""
        session = self._window.session
        assert session is not None
        session.open_study(study)
        setup, compare = self._window.host.panels["setup"], self._window.host.panels["compare"]
        assert isinstance(setup, SetupPanel)
        assert isinstance(compare, ComparePanel)
        groups = compare.groups
        self._until(lambda: groups.report_content is not None, 60)
        folder = SweepFolder(study)
        setup.form.set_value(folder.spec.config_of(folder.spec.arms()[0], folder.spec.first_seed))
        setup.study.boxes["int8-qat"].setChecked(True)
        self._window.show_panel("setup/study")
        setup.study.path.setText("~/precgui-runs/study-digits-quick")
        self._until(lambda: "runs." in setup.study.estimate.text(), 60)
        self._both("study-run")
        self._window.show_panel("live/study")
        self._both("study-grid")
        self._window.show_panel("compare/groups")
        for view in (FIGURES, TRADE_OFF, CURVES, CLAIMS):
            groups.view.choose(view)
            name = {FIGURES: "groups", TRADE_OFF: "trade-off", CURVES: "curves", CLAIMS: "claims"}[view]
            if view == TRADE_OFF:
                groups.trade_off.cost.setCurrentText("Size of the model (KiB)")
            self._both(f"study-{name}")
        groups.view.choose(FIGURES)
        self._picture("study-groups-small", "light", SMALL)

    def take_first_run(self) -> None:
        """Save first-run-*.png of the sheet over the empty window, and of a step of two paths, in both themes."""
        guide, session = self._window.guide, self._window.session
        assert session is not None
        guide.open()
        self._until(lambda: guide.sheet is not None and "Advised" in guide.sheet.advice.text(), 60)
        self._both(FIRST_RUN)
        self._picture(f"{FIRST_RUN}-small", "light", (800, 600))
        self._picture(f"{FIRST_RUN}-wide", "dark", WIDE)
        for path, step in (("wrong", "Show me"), ("formats", "Open a")):
            guide.follow(next(each for each in PATHS if each.name == path))
            self._until(lambda step=step: _is_told(guide, step), 30)  # type: ignore[misc]
            self._both(f"{FIRST_RUN}-{path}")
            guide.end()
        for key in list(session.runs):
            session.runs.close(key)

    def _both(self, name: str) -> None:
        self._picture(f"{name}-dark", "dark", LARGE)
        self._picture(f"{name}-light", "light", LARGE)

    def _show_tab(self, tab: str) -> None:
        session = self._window.session
        assert session is not None
        if session.runs and tab:
            session.requests.inspect(session.runs.current or next(iter(session.runs)), tab)

    def close(self) -> None:
        session = self._window.session
        assert session is not None
        ended: list[bool] = []
        session.shutdown(lambda: ended.append(True))
        self._until(lambda: bool(ended), 30)
        self._window.deleteLater()
        self._turn(0.1)

    def _picture(self, name: str, mode: Mode, size: tuple[int, int]) -> None:
        if self._names is not None and f"{name}.png" not in self._names:
            return
        themes().set_mode(mode)
        self._window.resize(*size)
        self._turn(SETTLE_S)
        buffer = QBuffer()
        buffer.open(QIODevice.OpenModeFlag.WriteOnly)
        self._window.grab().toImage().save(buffer, "PNG")  # type: ignore[call-overload]
        path = self._folder / f"{name}.png"
        _save(Image.open(io.BytesIO(buffer.data().data())).convert("RGB"), path)
        sys.stdout.write(f"{path} {path.stat().st_size / 1000:.0f} kB\n")

    def _until(self, condition: Callable[[], bool], limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"the window was not ready within {limit_s:.0f} s")
            self._turn(0.02)

    def _turn(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._app.processEvents()
            time.sleep(0.005)


def _is_told(guide: Guide, words: str) -> bool:
    """Whether the call-out stands beside its target."""
    call_out = guide.call_out
    return call_out is not None and words in call_out.text.text() and call_out.frame.isVisible()


def _save(image: Image.Image, path: Path) -> None:
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
