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
        "For matrix multiply it is off by default since 1.12; only cuDNN convolutions and RNNs have it on.",
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
    Claim(
        "3.7 in FP16 can only be rounded to 3.0 or 4.0.",
        "Between 2 and 4 the numbers of FP16 are 2^-9 = 0.00195 apart.",
        "3.7", ("fp16", "bf16"),
    ),
    Claim(
        "FP16 reaches from 10^-4 to 10^4.",
        "It reaches from 2^-24 = 6e-8 to 65504, and what it flushes to zero is not the vanishing-gradient problem.",
        "65504", ("fp16",),
    ),
    Claim(
        "FP32 becomes BF16 by keeping its last 16 bits.",
        "The first 16 bits are kept, rounded to the nearest: sign, exponent and 7 bits of the mantissa.",
        "3.14159265", ("fp32", "bf16"),
    ),
    Claim(
        "In BF16 weights fewer than 0.1 % of all updates are lost, so pure BF16 is the best choice.",
        "An update below half an ulp of its weight changes nothing: below 0.002 of a weight of 1.",
        "1 + 0.0019", ("bf16", "fp32"),
    ),
    Claim(
        "On NaN the loss scale should be raised.",
        "A gradient that overflowed wants a smaller scale; a larger one helps against zeros.",
        "3 * 32768", ("fp16",),
    ),
    Claim(
        "TF32 needs less memory and bandwidth than FP32.",
        "It is stored in 32 bits; only products are computed with 10 bits of mantissa.",
        "0.1", ("fp32", "tf32"),
    ),
    Claim(
        "BF16 uses TF32 for its inner operations.",
        "TF32 concerns products of FP32 operands; products of BF16 are exact in FP32 and are summed in it.",
    ),
    Claim(
        "Batch norm runs in FP32 under autocast.",
        "It is in no list of autocast: it takes the 16-bit input as it comes, and keeps its statistics in FP32.",
    ),
    Claim(
        "Sizes that are no multiple of 8 run without tensor cores.",
        "Since cuBLAS 11 they use them, too, only slower.",
    ),
    Claim(
        "nvidia-smi dmon -s u shows the use of the tensor cores.",
        "It has no such column; the counters of GPM (Hopper and later) and of DCGM have it.",
    ),
    Claim(
        "LLaMA-7B is fine-tuned in 6.5 GB in BF16.",
        "Its weights alone are 14 GB in BF16 and 28 GB in FP32; with Adam a parameter takes 16 bytes.",
    ),
    Claim(
        "Distributed training in BF16 sends BF16 gradients.",
        "It sends gradients in the format of the parameters: FP32 under autocast.",
    ),
    Claim(
        "CPUs and AMD GPUs have no mixed precision.",
        "AMD MI200 and later have matrix cores for BF16; CPUs have AVX-512 BF16 and AMX.",
    ),
    Claim(
        "The H100 reaches 1000 TFLOPS in FP8 and 500 in BF16.",
        "Dense products reach 1979 in FP8 and 989 in BF16.",
    ),
    Claim(
        "FP64 is two to four times slower than FP32.",
        "On a GeForce it is 32 to 64 times slower, on data-centre GPUs twice.",
    ),
    Claim(
        "FP16 wants a learning rate 1.2 times as large.",
        "No reason is given for it anywhere; a sweep over optimizer.lr tells.",
    ),
)  # fmt: skip
