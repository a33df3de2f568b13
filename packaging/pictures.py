"""The table of the pictures in docs/images: what each shows, and whether that has changed since it was taken.

    pictures.py      name the stale ones, with the command that renews them

`sources.json` beside the pictures keeps for each one the hash of the sources that draw it, as they were.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
HASHES = "sources.json"
LOOK = ("style_sheet.py", "colours.py", "kit/measures.py")  # of every picture
_SHOWN = re.compile(r"images/([\w.-]+\.(?:png|svg))")
LARGE, SMALL, WIDE, MIDDLE = (1280, 800), (800, 600), (1920, 1080), (1180, 760)
Mode = Literal["light", "dark"]
Language = Literal["en", "zh_CN"]
CHINESE = ".zh-CN"  # behind the name of a picture in Chinese, as behind that of a document
State = Literal["first-run", "empty", "examples", "study", "jobs", "stopped", "runs", "place", "measured"]


@dataclass(frozen=True)
class Picture:
    """A place of the window (`panel` or `panel/tab`) in a state, with a run of the examples for its current one.

    `measured`: of a measurement that needs minutes or another machine; `how` says which, and the place to save it from.
    """

    state: State
    place: str
    mode: Mode = "light"
    size: tuple[int, int] = LARGE
    run: str = ""
    how: str = ""
    view: str = ""  # what is chosen in the place
    language: Language = "en"

    @property
    def rooms(self) -> tuple[str, ...]:
        """Files and folders below precgui/gui that draw it."""
        panel, _, tab = self.place.partition("/")
        if self.state == "first-run":
            drawn = ("call_out", "first_paths", "first_run_sheet", "precision_card", "precision_paths")
            return tuple(f"shell/{name}.py" for name in drawn)
        if panel == "inspect" and tab:
            return ("panels/inspect/panel.py", *_TABS_OF_INSPECT.get(tab, ()))
        return (f"panels/{panel}",)


_TABS_OF_INSPECT = {
    "tensors": ("panels/inspect/tensors",),
    "scaler": ("panels/inspect/scaler",),
    "step": ("panels/inspect/step",),
    "error": ("panels/inspect/shadow",),
    "time": ("panels/inspect/speedup",),
    "memory": ("panels/inspect/speedup",),
}
_GPT, _SMALL_NET = "--set task=text --set model.name=gpt", "digits-quick"


def _formats() -> dict[str, Picture]:
    tabs = {
        "bits": "bits", "line": "line", "range": "range", "arithmetic": "arithmetic", "lab": "rounding lab",
        "quantise": "quantise", "reference": "reference",
    }  # fmt: skip
    modes: tuple[Mode, ...] = ("light", "dark")
    return {
        f"formats-{name}-{mode}": Picture("empty", f"formats/{tab}", mode, MIDDLE)
        for name, tab in tabs.items()
        for mode in modes
    }


def _chinese() -> dict[str, Picture]:
    """All eight places in Chinese, in both themes."""
    places = {
        "hardware-formats": Picture("empty", "hardware/formats"),
        "formats": Picture("empty", "formats/bits"),
        "setup": Picture("empty", "setup"),
        "live": Picture("examples", "live", run="scale-collapse"),
        "library": Picture("runs", "library"),
        "compare": Picture("runs", "compare"),
        "inspect": Picture("examples", "inspect/overview", run="bf16-stagnation"),
        "diagnose": Picture("examples", "diagnose", run="clip-before-unscale"),
    }
    modes: tuple[Mode, ...] = ("light", "dark")
    return {
        f"{name}-{mode}{CHINESE}": replace(picture, mode=mode, language="zh_CN")
        for name, picture in places.items()
        for mode in modes
    }


def _of_a_place() -> dict[str, Picture]:
    """A run at a place, in both themes: where it is chosen, what there is, and the link lost."""
    pictures = {
        "places": Picture("place", "hardware/places", size=MIDDLE),
        "where": Picture("place", "setup", size=MIDDLE, view="where"),
        "lost-link": Picture("place", "live", view="lost"),
    }
    modes: tuple[Mode, ...] = ("light", "dark")
    return {f"{name}-{mode}": replace(picture, mode=mode) for name, picture in pictures.items() for mode in modes}


PICTURES: dict[str, Picture] = {
    "first-run-light": Picture("first-run", "setup"),
    "first-run-dark": Picture("first-run", "setup", "dark"),
    "first-run-small": Picture("first-run", "setup", "light", SMALL),
    "first-run-wide": Picture("first-run", "setup", "dark", WIDE),
    "first-run-wrong-light": Picture("first-run", "diagnose", view="wrong: Show me"),
    "first-run-formats-dark": Picture("first-run", "formats", "dark", view="formats: Open a"),
    "formats-light": Picture("empty", "formats/bits"),
    **_formats(),
    "hardware-formats-light": Picture("empty", "hardware/formats"),
    "hardware-advice-light": Picture("empty", "hardware/advice"),
    "setup-light": Picture("empty", "setup"),
    "setup-wide": Picture("empty", "setup", "dark", WIDE),
    "diagnose-light": Picture("examples", "diagnose", run="clip-before-unscale"),
    "diagnose-divergence-dark": Picture("examples", "diagnose", "dark", run="scale-collapse"),
    "diagnose-small": Picture("examples", "diagnose", "light", SMALL, run="bf16-stagnation"),
    "inspect-light": Picture("examples", "inspect/overview", run="bf16-stagnation"),
    "tensors-light": Picture("examples", "inspect/tensors", run="clip-before-unscale"),
    "heat-map-light": Picture("measured", "inspect/tensors", how="losses of all updates of a GPT with BF16 weights"),
    "loss-scale-light": Picture("examples", "inspect/scaler", run="clip-before-unscale"),
    "study-groups-light": Picture("study", "compare/groups", view="Figures"),
    "study-groups-small": Picture("study", "compare/groups", "dark", SMALL, view="Figures"),
    "study-curves-light": Picture("study", "compare/groups", view="Curves"),
    "study-energy-light": Picture("study", "compare/groups", view="Energy"),
    "study-trade-off-light": Picture("study", "compare/groups", view="Trade-off"),
    "study-grid-wide": Picture("study", "live/study", "dark", WIDE),
    "study-jobs-light": Picture("jobs", "live/study"),
    "study-jobs-dark": Picture("jobs", "live/study", "dark"),
    "go-on-light": Picture("stopped", "live"),
    "go-on-runs-dark": Picture("stopped", "library", "dark"),
    "export-weights-light": Picture("stopped", "inspect/overview", view="Export"),
    "live-dark": Picture("runs", "live", "dark"),
    "compare-light": Picture("runs", "compare"),
    "hardware-measured-dark": Picture("measured", "hardware/measured", "dark", how="precgui bench"),
    "hardware-live-dark": Picture("measured", "hardware/live", "dark", how="a run on a GPU"),
    "error-light": Picture("measured", "inspect/error", how="precgui replay RUN.h5 --step N"),
    "step-light": Picture("measured", "inspect/step", how="precgui replay RUN.h5 --step N of a GPT"),
    "step-dark": Picture("measured", "inspect/step", "dark", how="precgui replay RUN.h5 --step N of a GPT"),
    "layers-light": Picture("measured", "inspect/error", how="Compare layers in Inspect > Error > By layer"),
    "twins-light": Picture("measured", "inspect/error", how=f"precgui twin {_SMALL_NET} --precision bf16-pure"),
    "twins-dark": Picture("measured", "inspect/error", "dark", how=f"precgui twin {_SMALL_NET} --precision bf16-pure"),
    "time-dark": Picture("measured", "inspect/time", "dark", how=f"precgui profile {_SMALL_NET} {_GPT} with AMX"),
    "products-light": Picture("measured", "inspect/time", how=f"precgui profile {_SMALL_NET}"),
    "memory-light": Picture("measured", "inspect/memory", how=f"precgui profile {_SMALL_NET} {_GPT}"),
    "plan-light": Picture("measured", "setup", how=f"Plan in Run, after precgui plan {_SMALL_NET} {_GPT}"),
    "assign-light": Picture("measured", "setup", how="Formats of layers in Run > Plan, verified by a study"),
    "assign-dark": Picture("measured", "setup", "dark", how="Formats of layers in Run > Plan, verified by a study"),
    "schedule-light": Picture("measured", "inspect/tensors", how="precgui run with a precision schedule"),
    "schedule-dark": Picture("measured", "inspect/tensors", "dark", how="precgui run with a precision schedule"),
    "ranks-light": Picture("measured", "inspect/time", how="precgui run with parallel.ranks=2"),
    **_of_a_place(),
    **_chinese(),
}


def shown_pictures() -> set[str]:
    """The file names of the pictures that README and docs/ show."""
    documents = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return {name for path in documents for name in _SHOWN.findall(path.read_text(encoding="utf-8"))}


def sources_hash(picture: Picture, gui: Path = ROOT / "precgui" / "gui") -> str:
    """The hash of all sources that draw a picture."""
    found = hashlib.sha256()
    for room in (*picture.rooms, *LOOK):
        path = gui / room
        for each in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(each.relative_to(gui).as_posix().encode() + each.read_bytes())
    return found.hexdigest()[:12]


def kept_hashes(folder: Path = IMAGES) -> dict[str, str]:
    """The hash of each picture of a folder as it was taken."""
    path = folder / HASHES
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def keep_hashes(names: Iterable[str], folder: Path = IMAGES) -> None:
    """Write down that these pictures have been taken of the present sources."""
    kept = {**kept_hashes(folder), **{name: sources_hash(PICTURES[name]) for name in names}}
    known = {name: kept[name] for name in sorted(kept) if name in PICTURES}
    (folder / HASHES).write_text(json.dumps(known, indent=0) + "\n", encoding="utf-8")


def stale_pictures(folder: Path = IMAGES) -> list[str]:
    """The pictures whose sources have changed since they were taken."""
    kept = kept_hashes(folder)
    return [name for name, picture in PICTURES.items() if kept.get(name) != sources_hash(picture)]


def report(stale: Iterable[str]) -> list[str]:
    """A line for each stale picture that is taken by hand, and one command for the others."""
    names = list(stale)
    by_hand = [name for name in names if PICTURES[name].state == "measured"]
    taken = [name for name in names if name not in by_hand]
    lines = [f"{name}.png is older than its sources; it shows: {PICTURES[name].how}." for name in by_hand]
    if taken:
        lines.append(
            f"{len(taken)} pictures are older than their sources: packaging/screenshots.py docs/images "
            f"--only {','.join(taken)}"
        )
    return lines


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in report(stale_pictures())))
