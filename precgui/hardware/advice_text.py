"""Hints for each precision and task, and the torch code that sets the precision up."""

from __future__ import annotations

from precgui.hardware.device import Device
from precgui.sentences import L_

_BY_PRECISION: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "tf32": (
        L_(
            "Only matrix products and convolutions change: 10 mantissa bits instead of 23, the range stays "
            "that of FP32."
        ),
        L_("Matrix products are TF32 only when asked for; convolutions already are by default."),
    ),
    "bf16-amp": (
        L_("No GradScaler: BF16 has the exponents of FP32."),
        L_(
            "8 significant bits: small updates of large weights are lost unless the weights stay FP32, as "
            "under autocast."
        ),
        L_("Sizes that are multiples of 8 (better 64) keep the matrix units full."),
    ),
    "fp16-amp": (
        L_("GradScaler with dynamic scaling; unscale before clipping; skipped steps at the start are healthy."),
        L_("Largest value 65 504: watch for overflow in activations and in losses that sum over many elements."),
        L_("Sizes that are multiples of 8 keep the matrix units full."),
    ),
}  # fmt: skip
_BY_TASK: dict[str, str] = {
    "classification": L_("Keep the last linear layer's loss in FP32; autocast does so for cross entropy."),
    "detection": L_("Box regression and IoU subtract nearly equal numbers: compute them in FP32."),
    "segmentation": L_("Dice and other sums over all pixels leave FP16's range and BF16's resolution: sum in FP32."),
    "transformer": L_("Softmax, layer norm and the residual sum want FP32; on CPU autocast keeps them in BF16."),
    "rnn": L_("The hidden state is rounded once per time step: compare long sequences with an FP32 run."),
    "rl": L_("Advantages, log-probabilities and value targets in FP32; compare returns over several seeds."),
    "gan": L_("Gradient penalty, spectral norm and the discriminator's last layer in FP32."),
}
_CODE: dict[str, str] = {
    "fp32": """torch.backends.cuda.matmul.fp32_precision = "ieee"
torch.backends.cudnn.conv.fp32_precision = "ieee"
loss = criterion(model(x), y)
loss.backward()
optimizer.step()""",
    "tf32": """torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.backends.cudnn.conv.fp32_precision = "tf32"
loss = criterion(model(x), y)
loss.backward()
optimizer.step()""",
    "bf16-amp": """with torch.autocast("{device}", dtype=torch.bfloat16):
    loss = criterion(model(x), y)
loss.backward()
optimizer.step()""",
    "fp16-amp": """scaler = torch.amp.GradScaler("{device}")
with torch.autocast("{device}", dtype=torch.float16):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()""",
}


def watch(precision: str, task: str, device: Device) -> tuple[str, ...]:
    """Sentences about what goes wrong most often in this precision, this task and on this device."""
    lines = [*_BY_PRECISION[precision]]
    if precision.endswith("-amp"):
        lines.append(_BY_TASK[task])
    if device.kind == "cuda" and precision == "fp32":
        lines.append(
            L_(
                "cuDNN convolutions and RNNs use TF32 unless torch.backends.cudnn.conv.fp32_precision and "
                "torch.backends.cudnn.rnn.fp32_precision are 'ieee'."
            )
        )
    if device.kind == "cpu" and device.level("int8") == "native":
        lines.append(L_("For inference INT8 is native here: the precision int8-qat trains a model for it."))
    if device.kind == "cpu" and precision.endswith("-amp"):
        lines.append(L_("Autocast on the CPU keeps layer norm, softmax and sums in the low precision, unlike CUDA."))
    if device.kind == "cuda" and precision == "bf16-amp":
        lines.append(L_("Name the dtype: autocast on CUDA takes FP16 unless told otherwise."))
    return tuple(lines)


def code(precision: str, kind: str) -> str:
    """A training step in plain torch for this precision; `kind` is the device's kind."""
    device = {"rocm": "cuda"}.get(kind, kind)
    lines = _CODE[precision].format(device=device).splitlines()
    if device != "cuda":
        lines = [line for line in lines if not line.startswith("torch.backends")]
    return "\n".join(["optimizer.zero_grad()", *lines])
