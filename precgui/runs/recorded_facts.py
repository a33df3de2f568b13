"""Facts that a run records about itself beside its tables: what ran, under which switches, and with which scaler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precgui.checkpoint_files import checkpoint_files
from precgui.config.names import OWN_LOOP
from precgui.hardware.readings import Missing, Reading
from precgui.runs.file.reader import SavedRun
from precgui.runs.run import Run
from precgui.sentences import L_, Sentence, kept_text

# What is recorded under each name is in docs/run-file.md, "Facts about the first step".
_REASONS = {
    "precision": L_("the precision is what the config asked for"),
    "autocast": L_("nobody looked for autocast"),
    "loop": L_("the order of the loop was not recorded"),
    "scaler": L_("no loss scaler was given to the recorder"),
    "census": L_("the operations of the first step were not counted"),
    "certificate": L_("the products of this device were not tried"),
    "fp32_repetition": L_(
        "no step in 16 bits was repeated in FP32, since none was found whose outputs were not finite"
    ),
    "nonfinite_operations": L_(
        "no step was repeated to find the operation that made NaN or Inf, since none was found whose outputs were not "
        "finite"
    ),
    "cancellation": L_("no difference of nearly equal numbers was used, or nobody looked for them"),
    "stored_updates": L_("no number stored in 16 bits was updated by the loop itself in the steps that were looked at"),
    "integers": L_("no whole numbers beyond the exact ones of 16 bits were seen in the steps that were looked at"),
    "broadcast_loss": L_("no column met a vector in a loss in the steps that were looked at"),
    "lost_values": L_("no numbers vanished in FP16 or wrapped around in the steps that were looked at"),
    "narrow_casts": L_("no data were cast to or from 16 bits in the steps that were looked at"),
    "applied_twice": L_("no loss took probabilities for scores in the steps that were looked at"),
    "rounded_weights": L_("no weights were rounded by the loop itself in the steps that were looked at"),
    "rounded_activations": L_("nothing with a gradient was rounded to integers in the steps that were looked at"),
    "quantised_values": L_("no numbers were rounded to 8 bits or to integers in the steps that were looked at"),
    "loss_operations": L_("no operation of the loss was seen that is undefined for some numbers"),
    "unscaled_again": L_("no gradients were seen that the scaler divided by its scale again"),
    "lost_channels": L_("no channels were rounded in one step for all of them in the steps that were looked at"),
    "finite_in_fp32": L_("no loss that 16 bits alone made NaN or Inf was seen in the steps that were looked at"),
    "loop_additions": L_("no sum in 16 bits was seen outside of the model in the steps that were looked at"),
    "constant_answers": L_(
        "no loss whose targets have a best constant answer was seen in the steps that were looked at"
    ),
    "gradient_edits": L_("no gradients were lost in a rounding of the loop in the steps that were looked at"),
    "late_edits": L_("no gradients were scaled after their step in the steps that were looked at"),
    "cleared_gradients": L_("no gradients were cleared before their step in the steps that were looked at"),
    "discarded_passes": L_(
        "no step was seen to use the last of several backward passes alone in the steps that were looked at"
    ),
    "rewritten_weights": L_("no weights were rounded between two steps in the steps that were looked at"),
    "reloaded_weights": L_("no weights were seen to be copied onto themselves by load_state_dict"),
    "emptied_moments": L_("no second moments became zero between two steps"),
    "zero_state": L_("no update was divided by a state of the optimizer that is zero in the steps that were looked at"),
    "narrow_state": L_(
        "no state of an optimizer was held in fewer bits than FP32 has in the steps that were looked at"
    ),
    "early_divisions": L_(
        "no gradients in FP16 were divided by a large number before they were widened in the steps that were looked at"
    ),
    "hidden_parameters": L_(
        "the model computed with no parameters that it does not hold in the steps that were looked at"
    ),
    "untrained_parameters": L_("no parameter that no optimizer has stayed as it was in the steps that were looked at"),
    "unshifted_targets": L_("no causal model got its own inputs for targets in the steps that were looked at"),
    "shifted_targets": L_("no cross entropy got the tokens two places on for targets in the steps that were looked at"),
    "batches": L_("the model got no tensors of data in the steps that were looked at"),
    "broken_batches": L_("no batch of a step whose loss was not finite held NaN, Inf or ignored classes alone"),
    "repeated_batch": L_("the first 40 steps did not all get the same batch"),
    "first_products": L_("no weights that learn met numbers of the data in the steps that were looked at"),
    "softmax_axes": L_("no attention was seen whose weights do not add up to 1 in the steps that were looked at"),
    "policy_ratios": L_("no difference was seen that is clipped around 1, nearly all of it"),
    "clipped_objectives": L_("no loss was seen that adds the minimum of a product and a clipped one"),
    "heavy_dropouts": L_("no dropout of 80 % or more was seen in the steps that were looked at"),
    "bounded_logits": L_("no cross entropy was seen to get products of normalised vectors"),
    "cut_samples": L_("no sample was seen that keeps the gradient of a loss from its distribution"),
    "foreign_samples": L_("no probability of a sample was seen to be weighed with what another sample got"),
    "terms_without_gradient": L_("no part of a loss was seen that compares numbers without a gradient with targets"),
    "unused_terms": L_("no term of a loss was seen whose gradients are cleared before an optimizer uses them"),
    "kept_statistics": L_("no norm with a momentum of 0 was seen in training mode in the steps that were looked at"),
    "sequence_axes": L_("no module was seen to run along the samples of a batch in the steps that were looked at"),
    "mixed_axes": L_("no view was seen to mix positions with features in the steps that were looked at"),
    "loss_terms": L_("no loss was seen to be a sum of terms in the steps that were looked at"),
    "bootstrapped_targets": L_("no flags of ends of episodes were left unread beside targets of values"),
    "unleft_states": L_("no next states of values were seen to come again, or each of them begins a transition"),
    "schedules": L_("the rate has not changed, or no schedule was found when the recording ended"),
    "loss_arguments": L_("no loss was seen to be given other numbers than it takes in the steps that were looked at"),
    "exponents": L_("no learned number goes into an exponential, or no step was not finite"),
    "singular_points": L_(
        "no logarithm, root or angle in 16 bits of an output was seen, or no step was not finite, or none reached a "
        "point without a derivative"
    ),
    "masked_rows": L_("no softmax got a row of scores that is masked throughout in the steps that were looked at"),
    "target_ranges": L_("no loss of fixed targets of numbers was seen in the steps that were looked at"),
    "flat_units": L_("no activation functions were flat for most of their inputs in the last step that was looked at"),
    "exact_steps": L_("no step of the loop was computed in FP64 beside itself"),
    "record": L_("the run recorded no tensors, or has not ended"),
}
FACTS = tuple(_REASONS)
_MOST_COUNTED = 2.0**53
_OF_OWN_LOOPS = (
    "precision", "autocast", "loop", "scaler", "cancellation", "stored_updates", "integers", "broadcast_loss",
    "lost_values", "narrow_casts", "applied_twice", "finite_in_fp32", "rounded_weights", "rounded_activations",
    "quantised_values", "lost_channels", "loop_additions", "loss_operations", "unscaled_again",
    "constant_answers", "gradient_edits", "late_edits", "cleared_gradients", "rewritten_weights", "emptied_moments",
    "reloaded_weights", "discarded_passes",
    "zero_state", "narrow_state", "early_divisions",
    "unshifted_targets", "batches", "broken_batches", "repeated_batch", "first_products", "target_ranges",
    "softmax_axes", "unused_terms", "kept_statistics", "mixed_axes", "loss_terms", "bootstrapped_targets", "schedules",
    "unleft_states",
    "sequence_axes", "policy_ratios", "heavy_dropouts", "bounded_logits", "cut_samples", "foreign_samples",
    "terms_without_gradient", "shifted_targets", "clipped_objectives",
    "loss_arguments", "exponents", "singular_points", "masked_rows",
    "flat_units", "hidden_parameters", "untrained_parameters", "exact_steps",
)  # fmt: skip


def fact(run: Run, name: str) -> Reading[Mapping[str, Any]]:
    """One of FACTS as the run recorded it, or why it is not there. Raises KeyError for another name."""
    reason = _REASONS[name]
    result = run.environment.get(name)
    if isinstance(result, Mapping):
        unavailable = result.get("unavailable")
        return result if unavailable is None else Missing(kept_text(unavailable))
    if run.status == "imported":
        return Missing(L_("event files hold scalars only"))
    if run.config.task != OWN_LOOP and name in _OF_OWN_LOOPS:
        return Missing(L_("the run was trained by precgui, as its config says"))
    return Missing(Sentence("{reason}, or the file is of an early version", reason=reason))


def saved_weights(run: Run) -> str:
    """The file that `train.save_to` wrote at the end of the run; empty where it wrote none."""
    result = run.environment.get("saved_weights")
    return str(result.get("file", "")) if isinstance(result, Mapping) else ""


def weights_sources(run: SavedRun) -> dict[str, str]:
    """The newest checkpoint of a run, and the file or folder that it saved; empty where there is none."""
    newest = next((path for step, path in checkpoint_files(run.path).items() if step <= run.steps), None)
    saved = saved_weights(run)
    return {"checkpoint": str(newest or ""), "saved": saved if saved and Path(saved).exists() else ""}


def breaks_sentence(run: Run) -> str:
    """After which steps the run broke off and went on from a checkpoint; empty for a run in one piece."""
    breaks = run.environment.get("breaks")
    known = rows_of(breaks)
    if not known:
        return ""
    steps = ", ".join(str(each.get("step")) for each in known)
    return Sentence(
        "went on from a checkpoint after step {steps}; its time is without the pause and the steps made twice",
        steps=steps,
    )


def fact_rows(run: Run, name: str) -> list[Mapping[str, Any]]:
    """The rows of a fact that has some; [] where none were recorded."""
    result = fact(run, name)
    return [] if isinstance(result, Missing) else rows_of(result.get("all"))


def rows_of(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list of a run file; [] for all else that may stand in its place."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list | tuple) else []


def fp32_repetition(run: Run, step: int) -> Mapping[str, Any]:
    """The repetition in FP32 of the forward pass of a step, as docs/run-file.md lists its keys; {} without one."""
    return next((each for each in fact_rows(run, "fp32_repetition") if each.get("step") == step), {})


def nonfinite_operation(run: Run, step: int) -> Mapping[str, Any]:
    """The operation that made NaN or Inf in the forward pass of a step, as docs/run-file.md has it; {} without one."""
    return next((each for each in fact_rows(run, "nonfinite_operations") if each.get("step") == step), {})


def measurement_counts(run: Run) -> dict[str, int]:
    """How often each kind of tensor was measured, by the account at the end of the run; {} before. Files of early
    versions call it `looks`."""
    record = fact(run, "record")
    counts = {} if isinstance(record, Missing) else record.get("measurements", record.get("looks"))
    return {str(kind): int(count) for kind, count in counts.items()} if isinstance(counts, Mapping) else {}


def number(row: Mapping[str, Any], name: str, missing: float = 0.0) -> float:
    """The number of that name in a row of a fact; `missing` where the file holds none."""
    value = row.get(name)
    try:
        return float(value) if isinstance(value, int | float) else missing
    except OverflowError:  # JSON has whole numbers of any length
        return missing


def text(row: Mapping[str, Any], name: str) -> str:
    """The text of that name in a row of a fact; '' where the file holds none."""
    value = row.get(name)
    return value if isinstance(value, str) else ""


def texts(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The texts of a list in a row of a fact; () where the file holds none."""
    value = row.get(name)
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def whole(row: Mapping[str, Any], name: str) -> int:
    """The same of what is counted, as a step; 0 where the file holds no number, or one that no count reaches."""
    value = number(row, name)
    return int(value) if abs(value) < _MOST_COUNTED else 0
