"""Take the pictures of docs/images/changes/F*.png: a finding before, at the left, and now, at the right.

    git worktree add BEFORE 14c6520
    packaging/change_pictures.py BEFORE [FOLDER] [--only F5,...]

`docs/findings.md` has the table of the findings. Both windows, that of the checkout BEFORE and that of this one, open
the same files: the bundled examples of this one. It draws offscreen where there is no display.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
from event_turns import turn, until

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "resources" / "examples"
MEMBERS = EXAMPLES / "digits-study" / "members"
CLIP, COLLAPSE, STAGNATION = (
    EXAMPLES / f"{name}.h5" for name in ("clip-before-unscale", "scale-collapse", "bf16-stagnation")
)
SIZE = (960, 600)
BETWEEN_PX = 8
SETTLE_S, MOST_LOOKS = 0.8, 8


class Shown:
    """The window of whichever checkout is imported. The names of its parts differ, so types do not hold here."""

    def __init__(self) -> None:
        from PySide6.QtCore import QLocale
        from PySide6.QtWidgets import QApplication

        QLocale.setDefault(QLocale.c())
        self._app = cast("QApplication", QApplication.instance() or QApplication(sys.argv[:1]))
        self._app.setApplicationName("precgui")
        self._app.setStyle("Fusion")
        from precgui.gui.notices import Notices
        from precgui.gui.settings import Settings
        from precgui.gui.shell import startup
        from precgui.gui.shell.window import Window

        self.notices = Notices()
        self.window: Any = Window(Settings(fresh=True), self.notices)
        self._start = getattr(startup, "StartupStages", None) or startup.Start  # type: ignore[attr-defined]
        self._start = self._start(self.window, [])
        self.window.resize(*SIZE)
        self.window.show()
        until(lambda: self.window.session is not None and not self.window.host.waiting())

    @property
    def session(self) -> Any:
        return self.window.session

    def open(self, *paths: Path) -> list[str]:
        """Open run files; return their keys."""
        opener = self.session if hasattr(self.session, "open_file") else self.session.runs
        keys = [opener.open_file(path) for path in paths]
        until(lambda: len(self.session.runs) == len(keys))
        return keys

    def close_all(self) -> None:
        """Close every run."""
        close = getattr(self.session, "close_run", None) or self.session.runs.close
        for key in list(self.session.runs):
            close(key)

    def panel(self, name: str) -> Any:
        """Show a place; return its panel."""
        self.window.show_panel(name)
        return self.window.host.panels[name.partition("/")[0]]

    def inspect(self, key: str, tab: str) -> None:
        """Show a tab of Inspect."""
        (self.session if hasattr(self.session, "inspect") else self.session.requests).inspect(key, tab)

    def diagnosed(self, key: str) -> Any:
        """Show the findings of a run in Diagnose; return the panel."""
        panel = self.panel("diagnose")
        until(lambda: len(panel.diagnoses) == len(self.session.runs))
        panel.verdicts.choose(key)
        until(lambda: bool(panel.cards))
        return panel

    def save(self, path: Path) -> None:
        """Save the window without its banners when two pictures of it are the same."""
        from PySide6.QtWidgets import QFrame

        before = None
        for _ in range(MOST_LOOKS):
            turn(SETTLE_S)
            for frame in self.window.findChildren(QFrame):
                if frame.property("kind") == "banner":
                    frame.hide()
            now = self.window.grab().toImage()
            if now == before:
                break
            before = now
        now.save(str(path))

    def end(self) -> None:
        """Close the window, and what it has started."""
        ended: list[bool] = []
        self.session.shutdown(lambda: ended.append(True))
        until(lambda: bool(ended))
        self.window.deleteLater()
        turn(0.1)


def _loss_scale(shown: Shown) -> None:
    shown.inspect(shown.open(CLIP)[0], "scaler")


def _step(shown: Shown) -> None:
    """Of a copy, whose path stands in the lines to paste."""
    copy = Path(os.environ["HOME"]) / "run.h5"
    shutil.copy(CLIP, copy)
    shown.inspect(shown.open(copy)[0], "step")


def _run_again(shown: Shown) -> None:
    shown.inspect(shown.open(CLIP)[0], "overview")


def _show_me(shown: Shown) -> None:
    shown.diagnosed(shown.open(CLIP)[0]).cards[0].show_button.click()


def _one_current_run(shown: Shown) -> None:
    shown.diagnosed(shown.open(COLLAPSE, STAGNATION, CLIP)[1])
    shown.panel("inspect")


def _small_print(shown: Shown) -> None:
    shown.open(*sorted(MEMBERS.glob("s0[1-4]-*.h5")))
    shown.panel("compare/runs")


def _one_seed(shown: Shown) -> None:
    shown.open(MEMBERS / "s01-fp32.h5", MEMBERS / "s01-bf16-amp.h5")
    shown.panel("compare/groups")


def _twin(shown: Shown) -> None:
    names = ("s01-fp32-twin", "s01-fp32", "s01-bf16-amp", "s02-fp32")
    shown.open(*(MEMBERS / f"{name}.h5" for name in names))
    shown.panel("compare/runs")


def _three_seeds(shown: Shown) -> None:
    shown.open(*(MEMBERS / f"s0{seed}-{name}.h5" for name in ("fp32", "bf16-amp") for seed in (1, 2, 3)))
    shown.panel("compare/groups")


def _first_run(shown: Shown) -> None:
    shown.open(MEMBERS / "s01-bf16-amp.h5")
    shown.panel("live")


def _proof(shown: Shown) -> None:
    shown.diagnosed(shown.open(CLIP)[0])


def _runs(shown: Shown) -> None:
    folder = Path(os.environ["PRECGUI_RUNS"])
    folder.mkdir(parents=True, exist_ok=True)
    for path in (CLIP, COLLAPSE, STAGNATION, *sorted(MEMBERS.glob("s01-*.h5"))):
        shutil.copy(path, folder)
    shown.session.folder_changed.emit()
    library = shown.panel("library")
    until(lambda: library.table.rowCount() >= len(list(folder.glob("*.h5"))))


def _tensors(shown: Shown) -> None:
    """A file of two tensors, in the layout of safetensors."""
    import json

    values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32).tobytes()
    names = [f"model.layers.{at}.self_attention.query_projection.weight" for at in range(2)]
    table = {
        name: {"dtype": "F32", "shape": [64, 64], "data_offsets": [at * len(values), (at + 1) * len(values)]}
        for at, name in enumerate(names)
    }
    head = json.dumps(table).encode()
    path = Path(os.environ["HOME"]) / "weights.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + 2 * values)
    formats = shown.panel("formats")
    if hasattr(formats, "show_tab"):
        formats.show_tab("quantise")
    else:
        formats.tabs.setCurrentIndex(5)
    tab = formats.tab(formats.tabs.currentIndex())
    tab.source.file.open_file(path)


SCENES: dict[str, Callable[[Shown], None]] = {
    "F5": _loss_scale,
    "F6": _step,
    "F7": _run_again,
    "F8": _show_me,
    "F10": _one_current_run,
    "F11": _small_print,
    "F12": _one_seed,
    "F14": _twin,
    "F15": _three_seeds,
    "F18": _first_run,
    "F20": _proof,
    "F21": _runs,
    "F22": _tensors,
}


def take(folder: Path, names: Sequence[str]) -> None:
    """Save NAME.png of each finding, of the checkout that is imported."""
    shown = Shown()
    for name in names:
        SCENES[name](shown)
        shown.save(folder / f"{name}.png")
        shown.close_all()
    shown.end()


def _take_of(tree: Path, folder: Path, names: Sequence[str]) -> None:
    """Take the pictures of a checkout in a process of its own, with folders of its own."""
    folder.mkdir()
    own = {name: str(folder / name) for name in ("HOME", "PRECGUI_STATE", "PRECGUI_RUNS")}
    environment = {**os.environ, **own, "PYTHONPATH": str(tree), "PRECGUI_LANGUAGE": "en"}
    Path(own["HOME"]).mkdir()
    command = [sys.executable, str(Path(__file__).resolve()), "--take", str(folder), "--only", ",".join(names)]
    subprocess.run(command, env=environment, cwd=tree, check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Take pictures of the window before and after findings.")
    parser.add_argument("before", type=Path, nargs="?", help="a checkout of the commit before")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs" / "images" / "changes")
    parser.add_argument("--only", default=",".join(SCENES), help="which findings")
    parser.add_argument("--take", type=Path, help=argparse.SUPPRESS)  # in the process of one checkout
    asked = parser.parse_args(arguments)
    names = asked.only.split(",")
    if asked.take is not None:
        take(asked.take, names)
        return 0
    if asked.before is None:
        parser.error("a checkout of the commit before is needed: git worktree add BEFORE 14c6520")
    from PIL import Image
    from screenshots import save_picture

    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as own:
        trees = {"before": asked.before.resolve(), "now": ROOT}
        for side, tree in trees.items():
            _take_of(tree, Path(own) / side, names)
        for name in names:
            left, right = (Image.open(Path(own) / side / f"{name}.png").convert("RGB") for side in trees)
            both = Image.new("RGB", (left.width + BETWEEN_PX + right.width, max(left.height, right.height)), "grey")
            both.paste(left, (0, 0))
            both.paste(right, (left.width + BETWEEN_PX, 0))
            path = asked.folder / f"{name}.png"
            save_picture(both, path)
            sys.stdout.write(f"{path} {path.stat().st_size / 1000:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
