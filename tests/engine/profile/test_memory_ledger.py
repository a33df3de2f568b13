"""The ledger of a step: predicted from shapes, measured at its peak, and told by another tracker of torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precgui.config import RunConfig, load
from precgui.engine.errors import EngineError
from precgui.engine.profile import predict
from precgui.engine.profile.account import alive, ledger, peak, presence, thinned
from precgui.engine.profile.measure import measured_ledger
from precgui.engine.profile.one_step import build_step, step, tracked
from precgui.engine.profile.planning import carried_on, first, plan_config
from precgui.engine.profile.predict import FROM_SHAPES, predicted_ledger
from precgui.engine.profile.tracker import MemoryTracker, Trace
from precgui.planner.ledger import Owner

QUICK = ("record.tensors=false", "data.batch_size=16", "threads=1", "device=cpu")


def _config(*settings: str, recipe: str = "digits-quick") -> RunConfig:
    return load(recipe, [*QUICK, *settings])


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("precision=bf16-amp",),
        ("precision=bf16-pure", "optimizer.name=adamw"),
        ("train.checkpointing=true",),
        ("train.accumulation=2", "train.clip_norm=1.0"),
        ("train.ema_decay=0.9", "model.name=resnet"),
        ("precision=bf16-pure", "precision_options.master_weights=true"),
    ],
)
def test_that_the_ledger_from_shapes_is_the_measured_one(settings: tuple[str, ...]) -> None:
    predicted, measured = predicted_ledger(_config(*settings)), measured_ledger(_config(*settings))
    assert predicted.method == FROM_SHAPES
    assert predicted.total_bytes == pytest.approx(measured.total_bytes, rel=0.05)
    for found in (predicted, measured):
        assert sum(found.parts.values()) == found.total_bytes


def test_that_kernels_are_tried_with_the_threads_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def counted(trace: Trace) -> tuple[dict[int, int], bool]:
        used.append(torch.get_num_threads())
        return {}, True

    monkeypatch.setattr(predict, "kernel_buffers", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        predicted_ledger(_config())  # threads=1
        assert used == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_that_weights_and_state_have_the_bytes_of_their_numbers() -> None:
    config = _config("optimizer.name=adamw")
    parts = build_step(config)
    count = sum(p.numel() for p in parts.model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in parts.model.buffers())
    found = predicted_ledger(config)
    assert found.parts["weights"] == 4 * count + buffers
    assert found.parts["optimizer"] == 8 * count + 4 * len(parts.weights)  # and a step counter of each
    assert found.parts["master"] == 0


def test_that_autocast_copies_of_weights_are_told_apart() -> None:
    amp = predicted_ledger(_config("precision=bf16-amp", recipe="gpt-quick"))
    fp32 = predicted_ledger(_config(recipe="gpt-quick"))
    assert 0.3 * fp32.parts["weights"] < amp.parts["cast_cache"] <= 0.5 * fp32.parts["weights"]
    assert fp32.parts["cast_cache"] == 0


def test_that_a_model_whose_results_depend_on_numbers_is_measured_on_a_part_of_the_batch() -> None:
    found = predicted_ledger(_config("data.batch_size=4", recipe="detection-quick"))
    assert found.method == "predicted from steps with 1 and 2 of 4 samples"
    assert found.notes


def test_that_a_step_that_cannot_be_made_is_one_sentence() -> None:
    settings = ("model.name=mobilenet_v3_small", "data.batch_size=8", "train.checkpointing=true")
    with pytest.raises(EngineError, match="a step of this config fails: one of the variables"):
        predicted_ledger(_config(*settings))


def test_that_the_tracker_agrees_with_the_one_of_torch_distributed() -> None:
    mem_tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
    inputs = torch.randn(32, 64)

    def work() -> None:
        model(inputs).square().mean().backward()
        model.zero_grad(set_to_none=True)

    work()
    own = MemoryTracker(model)
    own.hold("weights", dict(model.named_parameters()))
    own.hold("batch", {"": inputs})
    with own:
        own.begin("forward")
        work()
    other = mem_tracker.MemTracker()
    other.track_external(model, inputs)
    with other:
        work()
    theirs = sum(other.get_tracker_snapshot("peak")[torch.device("cpu")].values()) / 2  # parts and their total
    assert peak(own.trace).total_bytes == pytest.approx(theirs, rel=0.01)


def test_that_owners_at_the_peak_are_named_by_module() -> None:
    found = predicted_ledger(_config("model.name=mlp"))
    names = {owner.module for owner in found.owners if owner.part == "activations"}
    assert any(name.strip("0123456789") == "" for name in names)  # modules of an nn.Sequential
    assert all(isinstance(owner, Owner) and owner.size_bytes >= 0 for owner in found.owners)


def test_that_blocks_of_a_step_come_and_go() -> None:
    parts = build_step(_config())
    step(parts)
    with tracked(parts) as tracker:
        step(parts, tracker)
    trace = tracker.trace
    line = presence(trace)
    best = peak(trace)
    assert max(line) == best.total_bytes
    there = alive(trace, best.place)
    assert sum(trace.blocks[number].size_bytes for number in there) == best.total_bytes
    assert [name for name, _ in trace.marks] == ["forward", "backward", "update", "end"]
    assert ledger(trace, best, "test").total_bytes == best.total_bytes


def test_that_a_thinned_line_keeps_its_extremes() -> None:
    line = [0] * 5000
    line[1234], line[4321] = 99, -7
    kept = dict(thinned(line, 100))
    assert (kept[1234], kept[4321]) == (99, -7)
    assert len(kept) <= 101


def test_that_an_empty_trace_has_no_peak() -> None:
    assert peak(Trace()).total_bytes == 0


def test_that_a_plan_says_what_fits_and_what_to_change() -> None:
    config = _config("model.name=mlp")
    found = plan_config(config, 1 << 30, alternatives=False)
    assert found["fits"] is True
    assert found["largest_batch"] > 1000
    tight = plan_config(replace_batch(config, 256), found["total_bytes"])
    assert tight["fits"] is False
    assert len(tight["changes"]) == 4
    assert tight["first_change"] in tight["changes"]


def test_that_a_plan_of_few_samples_goes_by_a_larger_batch_where_norms_take_no_single_one() -> None:
    found = plan_config(replace_batch(_config("task=gan"), 2), 1 << 30, alternatives=False)
    assert found["largest_batch"] > 2
    with pytest.raises(EngineError, match="takes no step as the config has it: ValueError: Expected more than 1 value"):
        plan_config(replace_batch(_config("task=gan"), 1), 1 << 30)


def replace_batch(config: RunConfig, size: int) -> RunConfig:
    return config.model_copy(update={"data": config.data.model_copy(update={"batch_size": size})})


@pytest.mark.parametrize(
    ("batch", "total", "half", "limit", "expected"), [(8, 100, 60, 200, 18), (8, 100, 60, 100, 8), (8, 100, 60, 10, 0)]
)
def test_that_the_largest_batch_is_carried_on(batch: int, total: int, half: int, limit: int, expected: int) -> None:
    assert carried_on((batch, total), (batch // 2, half), limit) == expected


def test_that_the_first_change_is_the_first_that_fits_else_the_smallest() -> None:
    rows = [{"total_bytes": 5, "fits": False}, {"total_bytes": 4, "fits": True}, {"total_bytes": 3, "fits": True}]
    assert first(rows) is rows[1]
    assert first(rows[:1]) is rows[0]
    assert first([]) is None
