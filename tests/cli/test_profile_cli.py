"""`precgui profile` on the command line, with a profile that was made before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precgui.cli import profile as command
from precgui.cli.main import main
from precgui.runs.speedup.profile_file import write_profile


def _side(products: float, data: float = 0.0) -> dict[str, Any]:
    return {
        "step_s": products + 2, "data_s": data, "products_s": products, "others_s": 2.0, "casts_s": 0.0, "gaps_s": 0.0,
        "kinds": {"product": products, "element-wise": 2.0}, "calls": 9, "profiled_s": products + 2,
    }  # fmt: skip


def _ledger(total: int) -> dict[str, Any]:
    parts = ("weights", "gradients", "optimizer", "master", "activations", "cast_cache", "temporary", "batch")
    plain = {f"{part}_bytes": 0 for part in (*parts, "fragmentation")} | {"weights_bytes": total}
    return {"parts": plain, "total_bytes": total, "phase": "backward", "method": "test"}


def products() -> dict[str, Any]:
    """Of two products in three formats, one of which was not measured in the last one."""
    fast = {"seconds": 1e-3, "spread": 0.02, "flops_s": 4e9, "speedup": 1.0, "flops_per_byte": 10.0}
    slow = {"seconds": 4e-3, "spread": None, "flops_s": 1e9, "speedup": 0.25, "flops_per_byte": 20.0}
    row = {"operation": "addmm", "modules": ["head", "blocks.0.up", "blocks.1.up"], "phase": "forward",
           "shapes": [[3], [2, 8], [8, 3]], "calls": 3, "flops": 96}  # fmt: skip
    refused = {"note": "not measured: about 9.0 s a call"}
    return {
        "formats": ["fp32", "bf16", "fp16"], "bandwidth_bytes_s": 2e10, "flops_share": 0.9,
        "square_flops_s": {"fp32": 5e9, "bf16": 5e8, "fp16": None},
        "rows": [row | {"formats": {"fp32": fast, "bf16": slow, "fp16": slow}},
                 row | {"operation": "convolution", "modules": [""], "shapes": [[4, 3, 8, 8], [16, 3, 3, 3]],
                        "formats": {"fp32": fast, "bf16": slow, "fp16": refused}}],
    }  # fmt: skip


def document() -> dict[str, Any]:
    return {
        "schema": 1, "title": "planted", "precision": "bf16-amp", "fp32": _side(10, 60.0), "run": _side(2.5, 60.0),
        "rounds": [1.1, 1.1, 1.1], "peak": {"format": "bf16", "ratio": 4.0, "size": 1024, "note": ""},
        "settings": {"batch_size": 8, "workers": 0, "compile": False, "channels_last": False},
        "device": {"type": "cpu", "name": "CPU", "threads": 1}, "layers": [], "padding": [], "notes": ["on a CPU"],
        "operations": [{"operation": "mm", "kind": "product", "module": "head", "phase": "forward", "format": "bf16",
                        "executed": "bf16", "shapes": [[2, 3], [3, 4]], "calls": 1, "seconds": 0.5, "flops": 10**9,
                        "bytes": 9, "tensor_cores": None}],
        "products": products(),
        "memory": {"fp32": _ledger(4 << 20), "predicted": _ledger(2 << 20), "measured": _ledger(3 << 20),
                   "residual": 1 / 3, "difference": "bf16-amp needs half.", "notes": []},
    }  # fmt: skip


def test_that_a_kept_profile_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.h5"
    write_profile(run.with_name("run.h5.profile.json"), document())
    assert main(["profile", str(run), "--kept"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "most is lost to: waiting for data" in out
    assert "bf16-amp needs half." in out
    assert "The prediction misses +33% of the measured peak." in out
    assert "on a CPU" in out


def test_that_json_is_one_document_with_the_account(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_measure", lambda config, seconds, trials, quiet: document())
    target = tmp_path / "kept.json"
    assert main(["profile", "digits-quick", "--set", "precision=bf16-amp", "-o", str(target), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["causes"][0] == "data"
    assert plain["waterfall"][0]["factor"] == "peak"
    assert json.loads(target.read_text(encoding="utf-8"))["schema"] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["digits-quick", "--kept"], "name one that ends in .h5"),
        (["nowhere.h5", "--kept"], "make it with precgui profile"),
        (["nowhere.h5"], "nowhere.h5"),
        (["nothing.toml"], "neither a file nor a recipe"),
        (["--set", "precision=fp17"], "fp17"),
        (["--seconds", "0"], "--seconds 0 is not between 0 and 3600"),
        (["--seconds", "nan"], "--seconds nan is not between 0 and 3600"),
    ],
)
def test_that_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1


def test_that_products_alone_are_shown_with_their_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.h5"
    write_profile(run.with_name("run.h5.profile.json"), document())
    assert main(["profile", str(run), "--kept"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "0.25x" in out
    assert "not measured" in out


def change(document: dict[str, Any], path: str, value: object) -> None:
    """Set a value at a path with dots, `-` removes the key."""
    *parents, last = path.split(".")
    branch: Any = document
    for parent in parents:
        branch = branch[int(parent) if isinstance(branch, list) else parent]
    if value == "-":
        del branch[last]
    else:
        branch[last] = value


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((f"operations.0.{name}", "-") for name in ("executed", "phase", "calls", "flops", "seconds")),
        *((f"operations.0.{name}", "text") for name in ("calls", "flops")),
        ("operations.0.bytes", 10**400), ("operations.0.flops", 10**400), ("operations.0.other", 1e308 * 10),
        ("memory.measured.total_bytes", 10**400), ("memory.measured.parts", {"weights_bytes": -(10**300)}),
        ("memory.measured.timeline", [[0, 10**30]]), ("products.rows.0.formats.nowhere", {"note": "not measured"}),
    ],
)  # fmt: skip
def test_that_an_odd_part_of_a_kept_profile_is_a_sentence_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, value: object, as_json: bool
) -> None:
    odd = document()
    change(odd, path, value)
    run = tmp_path / "run.h5"
    run.with_name("run.h5.profile.json").write_text(json.dumps(odd), encoding="utf-8")
    code = main(["profile", str(run), "--kept", *["--json"] * as_json])
    output = capsys.readouterr()
    assert code in (0, 2)
    assert code == 0 or "is not a profile of precgui" in output.err
    if as_json and code == 0:
        json.loads(output.out, parse_constant=pytest.fail)
