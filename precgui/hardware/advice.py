"""Which precision to use on a device for a task: a decision tree as data, and the path that a situation takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from precgui.hardware.advice_text import code, watch
from precgui.hardware.device import Device
from precgui.hardware.support import LEVEL_MEANING
from precgui.sentences import L_, Sentence, together

TASKS: dict[str, str] = {
    "classification": L_("Image classification (CNN, ResNet, ViT)"),
    "detection": L_("Object detection"),
    "segmentation": L_("Segmentation"),
    "transformer": L_("Transformer language model"),
    "rnn": "RNN, LSTM, GRU",
    "rl": L_("Reinforcement learning"),
    "gan": "GAN",
}
SIZES: dict[str, str] = {
    "small": L_("Small: steps of a few milliseconds, launch and data time count"),
    "large": L_("Large: matrix multiplication fills the step"),
}
PAYS_FROM = 1.1  # measured speed-up over FP32 from which a format is advised in spite of its casts
_FEEDBACK = ("rnn", "rl", "gan")


@dataclass(frozen=True, slots=True)
class Question:
    """A node with its branches: answer to the key of the next node."""

    text: str
    branches: dict[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A leaf: the precision to start with and, where there is one, the precision to try after it."""

    precision: str
    reason: str
    then: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """A question to the decision tree. `gain` is the measured rate of BF16 over that of FP32, None if not measured."""

    device: Device
    task: str
    size: str
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One node on the path taken."""

    node: str
    question: str
    answer: str
    why: str


@dataclass(frozen=True, slots=True)
class Advice:
    """The outcome, how it was reached, what to watch, and the code for torch."""

    precision: str
    reason: str
    then: str
    outcome: str
    path: tuple[Step, ...]
    watch: tuple[str, ...]
    code: str


START = "format"
TREE: dict[str, Question | Outcome] = {
    "format": Question(
        L_("Which 16-bit format is native here?"),
        {"BF16": "gain", "FP16 only": "matrix", "neither": "fp32-only"},
    ),
    "gain": Question(
        L_("Is BF16 faster than FP32 here, as measured?"),
        {"yes": "size-bf16", L_("not measured"): "size-bf16", "no": "fp32-measured"},
    ),
    "size-bf16": Question(L_("Does matrix multiplication fill the step?"), {"yes": "task-bf16", "no": "tf32"}),
    "tf32": Question(L_("Does the device have TF32?"), {"yes": "tf32-small", "no": "fp32-small"}),
    "task-bf16": Question(
        L_("What do the numbers of this task do?"),
        {L_("well scaled"): "bf16", "attention": "fp8", "feedback": "bf16-careful"},
    ),
    "fp8": Question(L_("Does it multiply FP8 natively?"), {"yes": "bf16-then-fp8", "no": "bf16-attention"}),
    "matrix": Question(L_("On matrix units?"), {"yes": "size-fp16", "no": "fp32-no-matrix"}),
    "size-fp16": Question(
        L_("Does matrix multiplication fill the step?"), {"yes": "task-fp16", "no": "fp32-small-fp16"}
    ),
    "task-fp16": Question(
        L_("What do the numbers of this task do?"),
        {L_("well scaled"): "fp16", L_("attention or feedback"): "fp16-careful"},
    ),
    "fp32-only": Outcome("fp32", L_("No 16-bit format is multiplied natively: a lower precision would cost time.")),
    "fp32-measured": Outcome("fp32", L_("The bench on this machine found no gain in BF16.")),
    "fp32-small": Outcome("fp32", L_("Small steps wait for data and kernels: casts cost more than they save.")),
    "fp32-no-matrix": Outcome(
        "fp32", L_("FP16 runs on the ordinary units only: it saves memory, and little or no time."), "fp16-amp"
    ),
    "fp32-small-fp16": Outcome("fp32", L_("Small steps wait for data and kernels; FP16 would add loss scaling, too.")),
    "tf32-small": Outcome("tf32", L_("TF32 needs no casts and no loss scaling, and takes the matrix units for free.")),
    "bf16": Outcome("bf16-amp", L_("BF16 has the range of FP32, so it needs no loss scaling, and runs natively here.")),
    "bf16-attention": Outcome(
        "bf16-amp",
        L_("BF16 holds the outliers of attention in its range, needs no loss scaling, and runs natively here."),
    ),
    "bf16-careful": Outcome(
        "bf16-amp", L_("BF16 has the range of FP32; its 8 significant bits are what to watch where errors feed back.")
    ),
    "bf16-then-fp8": Outcome(
        "bf16-amp", L_("Get a BF16 run right first: it is the reference that an FP8 run is compared with."), "fp8"
    ),
    "fp16": Outcome(
        "fp16-amp", L_("FP16 runs on the matrix units; dynamic loss scaling keeps gradients from underflow.")
    ),
    "fp16-careful": Outcome(
        "fp16-amp", L_("FP16 runs on the matrix units, but this task leaves its range easily: keep some parts in FP32.")
    ),
}  # fmt: skip


def advise(situation: Situation) -> Advice:
    """Walk the tree. Raises KeyError for a task or size that is not in TASKS and SIZES."""
    TASKS[situation.task], SIZES[situation.size]
    key, path = START, []
    while isinstance(node := TREE[key], Question):
        answer, why = _ANSWERS[key](situation)
        path.append(Step(key, node.text, answer, why))
        key = node.branches[answer]
    warnings = watch(node.precision, situation.task, situation.device)
    return Advice(
        node.precision, node.reason, node.then, key, tuple(path), warnings, code(node.precision, situation.device.kind)
    )


def advice_json(advice: Advice) -> dict[str, Any]:
    """The advice in built-in types."""
    return {**asdict(advice), "path": [asdict(step) for step in advice.path], "watch": list(advice.watch)}


def _format(asked: Situation) -> tuple[str, str]:
    formats = asked.device.formats
    if formats["bf16"].support == "native":
        return "BF16", formats["bf16"].reason
    bf16 = Sentence("BF16: {reason}", reason=formats["bf16"].reason)
    fp16 = Sentence("FP16: {reason}", reason=formats["fp16"].reason)
    if formats["fp16"].support == "native":
        return L_("FP16 only"), together(bf16, fp16)
    reasons = [bf16, fp16]
    if asked.gain is not None:
        reasons.append(Sentence("The bench measured BF16 {gain:.2f} times as fast as FP32.", gain=asked.gain))
    return L_("neither"), together(*reasons)


def _gain(asked: Situation) -> tuple[str, str]:
    if asked.gain is None:
        return L_("not measured"), L_("precgui bench measures it; until then the instructions decide.")
    answer = "yes" if asked.gain >= PAYS_FROM else "no"
    return answer, Sentence(
        "The bench found {gain:.2f} times the best rate of FP32 in matrix products.", gain=asked.gain
    )


def _size(asked: Situation) -> tuple[str, str]:
    return ("yes" if asked.size == "large" else "no"), SIZES[asked.size]


def _tf32(asked: Situation) -> tuple[str, str]:
    return _native(asked, "tf32")


def _fp8(asked: Situation) -> tuple[str, str]:
    return _native(asked, "e4m3fn")


def _native(asked: Situation, name: str) -> tuple[str, str]:
    result = asked.device.formats[name]
    if result.support == "native":
        return L_("yes"), result.reason
    return L_("no"), together(result.reason, LEVEL_MEANING[result.support] if result.support == "unknown" else "")


def _task(asked: Situation) -> tuple[str, str]:
    if asked.task in _FEEDBACK:
        why = L_("its own output or an opponent's comes back as input, so errors add up and gradients spread widely")
        answer = L_("feedback")
    elif asked.task == "transformer":
        why = L_("softmax and residual sums make outliers; nearly all time is in large matrix products")
        answer = L_("attention")
    else:
        why = L_("normalised activations and a bounded loss keep values in a few powers of two")
        answer = L_("well scaled")
    return answer, Sentence("{task}: {why}.", task=TASKS[asked.task], why=why)


def _task_fp16(asked: Situation) -> tuple[str, str]:
    answer, why = _task(asked)
    return (L_("well scaled") if answer == L_("well scaled") else L_("attention or feedback")), why


def _matrix(asked: Situation) -> tuple[str, str]:
    fp16, device = asked.device.formats["fp16"], asked.device
    of_intel = device.kind == "xpu" and device.architecture != "Xe-LP"
    has = fp16.unit.endswith(("_tc", "_matrix")) or of_intel or "Neural accelerators" in fp16.reason
    return ("yes" if has else "no"), fp16.reason


_ANSWERS: dict[str, Callable[[Situation], tuple[str, str]]] = {
    "format": _format, "gain": _gain, "size-bf16": _size, "size-fp16": _size, "tf32": _tf32, "fp8": _fp8,
    "task-bf16": _task, "task-fp16": _task_fp16, "matrix": _matrix,
}  # fmt: skip
