"""Lines of Python to paste into a recorded loop, for facts that the recorder alone does not measure."""

from __future__ import annotations

import re

from precgui.runs.known_settings import observed_settings
from precgui.runs.run import Run

RECORDER_LINES = (
    'recorder = precgui.Recorder("run.h5", model, optimizer, scaler)  # before the loop; None without a scaler\n'
    "recorder.step(loss)  # in the loop, after each step of the optimizer"
)
_CALL = re.compile(r"[A-Za-z_][\w.]*\([\w., ]*\)(?:\.\w+\(\))*")
_LOWER_RATE = re.compile(r"Lower the learning rate (?:from \S+ )?to (\d[\d.]*(?:e[+-]?\d+)?)\b")
_NOT_TO_PASTE = re.compile(r" in place of | before |; or ")


def fix_lines(fix: str) -> str:
    """The calls that the sentence of a fix asks for, or its learning rate, below the sentence; empty where it asks for
    neither."""
    if rate := _LOWER_RATE.match(fix):
        lowered = f'    group["lr"] = {float(rate[1]):g}'
        return f"# {fix}\nfor group in optimizer.param_groups:  # before a scheduler is made\n{lowered}"
    calls = _CALL.findall(_NOT_TO_PASTE.split(fix)[0]) if fix.startswith(("Call ", "Use ")) else []
    return "\n".join([f"# {fix}", *calls]) if calls else ""


def shadow_lines(run: Run, step: int) -> str:
    """The lines that keep a step of the loop of `run` with FP64 beside it, as Inspect > Step and Error show it.

    They stand in the place of the two passes of that step. The loss scale is read where the loop has a scaler.
    """
    scaled = (observed_settings(run) or {}).get("scaling.mode") == "dynamic"
    scale = ", scale=scaler.get_scale()" if scaled else ""
    return (
        f"def both_passes():  # of step {step}: forward and backward, as in your loop\n"
        "    ...\n"
        "    return loss\n\n"
        "shadow = precgui.shadow(both_passes, model)\n"
        f"precgui.keep_shadow(shadow, {str(run.path)!r}, {step}{scale})\n"
        "loss = shadow.loss"
    )
