"""Claims that guides repeat and the bits refute: each with what is true and, where bits can show it, the bits."""

from __future__ import annotations

from dataclasses import dataclass

from precgui.formats import text
from precgui.formats.parse import parse
from precgui.formats.registry import get
from precgui.formats.report import report
from precgui.sentences import L_, Sentence


@dataclass(frozen=True)
class Claim:
    """A wrong claim, the truth, and a number that shows it in some formats (empty where bits say nothing).

    `rules` are those of `diagnose` and `check` whose findings the claim would explain away.
    """

    claim: str
    truth: str
    number: str = ""
    formats: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The claim and the truth, to stand beside a finding."""
        return Sentence("Guides say, wrongly: “{claim}” {truth}", claim=self.claim, truth=self.truth)

    def evidence(self) -> list[str]:
        """One line for each format: the number, the bits it is stored as, and what they mean."""
        if not self.number:
            return []
        real = parse(self.number)
        rows = (report(real, get(name)) for name in self.formats)
        return [
            Sentence(
                "{number} in {format}: {bits} = {value}",
                number=self.number,
                format=r.format.name,
                bits=r.bits,
                value=text.short(r.stored.real, 12),
            )
            for r in rows
        ]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        L_("The smallest positive FP16 value is 6.1e-5."),
        L_("That is the smallest normal value. Subnormals go on to 2^-24 = 5.96e-8."),
        "2**-24", ("fp16",),
    ),
    Claim(
        L_("FP32 and BF16 can hold 1e40."),
        L_("Both stop at 3.4e38; what is larger becomes infinity."),
        "1e40", ("fp32", "bf16", "fp64"),
    ),
    Claim(
        L_("BF16 holds 6 significant decimal digits."),
        L_("It holds 2 to 3: it has 8 bits of significand."),
        "3.14159265", ("bf16", "fp16", "fp32"),
    ),
    Claim(
        L_("A float32 becomes a float16 by division by 2^-13."),
        L_(
            "The significand is rounded to 11 bits and the exponent gets another bias: 127 becomes 15. "
            "Nothing is divided."
        ),
        "1 + 2**-11 + 2**-23", ("fp32", "fp16"),
    ),
    Claim(
        L_("BF16 has 8 bits, and FP8 is an integer."),
        L_("BF16 has 16 bits, 8 of them exponent. FP8 is a float with sign, exponent and mantissa."),
        "0.3", ("bf16", "e4m3fn", "e5m2"),
    ),
    Claim(
        L_("Stochastic rounding goes up with a probability given by the absolute error."),
        L_(
            "The probability is the distance from the lower neighbour in ulps: in E4M3, 1.03125 goes up one "
            "time in four."
        ),
        "1.03125", ("e4m3fn",),
    ),
    Claim(
        L_("An FP8 cast shows when a value was infinite."),
        L_("E4M3FN has no infinity: the result is NaN or 448, depending on the library and its version."),
        "inf", ("e4m3fn", "e5m2"),
        rules=("hidden-infinity", "hidden-overflow",),
    ),
    Claim(
        L_("GradScaler prunes small gradients."),
        L_("It multiplies the loss by a power of two, so that small gradients do not underflow; it removes none."),
        "1e-8 * 65536", ("fp16",),
        rules=("gradient-underflow",),
    ),
    Claim(
        L_("TF32 is used by default in torch."),
        L_("For matrix multiply it is off by default since 1.12; only cuDNN convolutions and RNNs have it on."),
        "1 + 2**-12", ("fp32", "tf32"),
    ),
    Claim(
        L_("torch.cuda.is_bf16_supported() says that a GPU computes in BF16."),
        L_("On Volta and Turing it is true by emulation, which is slower than FP32."),
    ),
    Claim(
        L_("Autocast halves the memory of a training."),
        L_("Master weights and optimiser state stay in FP32; only activations shrink."),
        rules=("no-memory-saved",),
    ),
    Claim(
        L_("A newer GPU supports every format of an older one."),
        L_("INT4 tensor cores end with Ada, and B300 has almost no INT8."),
    ),
    Claim(
        L_("3.7 in FP16 can only be rounded to 3.0 or 4.0."),
        L_("Between 2 and 4 the numbers of FP16 are 2^-9 = 0.00195 apart."),
        "3.7", ("fp16", "bf16"),
    ),
    Claim(
        L_("FP16 reaches from 10^-4 to 10^4."),
        L_("It reaches from 2^-24 = 6e-8 to 65504, and what it flushes to zero is not the vanishing-gradient problem."),
        "65504", ("fp16",),
    ),
    Claim(
        L_("FP32 becomes BF16 by keeping its last 16 bits."),
        L_("The first 16 bits are kept, rounded to the nearest: sign, exponent and 7 bits of the mantissa."),
        "3.14159265", ("fp32", "bf16"),
    ),
    Claim(
        L_("In BF16 weights fewer than 0.1 % of all updates are lost, so pure BF16 is the best choice."),
        L_("An update below half an ulp of its weight changes nothing: below 0.002 of a weight of 1."),
        "1 + 0.0019", ("bf16", "fp32"),
        rules=("lost-updates",),
    ),
    Claim(
        L_("On NaN the loss scale should be raised."),
        L_("A gradient that overflowed wants a smaller scale; a larger one helps against zeros."),
        "3 * 32768", ("fp16",),
        rules=("scale-too-high", "scale-collapse",),
    ),
    Claim(
        L_("TF32 needs less memory and bandwidth than FP32."),
        L_("It is stored in 32 bits; only products are computed with 10 bits of mantissa."),
        "0.1", ("fp32", "tf32"),
    ),
    Claim(
        L_("BF16 uses TF32 for its inner operations."),
        L_("TF32 concerns products of FP32 operands; products of BF16 are exact in FP32 and are summed in it."),
    ),
    Claim(
        L_("Batch norm runs in FP32 under autocast."),
        L_("It is in no list of autocast: it takes the 16-bit input as it comes, and keeps its statistics in FP32."),
    ),
    Claim(
        L_("Sizes that are no multiple of 8 run without tensor cores."),
        L_("Since cuBLAS 11 they use them, too, only slower."),
        rules=("odd-sizes",),
    ),
    Claim(
        L_("nvidia-smi dmon -s u shows the use of the tensor cores."),
        L_("It has no such column; the counters of GPM (Hopper and later) and of DCGM have it."),
    ),
    Claim(
        L_("LLaMA-7B is fine-tuned in 6.5 GB in BF16."),
        L_("Its weights alone are 14 GB in BF16 and 28 GB in FP32; with Adam a parameter takes 16 bytes."),
    ),
    Claim(
        L_("Distributed training in BF16 sends BF16 gradients."),
        L_("It sends gradients in the format of the parameters: FP32 under autocast."),
    ),
    Claim(
        L_("CPUs and AMD GPUs have no mixed precision."),
        L_("AMD MI200 and later have matrix cores for BF16; CPUs have AVX-512 BF16 and AMX."),
    ),
    Claim(
        L_("The H100 reaches 1000 TFLOPS in FP8 and 500 in BF16."),
        L_("Dense products reach 1979 in FP8 and 989 in BF16."),
    ),
    Claim(
        L_("FP64 is two to four times slower than FP32."),
        L_(
            "On a GeForce it is 32 to 64 times slower; twice holds for GPUs made for it, such as P100, "
            "V100, A100, H100, "

        "but not for L4, T4, A10 or B300."),
    ),
    Claim(
        L_("FP16 wants a learning rate 1.2 times as large."),
        L_("No reason is given for it anywhere; a sweep over optimizer.lr tells."),
    ),
    Claim(
        L_("Two models with the same architecture, one in FP32 and one in BF16, show by the difference of their "
        "outputs what BF16 costs."),
        L_("Each constructor draws its own weights: the difference is that of two initialisations. Copy the "
        "weights first, and give the difference a scale, such as the norm of the output."),
        rules=("other-initial-weights",),
    ),
    Claim(
        L_("Rounding errors are independent with mean 0, so they average out over a training."),
        L_("Errors of a weight that does not move are the same in each step: updates below half an ulp are lost "
        "every time. `precgui twin` tells such a bias from noise."),
        "1 + 2**-9", ("bf16", "fp32"),
        rules=("swamped-accumulation", "swallowed-additions",),
    ),
    Claim(
        L_("A benchmark of FP32 needs no settings."),
        L_("cuDNN convolutions run in TF32 by default on GPUs since Ampere, so torch.backends.cudnn.allow_tf32 "
        "must be off in the FP32 arm; and without torch.cuda.synchronize() the clock measures launches."),
        rules=("time-of-launches", "tf32-in-fp32",),
    ),
    Claim(
        L_("Gradients above 100 after scaler.scale(loss).backward() explode."),
        L_("They carry the loss scale, 65536 at the start: call scaler.unscale_(optimizer) before a norm is "
        "looked at or clipped."),
        rules=("norm-before-unscale", "gradients-not-unscaled",),
    ),
    Claim(
        L_("scaler.step() unscales, clips and changes the scale."),
        L_("It unscales where that was not done, and steps unless a gradient is Inf or NaN. It clips nothing; "
        "scaler.update() changes the scale."),
        rules=("clip-before-unscale", "scaler-not-updated",),
    ),
    Claim(
        L_("Under autocast gradients are FP16, beside an FP16 copy of the weights."),
        L_("The gradient of an FP32 parameter is FP32. The 16-bit copies of weights live in a cache until the "
        "autocast region ends."),
    ),
    Claim(
        L_("bn.float() makes a batch norm run in FP32 under autocast."),
        L_("Its parameters are FP32 before and after; its input still comes in 16 bits, since batch norm is in "
        "no list of autocast."),
    ),
    Claim(
        L_("FP16 is slower than BF16, and FP8 has a lower rate than FP16."),
        L_("FP16 and BF16 have the same rate on every NVIDIA GPU that has both; tensor cores with FP8 have twice it."),
    ),
    Claim(
        L_("FP16 holds numbers between 2^-13 and 2^13."),
        L_("Its normal numbers go from 2^-14 to 65504, almost 2^16, and subnormals down to 2^-24."),
        "2**-24", ("fp16",),
    ),
    Claim(
        L_("cuDNN and TensorRT choose the precision of a training by themselves."),
        L_("cuDNN computes in the format of its operands, or in TF32 for FP32 where that is allowed; TensorRT "
        "runs inference only."),
    ),
    Claim(
        L_("torch.backends.cudnn.allow_tf32 also speeds up pooling."),
        L_("It concerns convolutions and recurrent layers; pooling multiplies no matrices."),
    ),
    Claim(
        "0.1 to 1.2 become 13 to 153 in INT8.",
        L_("153 does not fit INT8, which ends at 127; these are the codes of UINT8 with a scale of 2/255 and a "
        "zero point of 0. See `precgui quantise`."),
        "153", ("int8",),
    ),
    Claim(
        L_("INT8 inference needs quantisation-aware training and loses 5 to 15 % of accuracy."),
        L_("Quantising after training is usually enough for INT8, with less than 1 % lost (Krishnamoorthi 2018, "
        "Wu et al. 2020); below 8 bits it is not."),
    ),
    Claim(
        L_("The RTX 40 series is Ampere, or Hopper."),
        L_("It is Ada Lovelace, compute capability 8.9; Ampere is 8.0 and 8.6, Hopper 9.0."),
    ),
    Claim(
        L_("Every GPU computes in INT8."),
        L_("The P100 has no INT8 instruction; dp4a came with compute capability 6.1, tensor cores for INT8 with "
        "7.5."),
    ),
    Claim(
        L_("TF32 is slightly slower than FP16."),
        L_("The tensor cores of Ampere and Hopper have half the rate of FP16 in TF32."),
    ),
    Claim(
        L_("Weights and activations make up the memory of a training."),
        L_("Gradients take as much as the weights, and the moments of Adam twice as much as weights in FP32."),
    ),
    Claim(
        L_("2.3 to 2.8 times as fast as FP32 is near the limit of FP16."),
        L_("On an A100 tensor cores have 16 times the FP32 rate of the other cores. Whether a training gains "
        "more is decided by memory traffic and small operations: see `precgui profile`."),
        rules=("launch-bound", "products-below-peak",),
    ),
    Claim(
        L_("E5M2 has half a decimal digit and FP8 is for models above 100 B parameters on an H100 only."),
        L_("Its significand has 3 bits, 0.9 digits. Ada, Hopper, Blackwell and CDNA 3 multiply FP8, at any model"
        " size."),
        "1.1", ("e5m2", "e4m3fn"),
    ),
    Claim(
        L_("The profiler of torch prints the format of a product, such as matmul (FP16)."),
        L_("It names the operation and, with record_shapes, the sizes; the name of the kernel is the nearest to "
        "a format."),
    ),
    Claim(
        L_("A larger batch in BF16 than in FP32 shows what BF16 saves."),
        L_("Two things changed. Memory is compared at the same batch; the largest batch that fits is a figure of"
        " its own."),
    ),
    Claim(
        L_("In JAX it is enough to cast the inputs to BF16."),
        L_("FP32 weights promote the product to FP32; the weights must be cast, too."),
    ),
    Claim(
        L_("A GradScaler with BF16 does no harm."),
        L_("It costs a look at all gradients in each step and gains nothing: BF16 has the exponents of FP32."),
        rules=("scaler-with-bf16", "unused-scaler",),
    ),
    Claim(
        L_("A model of 70 B parameters is trained in FP32 on four A100 of 80 GB."),
        L_("Its weights alone take 280 GB of the 320; with gradients and Adam it needs 1.1 TB."),
    ),
)  # fmt: skip


def claims_about(rule: str) -> list[Claim]:
    """The wrong claims that the findings of a rule contradict."""
    return [claim for claim in CLAIMS if rule in claim.rules]
