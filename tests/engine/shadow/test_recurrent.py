"""Recurrent layers of cuDNN and oneDNN in FP64: their two passes, and weights that lie in one buffer.

cuDNN is rehearsed on the CPU by operations of its names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precgui
from precgui.engine.shadow.recurrent import RECURRENT
from tests.compiled_code import forget_compiled

_LAYERS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
aten = torch.ops.aten
RESERVE = 24  # bytes that this kernel hands to its backward pass


def _kernel(input: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """As cuDNN: it takes only the buffer of all weights for the numbers, and hands on bytes of its own."""
    assert input.dtype is torch.float32, "its bytes are those of FP32"
    results = RECURRENT[aten._cudnn_rnn.default](input, *arguments)
    return *results[:3], torch.full((RESERVE,), 7, dtype=torch.uint8), arguments[2]


def _backward_kernel(*arguments: Any) -> tuple[Any, ...]:
    assert arguments[-2].tolist() == [7] * RESERVE
    without_dropout = (*arguments[:15], 0.0, *arguments[16:])
    with ThreadPoolExecutor(1) as thread:  # inside an operation, this thread has no autograd
        return thread.submit(RECURRENT[aten._cudnn_rnn_backward.default], *without_dropout).result()


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """No step is made again in a process in which something is compiled, as by earlier tests."""
    forget_compiled()


@pytest.fixture
def kernels() -> Iterator[None]:
    """cuDNN's operations on the CPU, with torch's own derivative of them."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_cudnn_rnn", _kernel, "CPU")
    library.impl("_cudnn_rnn_backward", _backward_kernel, "CPU")
    yield
    library._destroy()


class _Reader(nn.Module):
    """A recurrent layer as torch runs it on CUDA: its weights are aliases of one storage, which cuDNN sees whole."""

    def __init__(self, kind: str, *, halves: bool = False, dropout: float = 0.0, **words: Any) -> None:
        super().__init__()
        layer = _LAYERS[kind.removesuffix("_packed")](5, 6, batch_first=True, dropout=dropout, **words)
        self.kind, self.layer, self.head, self.halves = kind, layer, nn.Linear(6 * (1 + layer.bidirectional), 3), halves
        weights = layer._flat_weights
        flat = torch.cat([weight.detach().reshape(-1) for weight in weights])
        places = itertools.accumulate((weight.numel() for weight in weights), initial=0)
        for place, weight in zip(places, weights, strict=False):
            weight.data = torch.empty(0).set_(flat.untyped_storage(), place, weight.shape, weight.stride())

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        weights = layer._flat_weights
        if self.halves:  # as autocast has them: copies, again in one buffer
            buffer = torch.zeros(sum(weight.numel() for weight in weights))
            places = itertools.accumulate((weight.numel() for weight in weights), initial=0)
            parts = [
                torch.empty(0).set_(buffer.untyped_storage(), place, weight.shape, weight.stride())
                for place, weight in zip(places, weights, strict=False)
            ]
            for part, weight in zip(parts, weights, strict=True):
                part.copy_(weight)
            weights = parts
        else:
            buffer = torch.empty(0).set_(weights[0].untyped_storage())
        directions = 1 + layer.bidirectional
        states = x.new_zeros(layer.num_layers * directions, len(x), 6)
        out = torch._cudnn_rnn(
            x, weights, len(weights) // (layer.num_layers * directions), buffer, states,
            states if self.kind == "lstm" else None, _MODES[self.kind], 6, 0, layer.num_layers, True, layer.dropout,
            True, layer.bidirectional, [], None,
        )[0]  # fmt: skip
        result: Tensor = self.head(out)
        return result


class _Plain(nn.Module):
    """A recurrent layer as the CPU runs it: one operation of oneDNN for each layer and direction."""

    def __init__(self, **words: Any) -> None:
        super().__init__()
        self.layer = nn.LSTM(5, 6, **words)
        self.head = nn.Linear(6 * (1 + self.layer.bidirectional), 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(x)[0])
        return result


def _rows(path: Path, reader: nn.Module, steps: int = 8) -> list[dict[str, Any]]:
    optimizer = torch.optim.AdamW(reader.parameters(), 1e-2)
    with precgui.Recorder(path, reader, optimizer) as recorder:
        for step in range(steps):
            x = torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(reader(x), x[:, :, :3].cumsum(1).tanh())
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    with precgui.open_run(path) as run:
        return list(run.environment["exact_steps"]["all"])


def _check(rows: list[dict[str, Any]]) -> None:
    assert [row["step"] for row in rows] == [1, 2, 8]
    for row in rows:
        assert "unavailable" not in row, row
        assert row["loss"] == pytest.approx(row["loss_fp64"], rel=1e-5)
        assert 0 < row["gradient_error"] < 1e-5, row
        assert row["updates"]["error"] < 1e-4


@pytest.mark.parametrize("words", [{}, {"bias": False, "num_layers": 2}, {"bidirectional": True, "batch_first": True}])
def test_that_steps_with_a_layer_of_onednn_are_made_again_in_fp64(words: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    _check(_rows(tmp_path / "run.h5", _Plain(**words)))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("kind", "words"),
    [("lstm", {}), ("lstm", {"num_layers": 2, "bidirectional": True}), ("lstm", {"halves": True}),
     ("gru", {"num_layers": 2}), ("gru", {"bias": False}), ("rnn_tanh", {"bidirectional": True})],
)  # fmt: skip
def test_that_steps_with_a_layer_of_cudnn_are_made_again_in_fp64(
    kind: str, words: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    _check(_rows(tmp_path / "run.h5", _Reader(kind, **words)))


@pytest.mark.usefixtures("kernels")
def test_that_a_layer_of_cudnn_that_drops_outputs_is_told(tmp_path: Path) -> None:
    rows = _rows(tmp_path / "run.h5", _Reader("lstm", num_layers=2, dropout=0.5), steps=2)
    assert all("FP64 cannot drop the same" in row["unavailable"] for row in rows)
    assert len(rows) == 2


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_that_packed_sequences_have_the_derivatives_of_torch(kind: str) -> None:
    torch.manual_seed(0)
    layer = _LAYERS[kind](5, 6, num_layers=2).double()
    data, lengths = torch.randn(9, 5, dtype=torch.float64, requires_grad=True), [4, 3, 2]
    hx = torch.zeros(2, 4, 6, dtype=torch.float64)
    packed = nn.utils.rnn.PackedSequence(data, torch.tensor(lengths))
    weights, cx = layer._flat_weights, hx if kind == "lstm" else None
    constants = (_MODES[kind], 6, 0, 2, False, 0.0, True, False, lengths, None)
    output = RECURRENT[aten._cudnn_rnn.default](data, weights, 4, None, hx, cx, *constants)[0]
    wanted = layer(packed)[0].data
    assert torch.allclose(output, wanted, rtol=1e-12)
    of_output = torch.randn(9, 6, dtype=torch.float64)
    found = RECURRENT[aten._cudnn_rnn_backward.default](
        data, weights, 4, None, hx, cx, output, of_output, None, None, *constants, None, [True] * 4
    )  # fmt: skip
    right = torch.autograd.grad(wanted, [data, *weights], of_output)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip([found[0], *found[3]], right, strict=True))
    # A cause is searched by derivatives of the backward pass, too.
    again = torch.autograd.grad(found[0].square().sum(), [data, *weights])
    assert all(bool(each.isfinite().all()) for each in again)


def test_that_the_switch_of_cudnn_reads_no_flag_of_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to read the old flags where somebody has set the new ones."""

    def refuse() -> bool:
        raise RuntimeError("a mix of the legacy and new APIs")

    monkeypatch.setattr(torch._C, "_get_cudnn_allow_tf32", refuse)
    layer = nn.LSTM(3, 4)

    def step() -> Tensor:
        loss: Tensor = layer(torch.ones(2, 1, 3))[0].square().sum()
        loss.backward()
        return loss

    shadow = precgui.shadow(step, layer.parameters())
    assert shadow.verdict == "healthy"
