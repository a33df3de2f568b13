"""Fused attention in FP64, of whose kernels torch has none there: the products and the softmax that they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import precgui
from precgui.engine.errors import EngineError
from precgui.engine.shadow import attention
from precgui.engine.shadow.attention import OF_CPU, WITHOUT_FP64, draws_nothing
from precgui.engine.shadow.derivatives import DIFFERENTIABLE

aten = torch.ops.aten
F64 = torch.float64


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def operands(heads: int = 4, queries: int = 5, keys: int = 7) -> list[Tensor]:
    q, k, v = drawn(2, 4, queries, 8, seed=1), drawn(2, heads, keys, 8, seed=2), drawn(2, heads, keys, 6, seed=3)
    return [each.requires_grad_(True) for each in (q, k, v)]


def by_torch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **words: Any) -> tuple[Tensor, list[Tensor], Tensor]:
    """The result, a gradient for it, and those of the operands and of the mask."""
    out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1], **words)
    outer = drawn(*out.shape, seed=4)
    ends = [q, k, v] if mask is None or not mask.requires_grad else [q, k, v, mask]
    return out.detach(), list(torch.autograd.grad(out, ends, outer)), outer


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
def test_that_flash_attention_is_that_of_plain_products(
    heads: int, causal: bool, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = operands(heads, 7, 7)
    monkeypatch.setattr(attention, "_SCORES", 2 * 4 * 7 * 7 // pieces)
    exact, gradients, outer = by_torch(q, k, v, None, is_causal=causal, scale=0.3)
    with torch.no_grad():
        out, sums, *rest = WITHOUT_FP64[aten._scaled_dot_product_flash_attention.default](
            q, k, v, 0.0, causal, scale=0.3
        )
        back = WITHOUT_FP64[aten._scaled_dot_product_flash_attention_backward.default](
            outer, q, k, v, out, sums, None, None, 7, 7, 0.0, causal, *rest[4:6], scale=0.3
        )
    torch.testing.assert_close(out, exact)
    for mine, theirs in zip(back, gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_that_memory_efficient_attention_has_a_gradient_of_its_mask_and_padded_sums() -> None:
    q, k, v = operands()
    mask = drawn(2, 1, 5, 7, seed=5).requires_grad_(True)
    exact, gradients, outer = by_torch(q, k, v, mask)
    with torch.no_grad():
        out, sums, seed, offset = WITHOUT_FP64[aten._scaled_dot_product_efficient_attention.default](
            q, k, v, mask, True
        )
        back = WITHOUT_FP64[aten._scaled_dot_product_efficient_attention_backward.default](
            outer, q, k, v, mask, out, sums, seed, offset, 0.0, [True, True, True, True]
        )
    assert sums.shape == (2, 4, 32) and bool(sums[..., 5:].isposinf().all())
    torch.testing.assert_close(out, exact)
    for mine, theirs in zip(back, gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_that_attention_of_cudnn_takes_queries_that_see_no_key() -> None:
    q, k, v = operands()
    mask = torch.zeros(5, 7, dtype=F64)
    mask[2] = -torch.inf
    with torch.no_grad():
        out, sums, *rest = WITHOUT_FP64[aten._scaled_dot_product_cudnn_attention.default](q, k, v, mask, True)
        back = WITHOUT_FP64[aten._scaled_dot_product_cudnn_attention_backward.default](
            torch.ones_like(out), q, k, v, out, sums, *rest[4:6], mask, None, None, 5, 7, 0.0, False
        )
    assert sums.shape == (2, 4, 5, 1)
    assert bool((out[:, :, 2] == 0).all()) and bool((back[0][:, :, 2] == 0).all())
    assert all(bool(each.isfinite().all()) for each in back)


def test_that_the_derivatives_of_both_passes_are_those_of_plain_products() -> None:
    """The shares of the lines go through the backward pass, whose kernel has no derivative."""
    q, k, v = operands(queries=7)

    def through_kernels(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        forward, backward = (
            DIFFERENTIABLE[each] for each in (OF_CPU, aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
        )
        out, sums = forward(q, k, v, 0.0, True)
        return torch.cat([each.flatten() for each in backward(g, q, k, v, out, sums, 0.0, True)])

    def through_products(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.cat([each.flatten() for each in torch.autograd.grad(out, (q, k, v), g, create_graph=True)])

    g = drawn(2, 4, 7, 6, seed=6).requires_grad_(True)
    results = [f(q, k, v, g) for f in (through_kernels, through_products)]
    weights = drawn(*results[0].shape, seed=7)
    derivatives = [torch.autograd.grad(each, (q, k, v, g), weights) for each in results]
    for mine, theirs in zip(*derivatives, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_that_attention_that_drops_inside_of_its_kernel_is_told() -> None:
    q, k, v = operands(queries=7)
    flash = aten._scaled_dot_product_flash_attention.default
    assert draws_nothing(flash, (q, k, v), {}) and not draws_nothing(flash, (q, k, v, 0.1), {})
    with pytest.raises(EngineError, match="which weights it drops"):
        WITHOUT_FP64[aten._scaled_dot_product_flash_attention_backward.default](
            v, q, k, v, v, v, None, None, 7, 7, 0.1, False, q, q
        )


class _Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unsqueeze(1) for each in self.qkv(x).chunk(3, -1))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))


def test_that_the_shares_go_through_a_kernel_that_the_step_asks_for() -> None:
    torch.manual_seed(0)
    model, x, y = _Attends(), torch.randn(6, 9, 8), torch.randn(6, 9, 4)

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        return loss

    shadow = precgui.shadow(step, model)
    assert any(each.function is OF_CPU for each in shadow.step.tape.operations)
    assert shadow.explained == pytest.approx(1, abs=0.05)
    assert not [note for note in shadow.notes if "derivative" in note]
    assert shadow.verdict == "healthy"
