"""Rules on gradients that are missing or zero, on weights that shrink, batch norm over few values, saturated units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from precgui.config import RunConfig
from precgui.config.sections import TrainConfig
from precgui.events import (
    Evaluated,
    Event,
    ModelDescribed,
    ModuleInfo,
    ParameterInfo,
    RunEnded,
    RunStarted,
    StepDone,
)
from precgui.runs.diagnosis import Diagnosis, examine
from precgui.runs.live import LiveRun
from tests.runs.diagnosis.hand_made import FALLING, run_of, steps, tensors

LINEAR = "torch.nn.modules.linear.Linear"
FLAT = [2.0] * 60


def model(names: Sequence[str], with_gradient: Sequence[str], kinds: Sequence[str] = ()) -> ModelDescribed:
    """Modules that ran in this order, with a weight each that an optimizer updates."""
    kinds = kinds or [LINEAR] * len(names)
    modules = tuple(ModuleInfo(name, kind, place) for place, (name, kind) in enumerate(zip(names, kinds, strict=True)))
    parameters = tuple(
        ParameterInfo(f"{name}.weight", "parameter", "fp32", (8, 8), True, True, place if name in with_gradient else -1)
        for place, name in enumerate(names)
    )
    return ModelDescribed(0.0, modules, parameters)


def judged(names: Sequence[str], learning: Sequence[str]) -> Diagnosis:
    events: list[Event] = [model(names, learning), *steps(FALLING)]
    for step in (0, 10, 20):
        events.append(tensors(step, "weight", {f"{name}.weight": {"l2": 1.0, "amax": 1.0} for name in names}))
        events.append(tensors(step + 1, "gradient", {f"{name}.weight": {"l2": 1.0, "amax": 1.0} for name in learning}))
    return examine(run_of(events))


@pytest.mark.parametrize(
    ("names", "learning", "severity"),
    [
        (("encoder.0", "encoder.1", "head"), ("head",), "warning"),  # behind a detach
        (("blocks.0.lora", "blocks.1.lora", "head"), ("head",), "warning"),  # reentrant checkpoints
        (("gate", "experts.0", "experts.1", "head"), ("gate", "experts.0", "head"), "info"),  # not chosen
        (("stem", "layers.0", "layers.1", "layers.2", "head"), ("stem", "layers.0", "layers.1", "layers.2"), "info"),
        (("stem", "body", "decoder"), ("stem",), "warning"),  # two thirds of the elements
    ],
)
def test_that_a_part_behind_a_cut_is_a_warning_and_an_expert_that_is_not_chosen_is_not(
    names: Sequence[str], learning: Sequence[str], severity: str
) -> None:
    [found] = [each for each in judged(names, learning).findings if each.rule == "no-gradients"]
    assert found.severity == severity
    assert set(found.tensors) == {f"{name}.weight" for name in names} - {f"{name}.weight" for name in learning}


def test_that_matrices_that_are_both_zero_are_the_reason_for_gradients_of_zero() -> None:
    weights = {"a.weight": {"l2": 0.0, "amax": 0.0}, "b.weight": {"l2": 0.0, "amax": 0.0}, "c.weight": {"amax": 1.0}}
    events = [
        model(("a", "b", "c"), ("a", "b", "c")), *steps(FLAT, grad_norm=[0.0] * 60),
        *(tensors(step, "weight", weights) for step in (0, 30)),
    ]  # fmt: skip
    [found] = examine(run_of(events)).problems
    assert "begin at zero" in found.title
    assert "random" in found.fix


@pytest.mark.parametrize(("scale", "advice"), [(1.0, "GradScaler"), (2.0**10, "outputs.float()")])
def test_that_nobody_is_sent_to_a_scaler_that_is_in_use(scale: float, advice: str) -> None:
    run = run_of(steps(FLAT, grad_norm=[0.0] * 60, scale=[scale] * 60), "fp16-amp")
    [found] = [each for each in examine(run).problems if each.rule == "zero-gradients"]
    assert advice in found.fix


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        ({"name": "SGD", "weight_decay": 1.0}, True),
        ({"name": "SGD", "weight_decay": 1e-4}, False),
        ({"name": "Adam", "weight_decay": 0.3}, True),  # larger than the gradient, which is divided by its size
        ({"name": "Adam", "weight_decay": 1e-4}, False),
        ({"name": "Adam", "weight_decay": 0.3, "decoupled_weight_decay": True}, False),
        ({"name": "AdamW", "weight_decay": 0.3}, False),
    ],
)
def test_that_weights_that_a_decay_drives_to_zero_are_told(optimizer: dict[str, object], told: bool) -> None:
    rate = 0.05 if optimizer["name"] == "SGD" else 1e-3
    events = [
        *steps(FLAT, lr=[rate] * 60, grad_norm=[0.1] * 60),
        *(tensors(step, "weight", {"w": {"l2": 0.9**step, "amax": 1.0}}) for step in range(0, 60, 5)),
    ]
    optimizers = {"optimizers": [optimizer]}
    rules = {each.rule for each in examine(run_of(events, recorder=optimizers)).problems}
    assert ("weights-shrink" in rules) is told


@pytest.mark.parametrize(("decay", "told"), [(0.8, True), (0.4, False)])
def test_that_a_decay_of_adam_that_stays_three_times_the_gradient_is_told_of_weights_that_keep_half(
    decay: float, told: bool
) -> None:
    events = [
        *steps(FLAT, lr=[1e-3] * 60, grad_norm=[0.1] * 60),
        *(tensors(step, "weight", {"w": {"l2": 1 - step / 110, "amax": 1.0}}) for step in range(0, 60, 5)),
    ]
    optimizers = {"optimizers": [{"name": "Adam", "weight_decay": decay}]}
    rules = {each.rule for each in examine(run_of(events, recorder=optimizers)).problems}
    assert ("weights-shrink" in rules) is told


@pytest.mark.parametrize(("values", "losses", "told"), [(2, FLAT, True), (64, FLAT, False), (2, FALLING, False)])
def test_that_batch_norm_over_two_values_is_told_where_little_is_learned(
    values: int, losses: list[float], told: bool
) -> None:
    described = model(("norm",), ("norm",), ("torch.nn.modules.batchnorm.BatchNorm1d",))
    shaped = ParameterInfo("norm.weight", "parameter", "fp32", (8,), True, True, 0)
    events = [ModelDescribed(0.0, described.modules, (shaped,)), *steps(losses)]
    events += [tensors(step, "activation", {"norm": {"count": 8.0 * values, "amax": 1.0}}) for step in (1, 9, 30)]
    assert ("batch-norm-gap" in {each.rule for each in examine(run_of(events)).problems}) is told


@pytest.mark.parametrize(("samples", "told"), [(2, True), (50, False), (0, False)])
def test_that_a_loop_that_tells_no_samples_is_not_taken_for_one_of_few(samples: int, told: bool) -> None:
    """The validation loss stays far above that of the training, as where a small network learns its data by heart."""
    described = model(("norm",), ("norm",), ("torch.nn.modules.batchnorm.BatchNorm2d",))
    shaped = ParameterInfo("norm.weight", "parameter", "fp32", (8,), True, True, 0)
    trained = [
        replace(each, samples=samples, backward_passes=1) for each in steps(FALLING) if isinstance(each, StepDone)
    ]
    events: list[Event] = [ModelDescribed(0.0, described.modules, (shaped,)), *trained]
    events += [tensors(step, "activation", {"norm": {"count": 8.0 * 800, "amax": 1.0}}) for step in (1, 9, 30)]
    events += [Evaluated(step, 0, 0.1 * step, 9.0, 0.5) for step in (20, 40, 59)]
    assert ("batch-norm-gap" in {each.rule for each in examine(run_of(events)).problems}) is told


@pytest.mark.parametrize(("accumulation", "told"), [(4, True), (1, False)])
def test_that_the_samples_of_a_micro_step_count_in_a_run_of_precgui(accumulation: int, told: bool) -> None:
    """Its steps tell their samples, and no number of passes."""
    described = model(("norm",), ("norm",), ("torch.nn.modules.batchnorm.BatchNorm2d",))
    shaped = ParameterInfo("norm.weight", "parameter", "fp32", (8,), True, True, 0)
    events: list[Event] = [ModelDescribed(0.0, described.modules, (shaped,)), *steps(FALLING)]
    events += [tensors(step, "activation", {"norm": {"count": 8.0 * 800, "amax": 1.0}}) for step in (1, 9, 30)]
    events += [Evaluated(step, 0, 0.1 * step, 9.0, 0.5) for step in (20, 40, 59)]
    config = RunConfig(precision="fp32", train=TrainConfig(accumulation=accumulation))
    live = LiveRun(config, run_id="1", created="", machine={}, environment={})
    live.extend([RunStarted(0.0, 0, 0, "cpu"), *events, RunEnded(9.0, "completed", "")])
    assert ("batch-norm-gap" in {each.rule for each in examine(live).problems}) is told


@pytest.mark.parametrize(("kind", "rms", "losses", "severity"), [
    ("torch.nn.modules.activation.Tanh", 0.999, FLAT, "warning"),
    ("torch.nn.modules.activation.Tanh", 0.999, FALLING, "info"),
    ("torch.nn.modules.activation.Tanh", 0.6, FLAT, ""),
    ("own.Sign", 1.0, FLAT, ""),
])  # fmt: skip
def test_that_a_tanh_whose_outputs_are_all_at_its_ends_is_told(
    kind: str, rms: float, losses: list[float], severity: str
) -> None:
    events = [model(("act", "head"), ("head",), (kind, LINEAR)), *steps(losses)]
    events += [tensors(step, "activation", {"act": {"amax": 1.0, "rms": rms}}) for step in (1, 9, 30)]
    found = [each for each in examine(run_of(events)).findings if each.rule == "saturated-units"]
    assert [each.severity for each in found] == ([severity] if severity else [])


@pytest.mark.parametrize("clipped", [True, False])
def test_that_small_steps_are_put_down_to_the_clip_where_the_norm_is_always_the_same(clipped: bool) -> None:
    norms = [1e-6 if clipped else 1e-6 * (1 + 0.3 * (i % 5)) for i in range(60)]
    rows = [tensors(step, kind, {"w": {"l2": size, "changed": 1.0}}) for step in (1, 20, 40)
            for kind, size in (("weight", 1.0), ("update", 1e-7))]  # fmt: skip
    [found] = examine(run_of([*steps(FLAT, grad_norm=norms), *rows])).problems
    assert ("clipped" in found.title) is clipped
    assert found.config_change.keys() == ({"train.clip_norm"} if clipped else {"optimizer.lr"})


def test_that_a_loss_of_inf_whose_gradients_are_finite_spoils_nothing() -> None:
    losses = [math.inf if i % 3 == 0 else 2.0 * 0.95**i for i in range(60)]
    for norm, severity in ((1.0, "warning"), (math.nan, "error")):
        norms = [norm if math.isinf(loss) else 1.0 for loss in losses]
        [found] = examine(run_of(steps(losses, grad_norm=norms), "fp16-amp")).problems
        assert found.severity == severity


def test_that_a_scale_that_halves_is_told_with_its_cause_as_one_finding() -> None:
    losses = [math.nan] * 30
    scales = [2.0 ** (16 - i) for i in range(30)]
    events = steps(losses, scale=scales, skipped=[1.0] * 30, grad_norm=[math.nan] * 30)
    events.append(tensors(1, "activation", {"a": {"amax": 1.5}, "b": {"nan": 2.0}}))
    [found] = examine(run_of(events, "fp16-amp")).problems
    assert (found.rule, found.module) == ("undefined-operation", "b")
    assert any("fell from 2^16" in each.text for each in found.evidence)


def test_that_a_fixed_scale_is_named_where_gradients_overflow_and_the_loop_skips() -> None:
    events = steps(FLAT, skipped=[1.0] * 60, grad_norm=[math.nan] * 60)
    events += [tensors(step, "gradient", {"w": {"pos_inf": 9.0, "amax": 0.0}}) for step in (1, 20, 40)]
    [found] = examine(run_of(events, "fp16-amp")).problems
    assert (found.rule, found.precision_is_to_blame) == ("scale-too-high", True)
    assert "GradScaler" in found.fix


@pytest.mark.parametrize(
    ("factors", "bad", "told"),
    [
        ((2.0**20, 2.0**20), (1, 20, 40), True),
        ((2.0**20, 2.0**18), (1, 20, 40), False),  # a scale of the loop that moves
        ((1.0, 1.0), (1, 20, 40), False),
        ((2.0**20, 2.0**20), (), False),  # micro-steps of an accumulation
        ((2.0**20, 2.0**20), (1, 20, 40, 45), False),  # also in a step that was taken
    ],
)
def test_that_a_fixed_scale_is_named_where_gradients_overflow_in_most_steps(
    factors: tuple[float, ...], bad: tuple[int, ...], told: bool
) -> None:
    taken = (10, 25, 45, 58)
    events = steps(FLAT, skipped=[float(place + 1 not in taken) for place in range(60)])
    for step in (1, 20, 40, *taken):
        row = {"pos_inf": 9.0, "amax": 0.0} if step in bad else {"amax": 1.0}
        events.append(tensors(step, "gradient", {"w": row}))
    rows = [{"step": step, "loss": 2.0 * factor} for step, factor in zip((2, 8), factors, strict=True)]
    found = [each for each in examine(run_of(events, "fp16-amp", exact_steps={"all": rows})).problems
             if each.rule == "scale-too-high"]  # fmt: skip
    assert bool(found) is told
    assert all(each.precision_is_to_blame is True and "93 %" in each.title for each in found)


@pytest.mark.parametrize(("zeros", "eps", "told"), [(90.0, 1e-8, True), (0.0, 1e-8, False), (90.0, 1e-4, False)])
def test_that_second_moments_of_zero_in_fp16_are_told_before_the_rate(zeros: float, eps: float, told: bool) -> None:
    digits = {"amax": 1.0009765625, "amin_nonzero": 1.0009765625 * 2.0**-5}
    events = [*steps([2.0, 2.5, 9.0, 90.0, *[math.nan] * 16])]
    for step in (1, 2, 3):
        events.append(tensors(step, "gradient", {"w": {"l2": 1.0, "amax": 1.1}}))
        events.append(tensors(step, "weight", {"w": {"l2": 1.0, "amax": 1.1, "amin_nonzero": 0.1}}))
        events.append(tensors(step, "update", {"w": {"l2": 0.9, "amax": 0.9, "changed": 1.0}}))
        events.append(tensors(step, "optimizer", {"w.v": {**digits, "zeros": zeros}, "w.m": {**digits}}))
    [found] = examine(run_of(events, recorder={"optimizers": [{"name": "Own", "eps": eps}]})).problems
    assert found.rule == ("moments-underflow" if told else "divergence")
    assert found.precision_is_to_blame is (True if told else None)


@pytest.mark.parametrize(("decay", "groups"), [(0.0, {}), (1e-2, {}), (0.0, {"bias": {"weight_decay": 1e-2}})])
def test_that_weights_which_a_decay_makes_grow_are_no_second_moments_of_zero(
    decay: float, groups: dict[str, object]
) -> None:
    """At a rate of 300, AdamW's usual decay of 0.01 makes -2 of 1 in a step, whatever the second moments are."""
    events = [*steps([2.0, 2.5, 9.0, 90.0, *[math.nan] * 16], lr=[300.0] * 20)]
    for step, size in ((1, 3e2), (2, 6e4), (3, 2e7)):
        events.append(tensors(step, "gradient", {"w": {"l2": 1.0, "amax": 1.1}}))
        events.append(tensors(step, "weight", {"w": {"l2": size, "amax": size, "amin_nonzero": 0.1}}))
        events.append(tensors(step, "update", {"w": {"l2": size, "amax": size, "changed": 1.0}}))
    own = {"name": "AdamW", "lr": 300.0, "eps": 1e-8, "betas": [0.9, 0.999], "weight_decay": decay, "groups": groups}
    found = examine(run_of(events, recorder={"optimizers": [own]})).problems
    is_grown = decay > 0 or bool(groups)
    assert ("moments-underflow" in {each.rule for each in found}) is not is_grown
    assert not is_grown or found[0].rule == "divergence"


def test_that_gradients_that_add_up_explain_a_divergence() -> None:
    rows = [tensors(step, kind, {"w": {"l2": size, "changed": 1.0}}) for step in (1, 20, 40)
            for kind, size in (("weight", 1.0), ("update", 0.6))]  # fmt: skip
    events = [*steps([2.0 * 1.1**i for i in range(60)], grad_norm=[1.1**i for i in range(60)]), *rows]
    assert [each.rule for each in examine(run_of(events)).problems] == ["divergence"]
    found = examine(run_of(events, loop={"gradients_cleared": False})).problems
    assert [each.rule for each in found] == ["gradients-not-cleared"]


@pytest.mark.parametrize("end", [[], [math.nan] * 10])
def test_that_a_loss_that_runs_away_below_zero_is_named_once(end: list[float]) -> None:
    losses = [2.0 - 0.1 * step for step in range(20)] + [-(10.0**power) for power in range(20)] + end
    problems = examine(run_of(steps(losses))).problems
    assert [(each.rule, each.precision_is_to_blame) for each in problems] == [("unbounded-loss", False)]
    assert examine(run_of(steps(losses), "bf16-amp")).problems[0].precision_is_to_blame is None


def test_that_a_negative_loss_of_usual_size_is_left_alone() -> None:
    losses = [0.2 - 0.1 * step for step in range(60)]
    spike = [*losses[:30], -1e6, *losses[31:]]
    for own in (losses, spike):
        assert "unbounded-loss" not in {each.rule for each in examine(run_of(steps(own))).findings}


def test_that_dead_units_are_put_down_to_a_rate_that_was_too_high() -> None:
    for jump in (1.0, 30.0):
        losses = [2.5, 2.5, 2.3 * jump, 2.4, *[2.3] * 36]
        dead = {"a": {"amax": 1.0, "zeros": 0.0}, "b": {"amax": 0.0, "zeros": 1e9}}
        rows = [
            tensors(0, "weight", {"a.weight": {"l2": 1.0, "amax": 1.0}}),
            tensors(2, "update", {"a.weight": {"l2": 5.0, "amax": 5.0}}),
            tensors(2, "weight", {"a.weight": {"l2": 5.0, "amax": 5.0}}),
            *(tensors(n, "activation", dead) for n in (10, 20, 30, 40)),
        ]
        found = next(each for each in examine(run_of([*steps(losses), *rows])).findings if each.rule == "dead-units")
        assert ("the learning rate was too high" in found.title) is (jump > 1), found.title
        assert ("Lower the learning rate" in found.fix) and found.precision_is_to_blame is False
