"""Whether the states of a model fit into a memory: weights, gradients and optimizer, by the formulas of the planner."""

from __future__ import annotations

import re
from collections.abc import Callable

from precgui.planner.communication import RANKS
from precgui.planner.plan import sharded_bytes, usable_bytes
from precgui.planner.storage import BASE_BITS, OPTIMIZERS, storage_of
from precgui.sentences import L_, Sentence, together

MOST_PARAMETERS = 10**14
_OPTIMIZER = "adamw"
# What to change first where the states do not fit: precision ("" for the one asked for), optimizer, in words.
_REMEDIES: tuple[tuple[str, str, Callable[[str], Sentence]], ...] = (
    ("", "adamw-8bit", lambda size: Sentence("With 8-bit AdamW they take {size}.", size=size)),
    ("bf16-sr", _OPTIMIZER, lambda size: Sentence("In bf16-sr they take {size}.", size=size)),
    ("bf16-sr", "adamw-8bit", lambda size: Sentence("In bf16-sr with 8-bit AdamW they take {size}.", size=size)),
)


def state_bytes(parameters: int, precision: str, optimizer: str = _OPTIMIZER) -> int:
    """Bytes of weights, gradients, optimizer, master weights and autocast's copies; activations come on top.

    Raises KeyError for an optimizer that the planner does not know.
    """
    storage = storage_of(precision)
    numbers, size = OPTIMIZERS[optimizer]
    state = numbers * (storage.state if size is None else size)
    return round(parameters * (storage.weight + storage.gradient + storage.master + storage.cached + state))


def weights_fit(parameters: int, bits: float, memory_bytes: int) -> bool:
    """Whether weights of so many bits leave room in a memory."""
    return parameters * bits / 8 <= usable_bytes(memory_bytes)


def training_sentence(parameters: int, precision: str, memory_bytes: int | None) -> str:
    """The states of a training with AdamW, whether they fit, and where they do not, what would."""
    needed = state_bytes(parameters, precision)
    text = Sentence(
        "{billions} parameters: weights, gradients and AdamW take {gib} in {precision}, before any activation",
        billions=billions(parameters),
        gib=gib(needed),
        precision=precision,
    )
    if memory_bytes is None:
        return Sentence("{text}. The memory of this device is not known.", text=text)
    usable = usable_bytes(memory_bytes)
    if needed <= usable:
        return Sentence(
            "{text}; of {memory} about {left} are left for those.",
            text=text,
            memory=gib(memory_bytes),
            left=gib(usable - needed),
        )
    shared = zero_sentence(parameters, precision, memory_bytes)
    return Sentence(
        "{text}. They do not fit into {gib}. {remedy} {shared}",
        text=text,
        gib=gib(memory_bytes),
        remedy=_remedy(parameters, precision, usable),
        shared=shared,
    )


def zero_sentence(parameters: int, precision: str, memory_bytes: int) -> str:
    """From how many devices of this memory on the states of AdamW fit, by stage of ZeRO (FSDP is stage 3)."""
    fewest = {stage: fewest_ranks(parameters, precision, memory_bytes, stage) for stage in (1, 2, 3)}
    fitting = [
        Sentence("ZeRO-{stage} from {ranks} on", stage=stage, ranks=ranks)
        for stage, ranks in fewest.items()
        if ranks is not None
    ]
    if not fitting:
        return Sentence("Not even ZeRO-3 over {ranks} such devices fits: use larger ones.", ranks=RANKS[-1])
    return Sentence(
        "Over several such devices, before any activation: {fitting}.", fitting=together(*fitting, between=", ")
    )


def fewest_ranks(parameters: int, precision: str, memory_bytes: int, stage: int) -> int | None:
    """The least power of two of devices over which the states fit with a stage of ZeRO; None where 1024 do not."""
    storage = storage_of(precision)
    numbers, _ = OPTIMIZERS[_OPTIMIZER]
    parts = {
        "weights": parameters * (storage.weight + storage.cached), "gradients": parameters * storage.gradient,
        "optimizer": parameters * numbers * storage.state, "master": parameters * storage.master,
    }  # fmt: skip
    usable = usable_bytes(memory_bytes)
    return next((n for n in RANKS if sharded_bytes(parts, stage, n, shared_batch=False) <= usable), None)


def _remedy(parameters: int, precision: str, usable: int) -> str:
    for other, optimizer, remedy in _REMEDIES:
        needed = state_bytes(parameters, other or precision, optimizer)
        if needed <= usable:
            return remedy(gib(needed))
    frozen = parameters * BASE_BITS["nf4"] / 8
    if frozen <= usable:
        return Sentence("Only adapters (LoRA) fit: a frozen base in NF4 takes {gib}.", gib=gib(frozen))
    return L_("Not even a frozen base in NF4 does: use several devices (FSDP), off-load, or a smaller model.")


def parameter_count(text: str) -> int:
    """A number of parameters such as 124M, 7B or 1.5B. Raises ValueError, a sentence."""
    result = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([MB])\s*", text, re.IGNORECASE)
    count = round(float(result[1]) * {"M": 1e6, "B": 1e9}[result[2].upper()]) if result is not None else 0
    if not 0 < count <= MOST_PARAMETERS:
        shown = text.strip()[:40]
        raise ValueError(Sentence("{text!r} is no number of parameters; write one such as 124M or 7B", text=shown))
    return count


def billions(parameters: int) -> str:
    """A number of parameters in words."""
    return (
        Sentence("{count:.3g} billion", count=parameters / 1e9)
        if parameters >= 1e9
        else Sentence("{count:.3g} million", count=parameters / 1e6)
    )


def gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"
