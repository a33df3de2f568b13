"""The format of the weights for inference on a device: a decision tree as data, by memory and native products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from precgui.hardware.advice import Advice, Outcome, Question, Step
from precgui.hardware.device import Device
from precgui.planner.storage import BASE_BITS
from precgui.runs.model_memory import billions, gib, weights_fit
from precgui.sentences import L_, Sentence, together

START = "weights-16"
NO_FORMAT = "none"  # the advice where no format fits
TREE: dict[str, Question | Outcome] = {
    "weights-16": Question(
        L_("Do 16-bit weights fit into the memory?"),
        {"yes": "native-16", L_("not known"): "native-16", "no": "weights-8"},
    ),
    "native-16": Question(
        L_("Which 16-bit format is native here?"), {"BF16": "bf16", "FP16 only": "fp16", "neither": "native-int8"}
    ),
    "native-int8": Question(L_("Are INT8 products native?"), {"yes": "int8", "no": "fp32"}),
    "weights-8": Question(L_("Do 8-bit weights fit?"), {"yes": "int8-weights", "no": "weights-4"}),
    "weights-4": Question(L_("Do 4-bit weights fit?"), {"yes": "int4-weights", "no": "too-large"}),
    "bf16": Outcome(
        "bf16", L_("BF16 keeps the range of FP32 in half of the memory, and its products are native."), "int8"
    ),
    "fp16": Outcome("fp16", L_("FP16 products are native; watch for outputs beyond 65 504."), "int8"),
    "int8": Outcome("int8", L_("No 16-bit format is native, and INT8 products are: train a model for it.")),
    "fp32": Outcome("fp32", L_("Neither a 16-bit format nor INT8 is native: a lower precision would cost time.")),
    "int8-weights": Outcome("int8", L_("Only weights of 8 bits fit; measure the accuracy against 16 bits on a part.")),
    "int4-weights": Outcome("int4", L_("Only weights of 4 bits fit; expect a loss, and measure it.")),
    "too-large": Outcome(
        NO_FORMAT, L_("Not even weights of 4 bits fit: use several devices, off-load, or a smaller model.")
    ),
}
RUN_PRECISION = {"bf16": "bf16-amp", "fp16": "fp16-amp", "int8": "int8-qat", "int4": "int4-qat", "fp32": "fp32"}
_WATCH = {
    "bf16": (L_("Compare the outputs with those of FP32 on the same inputs."),),
    "fp16": (L_("Compare the outputs with those of FP32 on the same inputs; one Inf makes all that follows NaN."),),
    "int8": (L_("Scales come from data: calibrate or train with quantisation, and evaluate the integers themselves."),),
    "int4": (L_("Quantise in blocks; the first and the last layer lose most."),),
    "fp32": (),
    NO_FORMAT: (),
}
_CODE = {
    "bf16": 'model = model.eval().to("{device}", torch.bfloat16)\nwith torch.inference_mode():\n    y = model(x)',
    "fp16": 'model = model.eval().to("{device}", torch.float16)\nwith torch.inference_mode():\n    y = model(x)',
    "fp32": 'model = model.eval().to("{device}")\nwith torch.inference_mode():\n    y = model(x)',
    "int8": (
        "precgui run digits-int8 -o digits.h5      # trains with quantisation, converts to integers, keeps both\n"
        "precgui evaluate digits.int8.pt           # evaluates the integers"
    ),
    NO_FORMAT: "# several devices: torch.distributed.fsdp; layers on the host: accelerate's device_map",
    "int4": "precgui run digits-quick --set precision=int4-qat",
}


@dataclass(frozen=True, slots=True)
class InferenceQuestion:
    """`parameters` of the model and `memory_bytes` of the device, each None where not known."""

    device: Device
    parameters: int | None = None
    memory_bytes: int | None = None


def advise_inference(asked: InferenceQuestion) -> Advice:
    """Walk the tree."""
    key, path = START, []
    while isinstance(node := TREE[key], Question):
        answer, why = _ANSWERS[key](asked)
        path.append(Step(key, node.text, answer, why))
        key = node.branches[answer]
    code = _CODE[node.precision].format(device={"rocm": "cuda"}.get(asked.device.kind, asked.device.kind))
    return Advice(node.precision, node.reason, node.then, key, tuple(path), _WATCH[node.precision], code)


def _fits(bits: float) -> Callable[[InferenceQuestion], tuple[str, str]]:
    def answer(asked: InferenceQuestion) -> tuple[str, str]:
        if asked.parameters is None or asked.memory_bytes is None:
            return L_("not known"), L_("Give the number of parameters and the memory to have this answered.")
        fits = weights_fit(asked.parameters, bits, asked.memory_bytes)
        why = Sentence(
            "{count} parameters of {bits:.3g} bits are {size}; the device has {memory}.",
            count=billions(asked.parameters),
            bits=bits,
            size=gib(asked.parameters * bits / 8),
            memory=gib(asked.memory_bytes),
        )
        return (L_("yes") if fits else L_("no")), why

    return answer


def _native_16(asked: InferenceQuestion) -> tuple[str, str]:
    formats = asked.device.formats
    if formats["bf16"].support == "native":
        return "BF16", formats["bf16"].reason
    if formats["fp16"].support == "native":
        return L_("FP16 only"), formats["fp16"].reason
    bf16 = Sentence("BF16: {reason}", reason=formats["bf16"].reason)
    return L_("neither"), together(bf16, Sentence("FP16: {reason}", reason=formats["fp16"].reason))


def _native_int8(asked: InferenceQuestion) -> tuple[str, str]:
    result = asked.device.formats["int8"]
    return ("yes" if result.support == "native" else "no"), result.reason


_ANSWERS: dict[str, Callable[[InferenceQuestion], tuple[str, str]]] = {
    "weights-16": _fits(16), "weights-8": _fits(BASE_BITS["int8"]), "weights-4": _fits(BASE_BITS["nf4"]),
    "native-16": _native_16, "native-int8": _native_int8,
}  # fmt: skip
