"""Compare > Groups > FP16 or BF16: the page of a study that has both, and the ways that lead to such a study."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from precgui.gui.panels.compare.groups import SIXTEEN_BITS
from precgui.gui.panels.compare.panel import GROUPS, ComparePanel
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from tests.sweeps.sample_sweep import small_sweep, write_member


def test_that_a_study_with_both_is_judged_and_its_page_saved(qtbot: QtBot, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=5, precisions=("fp32", "fp16-amp", "bf16-amp"))
    for member in folder.plan.members:
        emulated = "products are rounded" if member.precision == "fp16-amp" else ""
        noise = 0.0005 * ((member.seed + (member.precision != "fp32")) % 2)
        samples = {"data": {"validation_samples": 100_000}}
        write_member(folder, member, accuracy=0.9 + noise, emulated=emulated, engine=samples)
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    session.study.open(folder.path)
    panel.show_tab("fp16-or-bf16")
    qtbot.waitUntil(lambda: panel.groups.report_content is not None)
    assert (panel.view.current, panel.groups.view.current) == (GROUPS, SIXTEEN_BITS)
    view = panel.groups.sixteen_bits
    assert view.answer.text().startswith(
        "Of the two, use bf16-amp here: both keep the result of FP32, and fp16-amp is emulated"
    )
    assert ("computed here", "emulated", "native") in view.own.texts()
    assert not view.set_up.isVisible()
    with qtbot.waitSignal(session.notice) as told:
        panel.groups.report.write("sixteen bits", tmp_path / "page.html")
    assert told.args[0].severity == "info"
    assert "Of the two, use bf16-amp here" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_that_run_and_compare_lead_to_the_study_that_decides(qtbot: QtBot) -> None:
    session = Session()
    setup, compare = SetupPanel(session), ComparePanel(session)
    for panel in (setup, compare):
        qtbot.addWidget(panel)
    with qtbot.waitSignal(session.requests.place) as led:
        compare.groups.sixteen_bits.set_up.click()
    assert led.args == ["setup/study/fp16-or-bf16"]
    setup.show_tab(led.args[0].removeprefix("setup/"))
    assert setup.is_study
    assert set(setup.study.chosen()) == {"fp32", "bf16-amp", "fp16-amp"}
    setup.study.choose(["fp32"], 1)
    setup.study.sixteen_bits_button.click()
    assert len(setup.study.chosen()) == 3
    setup.show_tab("run")
    setup.precision.set("fp16-amp")
    assert "FP16 or BF16 here" in setup.outlook.link.text()
