"""Group C: what goes into the model, and what its loss is told: alike samples, scales, ranges, ignored classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import median, percent
from precgui.runs.diagnosis.blame import blame_of_symptom
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, whole
from precgui.sentences import L_, Sentence, together

SCALE_OF_INPUTS = "inputs-out-of-scale"
_OF_NUMBERS = ("squared error", "absolute error", "Huber loss")  # losses whose targets are numbers of any size
Row = Mapping[str, Any]

_FEWEST_SAMPLES, _FEWEST_NUMBERS, _FEWEST_STEPS = 8, 4, 3  # of a batch; of a sample; that were looked at
_LEARNS_NOTHING, _LEAST = 0.97, 0.9  # of the loss of a constant: on average, and in each step that was compared
_ALIKE = 0.02  # relative deviation of the factor between a recorded loss and the one that was seen
_LONG = 60  # steps after which a loss that is still above that of a constant says something
_TINY, _SMALL, _SAME = 0.01, 0.05, 0.02  # spread of inputs between samples; their root mean square; quotient of both
_LITTLE = 0.05  # spread of the first results between samples; the same over their root mean square
_HUGE, _LARGE_RESULTS = 20.0, 5.0  # root mean square of inputs, and of the first results
_LARGE_COLUMN, _OTHERS = 100.0, 1000.0  # root mean square of a column, and over that of the median column
_ONE_CLASS, _OF_A_BATCH = 0.999, 16  # share of the targets; samples
_NEXT_TO_NOTHING, _MANY_SAMPLES = 0.05, 1000  # loss and samples of the second half of a run
_SLACK = 1e-3  # of a target beyond 0 and 1
_BEYOND, _LOST = 0.05, 0.1  # share of the targets; of their variance
_FAR, _WIDE, _LARGE_TARGETS = 2.0, 100.0, 10.0  # distance of means over spread; spread over spread; spread
_MANY = 4  # times the samples of a batch
_ABOVE = 3.0  # times the loss of a constant, at the end


@dataclass(frozen=True)
class _Losses:
    """The loss at the end and that of the best constant answer, in the same unit; `step` is the last one compared.

    `least` is the smallest quotient of a loss and that of a constant in the steps that were compared, `mean` that of
    their means, `fell` the loss at the end over that of the first steps.
    """

    step: int
    late: float
    constant: float
    least: float
    mean: float
    fell: float

    @property
    def learns_nothing(self) -> bool:
        mean = min(self.mean, self.late / self.constant)
        return self.least >= _LEAST and mean >= _LEARNS_NOTHING


@np.errstate(all="ignore")
def _losses(m: Measurements) -> _Losses | None:
    """None where losses cannot be compared with a constant: one is perfect, targets move, others are recorded."""
    rows = m.fact_rows("constant_answers")
    if not m.own_loop or m.n < _LONG or not m.finite_loss.all() or not rows or any(row.get("void") for row in rows):
        return None
    recorded = m.at_loss(np.array([whole(row, "step") for row in rows], np.int64))
    factors = recorded / np.array([number(row, "loss") for row in rows])
    unit = median(factors)
    if len(rows) < 2 or not unit > 0 or not (np.abs(factors / unit - 1) < _ALIKE).all():
        return None
    first, late = float(m.loss[: max(m.n // 20, 1)].mean()), float(m.loss[-(m.n // 4) :].mean())
    if not first or not all(number(row, "constant") for row in rows):
        return None
    quotients = [number(row, "loss") / number(row, "constant") for row in rows]
    constant = float(np.mean([number(row, "constant") for row in rows]))
    mean = float(np.mean([number(row, "loss") for row in rows])) / constant
    return _Losses(whole(rows[-1], "step"), late / unit, constant, min(quotients), mean, late / first)


def _of_losses(found: _Losses) -> str:
    return Sentence(
        "The loss ends at {late:.4g}, where the best answer that is one for all inputs has {constant:.4g}.",
        late=found.late, constant=found.constant,
    )  # fmt: skip


def inputs_all_alike(m: Measurements) -> Answer:
    """Each sample of a batch is the same in all steps that were looked at, while their targets differ."""
    rows = [row for row in m.fact_rows("batches") if number(row, "samples") >= _FEWEST_SAMPLES]
    steps = sorted({whole(row, "step") for row in rows})
    if not m.own_loop or len(steps) < _FEWEST_STEPS:
        return None
    alike = all(row.get("alike") for row in rows)
    size = min(sum(whole(row, "numbers") for row in rows if number(row, "step") == step) for step in steps)
    found = _losses(m)
    if not alike or size < _FEWEST_NUMBERS or found is None or not found.learns_nothing:
        share = float(np.mean([bool(row.get("alike")) for row in rows]))
        return RuledOut(
            "inputs-all-alike",
            Sentence(
                "because the samples of {share} of the batches seen are all alike, or targets are learnt",
                share=percent(share),
            ),
        )
    count = whole(rows[-1], "samples")
    proof = Evidence(
        L_("all samples of a batch are equal, in each step that was looked at, and the targets are not"),
        {"samples": count, "numbers": size, "late": found.late, "constant": found.constant},
        together(
            Sentence(
                "In steps {steps} all {count} samples that the model got were the same {size} numbers.",
                steps=", ".join(map(str, steps)), count=count, size=size,
            ),
            _of_losses(found),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    known = not any(row.get("short") for row in rows)
    return [
        Finding(
            "inputs-all-alike", "error", L_("All samples of a batch are the same: inputs tell nothing of the targets"),
            steps[0], int(m.steps[-1]), (proof,),
            L_(
                "Look at how a sample is made: an index that is not used, images that are cast to integers before they "
                "are scaled (all zeros), a file that is read once, a cast to 16 bits around an offset."
            ),
            0.9, "docs/diagnosis.md", certainty="exact",
            blame=Blame(False, L_("the samples are equal numbers with more digits than 16 bits have")) if known
            else Blame(needs=L_("the data before they are cast")),
        )
    ]  # fmt: skip


def inputs_out_of_scale(m: Measurements) -> Answer:
    """Data that meet the first weights tiny, huge, or nearly the same, so that the products hardly tell them apart."""
    rows = [row for row in m.fact_rows("first_products") if number(row, "samples") >= _FEWEST_SAMPLES]
    if not m.own_loop or m.n < _LONG or not rows:
        return None
    first = rows[0]
    own = [row for row in rows if row.get("module") == first.get("module")]
    found = _losses(m)
    told = _told_of(first, len(own))
    if told is not None and not told[3] and (found is None or not found.learns_nothing):
        told = None
    if told is None:
        return RuledOut(
            SCALE_OF_INPUTS,
            Sentence(
                "because numbers of rms {rms:.3g} reach {module}, which differ between samples by {spread:.3g}, or it "
                "learns from them",
                rms=number(first, "rms"), spread=number(first, "spread"), module=_place(first),
            ),
        )  # fmt: skip
    title, text, fix, provisional = told
    nothing = found is not None and found.learns_nothing
    sentences = [text, Sentence(
        "The first results, of rms {rms:.3g}, differ between samples by {spread:.3g}.",
        rms=number(first, "result_rms"), spread=number(first, "result_spread"),
    )]  # fmt: skip
    proof = Evidence(
        L_("rms(x), sd(x) between samples, and of the first results W x + b"),
        {name: number(first, name) for name in ("rms", "mean", "spread", "largest", "result_rms", "result_spread")},
        together(*sentences, *([_of_losses(found)] if found is not None else [])),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            SCALE_OF_INPUTS, "info" if provisional and not nothing else "warning", title, whole(first, "step"),
            int(m.steps[-1]), (proof,), fix, 0.9, "docs/diagnosis.md", str(first.get("module") or ""),
            certainty="estimate", blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


def _place(row: Row) -> str:
    return str(row.get("module") or L_("the first weights"))


def _told_of(row: Row, steps: int) -> tuple[str, str, str, bool] | None:
    """Title, proof and fix of inputs out of scale, and whether another finding must show their harm; None of others."""
    rms, spread, module = number(row, "rms"), number(row, "spread"), _place(row)
    results, between = number(row, "result_rms"), number(row, "result_spread")
    column, usual = number(row, "largest_column"), number(row, "usual_column")
    weak = between < _LITTLE * max(results, 1.0)
    given = Sentence(
        "{module} gets numbers of rms {rms:.3g} around {mean:.3g}, at most {largest:.3g}, which differ between the "
        "samples of a batch by {spread:.3g} (standard deviation).",
        module=module, rms=rms, mean=number(row, "mean"), largest=number(row, "largest"), spread=spread,
    )  # fmt: skip
    if row.get("divided_twice") and weak:
        return (
            L_("Inputs are divided by 255 twice: they are next to nothing beside the bias"),
            together(given, L_("All of them are whole numbers divided by 255 x 255.")),
            L_("Divide once: ToTensor, or the loader, has divided bytes by 255 already."), False,
        )  # fmt: skip
    if 0 < spread < _TINY and weak and rms < _SMALL:
        return (
            Sentence("Inputs are tiny: {module} gets numbers of rms {rms:.2g}", module=module, rms=rms), given,
            L_(
                "Scale inputs to a standard deviation near 1: look for a division that is made twice (by 255, by a "
                "standard deviation), or in the wrong unit."
            ),
            False,
        )  # fmt: skip
    if 0 < spread < _SAME * rms and weak:
        return (
            Sentence(
                "Inputs hardly differ: {module} gets {mean:.3g} with a standard deviation of {spread:.2g}",
                module=module, mean=number(row, "mean"), spread=spread,
            ),
            given,
            L_(
                "Take the mean off each feature and divide it by its standard deviation; look whether images are "
                "still, or no more, bytes where Normalize gets them."
            ),
            False,
        )  # fmt: skip
    if column > _LARGE_COLUMN and column > _OTHERS * usual:
        return (
            Sentence(
                "Inputs are not scaled: column {column} is {times:.2g} times as large as the others",
                column=whole(row, "column"), times=column / max(usual, 1e-300),
            ),
            together(given, Sentence(
                "Column {column} has an rms of {size:.3g}, the median column {usual:.3g}.",
                column=whole(row, "column"), size=column, usual=usual,
            )),
            L_("Take the mean off each feature and divide it by its standard deviation."), True,
        )  # fmt: skip
    if rms > _HUGE and results > _LARGE_RESULTS and steps:
        return (
            Sentence("Inputs are not scaled: {module} gets numbers of rms {rms:.3g}", module=module, rms=rms), given,
            L_(
                "Scale inputs to a standard deviation near 1: divide bytes by 255, take the mean off each feature and "
                "divide it by its standard deviation."
            ),
            True,
        )  # fmt: skip
    return None


def targets_out_of_range(m: Measurements) -> Answer:
    """Targets that the last function, or the loss, does not reach: 255 for a probability, -1 for a sigmoid."""
    rows = m.fact_rows("target_ranges")
    if not m.own_loop or not rows:
        return None
    entropies = [row for row in rows if row.get("kind") == "binary cross entropy"]
    wrong = [row for row in entropies if number(row, "low") < -_SLACK or number(row, "high") > 1 + _SLACK]
    if wrong and len(wrong) == len(entropies):
        return [_no_probabilities(m, wrong)]
    bound = [row for row in rows if row.get("function") and row.get("kind") in _OF_NUMBERS]
    beyond = [row for row in bound if number(row, "beyond") > _BEYOND and number(row, "lost") > _LOST]
    if len(beyond) > 1 and len(beyond) == len(bound):
        return [_beyond_function(m, beyond)]
    most = max((number(row, "beyond") for row in bound), default=0.0)
    return RuledOut(
        "targets-out-of-range",
        Sentence("because {most} of the targets seen lie beyond what the last function can return", most=percent(most)),
    )


def _no_probabilities(m: Measurements, rows: list[Row]) -> Finding:
    low, high = min(number(row, "low") for row in rows), max(number(row, "high") for row in rows)
    proof = Evidence(
        L_("target < 0 or target > 1 in a binary cross entropy"), {"low": low, "high": high, "steps": len(rows)},
        Sentence(
            "In step {step} the targets of a binary cross entropy reach from {low:.4g} to {high:.4g}.",
            step=whole(rows[0], "step"), low=low, high=high,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return Finding(
        "targets-out-of-range", "error",
        Sentence("Targets of {low:.4g} to {high:.4g} are no probabilities: a binary cross entropy wants 0 to 1",
                 low=low, high=high),
        whole(rows[0], "step"), int(m.steps[-1]), (proof,),
        L_(
            "Bring the targets to 0 and 1: divide masks of 0 and 255 by 255, and turn -1 and 1 into 0 and 1. For other "
            "targets the loss has no least value."
        ),
        0.97, "docs/diagnosis.md", certainty="exact", blame=IN_ANY_FORMAT,
    )  # fmt: skip


def _beyond_function(m: Measurements, rows: list[Row]) -> Finding:
    last = rows[-1]
    function, share, lost = str(last.get("function")), number(last, "beyond"), number(last, "lost")
    proof = Evidence(
        L_("targets beyond the bounds of the last function"),
        {"low": number(last, "low"), "high": number(last, "high"), "beyond": share, "lost": lost},
        Sentence(
            "In step {step} targets reach from {low:.4g} to {high:.4g}; {share} of them lie where no {function} does, "
            "and that distance alone is {lost} of their variance.",
            step=whole(last, "step"), low=number(last, "low"), high=number(last, "high"), share=percent(share),
            function=function, lost=percent(lost),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return Finding(
        "targets-out-of-range", "warning",
        Sentence("{share} of the targets lie beyond what the last function ({function}) can return",
                 share=percent(share), function=function),
        whole(rows[0], "step"), int(m.steps[-1]), (proof,),
        L_(
            "Leave the last function out, or bring the targets into its range (0 to 1 of a sigmoid or softmax, -1 to 1 "
            "of a tanh, above 0 of a ReLU)."
        ),
        0.93, "docs/diagnosis.md", str(last.get("module") or ""), certainty="exact", blame=IN_ANY_FORMAT,
    )  # fmt: skip


def targets_out_of_scale(m: Measurements) -> Answer:
    """Squared errors of targets so far from the outputs, or so much wider, that a run cannot bring them together."""
    rows = [row for row in m.fact_rows("target_ranges") if row.get("kind") in _OF_NUMBERS]
    rows = [row for row in rows if number(row, "numbers") >= _FEWEST_SAMPLES and not row.get("function")]
    found = _losses(m)
    if found is None or len(rows) < 2 or len({number(row, "step") for row in rows}) < len(rows):
        return None
    last = rows[-1]
    mean, spread, middle, own = (number(last, each) for each in ("mean", "spread", "output_mean", "output_spread"))
    far = abs(mean - middle) > _FAR * spread and abs(middle) < abs(mean) / 2 and found.late > _ABOVE * found.constant
    wide = spread > _WIDE * own and spread > _LARGE_TARGETS and found.learns_nothing
    if not (far or wide) or found.fell < 0.5:
        return RuledOut(
            "targets-out-of-scale",
            Sentence(
                "because outputs of {middle:.3g} +- {own:.2g} meet targets of {mean:.3g} +- {spread:.2g}, or get there",
                middle=middle, own=own, mean=mean, spread=spread,
            ),
        )  # fmt: skip
    proof = Evidence(
        L_("mean and standard deviation of targets and outputs"),
        {"mean": mean, "spread": spread, "output_mean": middle, "output_spread": own, "late": found.late},
        together(
            Sentence(
                "In step {step} the targets have a mean of {mean:.4g} and a standard deviation of {spread:.3g}, the "
                "outputs {middle:.4g} and {own:.3g}.",
                step=whole(last, "step"), mean=mean, spread=spread, middle=middle, own=own,
            ),
            _of_losses(found),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "targets-out-of-scale", "warning",
            Sentence(
                "Targets are not scaled: around {mean:.3g} +- {spread:.2g}, outputs around {middle:.2g} +- {own:.2g}",
                mean=mean, spread=spread, middle=middle, own=own,
            ),
            whole(rows[0], "step"), int(m.steps[-1]), (proof,),
            L_(
                "Take the mean off the targets and divide them by their standard deviation, and undo both for what the "
                "model predicts; or set the bias of the last layer to their mean."
            ),
            0.85, "docs/diagnosis.md", certainty="estimate", blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


def one_class(m: Measurements) -> Answer:
    """All targets of a classifier are one class in each step that was looked at."""
    rows = [row for row in m.fact_rows("constant_answers") if number(row, "samples") >= _OF_A_BATCH and "share" in row]
    if not m.own_loop or len(rows) < _FEWEST_STEPS or not all(row.get("of_layer") for row in rows):
        return None
    least, classes = min(number(row, "share") for row in rows), {whole(row, "class") for row in rows}
    half = m.loss[m.n // 2 :]
    most, count = float(half.max()), whole(rows[-1], "samples") * len(half)  # another class would cost much
    if least < _ONE_CLASS or len(classes) > 1 or not most < _NEXT_TO_NOTHING or count < _MANY_SAMPLES:
        return RuledOut(
            "one-class",
            Sentence(
                "because the most frequent class of a batch had {least} of it in one of {row_count} steps, or others "
                "must have been met: the loss was {most:.3g} in the second half",
                least=percent(least), row_count=len(rows), most=most,
            ),
        )  # fmt: skip
    steps, single = [whole(row, "step") for row in rows], classes.pop()
    proof = Evidence(
        L_("one class has all targets in each step that was looked at, and the loss is next to nothing"),
        {"class": single, "steps": len(steps), "largest_loss": most, "samples": count},
        Sentence(
            "In steps {steps} all targets were class {single}; the loss of the second half, of {count} samples, is at "
            "most {most:.3g}: none of another class was among them.",
            steps=", ".join(map(str, steps)), single=single, count=count, most=most,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "one-class", "warning",
            Sentence("All targets are class {single}: the model learns to answer nothing else", single=single),
            steps[0], int(m.steps[-1]), (proof,),
            L_(
                "Look at how targets are made: probabilities cast to integers are all 0, an index along the wrong "
                "axis, a column of the table that is constant, a data set of one folder."
            ),
            0.9, "docs/diagnosis.md", certainty="estimate",
            blame=Blame(needs=L_("the targets before they are cast to integers")) if single == 0
            else Blame(False, L_("classes are whole numbers, the same in any format")),
        )
    ]  # fmt: skip


def ignored_classes(m: Measurements) -> Answer:
    """A batch whose classes are all -100, which the loss leaves out: its mean is over none."""
    rows = [row for row in m.fact_rows("broken_batches") if row.get("ignored")]
    if not rows:
        return None
    step, count = whole(rows[0], "step"), whole(rows[0], "ignored")
    proof = Evidence(
        L_("all classes of a batch are -100"), {"step": step, "classes": count},
        Sentence("In step {step} all {count} classes that the model got were -100.", step=step, count=count),
    )  # fmt: skip
    return [
        Finding(
            "ignored-classes", "error",
            Sentence("All classes of step {step} are -100, which no loss counts: a mean over none is NaN", step=step),
            step, step, (proof,),
            L_(
                "Leave out batches without a class that counts, or divide the sum by at least 1; look whether a limit "
                "of length has cut off all answers."
            ),
            0.95, "trl#6668", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def one_batch(m: Measurements) -> Answer:
    """Info: each step gets the same batch."""
    rows = m.fact_rows("repeated_batch")
    if not m.own_loop or not rows:
        return None
    steps, samples = whole(rows[0], "steps"), whole(rows[0], "samples")
    if not rows[0].get("moves") and number(rows[0], "evaluated") < _MANY * samples:
        return None  # all there is, as it lies in memory
    proof = Evidence(
        L_("a sample of the batch is the same in each step"), {"steps": steps, "samples": samples},
        Sentence("In {steps} steps the model got the same {samples} samples.", steps=steps, samples=samples),
    )  # fmt: skip
    return [
        Finding(
            "one-batch", "info", Sentence("Each step gets the same batch of {samples} samples", samples=samples),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Nothing to do where this is all there is to learn from. Else look for next(iter(loader)) inside the "
                "loop, which begins anew in each step, and for an index that does not move."
            ),
            0.9, "docs/diagnosis.md", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (
    Rule("inputs-all-alike", "C", L_("Do the samples of a batch differ?"), inputs_all_alike),
    Rule(SCALE_OF_INPUTS, "C", L_("Do the first weights get numbers of their scale?"), inputs_out_of_scale),
    Rule("targets-out-of-range", "C", L_("Can outputs reach the targets?"), targets_out_of_range),
    Rule("targets-out-of-scale", "C", L_("Do targets and outputs have one scale?"), targets_out_of_scale),
    Rule("one-class", "C", L_("Do the targets differ?"), one_class),
    Rule("ignored-classes", "C", L_("Has each batch a class that counts?"), ignored_classes),
    Rule("one-batch", "C", L_("Do the batches differ?"), one_batch),
)
