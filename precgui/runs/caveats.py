"""How a run really computed: emulated or slow arithmetic, from the facts in its record and no others."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from precgui.runs.run import Run
from precgui.sentences import L_, Sentence, recased, together

# The note of `engine.precisions.amp.slow_bf16`, also in files of older versions: "... takes 50 times its FP32 time".
_SLOW = re.compile(r"has no fast (\w+).* takes (\d+) times its FP32 time")
Arithmetic = Literal["native", "emulated", "slow"]
WORDS: dict[Arithmetic, str] = {"native": "", "emulated": L_("emulated"), "slow": L_("slow here")}
SPEED_CAVEAT = L_("Its speed says nothing about hardware that has the format.")
MEMORY_CAVEAT = L_(
    "Emulation keeps extra copies of tensors, so its memory says nothing about hardware with the format."
)


def marked(value: str, arithmetic: Arithmetic) -> str:
    """A speed with a remark in brackets behind it; without one where the hardware has the format."""
    word = WORDS[arithmetic]
    return Sentence("{value} ({remark})", value=value, remark=word) if word else value


@dataclass(frozen=True)
class ArithmeticFact:
    """How the products of a run were computed, and the sentences of the record that say so."""

    arithmetic: Arithmetic
    sentences: tuple[str, ...] = ()

    @property
    def caveat(self) -> str:
        """Why speed and memory are not those of the format; empty where they are."""
        if self.arithmetic == "native":
            return ""
        reported = any("speed" in sentence for sentence in self.sentences)
        return together(*self.sentences, *(() if reported else (SPEED_CAVEAT,)))

    @property
    def memory_counts(self) -> bool:
        """Whether its memory is what the format needs: an instruction that is slow stores what a fast one would."""
        return self.arithmetic != "emulated"


def arithmetic_of(run: Run) -> ArithmeticFact:
    """How `run` computed: from its `emulated` events and the notes of its environment."""
    emulated = tuple(dict.fromkeys(event.message for event in run.events("emulated")))
    if emulated:
        return ArithmeticFact("emulated", tuple(map(as_sentence, emulated)))
    slow = tuple(note for note in run_notes(run) if _SLOW.search(note))
    return ArithmeticFact("slow", tuple(map(as_sentence, slow))) if slow else ArithmeticFact("native")


def run_notes(run: Run) -> list[str]:
    """The sentences that the engine wrote about the run before its first step."""
    notes = run.environment.get("notes")
    reported = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    return list(dict.fromkeys([*reported, *(event.message for event in run.events("note"))]))


def record_share(run: Run) -> float | None:
    """The share of the time of the steps in which tensors were measured; None where the record does not know it.

    It is the recorder's own account, which is in the record once the run has ended.
    """
    record = run.environment.get("record")
    share = record.get("cost_share") if isinstance(record, Mapping) else None
    return float(share) if isinstance(share, int | float) and 0 <= share < math.inf else None


def cost_above_budget(run: Run) -> str:
    """The sentence on what measuring tensors has cost, where it is more than the budget; empty where it is not."""
    share, budget = record_share(run), run.config.record.budget
    if share is None or not budget < share:
        return ""
    return Sentence(
        "Measuring tensors took {share:.2g} % of the time of the steps, more than the budget of {budget:.2g} %: each "
        "kind is measured {times} times at least, however short the run.",
        share=100 * share,
        budget=100 * budget,
        times=run.config.record.least_measurements,
    )


def as_sentence(text: str) -> str:
    """A message as a sentence of its own. A first word with digits, as e4m3fn, is a name and stays as it is."""
    clause = text if isinstance(text, Sentence) and not text.endswith(".") else text.strip().rstrip(".")
    first, _, _ = clause.partition(" ")
    begins_with_name = any(letter.isdigit() for letter in first)
    return Sentence("{clause}.", clause=clause if begins_with_name else recased(clause, "upper")) if clause else ""
