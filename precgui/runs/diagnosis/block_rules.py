"""Formats with a scale for each row or block, and angles in 16 bits: bounds from the record."""

from __future__ import annotations

import numpy as np

from precgui.config.precision_traits import EMULATED, TRAITS
from precgui.formats.model import BlockFormat, floor_log2
from precgui.formats.registry import blocks, get
from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.findings import TOO_FEW_DIGITS, Blame, Evidence, Finding, RuledOut, Undecided
from precgui.runs.diagnosis.measurements import Measurements, Values
from precgui.runs.diagnosis.number_formats import DIGITS, half_ulp
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text
from precgui.sentences import L_, Sentence

_ROWS = 5  # measurements of which histograms are read
_MOST_FLUSHED = 0.9  # of the elements of a tensor; of normal numbers in FP4 this bound is 0.4
_RADIANS = 0.25  # error of an angle
_OPERANDS = ("activation", "weight")  # gradients have long tails in healthy runs, too


def block_format_of(m: Measurements) -> BlockFormat | None:
    """The block format of the operands of products, None for a run without one."""
    traits = TRAITS.get(m.precision)
    name = traits.operand if traits is not None else m.precision.removeprefix(EMULATED)
    return blocks().get(name)


def _octaves(chosen: BlockFormat) -> int:
    """How many octaves below the largest magnitude of a block an element may lie before it becomes zero.

    The scale of a block is at most its largest magnitude over 2^floor(log2 of the largest element) (OCP Microscaling
    Formats 1.0, section 6.3), and an element below half of the smallest one is rounded to zero.
    """
    element = get(chosen.element)
    return floor_log2(element.max_finite) - floor_log2(element.value(1)) + 1


def outliers_in_blocks(m: Measurements) -> Answer:
    """Operands in which one large number may drive its block to zero: a bound, since no ranges of blocks are recorded.

    An element is lost only where it is so many octaves below the largest of its block, hence of its tensor.
    """
    chosen = block_format_of(m)
    if chosen is None:
        return None
    octaves = _octaves(chosen)
    worst: tuple[float, str, str, int] = (-1.0, "", "", 0)
    for kind in _OPERANDS:
        table = m.table(kind)
        if table is None:
            continue
        for row in np.unique(np.linspace(0, len(table.steps) - 1, min(len(table.steps), _ROWS)).astype(int)):
            step = int(table.steps[row])
            names, counts = m.histograms(kind, step)
            shares = _below(counts, octaves)
            if np.isfinite(shares).any():
                place = int(np.nanargmax(shares))
                worst = max(worst, (float(shares[place]), names[place], kind, step))
    share, name, kind, step = worst
    if share < 0:
        return Undecided("outliers-in-blocks", L_("outputs of modules and weights (record.tensors)"))
    if share <= _MOST_FLUSHED:
        return RuledOut(
            "outliers-in-blocks",
            Sentence(
                "because at most {share} of the elements of a tensor ({name}) are {octaves} octaves below its "
                "largest one, so no more become zero in {title}",
                share=percent(share),
                name=name,
                octaves=octaves,
                title=chosen.title,
            ),
        )
    return [_outliers(m, chosen, octaves, worst)]


def _below(counts: Values, octaves: int) -> Values:
    """The share of the elements so many octaves below the largest one, of those that are not zero; shape (tensors,).

    All elements of an octave count of which one may lie so low: an upper bound.
    """
    finite = counts[:, 1:255]
    top = 254 - np.argmax(finite[:, ::-1] > 0, axis=1)
    below = np.arange(1, 255)[None, :] <= (top - octaves)[:, None]
    total = finite.sum(1)
    with np.errstate(all="ignore"):
        return np.asarray(np.where(total > 0, (finite * below).sum(1) / total, np.nan))


def _outliers(m: Measurements, chosen: BlockFormat, octaves: int, worst: tuple[float, str, str, int]) -> Finding:
    share, name, kind, step = worst
    table = m.table(kind)
    assert table is not None
    place = table.names.index(name) if name in table.names else 0
    module = name if kind != "weight" else name.rpartition(".")[0]
    proof = Evidence(
        Sentence(
            "share of |x| < amax / 2^{octaves} > {most_flushed}",
            octaves=octaves, most_flushed=_MOST_FLUSHED,
        ), {"share": share, "octaves": octaves, "step": step},
        Sentence(
            "In step {step} {share} of the elements of {name} ({kind}) are more than {octaves} octaves below its "
            "largest one; {title} keeps {octaves} octaves in a block of {block}. How many blocks hold such a number "
            "is not recorded.",
            step=step, share=percent(share), name=name, kind=kind.replace("_", " "), octaves=octaves,
            title=chosen.title, block=chosen.block,
        ),
        Sentence("largest magnitude of {name}", name=name), m.points_of(table.steps, table.stat("amax")[:, place]),
    )  # fmt: skip
    return Finding(
        "outliers-in-blocks", "info", Sentence(
            "Single large numbers in {name} may drive their blocks to zero",
            name=name,
        ),
        step, int(table.steps[-1]), (proof,),
        L_("Keep this module in a wider format, or rotate its inputs (Hadamard) before they are rounded."),
        0.5, "OCP Microscaling Formats 1.0, section 6.3", module,
        (name,), {"precision_options.keep_fp32": [module]},
        "estimate", blame=Blame(needs=_by_layer(m)),
    )  # fmt: skip


def _by_layer(m: Measurements) -> str:
    if m.own_loop:
        return L_("the same run with this module in a wider format")
    return Sentence(
        "precgui replay RUN.h5 --layers {precision},fp32 measures the error of the output of each layer",
        precision=m.precision,
    )


def uses_fp8(m: Measurements) -> bool:
    """Whether operands were cast to FP8: by the precision, or by the operations counted in the first step."""
    counted = m.fact("census").get("operations")
    formats = {name for own in counted.values() if isinstance(own, dict) for name in own} if isinstance(
        counted, dict) else set()  # fmt: skip
    return m.precision.startswith("fp8") or any("e4m3" in name or "e5m2" in name for name in formats)


def zero_row_before(m: Measurements, module: str, before: str, step: int) -> Evidence | None:
    """Zeros enough for a whole row among the inputs of a module that computes NaN in FP8: 448 / 0 is no scale.

    The input is the output of the module before; None where a row of zeros is ruled out or not recorded.
    """
    table, weight = m.table("activation"), m.model.by_name.get(f"{module}.weight")
    if table is None or before not in table.names or not uses_fp8(m) or weight is None or len(weight.shape) != 2:
        return None
    place = table.names.index(before)
    rows = np.flatnonzero((table.steps <= step) & np.isfinite(table.stat("zeros")[:, place]))
    if not len(rows):
        return None
    zeros, width = float(table.stat("zeros")[rows[-1], place]), int(weight.shape[1])
    if zeros < width:
        return None
    return Evidence(
        L_("zeros of the input >= length of a row"), {"zeros": zeros, "row": width, "step": int(table.steps[rows[-1]])},
        Sentence(
            "The input of {module} has {zeros:.0f} zeros in step {steps}, enough for a row of {width}: the scale of "
            "such a row in FP8 is 448 / 0, and 0 times Inf is NaN.",
            module=module, zeros=zeros, steps=table.steps[rows[-1]], width=width,
        ),
    )  # fmt: skip


def zero_rows(m: Measurements) -> Answer:
    """Rows of zeros, which have no scale in FP8: they show as NaN, whose origin is told by `undefined-operation`."""
    if not uses_fp8(m) or not m.n:
        return None
    if m.finite_loss.all() and not m.of_kind("nonfinite_activation", "nonfinite_gradient"):
        return RuledOut(
            "zero-row",
            Sentence(
                "because loss and outputs of all {steps} steps are finite: 448 / 0 would have made NaN of a row",
                steps=m.n,
            ),
        )
    return None


def coarse_angles(m: Measurements) -> Answer:
    """Sines and cosines of large angles in 16 bits: positions above 256 are not exact in BF16."""
    census = m.fact("census")
    if not census:
        return None
    angle = census.get("angle")
    radians = number(angle, "radians") if isinstance(angle, dict) else 0.0
    if not isinstance(angle, dict) or not radians > 0 or text(angle, "format") not in DIGITS:
        operations = census.get("operations")
        if isinstance(operations, dict) and {"sin", "cos"} & set(operations):
            return RuledOut("coarse-angles", L_("because no sine or cosine is taken of an angle in 16 bits"))
        return None
    kept, module = text(angle, "format"), str(angle.get("module") or "")
    error = half_ulp(kept, radians)
    if not error > _RADIANS:
        return RuledOut(
            "coarse-angles",
            Sentence(
                "because angles in {kept} reach {radians:.3g} rad, so are off by {error:.2g} rad at most",
                kept=kept.upper(),
                radians=radians,
                error=error,
            ),
        )
    proof = Evidence(
        Sentence("2^(floor(log2 max|angle|) - 8) > {radians} rad (FP16: - 11)", radians=_RADIANS),
        {"radians": float(radians), "error": error},
        Sentence(
            "In the first step sines or cosines are taken of angles up to {radians:.4g} rad in {kept}: neighbours "
            "are {error:.2g} rad apart.",
            radians=radians,
            kept=kept.upper(),
            error=2 * error,
        ),
    )
    return [
        Finding(
            "coarse-angles", "warning", Sentence(
                "Angles in {kept} are off by up to {error:.2g} rad",
                kept=kept.upper(), error=error,
            ),
            int(m.steps[0]) if m.n else 0, int(m.steps[-1]) if m.n else 0, (proof,),
            L_(
                "Compute positions, frequencies and their sines in FP32, outside of autocast, and convert the result."
            ),
            0.85, "gpt-neox issue 1003; transformers issue 29285", module, blame=TOO_FEW_DIGITS,
        )
    ]  # fmt: skip


RULES = (
    Rule("outliers-in-blocks", "A", L_("Do single large numbers drive their blocks to zero?"), outliers_in_blocks),
    Rule("zero-row", "A", L_("Has each row in FP8 a scale?"), zero_rows),
    Rule("coarse-angles", "B", L_("Are angles exact enough?"), coarse_angles),
)
