"""Every name of `torch_private` does what its users need, in the installed torch."""

from __future__ import annotations

import inspect
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precgui.engine import torch_private as private


def test_that_layers_are_told_by_their_private_base_classes() -> None:
    assert isinstance(nn.Conv3d(1, 1, 1), private.ConvNd)
    assert isinstance(nn.ConvTranspose1d(1, 1, 1), private.ConvTransposeNd)
    assert isinstance(nn.BatchNorm2d(1), private.BatchNormNd)
    assert not isinstance(nn.Linear(1, 1), private.ConvNd | private.BatchNormNd)


def test_that_the_backward_pass_is_noticed_and_nodes_keep_their_numbers() -> None:
    inside: list[tuple[int, int | None]] = []

    def hook(_: Tensor) -> None:
        node = private.autograd_node()
        codes = [frame.f_code for frame, _ in traceback.walk_stack(sys._getframe())]
        assert private.backward_code in codes
        inside.append((private.graph_task(), None if node is None else private.node_number(node)))

    weight = torch.ones(2, requires_grad=True)
    value = weight * 2
    number = private.sequence_number() - 1
    value.register_hook(hook)
    assert (private.graph_task(), private.autograd_node()) == (-1, None)
    value.sum().backward()
    assert inside[0][0] >= 0
    assert number == private.node_number(value.grad_fn)


FAILED_BACKWARD = """
import sys
import torch
from torch.utils.checkpoint import checkpoint
from precgui.engine import backend_flags

class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("in the backward pass")

weight = torch.randn(4, 4, requires_grad=True)
with backend_flags.restored():
    waits = checkpoint(lambda x: (x @ weight).tanh() @ weight, torch.randn(2, 4), use_reentrant=False)
    try:
        (waits.sum() + Raising.apply(weight * 2).sum()).backward()
    except RuntimeError as error:
        print(error)
del waits
"""


def test_that_a_process_whose_backward_pass_failed_ends_well() -> None:
    """In a real one: at the very end, after that of the interpreter, torch's engine lets go of what waits in it."""
    done = subprocess.run([sys.executable, "-c", FAILED_BACKWARD], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "in the backward pass\n", "")


def test_that_modes_are_counted_and_left_out() -> None:
    class Counting(private.TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    assert private.dispatch_modes() == 0
    with Counting() as mode:
        assert private.dispatch_modes() == 1
        assert private.dispatch_mode_at(0) is mode
        with private.dispatch_modes_disabled():
            torch.ones(1) + 1
        assert Counting.calls == 0
        torch.ones(1) + 1
    assert Counting.calls == 2
    assert private.function_modes() == []
    with private.DisableTorchFunction():
        assert float(torch.ones(1) + 1) == 2
    private.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    private.set_grad_enabled(True)
    assert private.is_traceable_wrapper_subclass(torch.ones(1)) is False


def test_that_tracing_and_transforms_are_noticed() -> None:
    seen: list[tuple[bool, bool]] = []

    def look(value: Tensor) -> Tensor:
        seen.append((private.tracing_state() is not None, private.transform_level() is not None))
        return value.sum()

    look(torch.ones(2))
    torch.func.grad(look)(torch.ones(2))
    assert seen == [(False, False), (False, True)]
    assert callable(private.disable_dynamo(look, recursive=True))
    assert not private.is_compiled(nn.Linear(1, 1))
    assert isinstance(private.is_anything_compiled(), bool)
    assert isinstance(private.may_be_compiled(), bool)


def test_that_the_flops_of_attention_are_counted_on_the_cpu_too() -> None:
    found: dict[str, int] = {}

    class Counting(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if (count := private.flop_formula(func)) is not None:
                found[private.operation_name(func)] = int(count(*args, **(kwargs or {}), out_val=out))
            return out

    query = torch.randn(2, 3, 16, 8, requires_grad=True)
    with Counting():
        nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
        torch.ones(4, 5) @ torch.ones(5, 6)
    one_product = 2 * 2 * 3 * 16 * 16 * 8
    assert found == {
        "_scaled_dot_product_flash_attention_for_cpu": 2 * one_product,
        "_scaled_dot_product_flash_attention_for_cpu_backward": 5 * one_product,
        "mm": 2 * 4 * 5 * 6,
    }


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.Linear(2, 2), _Own()])
def test_that_a_model_is_compiled_whole_in_place(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> None:
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled(module, backend=backend))
    wanted = model(torch.ones(1, 2))
    private.compile_in_place(model)
    assert torch.equal(model(torch.ones(1, 2)), wanted)
    torch.compiler.reset()
    assert graphs == [1 if isinstance(model, nn.Linear) else 2], "one graph, of all operations"


def test_that_onednn_is_switched_and_put_back() -> None:
    before = private.onednn_enabled()
    with private.onednn(allowed=False):
        assert not private.onednn_enabled()
    assert private.onednn_enabled() == before
    assert isinstance(private.has_avx2(), bool)


def test_that_operations_are_there_and_right() -> None:
    parts = [torch.full((4,), 3.0), torch.zeros(2)]
    assert [float(norm) for norm in private.foreach_norm(parts, dtype=torch.float64)] == [6.0, 0.0]
    narrow = [torch.zeros(4, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)]
    private.foreach_copy_(narrow, parts)
    assert [part.tolist() for part in narrow] == [part.tolist() for part in parts]
    private.foreach_lerp_(parts, [torch.zeros(4), torch.ones(2)], 0.5)
    assert [float(part[0]) for part in parts] == [1.5, 0.5]
    numbers = torch.arange(16 * 16, dtype=torch.int8).view(16, 16) % 5
    assert torch.equal(private.int_mm(numbers, numbers), (numbers.int() @ numbers.int()))
    assert isinstance(torch.ops.aten.add.Tensor, private.operation_types)
    assert isinstance(torch.ops.aten.add, private.operation_types)


@pytest.mark.usefixtures("fp8_products")
def test_that_the_product_in_fp8_is_there_and_right() -> None:
    eight = torch.eye(16).to(torch.float8_e4m3fn)
    one = torch.ones(())
    found = private.scaled_mm(eight, eight.t(), scale_a=one, scale_b=one, out_dtype=torch.float32)
    assert torch.equal(found, torch.eye(16))


def test_that_nested_values_are_taken_apart() -> None:
    nested = {"a": [torch.ones(1), 2], "b": (torch.zeros(1),)}
    assert len(private.tree_leaves(nested)) == 3
    assert private.tree_map(lambda value: value * 2, {"a": [1, 2]}) == {"a": [2, 4]}
    assert private.tree_map_only(int, lambda value: -value, [1, "x"]) == [-1, "x"]


def test_that_the_older_profiler_counts_blocks() -> None:
    if not private.memory_profiler.is_available():
        pytest.skip("this torch has no profiler of before Kineto")
    private.memory_profiler.start()
    block = torch.empty(1000, dtype=torch.float64)
    del block
    changes = private.memory_profiler.stop()
    assert 8000 in changes
    assert -8000 in changes


def test_that_shapes_alone_are_computed_with() -> None:
    with private.fake_tensor_mode():
        product = torch.ones(3, 4) @ torch.ones(4, 5)
        assert product.shape == (3, 5)
        with pytest.raises(private.fake_shape_errors()):
            torch.ones(3).nonzero()


def test_that_settings_errors_and_operations_of_slow_modules_are_there() -> None:
    assert all(issubclass(error, Exception) for error in private.export_errors())
    operations = private.quantized_operations()
    steps = operations.quantize_per_tensor.default(torch.tensor([0.0, 1.0]), 0.5, 1, 0, 255, torch.uint8)
    assert steps.tolist() == [1, 3]
    again = operations.dequantize_per_tensor.default(steps, 0.5, 1, 0, 255, torch.uint8)
    assert again.tolist() == [0.0, 1.0]
    scales, zeros = torch.tensor([0.5, 2.0]), torch.zeros(2, dtype=torch.int64)
    weights = torch.tensor([[2], [3]], dtype=torch.int8)
    found = operations.dequantize_per_channel.default(weights, scales, zeros, 0, -128, 127, torch.int8)
    assert found.tolist() == [[1.0], [6.0]]
    if torch.distributed.is_available():
        assert "prefix" in inspect.signature(private.process_group_store).parameters
        assert hasattr(torch.distributed.distributed_c10d, "_get_default_store")
        assert hasattr(torch._C._distributed_c10d, "PrefixStore")


def test_that_operations_have_names_and_kernels_for_the_cpu_are_named_only_inside() -> None:
    from torch._inductor import config

    assert {"mm", "gelu_backward", "native_layer_norm"} <= private.aten_names()
    with private.named_fused_kernels():
        assert config.cpp.enable_kernel_profile
    assert not config.cpp.enable_kernel_profile


@pytest.mark.parametrize("kept_to_itself", [False, True])
def test_that_recorded_events_name_the_formats_of_operands(kept_to_itself: bool) -> None:
    """An older torch has them in the events of its recorder alone."""
    value = torch.ones(3, 4)
    profiling = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True
    )  # else torch 2.11 warns that events are cleared before the next cycle, of which there is none
    with profiling as profiler:
        value.to(torch.bfloat16)
    if kept_to_itself:
        for event in profiler.events():
            vars(event).pop("input_dtypes", None)
    (copied,) = [event for event in private.recorded_events(profiler) if event.name == "aten::copy_"]
    assert copied.input_dtypes[:2] == ["c10::BFloat16", "float"]
