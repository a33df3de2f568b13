"""Arms of branches, the plan of branch points, and the configs in which both are trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from precgui.config import RunConfig, build
from precgui.config.precision_traits import traits
from precgui.engine.errors import EngineError
from precgui.engine.setup import move_by_one_ulp
from precgui.sentences import L_, Sentence

REFERENCE = "fp32"
WARM_UP_SHARE = 0.2  # of the run, before the first branch point
_PLAYED_BY_THE_MODEL = ("cartpole",)  # tasks whose batches are made by the model that is trained

Disturb = Callable[[nn.Module, int], None]  # changes an FP32 model in place; the number of the branch point, from 0


@dataclass(frozen=True)
class TwinArm:
    """A branch that is made at each branch point: in a precision, from weights that `disturb` may move before."""

    name: str
    precision: str
    disturb: Disturb | None = None


@dataclass(frozen=True)
class BranchPlan:
    """`count` branch points with `steps` steps each; `warm_up` steps before the first one, None: a fifth of the run."""

    count: int
    steps: int
    warm_up: int | None = None


@dataclass
class ArmRecord:
    """The held-out loss after each branch, and per branch and step the distances from the reference.

    `loss_distances` [branches][steps] are of the training loss, absolute; `tensor_distances`
    [branches][steps][tensors] are relative l2 distances of the weights. NaN and Inf are kept.
    """

    held_out: list[float] = field(default_factory=list)
    loss_distances: list[list[float]] = field(default_factory=list)
    tensor_distances: list[list[list[float]]] = field(default_factory=list)
    skipped: int = 0


@dataclass
class BranchRecord:
    """The reference at each branch point: its step, and its held-out loss before and after; the arms by name."""

    steps: list[int] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    arms: dict[str, ArmRecord] = field(default_factory=dict)
    tensors: list[str] = field(default_factory=list)
    samples: int = 0
    notes: list[str] = field(default_factory=list)


def rounding_twin(name: str, seed: int) -> TwinArm:
    """An arm in FP32 whose weights begin one ulp away, differently at each branch point."""
    return TwinArm(name, REFERENCE, lambda model, branch: move_by_one_ulp(model, seed * 100_003 + branch))


def branch_points(total_steps: int, plan: BranchPlan) -> list[int]:
    """Steps after which branches begin, spread evenly over the run. Raises EngineError for a run that is too short."""
    warm_up = int(WARM_UP_SHARE * total_steps) if plan.warm_up is None else plan.warm_up
    gap = (total_steps - warm_up) // plan.count
    if gap < plan.steps:
        raise EngineError(
            Sentence(
                "the run has {total_steps} steps, too few for {warm_up} steps of warm-up and {count} branches of "
                "{steps} steps; ask for fewer or shorter branches, or raise train.epochs",
                total_steps=total_steps,
                warm_up=warm_up,
                count=plan.count,
                steps=plan.steps,
            )
        )
    return [warm_up + branch * gap for branch in range(plan.count)]


def check_branches(config: RunConfig, precision: str) -> None:
    """Raises EngineError for a run whose steps depend on more than weights, optimizer state and batches."""
    reasons = {
        "pruning.method": (config.pruning.method != "none", L_("masks follow the whole run; set it to none")),
        "adapter.kind": (config.adapter.kind != "none", L_("the frozen base has a format of its own; set it to none")),
        "parallel.strategy": (config.parallel.strategy != "none", L_("branches run in one process; set it to none")),
        "task": (config.task in _PLAYED_BY_THE_MODEL, L_("its batches are played by the model; choose another")),
        "precision": (
            traits(precision).weight_bits is not None,
            Sentence(
                "{precision} learns its ranges over a whole run; compare it by precgui sweep", precision=precision
            ),
        ),
    }
    for key, (is_unfit, why) in reasons.items():
        if is_unfit:
            raise EngineError(Sentence("{key}: this run cannot be branched, because {why}", key=key, why=why))


def arm_config(config: RunConfig, precision: str) -> RunConfig:
    """The config in a precision, without what acts on whole runs only; FP32 without options of other precisions."""
    tree = config.model_dump()
    tree |= {"precision": precision, "precision_schedule": {}}
    tree["train"] |= {
        "compile": False, "cuda_graph": False, "checkpointing": False, "ema_decay": None, "stop_at_nonfinite": False,
        "stop_after_skipped": None, "rounding_twin": False, "save_to": "",
        "save_average": False,
    }  # fmt: skip
    tree["record"] |= {"tensors": False, "snapshot_to": ""}
    if precision == REFERENCE:
        del tree["precision_options"], tree["scaling"]
    return build(tree)
