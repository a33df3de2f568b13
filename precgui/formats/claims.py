"""Claims that guides repeat and the bits refute: each with what is true and, where bits can show it, the bits."""

from __future__ import annotations

from dataclasses import dataclass

from precgui.formats import text
from precgui.formats.parse import parse
from precgui.formats.registry import get
from precgui.formats.report import report


@dataclass(frozen=True)
class Claim:
    """A wrong claim, the truth, and a number that shows it in some formats (empty where bits say nothing)."""

    claim: str
    truth: str
    number: str = ""
    formats: tuple[str, ...] = ()

    def evidence(self) -> list[str]:
        """One line for each format: the number, the bits it is stored as, and what they mean."""
        if not self.number:
            return []
        real = parse(self.number)
        rows = (report(real, get(name)) for name in self.formats)
        return [f"{self.number} in {r.format.name}: {r.bits} = {text.short(r.stored.real, 12)}" for r in rows]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "The smallest positive FP16 value is 6.1e-5.",
        "That is the smallest normal value. Subnormals go on to 2^-24 = 5.96e-8.",
        "2**-24", ("fp16",),
    ),
    Claim(
        "FP32 and BF16 can hold 1e40.",
        "Both stop at 3.4e38; what is larger becomes infinity.",
        "1e40", ("fp32", "bf16", "fp64"),
    ),
    Claim(
        "BF16 holds 6 significant decimal digits.",
        "It holds 2 to 3: it has 8 bits of significand.",
        "3.14159265", ("bf16", "fp16", "fp32"),
    ),
    Claim(
        "A float32 becomes a float16 by division by 2^-13.",
        "The significand is rounded to 11 bits and the exponent gets another bias: 127 becomes 15. Nothing is divided.",
        "1 + 2**-11 + 2**-23", ("fp32", "fp16"),
    ),
    Claim(
        "BF16 has 8 bits, and FP8 is an integer.",
        "BF16 has 16 bits, 8 of them exponent. FP8 is a float with sign, exponent and mantissa.",
        "0.3", ("bf16", "e4m3fn", "e5m2"),
    ),
    Claim(
        "Stochastic rounding goes up with a probability given by the absolute error.",
        "The probability is the distance from the lower neighbour in ulps: in E4M3, 1.03125 goes up one time in four.",
        "1.03125", ("e4m3fn",),
    ),
    Claim(
        "An FP8 cast shows when a value was infinite.",
        "E4M3FN has no infinity: the result is NaN or 448, depending on the library and its version.",
        "inf", ("e4m3fn", "e5m2"),
    ),
    Claim(
        "GradScaler prunes small gradients.",
        "It multiplies the loss by a power of two, so that small gradients do not underflow; it removes none.",
        "1e-8 * 65536", ("fp16",),
    ),
    Claim(
        "TF32 is used by default in torch.",
        "For matrix multiply it is off by default since 1.12; only cuDNN convolutions have it on.",
        "1 + 2**-12", ("fp32", "tf32"),
    ),
    Claim(
        "torch.cuda.is_bf16_supported() says that a GPU computes in BF16.",
        "On Volta and Turing it is true by emulation, which is slower than FP32.",
    ),
    Claim(
        "Autocast halves the memory of a training.",
        "Master weights and optimiser state stay in FP32; only activations shrink.",
    ),
    Claim(
        "A newer GPU supports every format of an older one.",
        "INT4 tensor cores end with Ada, and B300 has almost no INT8.",
    ),
)  # fmt: skip
