"""One step with FP64 beside it: the balance closes, plants are found, healthy steps are left alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precgui
from precgui.engine.errors import EngineError
from precgui.engine.shadow.record import record_step
from precgui.engine.shadow.replay import F64, Counterfactual, replay_exact
from precgui.engine.shadow.step import Shadow

Piece = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.piece = piece

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.piece(self.up(self.norm(x))))


def net(piece: Piece = F.gelu) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), Block(F.gelu), Block(piece), nn.Linear(16, 5))


def step_of(model: nn.Module, dtype: torch.dtype = torch.bfloat16, factor: float = 1.0) -> Callable[[], Tensor]:
    inputs, targets = torch.randn(24, 8), torch.randint(5, (24,))

    def step() -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            outputs = model(inputs)
        loss = F.cross_entropy(outputs.float(), targets)
        (loss * factor).backward()
        return loss

    return step


def look(model: nn.Module, dtype: torch.dtype = torch.bfloat16, factor: float = 1.0) -> Shadow:
    shadow = precgui.shadow(step_of(model, dtype, factor), model.parameters())
    assert isinstance(shadow, Shadow)
    return shadow


def cancelling(x: Tensor) -> Tensor:
    return F.gelu((x + 64) - 64)


def overflowing(x: Tensor) -> Tensor:
    return (x * 1000) * (x * 1000) * 1e-6


def root_of_nothing(x: Tensor) -> Tensor:
    return x + (x * 0).sqrt()


def test_that_the_shares_of_a_healthy_step_add_up_and_nothing_is_named() -> None:
    shadow = look(net())
    assert shadow.explained == pytest.approx(1.0, abs=0.02)
    assert (shadow.verdict, shadow.precision_is_to_blame, shadow.blamed) == ("healthy", False, [])
    assert 0 < shadow.ideal_error <= shadow.gradient_error < 0.02
    assert math.fsum(line.share for line in shadow.lines()) == pytest.approx(shadow.explained)
    assert shadow.gradient_error == pytest.approx(_error_of(net(), torch.bfloat16), rel=1e-6)


def _error_of(model: nn.Module, dtype: torch.dtype) -> float:
    """The error of the gradient by torch alone: the same step with an FP64 model."""
    torch.manual_seed(0)
    model = net()
    step_of(model, dtype)()
    low = [p.grad for p in model.parameters() if p.grad is not None]
    torch.manual_seed(0)
    exact_model = net().double()
    inputs, targets = torch.randn(24, 8), torch.randint(5, (24,))
    F.cross_entropy(exact_model(inputs.double()), targets).backward()
    exact = [p.grad for p in exact_model.parameters() if p.grad is not None]
    gap = sum(float((a.double() - b).square().sum()) for a, b in zip(low, exact, strict=True))
    return math.sqrt(gap / sum(float(b.square().sum()) for b in exact))


def test_that_a_cancelling_line_is_named_and_its_prediction_is_right() -> None:
    shadow = look(net(cancelling))
    first = shadow.lines()[0]
    assert shadow.verdict == "problems"
    assert shadow.precision_is_to_blame is True
    assert shadow.blamed == [first.line]
    assert "64) - 64" in first.source
    assert first.module == "2"
    assert first.share > 0.9
    assert first.left_measured is not None
    assert first.left_predicted is not None
    assert first.left_measured == pytest.approx(first.left_predicted, abs=0.1)
    assert shadow.with_fp64(first) == first.left_measured == shadow.with_fp64(first.line)


def test_that_the_recorded_step_is_run_again_bit_for_bit_and_all_of_it_in_fp64_has_no_error() -> None:
    model = net()
    step = record_step(step_of(model), model.parameters())
    again = Counterfactual(step.tape, [], everything_again=True).run(step.gradients)
    assert all(torch.equal(again[id], low) for id, low in zip(step.gradients, step.low_gradients, strict=True))
    exact = replay_exact(step.tape, step.gradients)
    wide = Counterfactual(step.tape, range(len(step.tape.operations))).run(step.gradients)
    assert all(torch.equal(wide[id].to(F64), exact[id]) for id in step.gradients)


def test_that_kinks_are_told_apart_from_rounding() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(5)
    )
    inputs, targets = torch.randn(16, 1, 10, 10), torch.randint(5, (16,))
    model(inputs)

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs)
        loss = F.cross_entropy(outputs.float(), targets)
        loss.backward()
        return loss

    shadow = precgui.shadow(step, model.parameters())
    assert shadow.explained == pytest.approx(1.0, abs=0.02)
    assert shadow.flips > 0
    assert shadow.verdict == "healthy"


@pytest.mark.parametrize("recurrent", [nn.LSTM, nn.GRU])
def test_that_a_recurrent_layer_is_followed_step_by_step_and_said_to_be(recurrent: type[nn.RNNBase]) -> None:
    layer, head = recurrent(6, 8, batch_first=True), nn.Linear(8, 3)  # type: ignore[call-arg]
    inputs = torch.randn(4, 5, 6)

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = head(layer(inputs)[0])
        loss = outputs.float().square().mean()
        loss.backward()
        return loss

    shadow = precgui.shadow(step, [*layer.parameters(), *head.parameters()])
    assert shadow.explained == pytest.approx(1.0, abs=0.02)
    assert any("step by step" in note for note in shadow.notes)


def test_that_an_overflow_is_found_and_precision_blamed() -> None:
    shadow = look(net(overflowing), torch.float16)
    place = shadow.first_nonfinite
    assert place is not None
    assert (place.operation, place.backward) == ("mul.Tensor", False)
    assert shadow.precision_is_to_blame is True
    assert shadow.blamed == [place.line]
    assert shadow.with_fp64(shadow.blamed) < 0.02
    assert shadow.mechanisms["overflow"] == 1.0
    json.dumps(shadow.to_json(), allow_nan=False)


def test_that_what_breaks_in_fp64_as_well_is_not_blamed_on_precision() -> None:
    shadow = look(net(root_of_nothing))
    assert shadow.verdict == "problems"
    assert shadow.precision_is_to_blame is False


def vanishing(x: Tensor) -> Tensor:
    gone = (x * 0).square().mean(-1, keepdim=True)
    small = gone + 1e-8
    return x + (x * 0) / small.sqrt()


def test_that_the_line_where_a_number_vanished_is_named_not_the_one_that_divided_by_it() -> None:
    shadow = look(net(vanishing), torch.float16)
    assert shadow.precision_is_to_blame is True
    assert shadow.lines() == []
    source = [line for line in shadow.blamed if line.endswith(f":{vanishing.__code__.co_firstlineno + 2}")]
    assert shadow.blamed[:1] == source


def test_that_gradients_lost_below_fp16_are_a_matter_of_scale() -> None:
    shadow = look(net(), torch.float16, factor=2.0**-16)
    assert shadow.verdict == "problems"
    assert shadow.mechanisms["flush"] > 0.5
    assert "loss scale" in shadow.message
    assert look(net(), torch.float16, factor=2.0**10).verdict == "healthy"


def test_that_the_loss_scale_changes_nothing_of_an_error() -> None:
    torch.manual_seed(1)
    plain = look(net(), factor=1.0)
    torch.manual_seed(1)
    scaled = look(net(), factor=1024.0)
    assert scaled.gradient_error == pytest.approx(plain.gradient_error, rel=1e-9)


def test_that_an_fp32_step_is_healthy() -> None:
    shadow = look(net(), torch.float32)
    assert (shadow.verdict, shadow.gradient_error < 1e-5) == ("healthy", True)


def test_that_checkpoints_tied_weights_and_dropout_are_followed() -> None:
    embedding, inner = (
        nn.Embedding(20, 12),
        nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Dropout(0.2), nn.Linear(24, 12)),
    )
    tokens = torch.randint(20, (3, 7))

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = embedding(tokens)
            x = x + torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
            outputs = F.linear(x, embedding.weight)
        loss = F.cross_entropy(outputs.float().flatten(0, 1), tokens.flatten())
        loss.backward()
        return loss

    shadow = precgui.shadow(step, [*embedding.parameters(), *inner.parameters()])
    assert shadow.explained == pytest.approx(1.0, abs=0.02)


def test_that_writing_into_parts_of_a_tensor_is_followed() -> None:
    weight = nn.Parameter(torch.randn(6, 6))

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.randn(4, 6) @ weight
        z = y.clone()
        z[:, ::2] = y[:, 1::2] * 3
        z[:, 0].mul_(y[:, 5])
        loss = z.float().pow(3).sum()
        loss.backward()
        return loss

    shadow = precgui.shadow(step, [weight])
    assert shadow.explained == pytest.approx(1.0, abs=0.05)
    assert shadow.loss_fp64 == pytest.approx(shadow.loss, rel=0.05)


def test_that_fused_attention_runs_as_products_and_says_so() -> None:
    weight = nn.Parameter(torch.randn(8, 24))

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            q, k, v = (torch.randn(2, 5, 8) @ weight).chunk(3, -1)
            mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)
        loss = mixed.float().square().sum()
        loss.backward()
        return loss

    shadow = precgui.shadow(step, [weight])
    assert shadow.explained == pytest.approx(1.0, abs=0.02)
    assert any("attention" in note for note in shadow.notes)


def test_that_rounding_to_an_emulated_format_has_its_exact_counterpart() -> None:
    layer = nn.Linear(8, 8)

    def step() -> Tensor:
        outputs = layer(precgui.quantize(torch.randn(16, 8), "e4m3fn")) @ precgui.quantize(layer.weight, "e4m3fn")
        loss = precgui.quantize_blocks(outputs, "mxfp8_e4m3").square().mean()
        loss.backward()
        return loss

    shadow = precgui.shadow(step, layer.parameters())
    assert shadow.gradient_error > 1e-3
    assert shadow.explained == pytest.approx(1.0, abs=0.05)


def test_that_the_step_itself_is_as_it_would_be_without_a_shadow() -> None:
    model = net()
    torch.manual_seed(3)
    step = step_of(model)
    step()
    alone = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    shadow = precgui.shadow(step, model.parameters())
    assert all(torch.equal(p.grad, a) for p, a in zip(model.parameters(), alone, strict=True) if p.grad is not None)
    assert shadow.loss > 0


def test_that_a_bad_step_or_line_is_an_error_in_one_sentence() -> None:
    model = net()
    with pytest.raises(EngineError, match="return the loss"):
        precgui.shadow(lambda: None, model.parameters())
    with pytest.raises(EngineError, match="call backward"):
        precgui.shadow(lambda: model(torch.randn(2, 8)).sum(), model.parameters())
    with pytest.raises(EngineError, match="no line of this step"):
        look(model).with_fp64("elsewhere.py:3")
    for given in ([model], list(model.named_modules()), model.state_dict, 3):
        with pytest.raises(EngineError, match=r"pass model\.parameters\(\), model\.named_parameters\(\) or the model"):
            precgui.shadow(step_of(model), given)


def test_that_parameters_may_be_named_or_a_whole_module() -> None:
    model = net()
    step = step_of(model)
    plain = precgui.shadow(step, model.parameters()).gradient_error
    for given in (model.named_parameters(), dict(model.named_parameters()), model):
        assert precgui.shadow(step, given).gradient_error == plain
