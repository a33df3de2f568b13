"""Lines of a fix to paste into a loop."""

from __future__ import annotations

from precgui.runs.loop_lines import RECORDER_LINES, fix_lines


def test_that_a_fix_gives_the_calls_that_it_asks_for_and_no_other() -> None:
    clip = "Call scaler.unscale_(optimizer) before clip_grad_norm_."
    assert fix_lines(clip) == f"# {clip}\nscaler.unscale_(optimizer)"
    step = "Call scaler.step(optimizer) and scaler.update() in place of optimizer.step()."
    assert fix_lines(step).splitlines()[1:] == ["scaler.step(optimizer)", "scaler.update()"]
    scale = "Use scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update(); or leave it out for BF16."
    assert fix_lines(scale).splitlines()[1] == "scaler.scale(loss).backward()"
    rate = "Lower the learning rate from 0.5 to 2.5e-05, or warm it up."
    assert fix_lines(rate).splitlines()[-1] == '    group["lr"] = 2.5e-05'
    assert fix_lines("Lower the learning rate, or warm it up.") == ""
    for code in (RECORDER_LINES, fix_lines(clip), fix_lines(scale), fix_lines(rate)):
        compile(code, "pasted", "exec")
