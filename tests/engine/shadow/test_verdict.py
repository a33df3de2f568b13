"""The verdict: no healthy step is a problem, and none is healthy whose error is not known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import precgui
from precgui.engine.shadow import origin
from precgui.engine.shadow.step import Shadow
from precgui.engine.shadow.tape import NO_LINE
from precgui.engine.shadow.unavoidable_error import is_product

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def shadow_of(loss: Callable[[], Tensor], parameters: Iterable[Tensor]) -> Shadow:
    def step() -> Tensor:
        value = loss()
        value.backward()
        return value

    result = precgui.shadow(step, parameters)
    assert isinstance(result, Shadow)
    return result


def perceptron() -> nn.Sequential:
    first = nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64)
    return nn.Sequential(*first, nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))


def in_one_line(seed: int) -> Shadow:
    torch.manual_seed(seed)
    net, x, y = perceptron(), torch.randn(64, 32), torch.randint(10, (64,))

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            return F.cross_entropy(net(x), y)

    return shadow_of(loss, net.parameters())


def test_that_a_whole_model_in_one_line_is_healthy_with_any_seed() -> None:
    assert [in_one_line(seed).verdict for seed in range(4)] == ["healthy"] * 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 8192.0), (BF16, 1.0)])
def test_that_a_plain_convolutional_network_is_healthy(dtype: torch.dtype, scale: float, seed: int) -> None:
    """The kernel may add the gradient of a weight over the samples in the low format: no line can do otherwise."""
    torch.manual_seed(seed)
    images, labels = torch.randn(8, 3, 12, 12), torch.randint(0, 5, (8,))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip

    def step() -> Tensor:
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(model(images), labels)
        (loss * scale).backward()
        return loss

    shadow = precgui.shadow(step, model.parameters())
    assert shadow.verdict == "healthy"
    operations = shadow.step.tape.operations
    without_products = shadow.error_left({o.index for o in operations if not is_product(o)})
    assert shadow.left_without_products({o.origin.line for o in operations}) == pytest.approx(
        without_products, abs=0.05
    )


def test_that_no_ratio_is_given_to_an_ideal_error_of_nearly_nothing() -> None:
    """The products of this FP32 step are exact to FP64: small integers."""
    weight = nn.Parameter(torch.eye(4))
    sample = torch.arange(8.0).reshape(2, 4)

    def loss() -> Tensor:
        return torch.sin(sample @ weight).mean() * 0.1

    shadow = shadow_of(loss, [weight])
    assert 0 < shadow.gradient_error < 1e-6
    assert shadow.ideal_error < 2.0**-24
    assert "times the error" not in shadow.message
    assert "products and casts of this precision alone cost" in shadow.message


def _in_fp8(x: Tensor) -> Tensor:
    return (x * 1e-4).to(torch.float8_e4m3fn).float() * 1e4


def test_that_numbers_lost_in_the_forward_pass_have_their_line_and_no_word_of_the_loss_scale() -> None:
    torch.manual_seed(0)
    weight, sample = nn.Parameter(torch.randn(8, 8)), torch.randn(16, 8)
    shadow = shadow_of(lambda: (_in_fp8(sample @ weight) - sample).square().mean() * 0.1, [weight])
    assert shadow.verdict == "problems"
    assert "too small for the format, most of them at " in shadow.message
    assert shadow.blamed[0] in shadow.message
    assert "loss scale" not in shadow.message


def test_that_with_fp64_takes_products_and_the_verdict_does_not() -> None:
    shadow = in_one_line(0)
    line = max(shadow.lines(), key=lambda one: one.share)
    assert shadow.with_fp64(line) < 0.2
    (place,) = {o.origin.line for o in shadow.step.tape.operations if o.origin.line.label == line.line}
    assert shadow.left_without_products([place]) > 0.8


def shifted(x: Tensor) -> Tensor:
    return ((x.to(BF16) + 20) - 20).float()


def test_that_every_verdict_on_a_finite_step_says_how_its_error_compares_with_the_ideal_one() -> None:
    x, weight = torch.randn(16, 8), nn.Parameter(torch.randn(8, 8))

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            h = x @ weight
        return shifted(h).square().mean()

    shadow = shadow_of(loss, [weight])
    assert shadow.verdict == "problems"
    for message in (shadow.message, in_one_line(0).message):
        assert "times the error that the products and casts of this precision cost alone" in message
    assert "other than matrix products" in shadow.message


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_that_the_error_of_an_inner_backward_pass_of_torch_func_has_its_lines(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.randn(32))

    def inner(p: Tensor) -> Tensor:
        return (((p + 10).to(BF16) ** 2 - 100) * 0.05).float().square().mean()

    def loss() -> Tensor:
        moved = weight - 0.1 * torch.func.grad(inner)(weight)
        return moved.square().sum()

    shadow = shadow_of(loss, [weight])
    label = f"{inner.__code__.co_firstlineno + 1}"
    assert shadow.verdict == "problems"
    assert shadow.blamed[0].endswith(f":{label}")
    assert shadow.with_fp64(shadow.blamed[:1]) < 0.1
    assert all(line.line != "(no line)" or abs(line.share) < 0.01 for line in shadow.lines())


def test_that_a_tensor_hook_has_a_line() -> None:
    x, weight = torch.randn(16, 8), nn.Parameter(torch.randn(8, 8))

    def hook(gradient: Tensor) -> Tensor:
        return (gradient.bfloat16() + 4).sub(4).float()

    def loss() -> Tensor:
        h = x @ weight
        h.register_hook(hook)
        return h.square().sum()

    shadow = shadow_of(loss, [weight])
    assert shadow.verdict == "problems"
    assert shadow.blamed[0].endswith(f":{hook.__code__.co_firstlineno + 1}")


def test_that_a_forward_pass_in_another_thread_is_not_called_healthy() -> None:
    x, net = torch.randn(16, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss() -> Tensor:
        results: list[Tensor] = []
        thread = threading.Thread(target=lambda: results.append(shifted(net(x)).square().mean()))
        thread.start()
        thread.join()
        return results[0]

    shadow = shadow_of(loss, net.parameters())
    assert shadow.verdict == "not explained"
    assert shadow.precision_is_to_blame is None
    assert "thread" in shadow.message


def test_that_an_error_without_a_line_is_not_called_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "_line", lambda: (NO_LINE, False))  # as for operations that C++ calls
    x, weight = torch.randn(16, 8), nn.Parameter(torch.randn(8, 8))
    shadow = shadow_of(lambda: shifted(x @ weight).square().mean(), [weight])
    assert shadow.verdict == "not explained"
    assert "no source line is known" in shadow.message


def test_that_generated_code_counts_as_the_line_that_calls_it() -> None:
    x, weight = torch.randn(16, 8), nn.Parameter(torch.randn(8, 8))
    generated: dict[str, Callable[[Tensor], Tensor]] = {}
    exec("of = lambda h: ((h.bfloat16() + 20) - 20).float().square().mean()", generated)
    shadow = shadow_of(lambda: generated["of"](x @ weight), [weight])
    assert shadow.verdict == "problems"
    assert "test_verdict.py" in shadow.blamed[0]


def test_that_a_line_with_a_lambda_in_it_is_one_row_and_measures_itself() -> None:
    x, weight = torch.randn(16, 8), nn.Parameter(torch.randn(8, 8))

    def loss() -> Tensor:
        h = x @ weight
        y = (lambda v: (v.to(BF16) + 20) - 20)(h.to(BF16) * 1.01).float()
        parts = [part * 1.5 for part in (y, y * 2)]
        return sum((part.square().mean() for part in parts), torch.zeros(()))

    shadow = shadow_of(loss, [weight])
    first = shadow.lines()[0]
    labels = [line.line for line in shadow.lines()]
    assert len(labels) == len(set(labels))
    assert first.left_predicted == pytest.approx(shadow.with_fp64(first), abs=0.15)
    assert shadow.with_fp64(first) == shadow.with_fp64(first.line) < 0.3


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_that_the_recomputed_forward_pass_of_a_checkpoint_has_its_lines(use_reentrant: bool) -> None:
    stem, head, x = nn.Linear(8, 8), nn.Linear(8, 8), torch.randn(16, 8)

    def part(h: Tensor) -> Tensor:
        return shifted(head(h).tanh())

    def loss() -> Tensor:
        return checkpoint(part, stem(x), use_reentrant=use_reentrant).square().mean()

    shadow = shadow_of(loss, [*stem.parameters(), *head.parameters()])
    first = shadow.lines()[0]
    assert first.line.endswith(f":{shifted.__code__.co_firstlineno + 1}")
    assert first.share > 0.95
    assert shadow.with_fp64(first) < 0.05


def test_that_decisions_that_move_the_gradient_more_than_rounding_are_in_the_sentence() -> None:
    x, weight = torch.randn(200, 8), nn.Parameter(torch.randn(8, 8) * 1e-2)

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            h = x @ weight
        return (h.float().relu() * torch.linspace(-1, 1, 8)).sum()

    shadow = shadow_of(loss, [weight])
    assert shadow.flips is not None
    assert shadow.flips > shadow.gradient_error
    assert "Decisions that turn out otherwise in FP64" in shadow.message
    assert f"move the gradient by {shadow.flips:.2e}" in shadow.message


@pytest.mark.parametrize(("h", "verdict"), [(1e-4, "problems"), (0.1, "healthy")])
def test_that_a_difference_in_fp32_with_too_small_a_step_is_a_problem_of_its_line(h: float, verdict: str) -> None:
    u = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    x = torch.linspace(0, 2, 48)[:, None]

    def loss() -> Tensor:
        middle = u(x)
        bend = (u(x + h) - 2 * middle + u(x - h)) / h**2
        return (bend + torch.sin(x)).square().mean()

    shadow = shadow_of(loss, u.parameters())
    assert shadow.verdict == verdict, shadow.message
    if verdict == "problems":
        assert shadow.precision_is_to_blame and "subtracts nearly equal numbers in FP32" in shadow.message
        assert [name.rpartition(":")[2] for name in shadow.blamed] == [str(loss.__code__.co_firstlineno + 2)]


def test_that_the_cast_of_a_gradient_to_the_format_of_its_value_is_no_error_of_a_line() -> None:
    net, x, y = nn.Linear(16, 4), (torch.randn(128, 16) * 4).round() / 4, torch.randn(128, 4)
    with torch.no_grad():
        net.weight.copy_((net.weight * 16).round() / 16)  # exact in BF16, as the inputs

    def under_autocast() -> Tensor:
        with torch.autocast("cpu", BF16):
            out = net(x)
        return F.mse_loss(out.float(), y)

    asked = shadow_of(under_autocast, net.parameters())
    assert asked.verdict == "healthy"
    assert (
        asked.ideal_error == pytest.approx(asked.gradient_error, rel=0.02) and asked.product_error < asked.ideal_error
    )
    assert all(line.avoidable < 0.02 for line in asked.lines())
    own = shadow_of(lambda: F.mse_loss(net(x).bfloat16().float(), y), net.parameters())
    assert own.lines()[0].avoidable > 0.9
