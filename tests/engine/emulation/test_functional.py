"""Products outside of linear and convolutional layers: attention, matmul, einsum, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from precgui.engine.census import Census
from precgui.engine.emulation.functional import FunctionalRoundingMode, leave_alone
from precgui.engine.emulation.layers import MatmulArithmetic, emulate_products, layers
from precgui.engine.emulation.operands import NEAREST_EVEN, BlockCast, FormatCast, Identity, OperandQuantizer
from precgui.engine.emulation.recurrent import emulate_recurrent, recurrent_layers
from precgui.engine.errors import EngineError
from precgui.events import Event, Facts, Incident, StepDone
from tests.engine.conftest import Record

EXACT = MatmulArithmetic("exact", Identity(), Identity(), Identity())
TEXT = ("task=text", "data.sequence_length=16", "data.batch_size=4", "train.max_steps=2", "data.epoch_steps=2")


def products(name: str) -> MatmulArithmetic:
    rounding: OperandQuantizer = BlockCast(name, NEAREST_EVEN) if name.startswith("mx") else FormatCast(name)
    return MatmulArithmetic(name, rounding, rounding, rounding)


class _ByTorch(torch.autograd.Function):
    """Rounded by a cast of torch's own; the gradient as it is."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(dtype).float()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _GradientByTorch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].to(ctx.dtype).float(), None


def by_torch(function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """A product of operands that torch casts to BF16, with a gradient that it casts, too."""
    rounded = (_ByTorch.apply(operand, torch.bfloat16) for operand in operands)
    return _GradientByTorch.apply(function(*rounded), torch.bfloat16)


def gradients(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> list[Tensor]:
    """The value of a function of random operands, and its gradients."""
    generator = torch.Generator().manual_seed(1)
    operands = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    value = function(*operands)
    value.backward(torch.randn(value.shape, generator=generator))
    return [value.detach(), *(operand.grad for operand in operands if operand.grad is not None)]


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "matmul": (torch.matmul, ((5, 3, 8), (8, 4))),
    "operator": (lambda a, b: a @ b, ((2, 3, 8), (2, 8, 4))),
    "vector": (torch.matmul, ((6, 8), (8,))),
    "vectors": (torch.matmul, ((8,), (8,))),
    "bmm": (torch.bmm, ((2, 3, 8), (2, 8, 4))),
    "mm": (torch.mm, ((3, 8), (8, 4))),
    "linear": (functional.linear, ((2, 3, 8), (4, 8))),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), ((2, 3, 8), (2, 4, 8))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_that_each_product_takes_rounded_operands_forward_and_backward(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    with FunctionalRoundingMode(products("bf16")):
        found = gradients(function, *shapes)
    expected = gradients(lambda *operands: by_torch(function, *operands), *shapes)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    plain = gradients(function, *shapes)
    assert all(not torch.allclose(one, other, rtol=1e-5) for one, other in zip(found, plain, strict=True))


def test_that_sums_of_products_keep_their_factors() -> None:
    shapes = ((3, 4), (3, 8), (8, 4))
    with FunctionalRoundingMode(EXACT):
        found = gradients(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0), *shapes)
    for one, other in zip(found, gradients(lambda c, a, b: 0.5 * c + 2.0 * (a @ b), *shapes), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("axis", [0, 1])
def test_that_blocks_run_along_the_summed_axis(axis: int) -> None:
    """A block holds one large value; it swallows its neighbours only where they are summed with it."""
    a = torch.full((32, 32), 1e-3)
    a.select(axis, 0).fill_(1e3)
    with FunctionalRoundingMode(products("mxfp4")):
        result = a @ torch.eye(32)
    swallowed = bool((result == 0).any())
    assert swallowed is (axis == 1)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "mask": {"attn_mask": torch.randn(6, 6, generator=torch.Generator().manual_seed(2))},
    "boolean mask": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_that_attention_taken_apart_is_torchs(name: str) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, **SETTINGS[name])

    shapes = ((2, 4, 6, 8),) * 3
    with FunctionalRoundingMode(EXACT):
        found = gradients(attention, *shapes)
    for one, other in zip(found, gradients(attention, *shapes), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with FunctionalRoundingMode(products("bf16")):
        rounded = gradients(attention, *shapes)
    for one, other in zip(rounded, found, strict=True):
        assert 1e-4 < float((one - other).norm() / other.norm()) < 3e-2


def test_that_grouped_queries_share_their_keys() -> None:
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    expected = functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    with FunctionalRoundingMode(EXACT):
        torch.testing.assert_close(functional.scaled_dot_product_attention(q, k, k, enable_gqa=True), expected)


@pytest.mark.parametrize("weights", [True, False])
def test_that_the_inside_of_multi_head_attention_is_rounded(weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 5, 16)
    expected = module(x, x, x, need_weights=weights)[0]
    with FunctionalRoundingMode(EXACT):
        torch.testing.assert_close(module(x, x, x, need_weights=weights)[0], expected)
    with Census(module, {}) as counted, FunctionalRoundingMode(products("e4m3fn")):
        module(x, x, x, need_weights=weights)[0].sum().backward()
    assert list(counted.facts()["formats"]) == ["e4m3fn (emulated)"]


def test_that_layers_are_not_rounded_twice_and_kept_ones_not_at_all() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    leave_alone(model[1])
    emulate_products(layers(model, {model[1]}), lambda _: products("bf16"))
    x = torch.randn(4, 8)
    expected = model(x)
    with Census(model, {"0": "bf16"}) as counted, FunctionalRoundingMode(products("e5m2")):
        assert torch.equal(model(x), expected)
    assert set(counted.facts()["formats"]) == {"fp32", "bf16 (emulated)"}


KINDS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(6, 5, 2, batch_first=True),
    "both ways": lambda: nn.LSTM(6, 5, 2, bidirectional=True),
    "no bias": lambda: nn.LSTM(6, 5, bias=False),
    "gru": lambda: nn.GRU(6, 5, 2, batch_first=True, bidirectional=True),
    "rnn": lambda: nn.RNN(6, 5, 2),
    "relu": lambda: nn.RNN(6, 5, nonlinearity="relu"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batched", [True, False])
def test_that_recurrent_layers_step_by_step_are_torchs(kind: str, batched: bool) -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([KINDS[kind]()])
    x = torch.randn(7, 3, 6) if batched else torch.randn(7, 6)

    def passed() -> list[Tensor]:
        output, states = model[0](x)
        output, again = model[0](x, states)
        model.zero_grad()
        (output.square().sum() + sum(state.sum() for state in again)).backward()
        parts = [output, *(again if isinstance(again, tuple) else [again])]
        return [part.detach() for part in parts] + [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = passed()
    labels = emulate_recurrent(recurrent_layers(model, set()), lambda _: EXACT)
    assert labels == {"0": "exact"}
    for one, other in zip(passed(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bf16", "mxfp8_e4m3"])
def test_that_recurrent_products_are_rounded(name: str) -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.LSTM(32, 32)])
    x = torch.randn(5, 4, 32)
    expected = model[0](x)[0]
    emulate_recurrent(recurrent_layers(model, set()), lambda _: products(name))
    error = float((model[0](x)[0] - expected).detach().norm() / expected.detach().norm())
    assert (1e-3 if name == "bf16" else 1e-2) < error < 6e-2


def test_that_packed_sequences_are_refused_with_a_cure() -> None:
    model = nn.ModuleList([nn.LSTM(4, 4)])
    emulate_recurrent(recurrent_layers(model, set()), lambda _: EXACT)
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    with pytest.raises(EngineError, match=r"packed sequences .* precision_options\.products = layers"):
        model[0](packed)


def census(events: list[Event]) -> dict[str, float]:
    facts = [event.values["census"] for event in events if isinstance(event, Facts) and "census" in event.values]
    return dict(facts[0]["formats"])


@pytest.mark.parametrize("model", ["gpt", "lstm"])
def test_that_whole_models_run_in_the_format(record: Record, model: str) -> None:
    everywhere = {
        "tf32": "tf32 (emulated)",
        "emulated:e4m3fn": "e4m3fn (emulated)",
        "emulated:mxfp8_e4m3": "mxfp8_e4m3 (emulated)",
        "fp16-amp": "fp16 (emulated)",
    }
    for precision, label in everywhere.items():
        found = census(record(*TEXT, f"model.name={model}", f"precision={precision}"))
        assert found == {label: pytest.approx(1.0)}, precision
    for precision in ("fp8", "mxfp4"):
        settings = (*TEXT, f"model.name={model}", f"precision={precision}")
        events = record(*settings)
        assert 0 < census(events)["fp32"] < 1
        assert any("precision_options.products = all" in e.message for e in events if isinstance(e, Incident))
        assert "fp32" not in census(record(*settings, "precision_options.products=all"))
    found = census(record(*TEXT, f"model.name={model}", "precision=tf32", "precision_options.products=layers"))
    assert 0 < found["fp32"] < 1


def test_that_fused_recurrent_layers_are_counted(record: Record) -> None:
    fused = record(*TEXT, "model.name=lstm")
    apart = record(*TEXT, "model.name=lstm", "precision=tf32")
    counts = [
        next(e.values["census"]["flops"] for e in events if isinstance(e, Facts) and "census" in e.values)
        for events in (fused, apart)
    ]
    assert counts[0] == pytest.approx(counts[1], rel=0.02)


@pytest.mark.parametrize("precision", ["tf32", "fp16-amp", "emulated:e4m3fn", "emulated:mxfp4"])
def test_that_a_recomputed_pass_rounds_like_the_first(record: Record, precision: str) -> None:
    settings = [*TEXT, f"precision={precision}", "precision_options.rounding=stochastic"]
    plain, again = ([(e.loss, e.grad_norm) for e in record(*settings, *more) if isinstance(e, StepDone)]
                    for more in ([], ["train.checkpointing=true"]))  # fmt: skip
    assert plain == again
