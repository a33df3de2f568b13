"""Group C: losses of torch that are given other numbers, or other shapes, than they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text, whole
from precgui.sentences import L_, Sentence, filled

_NAME = "loss-arguments"
_FEWEST_STEPS = 2  # with numbers that are no log-probabilities, or targets of 0 and 1
_AT_ONCE = {  # mistakes that one step betrays
    "probabilities", "negative_targets", "swapped", "rates", "negative_rates", "blank_targets", "sigmoid_scores",
    "tanh_scores",
}  # fmt: skip
_ERRORS = {"scores", "negative_targets", "swapped", "negative_rates", "long_targets"}
_LATE = 32  # step, in which a row of zeros is none of the first weights any more
_ROWS_OF_ZEROS = 0.1  # of scores that a ReLU has cut off: these samples have no gradient
# By the mistake: title and cure.
_TEXTS = {
    "probabilities": (
        L_("{loss} gets probabilities, and takes their logarithms"),
        L_("Give {loss} the result of log_softmax in place of that of softmax."),
    ),
    "scores": (
        L_("{loss} gets scores, and takes logarithms of probabilities: it has no least value"),
        L_("Apply log_softmax before {loss}; cross_entropy takes the scores themselves."),
    ),
    "negative_targets": (
        L_("The targets of {loss} are below zero, and it takes probabilities"),
        L_("Give the targets as probabilities (softmax), or set log_target=True where they are logarithms."),
    ),
    "clamped_scores": (
        L_("{loss} gets scores that a clamp cuts off at 0 and 1: {share} of them"),
        L_("Take binary_cross_entropy_with_logits of the scores, or a sigmoid in place of the clamp."),
    ),
    "swapped": (
        L_("{loss} gets outputs and targets in the other order"),
        L_("Give {loss} the outputs first, then the targets."),
    ),
    "rates": (
        L_("{loss} gets rates, and takes their logarithms: none can be below 1"),
        L_("Give it the scores as they are, without exp, softplus or ReLU, or set log_input=False."),
    ),
    "negative_rates": (
        L_("{loss} with log_input=False gets scores: {share} are below zero"),
        L_("Leave log_input=True for scores, or make rates of them (softplus, exp) before the loss."),
    ),
    "blank_targets": (
        L_("{loss} gets targets that hold its blank: in {share} of the sequences"),
        L_("Keep the class of the blank (0, unless blank= says another one) for it: count real classes from 1."),
    ),
    "long_targets": (
        L_("{loss} gets targets longer than their inputs: {share} of the sequences have a loss of Inf"),
        L_(
            "Leave out sequences whose targets, with one more place between equal neighbours, do not fit into the "
            "input lengths, shorten the model's strides, or set zero_infinity=True."
        ),
    ),
    "sigmoid_scores": (
        L_("{loss} gets the results of a {name}, and takes scores without bounds"),
        L_("Give {loss} what goes into the {name}: between such bounds no class comes near a probability of 1."),
    ),
    "tanh_scores": (
        L_("{loss} gets the results of a {name}, and takes scores without bounds"),
        L_("Give {loss} what goes into the {name}: between such bounds no class comes near a probability of 1."),
    ),
    "relu_scores": (
        L_("{loss} gets the results of a ReLU: in {share} of its rows all scores are 0, and teach nothing"),
        L_("Leave out the ReLU behind the last layer: {loss} takes scores of any sign."),
    ),
    "zero_targets": (
        L_("{loss} gets targets of 0 in place of -1: {share} of them teach nothing"),
        L_("Turn targets of 0 and 1 into -1 and 1: 2 * target - 1."),
    ),
}
_SOURCE = "torch.nn.functional documentation"
_LOSSES = {  # that take scores, and the function of which they compute the logarithm
    "log_softmax": (L_("cross entropy"), "softmax"),
    "log_sigmoid_forward": (L_("the logarithm of a sigmoid"), "sigmoid"),
    "binary_cross_entropy_with_logits": (L_("binary cross entropy with logits"), "sigmoid"),
}


def loss_arguments(m: Measurements) -> Answer:
    """A loss that takes log-probabilities gets probabilities or scores, one of pairs targets of 0; and the like."""
    rows = m.fact_rows(_NAME.replace("-", "_"))
    if not m.own_loop or not m.n:
        return None
    chosen = next((found for row in rows if (found := _alike(rows, row))), None)
    if chosen is None:
        ruled_out = RuledOut(_NAME, L_("because no loss was seen to be given other numbers than it takes"))
        return ruled_out if m.fact("census") else None
    return [_told(m, chosen)]


def _alike(rows: list[Mapping[str, Any]], row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of the same loss and mistake, where these are enough to judge by."""
    mistake = text(row, "mistake")
    same = [each for each in rows if (each.get("loss"), each.get("mistake")) == (row.get("loss"), row.get("mistake"))]
    last = max(number(each, "step") for each in same)
    if mistake == "relu_scores":
        same = [each for each in same if number(each, "share") > _ROWS_OF_ZEROS]
    steps = {number(each, "step") for each in same}
    stays_so = mistake == "relu_scores" and last >= _LATE and last in steps
    is_enough = mistake in _AT_ONCE or len(steps) >= _FEWEST_STEPS or stays_so
    return same if is_enough else []


def _told(m: Measurements, rows: list[Mapping[str, Any]]) -> Finding:
    row = rows[0]
    loss, mistake, share = str(row.get("loss")), str(row.get("mistake")), percent(number(row, "share"))
    values = {"loss": _name_of(loss, mistake), "share": share, "name": mistake.removesuffix("_scores")}
    title, fix = (filled(each, **values) for each in _TEXTS.get(mistake, _TEXTS["zero_targets"]))
    numbers = {"step": whole(row, "step"), "low": number(row, "low"), "high": number(row, "high")}
    given = (
        Sentence(
            "In step {step} the targets needed inputs of {low:.0f} to {high:.0f} places, one more between equal "
            "neighbours.",
            **numbers,
        )
        if mistake == "long_targets"
        else Sentence("In step {step} they were {low:.4g} to {high:.4g}.", **numbers)
    )
    proof = Evidence(
        L_("numbers that a loss was given, beside those that it takes"),
        {"loss": loss, "low": number(row, "low"), "high": number(row, "high"), "share": number(row, "share"),
         "steps": len({number(each, "step") for each in rows})},
        given, "loss", m.series_of(m.loss),
    )  # fmt: skip
    return Finding(
        _NAME, "error" if mistake in _ERRORS else "warning", title,
        whole(row, "step"), int(m.steps[-1]), (proof,), fix, 0.95, _SOURCE, str(row.get("module") or ""),
        certainty="exact", blame=IN_ANY_FORMAT,
    )  # fmt: skip


def _name_of(loss: str, mistake: str) -> str:
    is_of_pairs = mistake == "zero_targets" and loss not in ("soft_margin_loss", "margin_ranking_loss")
    return L_("A loss of pairs (1 alike, -1 not)") if is_of_pairs else loss


def broadcast_loss(m: Measurements) -> Answer:
    """A loss of outputs [B, 1] and targets [B]: a mean over all pairs, least where all outputs are the same."""
    rows = m.fact_rows("broadcast_loss")
    if not m.own_loop or not m.n:
        return None
    if not rows:
        return RuledOut("broadcast-loss", L_("because no loss of a column and a vector was seen")) if (
            m.fact("census")
        ) else None  # fmt: skip
    row, count = rows[0], whole(rows[0], "samples")
    column, vector = text(row, "column") or f"[{count}, 1]", text(row, "vector") or f"[{count}]"
    proof = Evidence(
        L_(
            "operands [B, 1, ...] and [B, ...] of an elementwise operation, one learned and one fixed: result "
            "[B, B, ...]"
        ),
        {"samples": count, "step": whole(row, "step"), "operation": text(row, "operation")},
        Sentence(
            "In step {number} {operation} gets shapes {column} and {vector}: broadcasting pairs each of {count} "
            "outputs with each of {count} targets, and the loss is a mean or a sum over all pairs.",
            number=whole(row, "step"), operation=text(row, "operation"), count=count, column=column, vector=vector,
        ),
    )  # fmt: skip
    return [
        Finding(
            "broadcast-loss", "warning",
            Sentence(
                "The loss compares each output with each target: shapes {column} and {vector}",
                column=column, vector=vector,
            ),
            whole(row, "step"), int(m.steps[-1]), (proof,),
            L_(
                "Give both the same shape: outputs.squeeze(1), or targets.unsqueeze(1). In any precision the mean over "
                "all pairs is least where every output has the same answer, such as the mean of the targets."
            ),
            0.9, "torch.nn.functional.mse_loss documentation, its warning", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def applied_twice(m: Measurements) -> Answer:
    """Probabilities that a loss takes for scores: it applies softmax or sigmoid to what already went through one."""
    rows = [row for row in m.fact_rows("applied_twice") if text(row, "operation") in _LOSSES]
    if not m.own_loop or not m.n:
        return None
    if not rows:
        return RuledOut("applied-twice", L_("because no loss was seen to take probabilities for scores")) if (
            m.fact("census")
        ) else None  # fmt: skip
    row, step = rows[0], whole(rows[0], "step")
    loss, own = _LOSSES[text(row, "operation")]
    function, module = str(row.get("function")), str(row.get("module") or "")
    proof = Evidence(
        Sentence("operand of {operation} = {function}(x)", operation=text(row, "operation"), function=function),
        {"step": step, "function": function, "loss": loss},
        (
            Sentence(
                "In step {step} {loss} gets the result of a {function} of {module}, and applies a {own} to it.",
                step=step,
                loss=loss,
                function=function,
                module=module,
                own=own,
            )
            if module not in origin.WHOLE
            else Sentence(
                "In step {step} {loss} gets the result of a {function}, and applies a {own} to it.",
                step=step,
                loss=loss,
                function=function,
                own=own,
            )
        ),
    )
    return [
        Finding(
            "applied-twice", "warning",
            Sentence(
                "The loss applies a {own} to the result of a {function}: it takes probabilities for scores",
                own=own, function=function,
            ),
            step, int(m.steps[-1]), (proof,),
            Sentence(
                "Give the loss the scores before the {function} (and apply it for predictions only): of numbers "
                "between 0 and 1 it cannot make a probability near 1, in any precision.",
                function=function,
            ),
            0.9, "torch.nn.CrossEntropyLoss and BCEWithLogitsLoss documentation", module, blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def policy_ratios(m: Measurements) -> Answer:
    """A clipped ratio of policies that is none."""
    rows = [row for row in m.fact_rows("policy_ratios") if whole(row, "count") >= _FEWEST_STEPS]
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    if not rows:
        return RuledOut(
            "policy-ratio", L_("because no difference was seen in two steps that is clipped around 1, nearly all of it")
        )
    row, step = rows[0], whole(rows[0], "step")
    if row.get("of_itself") is True:
        return [_of_itself(m, row)]
    share, low, high = number(row, "share"), number(row, "low"), number(row, "high")
    proof = Evidence(
        L_("clamp(a - b, 1 - c, 1 + c), of which > 0.9 is below 1 - c; one of a and b learns"),
        {"step": step, "share": share, "low": low, "high": high},
        Sentence(
            "In {row_count} of the steps that were looked at, the last one step {step}, a difference of numbers that "
            "learn and others that do not is clipped to {low:.3g} and {high:.3g}, and {share} of it is below that.",
            row_count=whole(row, "count"), step=step, low=low, high=high, share=percent(share),
        ),
    )  # fmt: skip
    return [
        Finding(
            "policy-ratio", "warning",
            L_("The ratio of policies is a difference of logarithms, not its exponential: clipping leaves no gradient"),
            step, int(m.steps[-1]), (proof,),
            L_("Take ratio = torch.exp(new_log_probs - old_log_probs) before it is clipped."), 0.9,
            "Schulman et al. 2017", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _of_itself(m: Measurements, row: Mapping[str, Any]) -> Finding:
    step, count, numbers = whole(row, "step"), whole(row, "count"), whole(row, "numbers")
    proof = Evidence(
        L_("clamp(exp(a - b), 1 - c, 1 + c) with a = b, and both a and b learn"),
        {"step": step, "count": count, "numbers": numbers},
        Sentence(
            "In {count} of the steps that were looked at, the last one step {step}, all {numbers} ratios that are "
            "clipped around 1 are exponentials of 0, the difference of two equal numbers that both have a gradient.",
            step=step, count=count, numbers=numbers,
        ),
    )  # fmt: skip
    return Finding(
        "policy-ratio", "warning",
        L_("The ratio of policies is that of a policy to itself: its gradients cancel, and it learns nothing"),
        step, int(m.steps[-1]), (proof,),
        L_(
            "Keep the log-probabilities of the actions as they were when these were drawn, without a gradient "
            "(old_log_probs.detach())."
        ), 0.9, "Schulman et al. 2017", certainty="exact", blame=IN_ANY_FORMAT,
    )  # fmt: skip


def clipped_objective(m: Measurements) -> Answer:
    """A clipped objective of a policy whose sign in the loss takes the bound away."""
    rows = [row for row in m.fact_rows("clipped_objectives") if whole(row, "count") >= _FEWEST_STEPS]
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    if not rows:
        return RuledOut(
            "clipped-objective", L_("because no loss was seen that adds the minimum of a product and a clipped one")
        )
    row, step = rows[0], whole(rows[0], "step")
    is_added = text(row, "operation") == "minimum"
    proof = Evidence(
        L_("loss = min(r a, clamp(r, 1 - c, 1 + c) a) or -max(r a, clamp(r, 1 - c, 1 + c) a), in which only r learns"),
        {"step": step, "count": whole(row, "count"), "numbers": whole(row, "numbers")},
        Sentence(
            "In {row_count} of the steps that were looked at, the last one step {step}, the loss added the smaller one "
            "of a product and the product of the clipped ratio, for {numbers} numbers. Whether the other factor is an "
            "advantage or a cost: the smaller one falls without a bound, so that clipping holds nothing back.",
            row_count=whole(row, "count"), step=step, numbers=whole(row, "numbers"),
        ) if is_added
        else Sentence(
            "In {row_count} of the steps that were looked at, the last one step {step}, the loss subtracted the larger "
            "one of a product and the product of the clipped ratio, for {numbers} numbers. Whether the other factor is "
            "an advantage or a cost: the larger one grows without a bound, so that clipping holds nothing back.",
            row_count=whole(row, "count"), step=step, numbers=whole(row, "numbers"),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "clipped-objective", "warning",
            L_("The clipped objective of a policy has the wrong sign in the loss") if is_added
            else L_("The loss takes the larger one of two clipped gains of a policy, not the smaller one"),
            step, int(m.steps[-1]), (proof,),
            L_(
                "For advantages write loss = -torch.min(ratio * advantage, clipped * advantage).mean(), for costs loss "
                "= torch.max(ratio * cost, clipped * cost).mean()."
            ),
            0.9, "Schulman et al. 2017; openai/baselines issue 1156", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def shifted_twice(m: Measurements) -> Answer:
    """A model of the next token that is trained on the one after it."""
    rows = [row for row in m.fact_rows("shifted_targets") if whole(row, "count") >= _FEWEST_STEPS]
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    if not rows:
        return RuledOut(
            "shifted-twice", L_("because no targets were seen that are, all of them, the tokens two places on")
        )
    row = max(rows, key=lambda each: each.get("shorter") is True)
    step, is_shorter = whole(row, "step"), row.get("shorter") is True
    proof = Evidence(
        L_("targets[:, t] = tokens[:, t + 2] for all t, in all cross entropies of a step"),
        {"step": step, "count": whole(row, "count"), "tokens": whole(row, "tokens")},
        Sentence(
            "In {row_count} of the steps that were looked at, the last one step {step}, the targets of the cross "
            "entropy were the tokens two places after those that the embedding reads: all {tokens} that it has read. "
            "The last place of each sequence has no target: the outputs were shifted against targets that the data "
            "had shifted already.",
            row_count=whole(row, "count"), step=step, tokens=whole(row, "tokens"),
        ) if is_shorter
        else Sentence(
            "In {row_count} of the steps that were looked at, the last one step {step}, the targets of the cross "
            "entropy were the tokens two places after those that the embedding reads: all {tokens} that it has read.",
            row_count=whole(row, "count"), step=step, tokens=whole(row, "tokens"),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "shifted-twice", "warning" if is_shorter else "info",
            L_("Targets are shifted twice: each position learns the token after the next one") if is_shorter
            else L_("Each position learns the token after the next one"),
            step, int(m.steps[-1]), (proof,),
            L_(
                "Shift once: give a model that shifts by itself the tokens as labels (labels = input_ids), or compare "
                "model(tokens[:, :-1]) with tokens[:, 1:]. Only where the token after the next one is wanted is this "
                "right."
            ),
            0.9 if is_shorter else 0.5, "transformers issue 32944; tiny-llm-zh issue 10", certainty="estimate",
            blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (
    Rule("clipped-objective", "C", L_("Does clipping bound what the loss gains?"), clipped_objective),
    Rule("shifted-twice", "C", L_("Are targets the next tokens?"), shifted_twice),
    Rule("policy-ratio", "C", L_("Is the ratio that is clipped around 1 one?"), policy_ratios),
    Rule("applied-twice", "C", L_("Does the loss get scores, not probabilities?"), applied_twice),
    Rule("broadcast-loss", "C", L_("Does the loss compare each output with its own target?"), broadcast_loss),
    Rule(_NAME, "C", L_("Are losses given the numbers that they take?"), loss_arguments),
)
