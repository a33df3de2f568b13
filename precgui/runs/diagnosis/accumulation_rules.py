"""Group B: gradients that are added up in 16 bits, over the passes of a step or the places of an embedding."""

from __future__ import annotations

import numpy as np

from precgui.runs.diagnosis.analysis import median
from precgui.runs.diagnosis.findings import TOO_FEW_DIGITS, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import DIGITS, half_ulp
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.sentences import L_, Sentence

_HARMFUL = 16.0  # times the limit; six times it was measured to do no harm to a small model


def _most_passes(name: str) -> float:
    """How many equal terms a sum in BF16 or FP16 takes before a tenth of them is lost: 1 / (4 x half an ulp).

    The ulp is that of a sum just below a power of two, half as large, relative to it, as that of 1.
    """
    return 1 / (2 * half_ulp(name))


def swamped_accumulation(m: Measurements) -> Answer:
    """Micro-steps added up in 16 bits, so many that a single one is below half an ulp of their sum."""
    passes = median(m.backward_passes) if m.own_loop else float(m.config.train.accumulation)
    table = m.table("gradient")
    stored = [result for result in table.formats if result in DIGITS] if table is not None else []
    if not passes > 1 or table is None:
        return None
    if len(stored) < len(table.formats) / 2:
        return RuledOut(
            "swamped-accumulation",
            Sentence(
                "because {passes:.0f} gradients are added in FP32",
                passes=passes,
            ),
        )
    limit = _most_passes(stored[0])
    if passes < limit:
        return RuledOut(
            "swamped-accumulation",
            Sentence(
                "because {passes:.0f} gradients are added, and {limit:.0f} would lose a tenth of them",
                passes=passes,
                limit=limit,
            ),
        )
    proof = Evidence(
        L_("backward passes in a step > 1 / (4 x half an ulp)"), {"passes": passes, "limit": limit},
        Sentence(
            "{passes:.0f} gradients are added up in {stored}: from {limit:.0f} on many are below half an ulp of the "
            "sum.",
            passes=passes, stored=stored[0].upper(), limit=limit,
        ),
    )  # fmt: skip
    return [
        Finding(
            "swamped-accumulation", "warning" if passes >= _HARMFUL * limit else "info",
            L_("Gradients are lost when they are added up"), int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Add gradients up in FP32 (main_grad), or in fewer micro-steps."), 0.7,
            "DeepSpeed issue 2768", certainty="estimate", blame=TOO_FEW_DIGITS,
        )
    ]  # fmt: skip


def embedding_accumulation(m: Measurements) -> Answer:
    """Embeddings whose gradient is added up in 16 bits, once for each time that an entry occurs."""
    operations = m.fact("census").get("operations")
    counts = operations.get("embedding_dense_backward") if isinstance(operations, dict) else None
    low = [name for name in counts if name in DIGITS] if isinstance(counts, dict) else []
    if not isinstance(counts, dict):
        return None
    if not low:
        return RuledOut("embedding-accumulation", L_("because gradients of embeddings are added up in FP32"))
    hits, name = _hits(m)
    limit = _most_passes(low[0])
    if not hits > limit:
        return RuledOut(
            "embedding-accumulation",
            Sentence(
                "because an entry occurs {hits:.3g} times in a step on average, and {limit:.0f} would lose a tenth "
                "of them",
                hits=hits, limit=limit,
            )
            if np.isfinite(hits) else Sentence(
                "because no embedding is recorded with its outputs ({low})",
                low=low[0].upper(),
            ),
        )  # fmt: skip
    proof = Evidence(
        L_("positions / entries > 1 / (4 x half an ulp) in embedding_dense_backward"), {"hits": hits, "limit": limit},
        Sentence(
            "An entry of {name} occurs {hits:.3g} times in a step on average; its gradient is a sum in {low}, where "
            "from {limit:.0f} on many terms are below half an ulp of it.",
            name=name, hits=hits, low=low[0].upper(), limit=limit,
        ),
    )  # fmt: skip
    return [
        Finding(
            "embedding-accumulation", "info", Sentence(
                "The gradient of {name} is added up in {low}",
                name=name, low=low[0].upper(),
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,), L_(
                "Keep the embedding in FP32, or use FP32 master weights and autocast."
            ), 0.6, "DeepSpeed issue 2768", name, (f"{name}.weight",),
            {"precision_options.keep_fp32": [name]}, "estimate", blame=TOO_FEW_DIGITS,
        )
    ]  # fmt: skip


def _hits(m: Measurements) -> tuple[float, str]:
    """How often an entry of an embedding occurs in a step, the largest mean over all embeddings, and its name."""
    outputs, result = m.table("activation"), (float("nan"), "")
    for each in m.model.parameters:
        name = each.name.rpartition(".")[0]
        kind = m.model.module_types.get(name, "")
        if outputs is None or not kind.endswith("Embedding") or name not in outputs.names or len(each.shape) != 2:
            continue
        positions = median(outputs.stat("count")[:, outputs.names.index(name)]) / each.shape[1]
        if not result[0] > positions / each.shape[0]:
            result = positions / each.shape[0], name
    return result


RULES = (
    Rule("embedding-accumulation", "B", L_("Are gradients of embeddings added up in FP32?"), embedding_accumulation),
    Rule("swamped-accumulation", "B", L_("Are gradients lost when they are added up?"), swamped_accumulation),
)
