"""Switches of the loop that must not change what is computed, and those that change it in a known way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from precgui import config
from precgui.engine import execution, precisions, tasks
from precgui.engine.ema import WeightAverage
from precgui.engine.errors import EngineError
from precgui.engine.tasks import Digits
from precgui.engine.torch_private import attention_backends, function_modes
from precgui.engine.train import train
from precgui.events import Event, StepDone
from tests.engine.conftest import Record
from tests.warm_children import python

LOW = ["fp32", "fp64", "bf16-amp", "fp16-amp", "bf16-pure", "fp16-pure"]


def curve(events: list[Event]) -> list[tuple[float, float]]:
    return [(e.loss, e.grad_norm) for e in events if isinstance(e, StepDone)]


class _NoBatchNorm(Digits):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def test_that_accumulated_batches_equal_one_large_batch(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _NoBatchNorm)
    whole = curve(record("data.batch_size=200", "train.epochs=2", "precision=fp64"))
    parts = curve(record("data.batch_size=50", "train.accumulation=4", "train.epochs=2", "precision=fp64"))
    assert len(whole) == len(parts) == 16, "the last step of an epoch has fewer samples and counts them"
    for one, other in zip(whole, parts, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("precision", LOW)
def test_that_checkpoints_change_no_bit(record: Record, precision: str) -> None:
    settings = (f"precision={precision}", "data.batch_size=16", "data.epoch_steps=4", "train.max_steps=5")
    plain, recomputed = record(*settings), record(*settings, "train.checkpointing=true")
    assert curve(plain) == curve(recomputed)
    losses = [[e.loss for e in events if type(e).__name__ == "Evaluated"] for events in (plain, recomputed)]
    assert len(losses[0]) == 2
    assert losses[0] == losses[1], "batch norm counted a batch twice"


def test_that_checkpoints_save_activations() -> None:
    def saved(model: nn.Module) -> int:
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(torch.randn(256, 64)).sum().backward()
        return sum(sizes.values())

    def network() -> nn.Module:
        return nn.Sequential(nn.Sequential(*(part for _ in range(16) for part in (nn.Linear(64, 64), nn.ReLU()))))

    plain, checkpointed = network(), network()
    assert execution.checkpoint_segments(checkpointed) == ["0"]
    assert saved(checkpointed) < saved(plain) / 2


def test_that_blocks_in_a_list_are_segments() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(3))

    assert execution.checkpoint_segments(Stack()) == ["blocks.0", "blocks.1", "blocks.2"]


def test_that_a_model_without_segments_is_told() -> None:
    with pytest.raises(EngineError, match=r"no nn\.Sequential or nn\.ModuleList"):
        execution.checkpoint_segments(nn.Linear(2, 2))


def test_that_channels_last_changes_only_the_order_of_sums(record: Record) -> None:
    plain, last = (curve(record("train.max_steps=3", f"train.channels_last={v}")) for v in ("false", "true"))
    assert [loss for loss, _ in plain] == pytest.approx([loss for loss, _ in last], rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_that_the_average_equals_torchs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    reference.update_parameters(model)
    low = nn.Linear(5, 3).to(dtype)
    low.load_state_dict(model.state_dict())
    average = WeightAverage(list(low.parameters()), list(model.parameters()), 0.9)
    if dtype is torch.float32:
        average = WeightAverage(list(model.parameters()), list(model.parameters()), 0.9)
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        reference.update_parameters(model)
        average.update()
    tolerance = 1e-6 if dtype is torch.float32 else 2e-2
    shown = model if dtype is torch.float32 else low
    before = [p.detach().clone() for p in shown.parameters()]
    with average.applied():
        for found, expected in zip(shown.parameters(), reference.module.parameters(), strict=True):
            torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)
    assert all(torch.equal(b, p) for b, p in zip(before, shown.parameters(), strict=True))


def test_that_averaging_changes_validation_and_not_training(record: Record) -> None:
    plain, averaged = (record("train.epochs=2", *more) for more in ((), ("train.ema_decay=0.9",)))
    assert curve(plain) == curve(averaged)
    assert [e for e in plain if type(e).__name__ == "Evaluated"] != [
        e for e in averaged if type(e).__name__ == "Evaluated"
    ]


def switches() -> tuple[object, ...]:
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
        torch.backends.mkldnn.conv.fp32_precision,  # type: ignore[attr-defined]
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
    )


@pytest.mark.parametrize("precision", ["tf32", "fp64", "fp16-amp"])
def test_that_no_switch_leaks_into_the_next_run(record: Record, precision: str) -> None:
    before = switches()
    record("train.max_steps=1", f"precision={precision}", "train.deterministic=true", "threads=2")
    assert switches() == before


class _LossPerSample(Digits):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_that_a_loss_that_is_no_number_is_told(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _LossPerSample)
    with pytest.raises(EngineError, match=r"the loss of task digits has the shape \[64\], .* take its mean"):
        record()


@pytest.mark.parametrize("backend", ["math", "flash"])
def test_that_the_attention_kernel_can_be_chosen(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Callable[..., object], types: object, args: object = (), kwargs: object = None
        ) -> object:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    q = torch.randn(1, 2, 8, 16)
    with execution.attention(backend), Names():
        nn.functional.scaled_dot_product_attention(q, q, q)
    assert any("flash" in name for name in names) is (backend == "flash")


@pytest.mark.parametrize("backend", ["math", "flash"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-amp", "fp16-amp", "bf16-pure", "emulated:e4m3fn"])
def test_that_checkpoints_change_no_bit_with_a_chosen_attention_kernel(
    record: Record, precision: str, backend: str
) -> None:
    settings = (
        "task=text", "data.sequence_length=16", "data.batch_size=4", "train.max_steps=2", "record.tensors=false",
        f"precision={precision}", f"train.attention={backend}",
    )  # fmt: skip
    before = attention_backends(with_priority=True)
    plain = curve(record(*settings))
    assert plain == curve(record(*settings, "train.checkpointing=true"))
    assert attention_backends(with_priority=True) == before


class _Watching(nn.Module):
    """A block that notes under which state of torch it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: list[tuple[object, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(
            (
                attention_backends(with_priority=True), [type(mode) for mode in function_modes()],
                torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.get_default_dtype(),
                torch.is_grad_enabled(), self.linear.weight.requires_grad, self.training,
            )
        )  # fmt: skip
        result: Tensor = self.linear(x)
        return result


class _Watched(Digits):
    block = _Watching()

    def model(self) -> nn.Module:
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        return nn.Sequential(first, nn.Sequential(type(self).block, nn.Tanh()), nn.Linear(4, 10))


@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16-amp", "fp16-amp", "fp16-pure", "emulated:e4m3fn"])
def test_that_a_segment_is_computed_again_in_the_state_of_the_first_time(
    record: Record, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _Watched)
    monkeypatch.setattr(_Watched, "block", block := _Watching())
    record(f"precision={precision}", "train.attention=math", "train.checkpointing=true", "train.max_steps=1",
           "record.tensors=false", "data.epoch_steps=1")  # fmt: skip
    trained = [state for state in block.seen if state[-1]]
    assert len(trained) >= 2
    assert all(state == trained[0] for state in trained)


@pytest.mark.parametrize("task", ["gan", "cartpole"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-amp", "fp16-pure"])
def test_that_checkpoints_change_no_bit_of_models_with_ways_of_their_own(
    record: Record, task: str, precision: str
) -> None:
    """A GAN holds one network still in a part of its forward pass; the model of cart-pole is one nn.Sequential."""
    settings = (
        f"task={task}",
        f"precision={precision}",
        "train.max_steps=3",
        "data.batch_size=8",
        "data.epoch_steps=3",
    )
    assert curve(record(*settings)) == curve(record(*settings, "train.checkpointing=true"))


def test_that_a_missing_compiler_is_told(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineError, match=r"train\.compile needs a C\+\+ compiler .* set train\.compile = false"):
        record("train.compile=true")


def test_that_missing_headers_of_python_are_told(
    record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "c++")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / name))
    with pytest.raises(
        EngineError, match=r"needs the header Python\.h.* install .*python3-dev.* train\.compile = false"
    ):
        record("train.compile=true")


def test_that_an_attention_kernel_that_is_not_there_is_told(record: Record) -> None:
    settings = ("task=text", "data.sequence_length=16", "data.batch_size=4", "train.max_steps=1")
    with pytest.raises(EngineError, match=r"train\.attention = cudnn has no kernel .* set train\.attention = auto"):
        record(*settings, "train.attention=cudnn")


class _Irreproducible(Digits):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError(
                "upsample_cuda does not have a deterministic implementation, but you set "
                "'torch.use_deterministic_algorithms(True)'."
            )
        return super().loss(outputs, targets)


def test_that_an_operation_without_a_reproducible_form_is_named(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _Irreproducible)
    with pytest.raises(EngineError, match=r"train\.deterministic: upsample_cuda has no reproducible form"):
        record("train.max_steps=1", "train.deterministic=true")


class _Huge(Digits):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), _Expands())


class _Expands(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.new_empty(1 << 24, 1 << 20, 10)[0, 0]


def test_that_a_batch_that_does_not_fit_names_the_peak(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _Huge)
    with pytest.raises(MemoryError, match=r"can't allocate memory: .* \(the most in use before: \d+\.\d\d GiB\)"):
        record("train.max_steps=1", "record.tensors=false")


def test_that_compiled_models_leave_emulated_layers_alone() -> None:
    wanted = config.load("digits-quick", ["precision=fp8"])
    model = precisions.make(wanted, torch.device("cpu")).convert(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    execution.compile_model(model)
    assert model[0].forward._torchdynamo_disable is True
    assert not hasattr(model[1].forward, "_torchdynamo_disable")


def test_that_switches_set_by_the_new_names_are_put_back() -> None:
    """torch then refuses to tell them by their old names."""
    program = (
        "import torch\n"
        "from precgui.engine.backend_flags import restored, set_fp32_arithmetic\n"
        "backends = torch.backends\n"
        "backends.cuda.matmul.fp32_precision = backends.cudnn.conv.fp32_precision = 'tf32'\n"
        "with restored():\n"
        "    set_fp32_arithmetic(tf32=False)\n"
        "    assert backends.cuda.matmul.fp32_precision == 'ieee'\n"
        "print(backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision)\n"
    )
    done = python("-c", program)
    assert (done.stdout, done.stderr) == ("tf32 tf32\n", "")


def test_that_attention_without_a_kernel_is_told_for_every_device() -> None:
    wanted = config.load("digits-quick", ["train.attention=flash"]).train
    for words in ("No available kernel. Aborting execution.", "No viable backend for scaled_dot_product_attention was"):
        assert execution.switch_to_blame(RuntimeError(words), wanted).startswith(
            "train.attention = flash has no kernel"
        )
    assert not execution.switch_to_blame(RuntimeError("out of luck"), wanted)


def test_that_a_cuda_graph_without_a_gpu_is_refused_before_the_first_step() -> None:
    events: list[Event] = []
    chosen = config.load("digits-quick", ["train.cuda_graph=true", "precision=fp32", "device=auto"])
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, on which steps are captured")
    with pytest.raises(EngineError, match=r"train\.cuda_graph needs an NVIDIA GPU, and this run is on cpu; set"):
        train(chosen, events.append, lambda: False)
    assert not any(isinstance(event, StepDone) for event in events)
