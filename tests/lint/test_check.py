"""Scripts as text: each mistake is found in its line, and what is right is left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.lint import LINT_RULES, ScriptError, check
from precgui.lint.check import check_file

RIGHT = """
import torch
from torch.amp import GradScaler, autocast
scaler = GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
MISTAKES = {
    "scaler-not-used": RIGHT.replace("scaler.scale(loss)", "loss"),
    "clip-before-unscale": RIGHT.replace("    scaler.unscale_(optimizer)\n", ""),
    "step-past-the-scaler": RIGHT.replace("scaler.step(optimizer)", "optimizer.step()"),
    "scaler-not-updated": RIGHT.replace("    scaler.update()\n", ""),
    "scheduler-on-skipped-steps": RIGHT + "    scheduler.step()\n",
    "scaler-not-saved": RIGHT + "torch.save({'optimizer': optimizer.state_dict()}, 'state.pt')\n",
    "backward-in-autocast": RIGHT.replace("    scaler.scale(loss)", "        scaler.scale(loss)"),
    "deprecated-amp": RIGHT.replace("from torch.amp", "from torch.cuda.amp"),
    "fp16-by-hand": RIGHT.replace("model(inputs), targets", "model(inputs).half(), targets"),
    "fp16-weights": "import torch\nmodel.half()\nfor x in loader:\n    optimizer.zero_grad()\n    "
    "model(x).sum().backward()\n"
    "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    optimizer.step()\n",
    "no-scaler": "import torch\nfor x in loader:\n    optimizer.zero_grad()\n    with torch.autocast('cuda'):\n"
    "        loss = model(x)\n    loss.backward()\n    optimizer.step()\n",
    "scaler-with-bf16": RIGHT.replace("torch.float16", "torch.bfloat16"),
    "mask-beyond-fp16": RIGHT + "scores = scores.masked_fill(mask, -1e9)\n",
    "positions-in-16-bits": "import torch\nplaces = torch.arange(4096, dtype=torch.bfloat16)\n",
    "bce-in-autocast": RIGHT.replace("cross_entropy", "binary_cross_entropy"),
    "tf32-unawares": "model.cuda()\nfor x in loader:\n    optimizer.zero_grad()\n    loss.backward()\n    "
    "optimizer.step()\n",
    "gradients-not-cleared": RIGHT.replace("    optimizer.zero_grad()\n", "").replace("scaler.scale(loss)", "loss")
    .replace("scaler.step(optimizer)", "optimizer.step()"),
}  # fmt: skip


def rules(text: str) -> set[str]:
    return {found.rule for found in check(text)}


def test_that_a_right_loop_is_left_alone() -> None:
    assert check(RIGHT) == []


@pytest.mark.parametrize("rule", LINT_RULES)
def test_that_each_mistake_is_found(rule: str) -> None:
    found = [each for each in check(MISTAKES[rule]) if each.rule == rule]
    assert found
    assert all(1 <= each.line <= len(MISTAKES[rule].splitlines()) and each.fix for each in found)


PASSED_ON = RIGHT.replace('scaler = GradScaler("cuda")\n', "def train(loader, model, optimizer, scaler):\n").replace(
    "\nfor ", "\n  for ").replace("\n    ", "\n      ")  # fmt: skip


@pytest.mark.parametrize("change", ["made", "cast after", "with a type"])
def test_that_a_model_is_followed_through_one_expression(change: str) -> None:
    made = {"made": "Net().half()", "cast after": "Net().half().cuda()", "with a type": "Net().to(dtype=torch.float16)"}
    loop = MISTAKES["fp16-weights"].replace("model.half()", f"model = {made[change]}")
    assert "fp16-weights" in rules(loop)
    assert "fp16-weights" not in rules(loop.replace("model = Net", "data = Net"))


def test_that_a_scaler_that_is_an_argument_is_one() -> None:
    assert check(PASSED_ON) == []
    assert rules(PASSED_ON.replace("      scaler.update()\n", "")) == {"scaler-not-updated"}
    assert rules(PASSED_ON.replace("      scaler.unscale_(optimizer)\n", "")) == {"clip-before-unscale"}
    assert rules(PASSED_ON + "      optimizer.step()\n") == {"step-past-the-scaler"}
    assert rules(RIGHT.replace("    optimizer.zero_grad()\n", "")) == {"gradients-not-cleared"}


def test_that_a_step_in_a_function_is_followed_to_the_loop_that_calls_it() -> None:
    step = "def advance(x):\n    loss = model(x).sum()\n    loss.backward()\n    opt.step()\n"
    assert rules(step + "for x in loader:\n    advance(x)\n") == {"gradients-not-cleared"}
    assert rules(step + "advance(x)\n") == set()
    assert rules(step + "for x in loader:\n    opt.zero_grad()\n    advance(x)\n") == set()


def test_that_the_second_step_is_told_from_the_one_in_place() -> None:
    [second] = check(RIGHT.replace("scaler.step(optimizer)", "scaler.step(optimizer)\n    optimizer.step()"))
    assert "second time" in second.title


@pytest.mark.parametrize(
    "text",
    [
        RIGHT.replace("scaler.unscale_(optimizer)", "if clip:\n        scaler.unscale_(optimizer)"),
        RIGHT.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)').replace("scaler.scale(loss)", "loss"),
        "scaler = GradScaler('cuda')\ntrain(model, scaler)\n",
        "class A:\n    def __init__(self):\n        self.scaler = GradScaler('cuda')\n    def go(self):\n        "
        "run(self.scaler)\n",
        RIGHT.replace("scaler.step(optimizer)", "if amp:\n        scaler.step(optimizer)\n    else:\n        "
        "optimizer.step()"),
        RIGHT + "    if scaler.get_scale() >= before:\n        scheduler.step()\n",
        RIGHT + "scores = scores.masked_fill(mask, float('-inf'))\n",
        "model.half()\nmodel.eval()\nprint(model(x))\n",
        "import torch\nplaces = torch.arange(128).half()\n",
        "with torch.autocast('cuda'):\n    loss = model(x)\nloss_scaler(loss, optimizer)\nother.backward()\n",
        RIGHT + "if epoch:\n    scheduler.step(score)\n",
    ],
)  # fmt: skip
def test_that_nothing_is_invented(text: str) -> None:
    assert check(text) == []


def test_that_a_context_in_a_variable_is_known() -> None:
    text = (
        "ctx = nullcontext() if cpu else torch.autocast('cuda', dtype=torch.bfloat16)\nwith ctx:\n    loss.backward()\n"
    )
    assert rules(text) == {"backward-in-autocast"}


def test_that_text_that_is_no_python_is_refused() -> None:
    with pytest.raises(ScriptError, match="line 1"):
        check("for for")
    with pytest.raises(ScriptError):
        check("a" + "(" * 5000)


def test_that_the_script_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch.cuda.amp\nopen({str(tmp_path / 'proof')!r}, 'w')\nraise SystemExit(3)\n")
    assert main(["check", str(script)]) == 0
    assert not (tmp_path / "proof").exists()
    script.write_text(MISTAKES["clip-before-unscale"])
    assert main(["check", str(script), "--json"]) == 1
    capsys.readouterr()
    assert main(["check", str(script), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["script"] == str(script)
    assert {"rule", "line", "severity", "title", "fix"} == document["findings"][0].keys()
    assert main(["check", str(tmp_path / "missing.py")]) == 2
    assert "missing.py" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_that_pipes_devices_and_large_files_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "endless.py").symlink_to("/dev/zero")
    (tmp_path / "large.py").write_bytes(b"#" * (5 << 20))
    (tmp_path / "deep.py").write_text("-" * 200_000 + "1")
    for name, reason in (("pipe.py", "not a regular file"), ("endless.py", "not a regular file"),
                         ("large.py", "larger than"), ("deep.py", "no Python that can be parsed")):  # fmt: skip
        assert main(["check", str(tmp_path / name)]) == 2
        sentence = capsys.readouterr().err
        assert reason in sentence and sentence.count("\n") == 1


def test_that_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "marked.py").write_text("x = 1\n", encoding="utf-8-sig")
    assert check_file(tmp_path / "marked.py") == []


def test_that_whole_numbers_beyond_the_exact_ones_are_named_also_by_their_variable() -> None:
    head = "import torch\n"
    for line, named in (
        ("minutes = torch.randint(525600, (128,)).float()\nstored = minutes.bfloat16()\n", True),
        ("places = torch.arange(length)\nplaces = places.to(torch.bfloat16)\n", False),  # which one is not clear
        ("places = torch.arange(length)\nlow = places.to(torch.bfloat16)\n", True),
        ("noise = torch.randint(0, 1000, (8,))\nlow = noise.half()\n", False),
        ("places = torch.arange(3000, dtype=torch.float16)\n", True),
        ("places = torch.arange(128, dtype=torch.bfloat16)\n", False),
        ("labels = torch.randint(10, (8,)).bfloat16()\n", False),
    ):
        assert ("positions-in-16-bits" in rules(head + line)) is named, line
