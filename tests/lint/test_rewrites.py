"""Changes of scripts: each takes its mistake away, brings no other, and is a diff that `patch` applies."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.lint import ScriptFinding, check
from precgui.lint.rewrites import REWRITES, difference, rewritten
from tests.lint.test_check import MISTAKES, RIGHT

BY_RULE = MISTAKES | {
    "log-of-probability": "import torch\np = torch.log(torch.softmax(logits, dim=-1))\n",
    "deprecated-amp": "import torch\nfrom torch.cuda.amp import GradScaler\n"
    "scaler = torch.cuda.amp.GradScaler(2.0**10)\nwith torch.cuda.amp.autocast(False, dtype=torch.float16):\n"
    "    y = model(x)\n",
}


def finding_of(text: str, rule: str) -> ScriptFinding:
    return next(each for each in check(text) if each.rule == rule)


@pytest.mark.parametrize("rule", sorted(REWRITES))
def test_that_a_change_takes_its_mistake_away_and_brings_no_other(rule: str) -> None:
    text = BY_RULE[rule]
    changed = rewritten(text, finding_of(text, rule))
    assert changed is not None and changed != text
    rules = [each.rule for each in check(changed)]
    assert rules.count(rule) < [each.rule for each in check(text)].count(rule)
    assert set(rules) <= {each.rule for each in check(text)}


def test_that_changes_give_the_script_as_it_is_right() -> None:
    for rule in ("scaler-not-used", "clip-before-unscale", "step-past-the-scaler", "backward-in-autocast",
                 "scale-set-anew", "scaler-not-updated"):  # fmt: skip
        assert rewritten(MISTAKES[rule], finding_of(MISTAKES[rule], rule)) == RIGHT


def test_that_arguments_of_deprecated_autocast_keep_their_meaning() -> None:
    changed = rewritten(BY_RULE["deprecated-amp"], finding_of(BY_RULE["deprecated-amp"], "deprecated-amp")) or ""
    assert 'torch.amp.autocast("cuda", enabled=False, dtype=torch.float16)' in changed
    assert 'torch.amp.GradScaler("cuda", 2.0**10)' in changed and "from torch.amp import GradScaler" in changed


def test_that_gradients_are_divided_by_the_scale_once() -> None:
    text = MISTAKES["norm-before-unscale"]
    changed = rewritten(text, finding_of(text, "norm-before-unscale")) or ""
    assert changed.count("unscale_") == 1 and changed.index("unscale_") < changed.index("norm()")


def test_that_a_mistake_whose_cure_is_a_decision_has_no_change() -> None:
    for rule in set(MISTAKES) - set(REWRITES):
        assert difference(MISTAKES[rule], finding_of(MISTAKES[rule], rule)) == ""


def test_that_the_change_of_an_indented_fragment_is_indented() -> None:
    lines = RIGHT.replace("scaler.scale(loss)", "loss").splitlines(keepends=True)
    text = "".join(f"    {line}" if line.strip() else line for line in lines)
    changed = rewritten(text, finding_of(text, "scaler-not-used")) or ""
    assert "\n        scaler.scale(loss).backward()\n" in changed


def _indented(text: str, prefix: str = "    ") -> str:
    return "".join(f"{prefix}{line}" if line.strip() else line for line in text.splitlines(keepends=True))


def _with_prompts(text: str) -> str:
    lines = (line for line in text.splitlines() if line.strip())
    return "".join(f"{'...' if line.startswith(' ') else '>>>'} {line}\n" for line in lines)


AROUND = {
    "fences": lambda code: f"My loss is NaN:\n\n```python\n{code}```\n\nWhy does it happen?",
    "indented fences": lambda code: f"1. First do this\n\n   ```py\n{_indented(code, '   ')}   ```\n",
    "prose": lambda code: f"My loop is as follows:\n\n{code}\nThe loss is NaN after a while.",
    "commands of a notebook": lambda code: f"%matplotlib inline\n!pip install torch\n{code}",
    "indented": _indented,
    "prompts": _with_prompts,
}


@pytest.mark.parametrize("rule", sorted(REWRITES))
@pytest.mark.parametrize("around", AROUND)
def test_that_the_change_of_a_fragment_is_that_of_its_code_alone(around: str, rule: str) -> None:
    code, wrap = BY_RULE[rule], AROUND[around]
    right = rewritten(code, finding_of(code, rule))
    assert right is not None
    assert rewritten(wrap(code), finding_of(wrap(code), rule)) == wrap(right)


def test_that_the_command_prints_the_change_of_code_between_prose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text(AROUND["fences"](MISTAKES["clip-before-unscale"]), encoding="utf-8")
    assert main(["check", str(notes), "--diff", "--json"]) == 1
    change = json.loads(capsys.readouterr().out)["findings"][0]["diff"]
    added = [line for line in change.splitlines()[2:] if line[0] in "+-"]
    assert added == ["+    scaler.unscale_(optimizer)"]
    if shutil.which("patch") is None:
        pytest.skip("patch is not installed")
    subprocess.run(["patch", "-p1", "--silent"], input=change, text=True, check=True, cwd=tmp_path)
    assert notes.read_text(encoding="utf-8") == AROUND["fences"](RIGHT)


def test_that_the_command_prints_changes_that_patch_applies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(MISTAKES["clip-before-unscale"].rstrip("\n"), encoding="utf-8")
    assert main(["check", str(script), "--diff"]) == 1
    assert "+    scaler.unscale_(optimizer)" in capsys.readouterr().out
    assert main(["check", str(script), "--diff", "--json"]) == 1
    change = json.loads(capsys.readouterr().out)["findings"][0]["diff"]
    assert change.startswith("--- a/train.py\n+++ b/train.py\n@@")
    if shutil.which("patch") is None:
        pytest.skip("patch is not installed")
    subprocess.run(["patch", "-p1", "--silent"], input=change, text=True, check=True, cwd=tmp_path)
    assert script.read_text(encoding="utf-8") == RIGHT


def test_that_a_change_at_the_last_line_without_its_end_is_a_whole_line() -> None:
    text = MISTAKES["scaler-not-updated"].rstrip("\n")
    assert rewritten(text, finding_of(text, "scaler-not-updated")) == RIGHT
