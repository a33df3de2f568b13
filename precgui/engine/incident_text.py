"""Texts of incidents of a step: whole clauses with named placeholders, joined by semicolons."""

from __future__ import annotations

from precgui.sentences import L_, Sentence, filled, together

_SKIPPED = {
    (False, True): L_("no weights were updated in this step, whose gradients are not finite at scale {scale:g}"),
    (True, True): L_("some weights were not updated in this step, whose gradients are not finite at scale {scale:g}"),
    (False, False): L_("no weights were updated in this step: no optimizer has stepped"),
    (True, False): L_("some weights were not updated in this step: not every optimizer has stepped"),
}
_UNCHECKED_UPDATE = L_("whether the loop has updated the weights by itself was not checked")


def loss_text(
    module: str,
    loss: str = "",
    rank: int | None = None,
    why_not_all: str = "",
    *,
    operation: str = "",
    line: str = "",
) -> str:
    """A loss that is not finite, with the first module whose output is not, in process `rank` where there are several.

    `loss` is `nan`, `inf` or `-inf`, '' where not known; `why_not_all` is a clause that says why not all modules
    were checked; `operation` at `line` made it of finite numbers.
    """
    start: str
    if loss:
        start = Sentence("the loss is {loss}", loss=loss)
    elif rank is None:
        start = L_("the loss is not finite")
    else:
        start = Sentence("the loss in process {rank} is not finite", rank=rank)
    made = Sentence("{operation} at {line} made it", operation=operation.removeprefix("_"), line=line) if line else ""
    return together(start, _first_output(module, bool(why_not_all)), made, why_not_all, between="; ")


def _first_output(module: str, some_checked: bool) -> str:
    if not module:
        return ""
    if some_checked:
        return Sentence(
            "of the outputs that were checked, the first that is not finite is that of {module}", module=module
        )
    return Sentence("the first output that is not finite is that of {module}", module=module)


def gradients_text(parameter: str, rank: int | None = None, *, norm_overflows: bool = False) -> str:
    """Gradients that are not finite, with the first parameter, or finite ones whose norm overflows FP32."""
    if norm_overflows:
        return L_("each gradient is finite, but their norm overflows FP32")
    if rank is None:
        start = L_("some gradients are not finite")
    else:
        start = Sentence("some gradients are not finite in process {rank}", rank=rank)
    first = Sentence("the first is that of {parameter}", parameter=parameter) if parameter else ""
    return together(start, first, between="; ")


def skipped_text(scale: float | None, *, partly: bool = False, unchecked: bool = False) -> str:
    """A step without an update, or with one of some weights only; `scale` was too large, None for another reason."""
    text = filled(_SKIPPED[partly, scale is not None], scale=scale)
    return together(text, _UNCHECKED_UPDATE if unchecked else "", between="; ")


def scale_text(before: float, after: float) -> str:
    """A change of the loss scale."""
    if after < before:
        return Sentence("the loss scale was lowered from {before:g} to {after:g}", before=before, after=after)
    return Sentence("the loss scale was raised from {before:g} to {after:g}", before=before, after=after)
