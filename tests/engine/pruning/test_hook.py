"""Masks of pruned runs: exact shares, zeros that stay, with every kind of weight storage."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precgui import config
from precgui.config import ConfigError, RunConfig
from precgui.config.sparsity import PruningConfig
from precgui.engine.errors import EngineError
from precgui.engine.hook import TrainingRun
from precgui.engine.journal import Journal
from precgui.engine.pruning import masks
from precgui.engine.pruning.hook import Pruning, PruningSchedule, pruning_schedule
from precgui.engine.pruning.masks import InputNorms
from precgui.engine.pruning.sparse_kernels import has_sparse_kernels
from precgui.engine.run_parts import RunParts
from precgui.engine.train import make_loop, train
from precgui.events import Event, Facts, Incident, ZerosCounted

MLP = ("model.name=mlp", "device=cpu", "threads=1", "record.tensors=false", "train.max_steps=12", "data.batch_size=32")


class _Watched:
    """A run with its events, and the zeros of each layer after each step."""

    def __init__(self, settings: RunConfig) -> None:
        self.events: list[Event] = []
        self.history: list[dict[str, Tensor]] = []
        self.loop = make_loop(settings, Journal(self.events.append), lambda: False)
        self.config, self.model, self.parts = settings, self.loop.model, self.loop.run.parts
        self.pruner = self.loop.run.hook(Pruning)

    def train(self) -> None:
        self.loop.begin()
        for _ in self.loop.steps():
            assert self.pruner is not None
            self.history.append({name: layer.module.weight.detach() == 0 for name, layer in self.pruner.layers.items()})
        self.loop.hooks.close()
        self.loop.hooks.end_run()


def run(*settings: str) -> _Watched:
    """A short run of the perceptron on the digits."""
    training = _Watched(config.load("digits-quick", [*MLP, *settings]))
    training.train()
    return training


@pytest.mark.parametrize("method", ["magnitude", "wanda"])
@pytest.mark.parametrize("share", [0.0, 0.37, 0.95])
def test_that_the_share_is_exact_to_one_element(method: str, share: float) -> None:
    training = run(f"pruning.method={method}", f"pruning.share={share}", "pruning.every=2")
    assert training.pruner is not None
    for name, layer in training.pruner.layers.items():
        zeros = int((layer.module.weight == 0).sum())
        assert zeros == round(share * layer.module.weight.numel()), name


def test_that_masks_stay_after_updates_and_only_grow() -> None:
    training = run("pruning.method=magnitude", "pruning.share=0.8", "pruning.start=2", "pruning.end=8",
                   "pruning.every=2", "optimizer.weight_decay=0.01")  # fmt: skip
    for name in training.history[0]:
        zeros = [step[name] for step in training.history]
        assert not zeros[0].any()
        assert all(bool((later | ~earlier).all()) for earlier, later in itertools.pairwise(zeros))
        assert torch.equal(zeros[7], zeros[-1]), "after pruning.end nothing changes"


@pytest.mark.parametrize("precision", [
    ("bf16-pure",), ("bf16-pure", "precision_options.master_weights=true"), ("bf16-sr",), ("fp16-pure",),
    ("emulated:e4m3fn",), ("mxfp4",), ("int4-qat",), ("fp8", "precision_options.fp8_amax=delayed"),
    ("fp32", "train.ema_decay=0.9"), ("emulated:bf16", "precision_options.updates=bf16"),
])  # fmt: skip
def test_that_pruning_goes_with_every_storage_of_weights(precision: tuple[str, ...]) -> None:
    training = run(f"precision={precision[0]}", *precision[1:], "pruning.method=magnitude", "pruning.share=0.9",
                   "pruning.every=1")  # fmt: skip
    assert training.pruner is not None
    for layer in training.pruner.layers.values():
        dropped = layer.dropped
        assert int(dropped.sum()) == round(0.9 * dropped.numel())
        assert not layer.module.weight[dropped].any()
        assert not layer.updated.numel() or not layer.updated[dropped].any()
        assert layer.average is None or not layer.average[dropped].any()


def test_that_names_and_parameters_are_those_of_the_dense_run() -> None:
    pruned = run("pruning.method=wanda")
    dense = make_loop(config.load("digits-quick", list(MLP)), Journal(lambda _: None), lambda: False)
    assert list(pruned.model.state_dict()) == list(dense.model.state_dict())


def test_that_a_share_of_zero_changes_nothing() -> None:
    def losses(*settings: str) -> list[float]:
        events: list[Event] = []
        train(config.load("digits-quick", [*MLP, *settings]), events.append, lambda: False)
        return [event.loss for event in events if hasattr(event, "grad_norm")]

    assert losses() == losses("pruning.method=wanda", "pruning.share=0", "pruning.every=1")


def test_that_two_of_each_four_inputs_are_left() -> None:
    training = run("pruning.method=2:4", "pruning.start=3")
    assert training.pruner is not None
    for layer in training.pruner.layers.values():
        groups = (layer.module.weight == 0).unflatten(1, (-1, 4)).sum(-1)
        assert bool((groups == 2).all())
    assert not training.history[1]["1"].any()


def test_that_two_of_four_go_along_the_input_channels_of_a_convolution() -> None:
    scores = torch.rand(6, 8, 3, 3)
    dropped = masks.two_of_four(scores)
    assert bool((dropped.unflatten(1, (-1, 4)).sum(2) == 2).all())
    assert scores[dropped].mean() < scores[~dropped].mean()


def test_that_whole_outputs_go_but_not_those_of_the_last_layer() -> None:
    training = run("pruning.method=channels", "pruning.share=0.5", "pruning.every=1")
    assert training.pruner is not None
    *inner, last = training.pruner.layers.values()
    for layer in inner:
        rows = (layer.module.weight == 0).all(1)
        assert (
            int(rows.sum()) == round(0.5 * len(rows))
            and int((layer.module.weight == 0).sum()) == int(rows.sum()) * layer.module.weight.shape[1]
        )
    assert not last.dropped.any()


def test_that_layers_have_shares_of_their_own_by_pattern() -> None:
    training = run("pruning.method=magnitude", "pruning.share=0.5", "pruning.layers=last=0, 1=0.9", "pruning.every=1")
    assert training.pruner is not None
    shares = {name: layer.share for name, layer in training.pruner.layers.items()}
    assert shares == {"1": 0.9, "3": 0.5, "5": 0.0} or sorted(shares.values()) == [0.0, 0.5, 0.9]
    with pytest.raises(EngineError, match="matches no module"):
        run("pruning.method=magnitude", "pruning.layers=nowhere=0.5")
    with pytest.raises(EngineError, match="2:4 drops half"):
        run("pruning.method=2:4", "pruning.layers=last=0.7")


def test_that_the_schedule_is_cubic_and_ends_at_the_whole_share() -> None:
    schedule = PruningSchedule(10, 30, 5)
    assert [step for step in range(1, 41) if schedule.is_due(step)] == [10, 15, 20, 25, 30]
    assert [schedule.progress(step) for step in (1, 10, 20, 30, 40)] == [0.0, 0.0, 1 - 0.5**3, 1.0, 1.0]
    of_shares = pruning_schedule(PruningConfig(method="magnitude", start=0.25, end=0.75, every=0.1), 40)
    assert (of_shares.start, of_shares.end, of_shares.every) == (10, 30, 4)
    of_steps = pruning_schedule(PruningConfig(method="magnitude", start=3, end=33, every=7), 40)
    assert (of_steps.start, of_steps.end, of_steps.every) == (3, 33, 7)
    with pytest.raises(EngineError, match="but the run has 20 steps"):
        pruning_schedule(PruningConfig(method="magnitude", end=30), 20)
    with pytest.raises(EngineError, match="exchange the two"):
        pruning_schedule(PruningConfig(method="magnitude", start=20, end=0.5), 30)


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"start": 2.5}, "neither a share"), ({"start": 0.8, "end": 0.2}, "exchange the two"),
    ({"layers": "head"}, "pattern=share"), ({"layers": {"head": 1.5}}, "no share"), ({"layers": {"a": "b"}}, "number"),
])  # fmt: skip
def test_that_a_section_at_fault_is_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config.build({"pruning": {"method": "magnitude", **settings}})


def test_that_wanda_weighs_weights_by_the_norms_of_their_inputs() -> None:
    layer = nn.Linear(3, 2)
    norms = InputNorms({"a": layer})
    norms.begin()
    value = torch.tensor([[3.0, 0.0, 1.0], [4.0, 0.0, 1.0]])
    layer(value), layer(value[None])
    norms.end()
    layer(value)
    expected = value.repeat(2, 1).norm(dim=0)[None]
    assert torch.allclose(norms.of_weight("a", layer.weight), expected)
    grouped = nn.Conv2d(4, 6, 1, groups=2)
    norms = InputNorms({"c": grouped})
    norms.begin()
    image = torch.rand(2, 4, 5, 5)
    grouped(image)
    norms.end()
    each = image.movedim(1, -1).flatten(0, -2).norm(dim=0)
    assert torch.allclose(norms.of_weight("c", grouped.weight)[0, :, 0, 0], each[:2])
    assert torch.allclose(norms.of_weight("c", grouped.weight)[5, :, 0, 0], each[2:])


def test_that_rows_lose_equally_many_to_one() -> None:
    dropped = masks.smallest_of_rows(torch.rand(7, 10), 33)
    assert int(dropped.sum()) == 33 and set(dropped.sum(1).tolist()) == {4, 5}


def test_that_zeros_by_mask_and_by_rounding_are_counted_apart() -> None:
    training = run("precision=emulated:e2m1", "pruning.method=magnitude", "pruning.share=0.5", "pruning.every=1")
    counts = [event for event in training.events if isinstance(event, ZerosCounted)]
    assert counts[-1].step == 12 and counts[-1].by_mask == pytest.approx(0.5, abs=1e-3)
    assert training.pruner is not None
    lost = weights = 0
    for layer in training.pruner.layers.values():
        weight = layer.module.weight
        weights += weight.numel()
        lost += int(((weight.abs() <= 0.25) & (weight != 0)).sum())  # half of e2m1's smallest number goes to zero
    assert counts[-1].by_rounding == pytest.approx(lost / weights) and lost
    fp32 = run("pruning.method=magnitude")
    assert [event.by_rounding for event in fp32.events if isinstance(event, ZerosCounted)][-1] == 0


def test_that_the_record_says_what_was_pruned_and_claims_no_speed() -> None:
    training = run("pruning.method=channels", "pruning.share=0.5")
    emulated = [e.message for e in training.events if isinstance(e, Incident) and e.kind == "emulated"]
    assert any("speed and memory say nothing" in message for message in emulated)
    facts: dict[str, Any] = {}
    for event in training.events:
        if isinstance(event, Facts):
            facts |= event.values
    assert facts["pruning"]["method"] == "channels" and facts["pruning"]["layers"]


def test_that_a_cpu_measures_no_sparse_products() -> None:
    training = run("pruning.method=2:4")
    assert training.pruner is not None and not has_sparse_kernels(torch.device("cpu"))
    assert all("dense_over_sparse_time" not in layer for layer in training.pruner.facts()["layers"].values())


def test_that_wanda_and_a_compiled_model_are_refused_together() -> None:
    with pytest.raises(EngineError, match="set train"):
        run("pruning.method=wanda", "train.compile=true")


def test_that_a_frozen_model_has_nothing_to_prune() -> None:
    training = run("pruning.method=magnitude")
    parts: RunParts = training.parts
    parts.model.requires_grad_(False)
    with pytest.raises(EngineError, match="no linear or convolutional layer that is trained"):
        Pruning(TrainingRun(training.config, parts, Journal(lambda event: None), 10))


def test_that_one_step_can_be_said() -> None:
    each = pruning_schedule(PruningConfig(method="magnitude", start=1, end=1, every=1), 20)
    assert each == PruningSchedule(1, 20, 1)
    assert [step for step in range(1, 21) if each.is_due(step)] == list(range(1, 21))
    half = pruning_schedule(PruningConfig(method="magnitude", start=0.5, end=15, every=0.25), 20)
    assert half == PruningSchedule(10, 15, 5)


def test_that_masks_do_not_depend_on_the_order_in_memory() -> None:
    scores = torch.rand(8, 12, 3, 3)
    turned = scores.to(memory_format=torch.channels_last)
    for choose in (masks.smallest, masks.smallest_of_rows, masks.weakest_outputs):
        assert torch.equal(choose(scores, 5), choose(turned, 5))
    assert torch.equal(masks.two_of_four(scores), masks.two_of_four(turned))


@pytest.mark.parametrize("method", ["magnitude", "wanda", "2:4", "channels"])
def test_that_pruning_goes_with_images_as_channels_last(method: str) -> None:
    training = run("model.name=cnn", f"pruning.method={method}", "pruning.every=2", "train.channels_last=true")
    assert training.pruner is not None
    assert any(layer.dropped.any() for layer in training.pruner.layers.values())
