"""The shadow of a step that is taken apart into blocks: the same answers, with the graph of one block at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precgui
from precgui.engine.models import transformer
from precgui.engine.models.transformer import Gpt
from precgui.engine.shadow import blockwise
from precgui.engine.shadow.blocks import blocks_of
from precgui.engine.shadow.blockwise import Blocks, WideReplay
from precgui.engine.shadow.record import RecordedStep, record_step
from precgui.engine.shadow.replay import F64
from precgui.engine.shadow.step import Shadow

Step = Callable[[], Tensor]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setitem(transformer._GPT_DEPTH_WIDTH_HEADS, "small", (4, 32, 2))
    torch.manual_seed(0)


class Tied(nn.Module):
    """Dropout, a ReLU, a norm with running statistics, a mask that all layers read, and weights that are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))
        self.norm, self.drop = nn.BatchNorm1d(12), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.sigmoid(x[:, :1] * 3)
        for layer in (*self.layers, self.layers[0]):
            x = x + self.drop(F.relu(self.norm(layer(x)))) * mask
        return x


def gpt(times: int = 1) -> tuple[nn.Module, Step]:
    """A GPT of several blocks; `times` batches in one step."""
    model = Gpt("small", 24)
    batches = [torch.randint(256, (2, 24)) for _ in range(times)]

    def step() -> Tensor:
        total = torch.zeros(())
        for tokens in batches:
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(tokens)
            loss = F.cross_entropy(outputs.float().flatten(0, 1), tokens.flatten()) / times
            loss.backward()
            total = total + loss.detach()
        return total

    return model, step


def tied() -> tuple[nn.Module, Step]:
    model = Tied()
    inputs, targets = torch.randn(16, 12), torch.randint(12, (16,))

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(inputs).float(), targets)
        loss.backward()
        return loss

    return model, step


def blamed(taken: RecordedStep, count: int, wide: torch.dtype) -> tuple[dict[int, float], list[Tensor]]:
    """Shares of the operations in the error of the gradient, and the exact gradients."""
    requested = [*taken.gradients, taken.loss]
    replay = WideReplay(taken.tape, count)
    table = replay.exact(requested)
    pairs = zip(taken.gradients, taken.low_gradients, strict=True)
    shares = replay.balance(requested, wide).shares({id: low.to(F64) - table[id] for id, low in pairs})
    return shares.by_operation, [table[id] for id in requested]


@pytest.mark.parametrize(
    ("made", "wide"), [(gpt, F64), (lambda: gpt(2), torch.float32), (tied, torch.float32)],
    ids=["gpt", "two batches", "tied"],
)  # fmt: skip
def test_that_blocks_have_the_shares_of_the_whole(made: Any, wide: torch.dtype) -> None:
    model, step = made()
    taken = record_step(step, model.parameters())
    whole, exact = blamed(taken, 0, wide)
    shares, values = blamed(taken, 5, wide)
    assert shares.keys() == whole.keys()
    assert max(abs(shares[index] - whole[index]) for index in whole) < (1e-6 if wide is torch.float32 else 1e-12)
    assert all(torch.equal(a, b) for a, b in zip(values, exact, strict=True))


def test_that_blocks_are_the_whole_tape_and_few_values_cross_their_ends() -> None:
    model, step = gpt(2)
    tape = record_step(step, model.parameters()).tape
    groups = blocks_of(tape, 6)
    parts = [part for group in groups for block in group for part in (block.forward, block.backward)]
    assert sorted(index for part in parts for index in part) == list(range(len(tape.operations)))
    assert [len(group) for group in groups[:2]] == [6, 6]
    size = sum(value.numel() for value in tape.values.values())
    assert sum(tape.values[id].numel() for id in Blocks(tape, 6).crossing if id in tape.values) < size / 10


def test_that_the_graph_of_one_block_holds_a_part_of_what_that_of_the_whole_holds() -> None:
    model, step = gpt()
    taken = record_step(step, model.parameters())
    whole, blocks = (_most_saved(lambda count=count: blamed(taken, count, F64)) for count in (0, 6))
    assert blocks < whole / 2.5


def _most_saved(work: Callable[[], Any]) -> int:
    """The most bytes that graphs held for their backward passes at once."""
    held: dict[int, int] = {}
    peak = 0

    class Saved:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    def pack(tensor: Tensor) -> Saved:
        nonlocal peak
        saved = Saved(tensor)
        held[id(saved)] = tensor.numel() * tensor.element_size()
        weakref.finalize(saved, held.pop, id(saved))
        peak = max(peak, sum(held.values()))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        work()
    return peak


def look(made: tuple[nn.Module, Step]) -> Shadow:
    torch.manual_seed(1)
    return precgui.shadow(made[1], made[0].parameters())


def test_that_a_step_too_large_for_the_memory_is_taken_apart_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tied()
    whole = look(model)
    assert not any("blocks" in note for note in whole.notes)
    monkeypatch.setattr(blockwise, "_free_bytes", lambda tape: 1 << 14)
    parts = look(model)
    assert any("so the shares were computed in" in note and "they are the same" in note for note in parts.notes)
    assert [line.line for line in parts.lines()] == [line.line for line in whole.lines()]
    assert parts.explained == pytest.approx(whole.explained, abs=1e-6)
    assert parts.flips == pytest.approx(whole.flips, rel=1e-9)
    assert (parts.verdict, parts.gradient_error) == (whole.verdict, whole.gradient_error)


def vanishing(x: Tensor) -> Tensor:
    tiny = x.half() * 0 + 1e-8
    return x / (x.half() * 0 + tiny)


def test_that_what_vanished_is_found_in_blocks_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 5))
    inputs, targets = torch.randn(24, 8), torch.randint(5, (24,))

    def step() -> Tensor:
        loss = F.cross_entropy(model[2](model[1](vanishing(model[0](inputs)))), targets)
        loss.backward()
        return loss

    whole = look((model, step))
    monkeypatch.setattr(blockwise, "_free_bytes", lambda tape: 1 << 10)
    parts = look((model, step))
    assert not parts.is_finite and parts.precision_is_to_blame is True
    assert (parts.blamed, parts.message) == (whole.blamed, whole.message)
