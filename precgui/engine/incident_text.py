"""Texts of incidents of a step: whole clauses with named placeholders, joined by semicolons."""

from __future__ import annotations

_LOSS = {
    "one process": "the loss is {loss}",
    "several": "the loss in process {rank} is {loss}",
}
_FIRST_OUTPUT = {
    "all checked": "the first output that is not finite is that of {module}",
    "some checked": "of the outputs that were checked, the first that is not finite is that of {module}",
    "none": "",
}
_GRADIENTS = {
    "one process": "some gradients are not finite",
    "several": "some gradients are not finite in process {rank}",
}
_SKIPPED = {
    (False, True): "no weights were updated in this step, whose gradients are not finite at scale {scale:g}",
    (True, True): "some weights were not updated in this step, whose gradients are not finite at scale {scale:g}",
    (False, False): "no weights were updated in this step: no optimizer has stepped",
    (True, False): "some weights were not updated in this step: not every optimizer has stepped",
}
_UNCHECKED_UPDATE = "whether the loop has updated the weights by itself was not checked"
_SCALE = {
    True: "the loss scale was lowered from {before:g} to {after:g}",
    False: "the loss scale was raised from {before:g} to {after:g}",
}


def _joined(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


def loss_text(loss: str, module: str, rank: int | None = None, why_not_all: str = "") -> str:
    """A loss that is not finite, with the first module whose output is not; `rank` is that of one of several processes.

    `why_not_all` is a clause that says why not all modules were checked.
    """
    first = _FIRST_OUTPUT["none" if not module else "some checked" if why_not_all else "all checked"]
    start = _LOSS["one process" if rank is None else "several"]
    return _joined(start.format(loss=loss, rank=rank), first.format(module=module), why_not_all)


def gradients_text(parameter: str, rank: int | None = None, *, norm_overflows: bool = False) -> str:
    """Gradients that are not finite, with the first parameter, or finite ones whose norm overflows FP32."""
    if norm_overflows:
        return "each gradient is finite, but their norm overflows FP32"
    start = _GRADIENTS["one process" if rank is None else "several"].format(rank=rank)
    return _joined(start, f"the first is that of {parameter}" if parameter else "")


def skipped_text(scale: float | None, *, partly: bool = False, unchecked: bool = False) -> str:
    """A step without an update, or with one of some weights only; `scale` was too large, None for another reason."""
    text = _SKIPPED[partly, scale is not None].format(scale=scale)
    return _joined(text, _UNCHECKED_UPDATE if unchecked else "")


def scale_text(before: float, after: float) -> str:
    """A change of the loss scale."""
    return _SCALE[after < before].format(before=before, after=after)
