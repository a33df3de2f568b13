"""`precgui detect` and `precgui bench` as a person or a program calls them."""

from __future__ import annotations

import csv
import json
import threading
from collections import Counter

import pytest

from precgui.cli import bench as bench_command
from precgui.cli import detect as detect_command
from precgui.cli.main import main
from precgui.hardware import measured
from precgui.hardware.support import FORMATS, LEVELS
from tests.hardware import cards
from tests.hardware.fake_nvml import LIBRARY_NOT_FOUND, install


def output(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_that_detect_prints_one_json_document_with_the_agreed_keys(capsys, monkeypatch):
    install(monkeypatch, cards.h100())
    code, out, _ = output(capsys, "detect", "--json")
    document = json.loads(out)
    assert code == 0
    assert set(document) == {"devices", "host", "torch"}
    gpu, cpu = document["devices"]
    assert cpu["id"] == "cpu"
    for device in (gpu, cpu):
        assert {"id", "kind", "name", "formats", "advice"} <= set(device)
        assert set(device["formats"]) == set(FORMATS)
        assert all(cell["support"] in LEVELS and cell["reason"] for cell in device["formats"].values())
        assert {"precision", "reason", "path"} <= set(device["advice"])
        assert device["advice"]["path"]
    assert gpu["formats"]["e4m3fn"]["support"] == "native"
    assert cpu["formats"]["e4m3fn"]["support"] in ("emulated", "native")
    assert document["torch"]["version"]
    assert document["torch"]["switches"]


def test_that_detect_for_people_names_everything(capsys, monkeypatch):
    install(monkeypatch, cards.gtx_1660())
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = output(capsys, "detect", "--task", "gan", "--size", "small")
    assert code == 0
    for words in ("GTX 1660", "no tensor cores", "Use fp32", "cudnn", "small gan", "NVML"):
        assert words in out


def test_that_readings_are_printed_until_the_time_is_over(capsys, monkeypatch):
    install(monkeypatch, cards.h100())
    code, out, _ = output(capsys, "detect", "--watch", "0.01")
    assert code == 0
    first = next(line for line in out.splitlines() if "H100" in line)
    assert "power, average" in first and " W" in first and "SM clock" in first and "GiB" in first
    assert any("CPU: " in line for line in out.splitlines())
    code, out, _ = output(capsys, "detect", "--watch", "0.01", "--json")
    documents = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and documents
    gpu, cpu = documents[0]["devices"][:2]
    assert "H100" in gpu["device"] and gpu["sm_clock_mhz"] > 0 and gpu["clock_reasons"] is not None
    assert cpu["memory_total_bytes"] > 0 and cpu["clock_reasons"] is None


def test_that_a_gpu_without_readings_says_once_which_are_missing(capsys, monkeypatch):
    install(monkeypatch, cards.gtx_1660())
    out = output(capsys, "detect", "--watch", "0.6")[1]
    assert out.count("not available: ") <= 2 and "Tensor cores busy" in out


def test_that_ctrl_c_ends_the_readings_and_their_thread(capsys, monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)

    def interrupted(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("precgui.cli.detect_watch._print", interrupted)
    before = set(threading.enumerate())
    assert output(capsys, "detect", "--watch")[0] == 0
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("value", ["0", "-1", "x", "nan", "inf"])
def test_that_a_time_to_watch_that_is_none_is_one_sentence(capsys, value):
    code, _, err = output(capsys, "detect", f"--watch={value}")
    assert code == 2 and "no number of seconds above 0" in err


def test_that_a_card_that_is_not_here_cannot_be_watched(capsys):
    code, _, err = output(capsys, "detect", "--watch", "1", "--card", "V100")
    assert code == 2 and "leave --card out" in err


def test_that_advice_that_nobody_asked_for_says_what_it_supposes(capsys, monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    monkeypatch.setenv("COLUMNS", "400")
    assert "for large classification (supposed; choose with --task and --size)." in output(capsys, "detect")[1]
    assert "supposed" not in output(capsys, "detect", "--task", "classification")[1]


def test_that_a_card_that_is_not_here_can_be_asked_about(capsys, monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    code, out, _ = output(capsys, "detect", "--card", "v100 sxm2", "--json")
    (v100,) = json.loads(out)["devices"]
    assert code == 0
    assert v100["name"] == "Tesla V100 SXM2 16/32GB"
    assert v100["advice"]["precision"] == "fp16-amp"
    assert "Tesla P40" in output(capsys, "detect", "--card", "P40")[1]
    code, out, err = output(capsys, "detect", "--card", "B2000")
    assert (code, out) == (2, "")
    assert "--card B2000: no card of the table has this name; perhaps" in err
    assert err.count("\n") == 1


def test_that_a_model_that_does_not_fit_is_spread_by_zero(capsys, monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    monkeypatch.setenv("COLUMNS", "400")
    card = ["detect", "--card", "A100 SXM4 80GB"]
    for parameters, words in (
        ("1B", "of 74.5 GiB about 53.4 GiB are left"),
        ("10B", "ZeRO-2 from 8 on, ZeRO-3 from 4 on"),
        ("100B", "ZeRO-3 from 32 on"),
    ):
        code, out, _ = output(capsys, *card, "--parameters", parameters, "--json")
        (device,) = json.loads(out)["devices"]
        assert code == 0
        assert words in device["model_memory"], device["model_memory"]
    assert "ZeRO-3 from" in output(capsys, *card, "--parameters", "100B")[1]
    code, _, err = output(capsys, *card, "--parameters", "many")
    assert code == 2
    assert "write one such as 124M or 7B" in err


def test_that_a_broken_torch_leaves_the_rest(capsys, monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    monkeypatch.setattr(detect_command, "ask_torch", lambda: (None, "torch cannot be imported: no"))
    code, out, _ = output(capsys, "detect", "--json")
    assert code == 0
    assert json.loads(out)["torch"] == {"problem": "torch cannot be imported: no"}
    assert "torch cannot be imported" in output(capsys, "detect")[1]


RESULT = {
    "schema": measured.SCHEMA, "started": "2026-01-02T03:04:05+00:00", "host": "h", "torch": "2.15", "threads": 1,
    "complete": True, "device": {"id": "cpu", "name": "some CPU", "kind": "cpu", "architecture": ""},
    "bandwidth_gbs": None, "copy": {"gb_s": 40.0, "bytes": 1, "spread": 0.1},
    "conversions": [
        {"from": "fp32", "to": "bf16", "gb_s": 50.0, "values_per_s": 8e9, "spread": 0.1, "note": ""},
        {"from": "fp32", "to": "int8", "gb_s": None, "values_per_s": None, "note": "refused"},
    ],
    "certificate": [{"format": "tf32", "error": 2e-7, "ran_as": "fp32", "note": "asked for tf32"}],
    "gemm": [
        {"format": "fp32", "m": 512, "seconds": 0.002, "tops": 0.1, "spread": 0.01, "note": "", "reasons": None},
        {"format": "bf16", "m": 512, "seconds": 0.001, "tops": 0.2, "spread": 0.5, "note": "",
         "reasons": ["power cap"]},
        {"format": "fp16", "m": 512, "seconds": None, "tops": None, "note": "reference kernel"},
    ],
    "alignment": [{"format": "fp32", "m": 512, "multiple_of": 16, "relative": 1.0, "note": ""}],
    "blocks": [{"block": "convolution", "format": "fp32", "seconds": 0.01, "tops": 0.1, "spread": 0.1, "note": ""}],
}  # fmt: skip


SUMS = [
    {"format": "e4m3fn", "fast": True, "bits": 14, "rounding": "toward_zero", "terms": 32, "promoted_every": None,
     "note": ""},
    {"format": "e5m2", "fast": False, "bits": 14, "rounding": "toward_zero", "terms": 32, "promoted_every": 128,
     "note": ""},
]  # fmt: skip


@pytest.fixture
def measured_now(monkeypatch):
    """The bench without its measurements: they have their own tests."""
    monkeypatch.setattr(bench_command, "_measure", lambda plan, quiet: json.loads(json.dumps(RESULT)))


def test_that_bench_tells_how_products_are_added(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(bench_command, "_measure", lambda plan, quiet: {**RESULT, "accumulation": SUMS})
    _, told, _ = output(capsys, "bench")
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert "e4m3fn, fast accumulation sums keep 14 bits, truncated" in lines
    promoted = "sums keep 14 bits, truncated; after every 128 terms the partial sum is added in FP32"
    assert f"e5m2 times e4m3fn {promoted}" in lines
    assert json.loads(output(capsys, "bench", "--json")[1])["accumulation"] == SUMS


def test_that_bench_prints_rates_keeps_them_and_compares_the_next_time(capsys, monkeypatch, measured_now, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    _, first, _ = output(capsys, "bench", "--csv", str(tmp_path / "rates.csv"))
    for words in ("some CPU", "2.00", "reference kernel", "noisy by 50%", "clock held by power cap", "40.0 GB/s"):
        assert words in first
    with (tmp_path / "rates.csv").open() as file:
        rows = list(csv.DictReader(file))
    kinds = Counter(row["kind"] for row in rows)
    assert kinds == {"product": 3, "certificate": 1, "alignment": 1, "copy": 1, "conversion": 2, "convolution": 1}
    assert {row["device"] for row in rows} == {"some CPU"}
    bf16 = rows[1]
    assert (bf16["format"], bf16["size"], bf16["tops"], bf16["reasons"]) == ("bf16", "512", "0.2", "power cap")
    assert float(bf16["times_fp32"]) == 2.0
    refused = rows[-2]
    assert (refused["format"], refused["to"], refused["gb_s"], refused["note"]) == ("fp32", "int8", "", "refused")
    _, again, _ = output(capsys, "bench")
    assert "+0 %" in again
    _, listed, _ = output(capsys, "bench", "--list", "--json")
    assert len(json.loads(listed)) == 1
    assert "some CPU" in output(capsys, "bench", "--list")[1]


def test_that_bench_json_is_one_document(capsys, measured_now):
    _, out, err = output(capsys, "bench", "--json", "--no-keep")
    assert json.loads(out)["device"]["name"] == "some CPU"
    assert err == ""
    assert measured.kept() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "3"], "--sizes 3: a size is a whole number"),
        (["--sizes", "many"], "--sizes many"),
        (["--formats", "fp7"], "--formats fp7: the bench multiplies"),
        (["--threads", "0"], "--threads 0: this machine takes 1 to"),
        (["--threads", "99999999"], "--threads 99999999: this machine takes 1 to"),
        (["--sizes", "1024,"], "--sizes '1024,': a size is a whole number"),
        (["--sizes", ""], "--sizes '': a size is a whole number"),
        (["--formats", ""], "--formats '': the bench multiplies"),
        (["--csv", "."], "--csv .: this is a folder"),
        (["--device", "mps", "--formats", "fp32"], "device mps is not there"),
        (["--device", "gpu"], "--device gpu: a device is auto, cpu"),
        (["--formats", "bf16,,fp32"], "--formats 'bf16,,fp32': the bench multiplies"),
        (["--csv", "/no/such/folder/rates.csv"], "there is no folder /no/such/folder"),
    ],
)
def test_that_bad_input_is_one_line_and_exit_code_2(capsys, arguments, words):
    code, out, err = output(capsys, "bench", *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_that_a_folder_that_cannot_be_written_is_a_sentence(capsys, monkeypatch, measured_now, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path / "file"))
    code, _, err = output(capsys, "bench")
    assert code == 2
    assert "cannot be kept" in err
