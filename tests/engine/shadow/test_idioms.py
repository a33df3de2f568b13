"""Usual idioms of torch in a step: each gives an answer, or one sentence that names the operation and its line."""

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
from precgui.engine.shadow.replay import named_faults
from precgui.engine.shadow.step import Shadow
from precgui.engine.shadow.tape import OpOrigin, SourceLine, TapeOp

Idiom = Callable[[Tensor], Tensor]  # of hidden values [32, 8] and more than zero, to values of any shape
ROWS = torch.arange(32) % 10
IDIOMS: dict[str, Idiom] = {
    "scatter_add_ into zeros": lambda h: torch.zeros(32, 8).scatter_add_(0, ROWS[:, None].expand(32, 8), h),
    "scatter_add into zeros": lambda h: torch.zeros(10, 8).scatter_add(0, ROWS[:, None].expand(32, 8), h),
    "scatter_reduce mean": lambda h: torch.zeros(10, 8).scatter_reduce(0, ROWS[:, None].expand(32, 8), h, "mean"),
    "index_add_ into zeros": lambda h: torch.zeros(10, 8).index_add_(0, ROWS, h),
    "index_add": lambda h: torch.zeros(10, 8).index_add(0, ROWS, h),
    "index_copy_": lambda h: torch.zeros(32, 8).index_copy_(0, torch.arange(32), h),
    "index_put accumulate": lambda h: torch.zeros(10, 8).index_put((ROWS,), h, accumulate=True),
    "masked_scatter": lambda h: torch.zeros(32, 8).masked_scatter(h > 0, h[h > 0]),
    "eye @ h": lambda h: torch.eye(32) @ h,
    "ones().tril() @ h": lambda h: torch.ones(32, 32).tril() @ h,
    "full @ h": lambda h: torch.full((32, 32), 0.1) @ h,
    "linspace": lambda h: h * torch.linspace(0, 1, 8),
    "logspace": lambda h: h * torch.logspace(0, 1, 8),
    "float arange": lambda h: h * torch.arange(0, 0.8, 0.1)[:8],
    "integer arange": lambda h: h * torch.arange(8),
    "hann_window": lambda h: h * torch.hann_window(8),
    "count / total": lambda h: h.sum() * ((h > 0).sum() / torch.tensor(7)),
    "bool * number": lambda h: h @ ((torch.arange(64).view(8, 8) % 3 > 0) * 0.3),
    "root of an integer": lambda h: torch.eye(32) @ h / torch.tensor(3).sqrt(),
    "where of numbers": lambda h: torch.where(h > 0, 1.0, 0.1) @ h.T,
    "one_hot float": lambda h: F.one_hot(ROWS, 10).float().T @ h,
    "diag_embed": lambda h: torch.diag_embed(h).sum(-1),
    "tril_indices": lambda h: h[:8][torch.tril_indices(8, 8)[0], torch.tril_indices(8, 8)[1]],
    "meshgrid": lambda h: h * torch.meshgrid(torch.arange(32.0), torch.arange(8.0), indexing="ij")[0],
    "new_zeros": lambda h: torch.cat([h, h.new_zeros(4, 8)]),
    "new_tensor": lambda h: h * h.new_tensor([1.5]),
    "empty then filled": lambda h: torch.empty(32, 8).copy_(h),
    "zeros_like in place": lambda h: torch.zeros_like(h).add_(h, alpha=0.3),
    "buffer of slices": lambda h: _by_slices(h),
    "masked assignment": lambda h: _assigned(h),
    "bernoulli mask": lambda h: h * torch.bernoulli(torch.full((32, 8), 0.5)),
    "dropout": lambda h: F.dropout(h, 0.3),
    "multinomial": lambda h: h[torch.multinomial(torch.ones(32), 5)],
    "randperm": lambda h: h[torch.randperm(32)],
    "rfft": lambda h: torch.fft.irfft(torch.fft.rfft(h) * 1.5, n=8),
    "fft2 abs": lambda h: torch.fft.fft2(h).abs(),
    "power spectrum": lambda h: torch.view_as_real(torch.fft.fft(h)).square().sum(-1),
    "stft": lambda h: torch.stft(
        h.flatten()[None], 16, window=torch.hann_window(16), return_complex=True
    ).abs().square(),
    "complex weight": lambda h: (torch.complex(h, h * 0.5) @ torch.polar(torch.ones(8, 8), torch.ones(8, 8))).real,
    "conjugate": lambda h: _times_conjugate(torch.complex(h, h.flip(0))),
    "rotary by view_as_complex": lambda h: torch.view_as_real(
        torch.view_as_complex(h.view(32, 4, 2)) * torch.polar(torch.ones(4), torch.arange(4.0))
    ).flatten(1),
    "angle": lambda h: torch.complex(h, h + 1).angle(),
    "view as integers": lambda h: h + (h.detach().view(torch.int32) & 1).float(),
    "bits cut off": lambda h: h + ((h.detach().view(torch.int32) >> 8 << 8).view(torch.float32) - h.detach()),
    "boolean mask": lambda h: h[h > 0],
    "nonzero": lambda h: h[(h.sum(-1) > 0).nonzero()[:, 0]],
    "masked_select": lambda h: h.masked_select(h > 0),
    "dispatch to experts": lambda h: _dispatched(h),
    "unique": lambda h: h * torch.unique((h * 2).round()).numel(),
    "topk": lambda h: h.topk(3).values,
    "sort": lambda h: h.sort(-1).values.cumsum(-1),
    "median": lambda h: h.median(-1).values,
    "kthvalue": lambda h: h.kthvalue(3).values,
    "logsumexp": lambda h: h.logsumexp(-1),
    "einsum": lambda h: torch.einsum("ab,cb->ac", h, h),
    "cdist": lambda h: torch.cdist(h, h + 1),
    "pairwise of outer": lambda h: (h[:, None] - h[None]).square().sum(-1),
    "inverse": lambda h: torch.linalg.inv(h.T @ h + torch.eye(8)),
    "cholesky": lambda h: torch.linalg.cholesky(h.T @ h + torch.eye(8)),
    "solve": lambda h: torch.linalg.solve(h.T @ h + torch.eye(8), h.T),
    "svd values": lambda h: torch.linalg.svdvals(h),
    "log det": lambda h: torch.logdet(h.T @ h + torch.eye(8)),
    "matrix_exp": lambda h: torch.linalg.matrix_exp(h.T @ h * 0.01),
    "conv1d": lambda h: F.conv1d(h[None], torch.ones(4, 32, 3)),
    "unfold": lambda h: F.unfold(h[None, None], 3),
    "interpolate": lambda h: F.interpolate(h[None, None], scale_factor=2, mode="bilinear"),
    "grid_sample": lambda h: F.grid_sample(
        h[None, None], torch.linspace(-1, 1, 32).view(1, 4, 4, 2), align_corners=True
    ),
    "adaptive pool": lambda h: F.adaptive_avg_pool1d(h[None], 3),
    "embedding bag": lambda h: F.embedding_bag(ROWS[:20].view(4, 5), h),
    "pad and roll": lambda h: F.pad(h, (1, 1), mode="constant").roll(1, 0),
    "repeat_interleave": lambda h: h.repeat_interleave(torch.arange(32) % 3, 0),
    "bucketize": lambda h: h * torch.bucketize(h.detach(), torch.linspace(-1, 1, 5)),
    "histc": lambda h: h * torch.histc(h.detach(), 4).sum(),
    "packed sequence": lambda h: nn.utils.rnn.pack_padded_sequence(h.view(8, 4, 8), torch.arange(8, 4, -1)).data,
    "item": lambda h: h * h.detach().mean().item(),
    "vmap": lambda h: torch.func.vmap(lambda row: (row * row).sum())(h),
    "func.grad": lambda h: torch.func.grad(lambda v: v.pow(3).sum())(h),
    "ctc loss": lambda h: F.ctc_loss(
        h.view(8, 4, 8).log_softmax(-1), torch.ones(4, 2, dtype=torch.long), torch.full((4,), 8), torch.full((4,), 2)
    ),
    "attention": lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None], is_causal=True),
    "foreach": lambda h: torch.stack(torch._foreach_mul([h, h + 1], 0.5)),
    "nan_to_num": lambda h: torch.nan_to_num(h / h.detach()),
    "cumprod": lambda h: (h * 0.1 + 1).cumprod(-1),
}  # fmt: skip


def _by_slices(h: Tensor) -> Tensor:
    out = torch.zeros(32, 16)
    out[:, :8] = h
    out[:, 8:] = h * 2
    return out


def _assigned(h: Tensor) -> Tensor:
    out = torch.zeros(32, 8)
    mask = torch.arange(32) % 2 == 0
    out[mask] = h[mask]
    return out


def _times_conjugate(z: Tensor) -> Tensor:
    return (z * z.conj() + z).real


def _dispatched(h: Tensor) -> Tensor:
    out = torch.zeros(32, 8)
    for expert in range(2):
        rows = (h[:, 0] > 0).eq(expert == 1).nonzero()[:, 0]
        out.index_add_(0, rows, h[rows] * (expert + 1))
    return out


def step_with(idiom: Idiom) -> tuple[nn.Linear, Callable[[], Tensor]]:
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 8), torch.randn(32, 6)

    def step() -> Tensor:
        loss = idiom(layer(x)).square().mean()
        loss.backward()
        return loss

    return layer, step


@pytest.mark.parametrize("name", IDIOMS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_that_an_idiom_gives_an_answer_or_a_sentence(name: str) -> None:
    layer, step = step_with(IDIOMS[name])
    try:
        shadow = precgui.shadow(step, layer.parameters())
    except EngineError as error:
        pytest.fail(f"no answer: {error}")
    assert isinstance(shadow, Shadow)
    json.dumps(shadow.to_json(), allow_nan=False)
    assert math.isfinite(shadow.gradient_error)
    assert shadow.gradient_error < 1e-4
    left = shadow.with_fp64([line for line in shadow.lines() if line.line != "(no line)"])
    assert left < 1.0 or shadow.gradient_error == 0


def test_that_the_corpus_has_sixty_idioms() -> None:
    assert len(IDIOMS) >= 60


def test_that_the_rounding_of_a_table_made_in_the_step_is_not_in_the_exact_gradient() -> None:
    layer, step = step_with(lambda h: h * torch.linspace(0, 1, 8))
    shadow = precgui.shadow(step, layer.parameters())
    step_in_fp64 = layer.double()
    torch.manual_seed(0)
    nn.Linear(6, 8)
    x = torch.randn(32, 6).double()
    step_in_fp64.zero_grad()
    (step_in_fp64(x) * torch.linspace(0, 1, 8, dtype=torch.float64)).square().mean().backward()
    for exact, parameter in zip(shadow.exact_gradients, step_in_fp64.parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.allclose(exact, parameter.grad, rtol=1e-13, atol=1e-15)


def test_that_an_error_of_torch_names_the_operation_and_its_line() -> None:
    place = OpOrigin(SourceLine("model.py", 12), "", "", False)
    operation = TapeOp(0, torch.ops.aten.mm.default, (), {}, (), (), (), place)
    with pytest.raises(EngineError, match=r"mm\.default at model\.py:12.*shapes cannot"), named_faults(operation):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))


def test_that_shapes_that_decisions_change_leave_flips_unknown_with_a_note() -> None:
    layer, x = nn.Linear(6, 8), torch.randn(256, 6)

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h = layer(x)
        loss = h[h > 0.5].float().square().sum()
        loss.backward()
        return loss

    torch.manual_seed(0)
    shadow = precgui.shadow(step, layer.parameters())
    assert shadow.flips is None
    assert shadow.mechanisms["flips"] is None
    assert shadow.to_json()["mechanisms"]["flips"] is None
    assert any("not known" in note for note in shadow.notes)
    assert shadow.verdict == "healthy"


@pytest.mark.parametrize("take", [lambda t: t.item(), lambda t: float(t), lambda t: t.numpy(), lambda t: t.tolist()])
def test_that_numbers_taken_out_of_the_step_have_a_note(take: Callable[[Tensor], object]) -> None:
    layer, x = nn.Linear(6, 8), torch.randn(32, 6)

    def step() -> Tensor:
        h = layer(x)
        factor = torch.as_tensor(take(h.detach().mean()))
        loss = (h * factor).sum()
        loss.backward()
        return loss

    notes = precgui.shadow(step, layer.parameters()).notes
    assert sum("takes numbers out of a tensor" in note for note in notes) == 1


def test_that_rounding_to_integers_in_a_step_has_a_note() -> None:
    layer, step = step_with(lambda h: h + ((h.detach() * 8).round() / 8 - h.detach()))
    notes = precgui.shadow(step, layer.parameters()).notes
    assert any(note.startswith("round at ") and "keep its integers" in note for note in notes)


def _with_jvp(layer: nn.Linear, sample: Tensor) -> Tensor:
    value, derivative = torch.func.jvp(layer, (sample,), (torch.ones_like(sample),))
    return torch.tanh(value + derivative)


def _after_inference(layer: nn.Linear, sample: Tensor) -> Tensor:
    with torch.inference_mode():
        target = torch.tanh(layer(sample))
    return layer(sample) * target.clone()


@pytest.mark.parametrize("forward", [_with_jvp, _after_inference])
@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch.func.jvp calls it
def test_that_forward_derivatives_and_inference_are_followed(
    forward: Callable[[nn.Linear, Tensor], Tensor], dtype: torch.dtype | None
) -> None:
    torch.manual_seed(0)
    layer, sample = nn.Linear(8, 8), torch.randn(6, 8)

    def step() -> Tensor:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = forward(layer, sample).float().square().mean()
        loss.backward()
        return loss

    shadow = precgui.shadow(step, layer)
    assert shadow.explained == pytest.approx(1, abs=0.1)
    assert shadow.verdict == "healthy"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_that_nested_tensors_are_refused_in_one_sentence() -> None:
    layer, sample = nn.Linear(8, 8), torch.randn(6, 8)

    def step() -> Tensor:
        ragged = torch.nested.nested_tensor([sample[:2], sample[2:]], layout=torch.jagged)
        loss = layer(ragged).values().square().mean()
        loss.backward()
        return loss

    with pytest.raises(EngineError, match="nested"):
        precgui.shadow(step, layer)


def _shadow_of_normalised(norm: Callable[[nn.Module], nn.Module]) -> Shadow:
    """Of a step in BF16 autocast whose first layer has its weight normalised."""
    torch.manual_seed(0)
    net = nn.Sequential(norm(nn.Linear(12, 32)), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(40, 12)

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = net(x).float().square().mean()
        loss.backward()
        return loss

    return precgui.shadow(step, net)


def test_that_results_written_to_out_are_followed() -> None:
    shadow = _shadow_of_normalised(nn.utils.parametrizations.spectral_norm)
    assert shadow.verdict == "healthy"
    assert shadow.explained == pytest.approx(1, abs=0.05)


def test_that_the_shares_of_a_step_with_weight_norm_add_up() -> None:
    assert _shadow_of_normalised(nn.utils.parametrizations.weight_norm).explained == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_that_what_a_recurrent_cell_rounds_inside_is_what_its_precision_costs(cell: type[nn.Module]) -> None:
    torch.manual_seed(6)
    unit, head = cell(8, 24), nn.Linear(24, 4)
    x, y = torch.randn(16, 9, 8), torch.randint(0, 4, (16,))

    def step() -> Tensor:
        h = c = torch.zeros(16, 24)
        with torch.autocast("cpu", torch.bfloat16):
            for t in range(9):
                if cell is nn.LSTMCell:
                    h, c = unit(x[:, t], (h, c))
                    h, c = h.float(), c.float()
                else:
                    h = unit(x[:, t], h)
            out = head(h)
        loss = F.cross_entropy(out.float(), y)
        loss.backward()
        return loss

    shadow = precgui.shadow(step, [*unit.parameters(), *head.parameters()])
    assert shadow.verdict == "healthy", shadow.message


def test_that_views_of_attention_with_a_mask_are_followed() -> None:
    torch.manual_seed(304)
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
    x, mask = torch.randn(6, 10, 32), nn.Transformer.generate_square_subsequent_mask(10)

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = layer(x, src_mask=mask, is_causal=True).float().square().mean()
        loss.backward()
        return loss

    assert precgui.shadow(step, layer).verdict == "healthy"
