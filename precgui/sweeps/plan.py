"""The runs of a sweep in the order in which they run: randomised complete blocks, kept as `plan.json`.

A block is one seed with every arm once, in random order. A slow hour so hits all arms alike, and after each block the
sweep is balanced. A warm-up comes first and is not judged. The first seeds also run a rounding twin of each baseline,
whose start weights are moved by one ulp: the size of differences that rounding alone causes.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from precgui.config import RunConfig
from precgui.runs.file import json_text
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence
from precgui.sweeps.errors import SweepError
from precgui.sweeps.spec import MOST_MEMBERS, Arm, SweepSpec, members_of

Kind = Literal["run", "twin", "warm-up", "timing"]
WARM_UP_STEPS = 20
TIMING_STEPS = 40
TWIN_FIELD = "train.rounding_twin"


@dataclass(frozen=True)
class Member:
    """One run of the plan. `arm` names the group; `block` counts seeds, or rounds of timing, from 1."""

    name: str
    kind: Kind
    arm: str
    precision: str
    seed: int
    block: int
    config_sha256: str
    skipped: bool = False


@dataclass(frozen=True)
class SweepPlan:
    """The members in the order in which they run."""

    members: tuple[Member, ...]

    def member(self, name: str) -> Member:
        """Raises SweepError for an unknown name."""
        for member in self.members:
            if member.name == name:
                return member
        known = some_names([member.name for member in self.members], 12)
        raise SweepError(Sentence("the sweep has no run {name}; the runs are {names}", name=name, names=known))

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs, in the order of their blocks."""
        return list(dict.fromkeys(m.seed for m in sorted(self.members, key=lambda m: m.block) if m.kind == "run"))

    def with_skipped(self, name: str, skipped: bool) -> SweepPlan:
        """The plan in which a run is skipped, or no longer."""
        chosen = replace(self.member(name), skipped=skipped)
        return SweepPlan(tuple(chosen if member.name == name else member for member in self.members))

    def with_first(self, name: str) -> SweepPlan:
        """The plan in which a run comes before all others."""
        chosen = self.member(name)
        return SweepPlan((chosen, *(member for member in self.members if member.name != name)))

    def with_last(self, name: str) -> SweepPlan:
        """The plan in which a run comes after all others."""
        chosen = self.member(name)
        return SweepPlan((*(member for member in self.members if member.name != name), chosen))


def make_plan(spec: SweepSpec) -> SweepPlan:
    """The plan of a new sweep."""
    baseline = spec.baselines()[0]
    warm_up = _member(spec, "warm-up", baseline, spec.first_seed, 0)
    blocks = [member for block in range(1, spec.seeds + 1) for member in _block(spec, block)]
    rounds = [member for round_ in range(1, spec.timing_rounds + 1) for member in _timing_round(spec, round_)]
    return SweepPlan((warm_up, *blocks, *rounds))


def extended(plan: SweepPlan, spec: SweepSpec, seeds: int) -> SweepPlan:
    """The plan with so many seeds more, after all others. Raises SweepError for more runs than a plan may have."""
    begin = len(plan.seeds) + 1
    runs = len(plan.members) + members_of(spec, seeds)
    if runs > MOST_MEMBERS:
        raise SweepError(
            Sentence(
                "with {seeds} seeds more there would be {runs} runs, more than {most}; add fewer",
                seeds=seeds,
                runs=runs,
                most=MOST_MEMBERS,
            )
        )
    return SweepPlan((*plan.members, *(m for block in range(begin, begin + seeds) for m in _block(spec, block))))


def _block(spec: SweepSpec, block: int) -> list[Member]:
    seed = spec.first_seed + block - 1
    members = [_member(spec, "run", arm, seed, block) for arm in spec.arms()]
    if block <= spec.twins:
        members += [_member(spec, "twin", arm, seed, block) for arm in spec.baselines()]
    _random(spec, f"block {block}").shuffle(members)
    return members


def _timing_round(spec: SweepSpec, number: int) -> list[Member]:
    members = [_member(spec, "timing", arm, spec.first_seed, number) for arm in spec.arms()]
    _random(spec, f"timing {number}").shuffle(members)
    return members


def _random(spec: SweepSpec, part: str) -> random.Random:
    return random.Random(f"{spec.order_seed} {part}")  # the same order whenever it is asked for


def _member(spec: SweepSpec, kind: Kind, arm: Arm, seed: int, block: int) -> Member:
    config = member_config(spec, kind, arm, seed)
    return Member(_name(kind, arm, block), kind, arm.name, arm.precision, seed, block, config_hash(config))


def _name(kind: Kind, arm: Arm, block: int) -> str:
    words = re.sub(r"[^\w.]+", "-", arm.name.replace("=", "-"), flags=re.ASCII).strip("-.").lower()
    if len(words) > 80:  # a file name has room for 255 bytes
        words = f"{words[:70]}-{hashlib.sha256(arm.name.encode()).hexdigest()[:8]}"
    return {
        "run": f"s{block:02}-{words}",
        "twin": f"s{block:02}-{words}-twin",
        "warm-up": "warm-up",
        "timing": f"t{block:02}-{words}",
    }[kind]


def member_config(spec: SweepSpec, kind: Kind, arm: Arm, seed: int) -> RunConfig:
    """The config of a member. Raises SweepError."""
    if kind == "twin":
        return spec.config_of(arm, seed, {TWIN_FIELD: True})
    if kind == "run":
        return spec.config_of(arm, seed)
    steps = WARM_UP_STEPS if kind == "warm-up" else TIMING_STEPS
    return spec.config_of(arm, seed, {"train.max_steps": steps, "record.tensors": False})


def config_hash(config: RunConfig) -> str:
    """SHA-256 of a config, to see that a sweep is still what was planned."""
    text = json.dumps(config.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def plan_json(plan: SweepPlan) -> str:
    """The plan as JSON text that `read_plan` reads back."""
    return json.dumps({"schema": 1, "members": [asdict(member) for member in plan.members]}, indent=1) + "\n"


def parse_plan(text: str) -> SweepPlan:
    """The plan of a `plan.json`. Raises SweepError."""
    try:
        items = json_text.load(text)["members"]
        if len(items) > MOST_MEMBERS:
            raise SweepError(Sentence("it has {runs} runs, more than {most}", runs=len(items), most=MOST_MEMBERS))
        members = tuple(map(_parsed, items))
    except (ValueError, KeyError, TypeError) as error:
        raise SweepError(
            Sentence("it is not a plan of precgui ({kind}: {error})", kind=type(error).__name__, error=error)
        ) from None
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        raise SweepError(L_("it names a run twice"))
    return SweepPlan(members)


def _parsed(item: Mapping[str, Any]) -> Member:
    member = Member(**item)
    texts = (member.name, member.arm, member.precision, member.config_sha256)
    if not all(isinstance(text, str) for text in texts) or member.kind not in ("run", "twin", "warm-up", "timing"):
        raise ValueError("a run of the plan has fields of other types")
    if not all(isinstance(number, int) for number in (member.seed, member.block)):
        raise ValueError("a seed or block is not a whole number")
    if not re.fullmatch(r"[\w.-]{1,200}", member.name, re.ASCII) or member.name.startswith("."):
        raise ValueError(f"{member.name[:40]!r} is not a name that a run may have")
    return member
