"""All places of a window and their tabs, with the bundled examples open where they show something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from PySide6.QtWidgets import QApplication

from precgui.examples import EXAMPLES
from precgui.gui.panels.compare.groups import VIEWS
from precgui.gui.panels.compare.panel import DIFFERENCES, GROUPS, MODELS, RUNS, ComparePanel
from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.tabs import TABS as TABS_OF_INSPECT
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.shell.window import Window
from tests.gui.conftest import write_run
from tests.gui.panels.compare.test_models_view import kept_model

Until = Callable[[Callable[[], bool]], None]
WITHOUT_RUNS = (
    "formats/bits", "formats/line", "formats/range", "formats/arithmetic", "formats/rounding lab", "formats/quantise",
    "formats/reference", "hardware/devices", "hardware/formats", "hardware/measured", "hardware/live",
    "hardware/advice", "hardware/places", "hardware/calculator", "setup", "setup/study", "setup/existing",
    "library", "live", "compare", "inspect", "diagnose", "diagnose/loop",
)  # fmt: skip
SCRIPT = """import torch
scaler = torch.cuda.amp.GradScaler()
for inputs, targets in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
"""


def walk(window: Window, until: Until, folder: Path) -> Iterator[str]:
    """Show one view after the other; yield its name while it is in view. `folder` takes runs and models."""
    for place in WITHOUT_RUNS:
        window.show_panel(place)
        QApplication.processEvents()
        yield f"empty {place}" if place in ("library", "live", "compare", "inspect", "diagnose") else place
    yield from _runs(window, until, folder)
    yield from _study(window, until)
    yield from _models(window, until, folder)


def _runs(window: Window, until: Until, folder: Path) -> Iterator[str]:
    session = window.session
    assert session is not None
    keys = [session.runs.open_file(example.path) for example in EXAMPLES if not example.is_study]
    for name in ("one", "two"):
        write_run(folder / f"{name}.h5", f"{name} of the runs that were kept")
    session.folder_changed.emit()
    window.show_panel("live")
    yield "live"
    window.show_panel("library")
    library = window.host.panels["library"]
    assert isinstance(library, LibraryPanel)
    until(lambda: library.table.rowCount() > 0)
    library.view.select_rows([0])
    yield "library"
    window.show_panel("compare")
    compare = window.host.panels["compare"]
    assert isinstance(compare, ComparePanel)
    for view in (RUNS, DIFFERENCES):
        compare.view.choose(view)
        until(lambda: compare.table.rowCount() > 0)
        yield f"compare {view}"
    window.show_panel("diagnose/runs")
    diagnose = window.host.panels["diagnose"]
    assert isinstance(diagnose, DiagnosePanel)
    until(lambda: len(diagnose.diagnoses) == len(keys))
    for key in keys:
        assert key is not None
        session.runs.choose(key)
        diagnose.verdicts.choose(key)
        until(lambda: len(diagnose.cards) > 0)
        yield f"diagnose {session.runs[key].name}"
    window.show_panel("diagnose/script")
    diagnose.script.show_text(SCRIPT, "train.py")
    until(lambda: len(diagnose.script.cards) > 0)
    yield "diagnose script"
    for spec in TABS_OF_INSPECT:
        if spec.id != "formats":  # of models
            session.requests.inspect(keys[0] or "", spec.id)
            inspect = window.host.panels["inspect"]
            assert isinstance(inspect, InspectPanel)
            until(inspect.tab(spec.id).isVisible)
            yield f"inspect {spec.id}"


def _study(window: Window, until: Until) -> Iterator[str]:
    session = window.session
    assert session is not None
    session.open_study(next(example.path for example in EXAMPLES if example.is_study))
    compare = window.host.panels["compare"]
    assert isinstance(compare, ComparePanel)
    compare.view.choose(GROUPS)
    until(lambda: compare.groups.report_content is not None)
    for view in VIEWS:
        compare.groups.view.choose(view)
        QApplication.processEvents()
        yield f"compare groups {view}"
    window.show_panel("live/study")
    yield "live study"


def _models(window: Window, until: Until, folder: Path) -> Iterator[str]:
    session = window.session
    assert session is not None
    keys = [session.runs.open_file(kept_model(folder / f"{name}.h5", shift)) for name, shift in (("a", 0), ("b", 0.25))]
    assert keys[0] is not None and keys[1] is not None
    for tab in ("formats", "tensors", "overview"):
        session.requests.inspect(keys[0], tab)
        inspect = window.host.panels["inspect"]
        assert isinstance(inspect, InspectPanel)
        until(inspect.tab(tab).isVisible)
        yield f"inspect {tab} of a model"
    window.show_panel("compare")
    session.requests.compare(keys[0], keys[1])
    compare = window.host.panels["compare"]
    assert isinstance(compare, ComparePanel)
    until(lambda: compare.models.table.cells.rowCount() == 2)
    yield f"compare {MODELS}"
