"""The Hardware panel with fake cards: what is shown, copied, measured and read live."""

from __future__ import annotations

import json

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QLabel

from precgui.gui.panels.hardware import model as hardware_model
from precgui.gui.panels.hardware.bench_result import ResultView, intensity, roofline_data
from precgui.gui.panels.hardware.bench_tab import ExportButton
from precgui.gui.panels.hardware.cards import DeviceCard
from precgui.gui.panels.hardware.devices_tab import DevicesTab
from precgui.gui.panels.hardware.formats_tab import MatrixTab
from precgui.gui.panels.hardware.panel import TABS, HardwarePanel
from precgui.gui.plots.roofline import Roofline
from precgui.hardware import measured, rapl
from precgui.hardware.figures import COLUMNS, csv_text
from precgui.hardware.support import FORMATS
from precgui.runs import card_bounds
from tests.cli.test_detect_cli import RESULT, SUMS
from tests.fakes import FakeChild
from tests.hardware import cards
from tests.hardware.fake_nvml import GPU_IS_LOST, LIBRARY_NOT_FOUND, Fails, install

FACTS = {
    "version": "2.15.0", "cuda": "13.0", "hip": None, "architectures": ["sm_80", "sm_90"], "devices": [],
    "cpu_features": {},
    "switches": {
        "backends.cuda.matmul.fp32_precision": "none", "backends.cudnn.conv.fp32_precision": "tf32",
        "backends.mkldnn.matmul.fp32_precision": "ieee",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_children(children, monkeypatch, tmp_path):
    monkeypatch.setattr(hardware_model, "ASK_TORCH_AFTER_MS", 0)
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "none")


@pytest.fixture
def panel(qtbot, monkeypatch):
    """Makes a panel on a machine with these cards, filled by what the driver tells."""

    def make(*fake, **options):
        install(monkeypatch, *fake, **options)
        made = HardwarePanel(None)
        qtbot.addWidget(made)
        made.show()
        qtbot.waitUntil(lambda: made.model.machine is not None)
        return made

    return make


def texts(widget) -> str:
    return "\n".join(found.text() for found in widget.findChildren(QLabel))


def tab(panel, title):
    index = [name for name, _, _ in TABS].index(title)
    panel.tabs.setCurrentIndex(index)
    return panel.tab(index)


def test_that_devices_versions_and_sensors_are_named(panel):
    shown = texts(panel(cards.h100(), cards.t4()))
    for words in ("NVIDIA H100 80GB HBM3", "Tesla T4", "580.95.05", "instant power, energy counter", "torchvision"):
        assert words in shown


def test_that_the_first_tab_advises_and_names_the_formats_of_each_device(panel, qtbot):
    made = panel(cards.h100())
    shown = made.tab(0).findChildren(DeviceCard)
    assert "Advice: bf16-amp" in [card.accessibleName() for card in shown]
    formats = next(card for card in shown if "As NVIDIA H100" in texts(card))
    assert "bf16" in texts(formats).partition("Native")[2].splitlines()[1]
    qtbot.mouseClick(formats.link, Qt.MouseButton.LeftButton)
    assert TABS[made.tabs.currentIndex()][0] == "Formats"


def test_that_a_machine_without_sensors_says_what_was_looked_for(panel):
    shown = texts(panel(init=LIBRARY_NOT_FOUND))
    assert "No NVIDIA driver on this machine." in shown
    assert "runs on this machine record no power" in shown


def test_that_a_lost_gpu_is_a_card_with_its_problem(panel):
    assert "fallen off the bus" in texts(panel(cards.a100(open=Fails(GPU_IS_LOST))))


def test_that_torch_is_asked_once_and_its_switches_are_shown(panel, qtbot):
    made = panel(cards.a100())
    qtbot.waitUntil(lambda: len(FakeChild.begun) == 1)
    made.hide()
    made.show()
    FakeChild.begun[0].said.emit(FACTS)
    qtbot.waitUntil(lambda: made.model.machine.torch is not None)
    assert len(FakeChild.begun) == 1
    assert "CUDA 13.0, capabilities 80, 90" in texts(made)
    assert texts(made).count("capabilities") == 1
    assert "TF32 where the hardware has it" in texts(made)


def test_that_torch_is_not_asked_while_a_run_trains(qtbot, monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    training = [True]
    model = hardware_model.HardwareModel(lambda: training[0])
    model.ask_torch()
    qtbot.wait(50)
    assert FakeChild.begun == []
    training[0] = False
    qtbot.waitUntil(lambda: len(FakeChild.begun) == 1)
    qtbot.waitUntil(lambda: model.machine is not None)


def test_that_a_torch_that_cannot_be_imported_is_told(panel, qtbot):
    made = panel(cards.a100())
    qtbot.waitUntil(lambda: bool(FakeChild.begun))
    FakeChild.begun[0].ended.emit("The engine process ended too early: ImportError: no torch")
    assert "no torch" in texts(made)


def test_that_the_matrix_has_marks_words_and_reasons(panel):
    matrix = tab(panel(cards.a100(), cards.gtx_1660()), "Formats")
    model = matrix.matrix
    fp8 = model.index(FORMATS.index("e4m3fn"), 0)
    assert model.data(fp8, Qt.ItemDataRole.DisplayRole) == "✕ none"
    assert "Native from Ada 8.9" in model.data(fp8, Qt.ItemDataRole.ToolTipRole)
    bf16 = model.index(FORMATS.index("bf16"), 0)
    assert "312T" in model.data(bf16, Qt.ItemDataRole.DisplayRole)
    assert "108 SMs x 1410 MHz" in model.data(bf16, Qt.ItemDataRole.ToolTipRole)
    matrix.table.setCurrentIndex(model.index(FORMATS.index("int4"), 1))
    assert "no tensor cores" in matrix.details.text()


def test_that_a_card_says_where_the_figures_of_its_sheet_come_from(panel):
    shown = panel(cards.t4())
    assert "TechPowerUp, GPU Database, tesla-t4" in texts(tab(shown, "Devices"))
    matrix = tab(shown, "Formats")
    matrix.choose.activated.emit(matrix.choose.findText("Instinct MI210", Qt.MatchFlag.MatchStartsWith))
    matrix.table.setCurrentIndex(matrix.matrix.index(FORMATS.index("bf16"), matrix.matrix.columnCount() - 1))
    assert "Sheet of Instinct MI210: Datasheet or product page of the maker" in matrix.details.text()
    assert "not opened for this table" in matrix.details.text()


def test_that_cards_of_the_past_can_be_added_and_removed(panel):
    matrix = tab(panel(cards.t4()), "Formats")
    own = matrix.matrix.columnCount()
    matrix.choose.setCurrentIndex(matrix.choose.findText("Tesla V100 SXM2", Qt.MatchFlag.MatchStartsWith))
    matrix.choose.activated.emit(matrix.choose.currentIndex())
    assert matrix.matrix.columnCount() == own + 1
    assert "V100" in matrix.matrix.headerData(own, Qt.Orientation.Horizontal, Qt.ItemDataRole.DisplayRole)
    matrix.add_generations()
    assert matrix.matrix.columnCount() == own + 8
    matrix.clear()
    assert matrix.matrix.columnCount() == own


def test_that_the_advice_follows_the_questions(panel):
    advice = tab(panel(cards.h200()), "Advice")
    assert advice.device.currentText() == "NVIDIA H200"
    advice.task.setCurrentIndex(advice.task.findData("transformer"))
    assert advice.answer.text() == "Use bf16-amp, then try fp8"
    advice.model_size.setCurrentIndex(advice.model_size.findData("small"))
    assert advice.answer.text() == "Use tf32"
    advice.device.setCurrentIndex(advice.device.findText("Card: Tesla P40"))
    assert advice.answer.text() == "Use fp32"
    assert "No 16-bit format" in advice.reason.text()
    assert advice.tree.accessibleDescription().endswith("fp32")
    assert not advice.tree.grab().isNull()


def test_that_a_bench_is_shown_while_it_grows_and_kept_at_its_end(panel, qtbot):
    made = panel(init=LIBRARY_NOT_FOUND)
    bench = tab(made, "Measured")
    qtbot.mouseClick(bench.measure, Qt.MouseButton.LeftButton)
    task = FakeChild.begun[-1]
    assert not bench.measure.isEnabled()
    task.said.emit({"kind": "progress", "done": 3, "total": 10, "text": "bf16: 512 x 512 matrix product"})
    assert (bench.progress.value(), bench.progress.maximum()) == (3, 10)
    for row in RESULT["gemm"]:  # type: ignore[attr-defined]
        task.said.emit({"kind": "row", "part": "gemm", "row": row})
    qtbot.waitUntil(lambda: bench.view.size_box.currentData() == 512)
    assert "2.00 x FP32" in bench.view.bars.accessibleDescription()
    qtbot.waitUntil(lambda: bench.view.rows.rowCount() == len(RESULT["gemm"]))
    task.said.emit({"kind": "row", "part": "copy", "row": RESULT["copy"]})
    task.said.emit({"kind": "progress", "done": 9, "total": 10, "text": "last"})
    task.said.emit({"kind": "done", "result": RESULT})
    task.ended.emit("")
    qtbot.waitUntil(lambda: bool(made.model.results))
    assert bench.measure.isEnabled()
    assert measured.kept()[0]["device"]["name"] == "some CPU"
    cells = [cell for row in bench.view.rows.rows for cell in row]
    assert "reference kernel" in cells
    assert any("clock held by power cap" in cell for cell in cells)
    assert not bench.view.roofline.grab().isNull()
    assert not bench.view.bars.grab().isNull()


def test_that_nothing_is_drawn_or_offered_before_anything_was_measured(panel):
    bench = tab(panel(init=LIBRARY_NOT_FOUND), "Measured")
    assert bench.results.placeholderText() and not bench.results.isEnabled()
    assert bench.view.isHidden() and bench.view.size_box.isHidden() and bench.export.isHidden()


def test_that_the_size_shown_is_one_at_which_most_formats_were_measured(qtbot):
    view = ResultView()
    qtbot.addWidget(view)
    rows = [{**row, "m": size} for row in RESULT["gemm"][:2] for size in (204, 2048)]
    rows = [{**row, "tops": None, "note": "no time"} if row["m"] == 2048 else row for row in rows]
    view.show_result({**RESULT, "gemm": rows}, None)
    assert view.size_box.currentData() == 204


def test_that_the_roofline_has_a_roof_and_its_products_for_each_measured_format(qtbot):
    roofline = Roofline()
    qtbot.addWidget(roofline)
    roofline.show_data(roofline_data(RESULT))
    drawn = {item.objectName(): item for item in roofline.plotItem.items}
    assert drawn["roof fp32"].isVisible() and not drawn["roof fp16"].isVisible()
    x, y = drawn["products fp32"].getData()
    assert (10 ** x[0], 10 ** y[0]) == pytest.approx((intensity("fp32", 512), 0.1))
    ridge, roof = (10 ** axis[1] for axis in drawn["roof fp32"].getData())
    assert (ridge, roof) == pytest.approx((0.1 / 0.04, 0.1))  # 40 GB/s move what 0.1e12 operations a second need
    low, high = roofline.getViewBox().viewRange()[1]
    assert (low, high) == pytest.approx((-2, 0), abs=0.1)


def test_that_the_table_tells_how_products_are_added(qtbot):
    view = ResultView()
    qtbot.addWidget(view)
    view.show_result({**RESULT, "accumulation": SUMS}, None)
    found = [(row[1], row[-1]) for row in view.rows.rows if row[0] == "Sums of products"]
    promoted = "sums keep 14 bits, truncated; after every 128 terms the partial sum is added in FP32"
    assert found == [
        ("e4m3fn, fast accumulation", "sums keep 14 bits, truncated"),
        ("e5m2 times e4m3fn", promoted),
    ]


def test_that_rates_of_a_gpu_are_written_out_and_a_wrong_peak_is_named(panel, qtbot):
    rows = [
        {"format": "int8", "m": 512, "seconds": 1e-6, "tops": 2226.4, "spread": 0.01, "peak_tops": 2141.0,
         "share": 1.04, "note": "above the theoretical peak", "reasons": []},
    ]  # fmt: skip
    view = ResultView()
    qtbot.addWidget(view)
    view.show_result({**RESULT, "gemm": rows}, None)
    assert view.bars.accessibleDescription() == "int8: 2226   104% of the peak 2141, which is wrong"
    assert view.rows.rows[0][3] == "2226 T/s"


def test_that_a_stopped_bench_is_not_kept(panel):
    bench = tab(panel(init=LIBRARY_NOT_FOUND), "Measured")
    bench.start()
    FakeChild.begun[-1].said.emit({"kind": "progress", "done": 1, "total": 10, "text": "x"})
    bench.stop.click()
    assert "not kept" in bench.message.text()
    assert measured.kept() == []
    assert bench.measure.isEnabled()


def test_that_live_readings_arrive_with_gaps_and_reasons(panel, qtbot):
    card = cards.h100(nvmlDeviceGetCurrentClocksEventReasons=0x40)
    live = tab(panel(card), "Live")
    qtbot.waitUntil(lambda: "GPU 0 NVIDIA H100 80GB HBM3" in live.devices)
    gpu = live.devices["GPU 0 NVIDIA H100 80GB HBM3"]
    qtbot.waitUntil(lambda: "tensor" in gpu.strips)
    assert gpu.strips["power_instant_w"].current() == "264 of 700 W"
    assert gpu.strips["tensor"].current() == "64.5 %"
    assert "thermal, hardware" in gpu.reasons.accessibleDescription()
    card.fields[186] = Fails(GPU_IS_LOST)
    qtbot.waitUntil(lambda: "fallen off the bus" in gpu.strips["power_instant_w"].current())
    assert not gpu.grab().isNull()


def test_that_nothing_is_polled_when_nobody_looks(panel, qtbot):
    made = panel(cards.t4())
    live = tab(made, "Live")
    drawing = live.findChild(QTimer, "draw")
    qtbot.waitUntil(drawing.isActive)
    tab(made, "Devices")
    assert not drawing.isActive()
    tab(made, "Live")
    live.pause.setChecked(True)
    assert not drawing.isActive()
    live.pause.setChecked(False)
    assert drawing.isActive()


def test_that_the_report_is_text_or_json(panel):
    made = panel(cards.rtx_4090())
    assert "NVIDIA GeForce RTX 4090 (Ada 8.9)" in made.report(as_json=False)
    assert json.loads(made.report(as_json=True))["devices"][0]["formats"]["bf16"]["support"] == "native"


def test_that_a_result_is_copied_and_saved(panel, qtbot, tmp_path):
    measured.keep(RESULT)
    made = panel(init=LIBRARY_NOT_FOUND)
    bench = tab(made, "Measured")
    qtbot.waitUntil(lambda: bench.results.currentIndex() == 0)
    (export,) = bench.findChildren(ExportButton)
    export.copy()
    assert json.loads(QGuiApplication.clipboard().text())["device"]["name"] == "some CPU"
    export.ask("csv", csv_text)
    dialog = export.findChild(QFileDialog)
    dialog.fileSelected.emit(str(tmp_path / "rates.csv"))
    dialog.close()
    lines_ = (tmp_path / "rates.csv").read_text().splitlines()
    assert lines_[0] == ",".join(COLUMNS)
    assert len(lines_) == 1 + len(bench.view.rows.rows)
    assert "Saved" in bench.message.text()
    export.save(tmp_path / "no folder" / "rates.csv", "")
    assert "cannot be written" in bench.message.text()


def test_that_the_calculator_bounds_a_work_on_cards_that_are_not_at_hand(panel):
    calculator = tab(panel(cards.h200()), "Calculator")
    rows = {row[0]: row for row in calculator.table.texts()}
    place = 2 + card_bounds.FORMATS.index("fp16")
    assert rows["Tesla V100 SXM2 16/32GB"][place] == "1.1 ms"
    calculator.work.setCurrentText("llama-7b")
    calculator.cards.setCurrentText("A100 SXM4 80GB, b200")
    assert len(calculator.table.texts()) == 2
    assert "does not fit" in calculator.table.texts()[0][place]
    assert calculator.batch.isEnabled()
    calculator.work.setCurrentText("64x")
    assert "is no product; write 4096" in calculator.answer.text()
    assert calculator.table.texts() == []


def test_that_the_advice_asks_for_memory_and_inference_and_opens_a_run(panel):
    made, configs, claims = panel(cards.h200()), [], []
    made.model.run_requested.connect(lambda config, source: configs.append((config, source)))
    made.model.claims_requested.connect(claims.append)
    advice = tab(made, "Advice")
    advice.task.setCurrentIndex(advice.task.findData("transformer"))
    advice.parameters.setText("7000")
    advice.memory_size.setText("24GB")
    assert "Only adapters (LoRA) fit" in advice.memory.text()
    advice.memory_size.setText("much")
    assert "write 24GB" in advice.memory.text()
    advice.run_button.click()
    config, source = configs[-1]
    assert (config.task, config.precision) == ("text", advice.run_precision)
    assert source == "the advice for Transformer language model"
    advice.claims_button.click()
    assert claims == [advice.run_precision]
    studies = []
    made.model.sixteen_bits_requested.connect(lambda config, source: studies.append((config.task, source)))
    advice.sixteen_bits_button.click()
    assert studies == [("text", source)]
    advice.memory_size.setText("8GB")
    advice.purpose.setCurrentText("Inference")
    assert advice.answer.text() == "Use int8"
    assert advice.run_precision == "int8-qat"
    assert not advice.task.isEnabled()
    assert "int8-weights" in advice.tree.path
    assert not advice.tree.grab().isNull()


def test_that_a_large_screen_shows_the_formats_below_the_cards(panel, qtbot):
    made = panel(cards.h100())
    devices = made.findChild(DevicesTab)
    made.resize(900, 600)
    qtbot.wait(50)
    assert not devices.findChildren(MatrixTab)
    made.resize(1800, 1500)
    qtbot.waitUntil(lambda: len(devices.findChildren(MatrixTab)) == 1)
    (matrix,) = devices.findChildren(MatrixTab)
    qtbot.waitUntil(lambda: matrix.isVisible() and matrix.table.height() > 300)
    assert len(matrix.matrix.devices) > len(made.model.devices)
    made.resize(900, 600)
    qtbot.waitUntil(lambda: not matrix.isVisible())
