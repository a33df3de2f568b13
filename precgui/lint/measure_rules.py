"""Measurements that do not measure what they are meant to: times of launches, an FP32 arm with TF32."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import islice

from precgui.lint.arguments import keyword
from precgui.lint.flow import definition, is_cuda
from precgui.lint.method_names import SAME_DEVICE
from precgui.lint.source import CallSite, Mistakes, Source
from precgui.sentences import L_, Sentence

_MOST_INTERVALS = 128  # of one script
_CLOCKS = {"time.time", "time.perf_counter", "time.monotonic", "time.perf_counter_ns", "time.time_ns"}
_LAUNCHES = {"backward", "model", "net", "network", "matmul", "mm", "bmm", "conv2d", "linear"}
_HARMLESS = _LAUNCHES | {
    "step", "zero_grad", "range", "enumerate", "zip", "autocast", "scale", "update", "cuda", "randn", "rand", "no_grad",
    "criterion", "loss_fn", "cross_entropy", "mse_loss", "nullcontext", "relu", "softmax", "sum", "mean", "train",
    "eval", "parameters", "unscale_", "clip_grad_norm_", "inference_mode", "reset_peak_memory_stats",
}  # fmt: skip
_MOST_STEPS = 8
_TF32_MATMUL = "torch.backends.cuda.matmul.allow_tf32"
_TF32_CUDNN = "torch.backends.cudnn.allow_tf32"
_CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "conv2d")
_CONVOLUTIONAL = ("resnet", "efficientnet", "mobilenet", "vgg", "densenet", "convnext", "regnet")


def unsynchronized_time(source: Source) -> Mistakes:
    """A time between two readings of the clock with launches of CUDA kernels between them, and nothing that waits."""
    if not _uses_cuda(source):
        return
    for stop, start in islice(_intervals(source), _MOST_INTERVALS):
        scope, first, last = source.scope(stop), source.places[start], source.places[stop]
        timed = source.between(scope, first, last)
        if "cpu" in getattr(scope, "name", ""):
            continue
        work = any(site.method in _LAUNCHES and (site.owner or site.method != "backward") for site in timed)
        work = work or any(_is_product_on_cuda(source, node) for node in source.nodes[first:last])
        if work and all(site.method in _HARMLESS or site.name in _CLOCKS for site in timed):
            yield (
                getattr(stop, "lineno", 1), "warning", L_(
                    "the time is that of launches: nothing waits for the GPU before the clock is read"
                ),
                L_("torch.cuda.synchronize() before both readings of the clock"),
            )  # fmt: skip


def _uses_cuda(source: Source) -> bool:
    return bool(source.of("cuda")) or any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda")
        for node in source.nodes
    )  # fmt: skip


def _is_product_on_cuda(source: Source, node: ast.AST) -> bool:
    """Whether a node is `a @ b` of a tensor that is certainly on CUDA."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) and _is_on_cuda(source, node.left)


def _is_on_cuda(source: Source, node: ast.AST | None) -> bool:
    for _ in range(_MOST_STEPS):
        if isinstance(node, ast.Call):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if is_cuda(source, keyword(node, "device")) or (method == "cuda" and not node.args):
                return True
            if method == "to" and node.args and is_cuda(source, node.args[0]):
                return True
            node = node.func.value if isinstance(node.func, ast.Attribute) and method in SAME_DEVICE else None
        else:
            node = definition(source, node) if isinstance(node, ast.Name | ast.Attribute) else None
    return False


def _intervals(source: Source) -> Iterator[tuple[ast.Call, ast.Call]]:
    """The later and the earlier reading of the clock of each difference of two."""
    for node in source.nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
            continue
        stop, start = (_clock(source, each) for each in (node.left, node.right))
        same = stop is not None and start is not None and source.scope(stop) is source.scope(start)
        if stop is not None and start is not None and same and source.places[start] < source.places[stop]:
            yield stop, start


def _clock(source: Source, node: ast.expr) -> ast.Call | None:
    value = definition(source, node) if isinstance(node, ast.Name) else node
    is_clock = isinstance(value, ast.Call) and source.name_of(value.func) in _CLOCKS
    return value if is_clock and isinstance(value, ast.Call) else None


def tf32_in_fp32(source: Source) -> Mistakes:
    """TF32 switched off for matrix products only, in a script with convolutions."""
    written = [node for node in source.nodes if isinstance(node, ast.Assign)]
    cudnn = any(source.name_of(target) == _TF32_CUDNN for node in written for target in node.targets)
    has_convolutions = source.of(*_CONVOLUTIONS) or any(
        site.method.startswith(_CONVOLUTIONAL) for site in source.calls
    )  # fmt: skip
    if cudnn or not has_convolutions:
        return
    own = [node for node in written if source.name_of(node.targets[0]) == _TF32_MATMUL]
    if any(isinstance(node.value, ast.Constant) and node.value.value is True for node in own):
        return  # switched off only where the GPU has none
    off = [node.lineno for node in own if _may_be_false(node)]
    off += [site.line for site in source.of("set_float32_matmul_precision") if _is_highest(site)]
    if off:
        yield (
            min(off), "warning", L_(
                "TF32 is switched off for matrix products only: cuDNN's convolutions still use it in FP32"
            ),
            Sentence("{tf32_cudnn} = False as well", tf32_cudnn=_TF32_CUDNN),
        )  # fmt: skip


def _may_be_false(node: ast.Assign) -> bool:
    return not isinstance(node.value, ast.Constant) or node.value.value is False


def _is_highest(site: CallSite) -> bool:
    return bool(site.node.args) and isinstance(site.node.args[0], ast.Constant) and site.node.args[0].value == "highest"


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "time-of-launches": unsynchronized_time,
    "tf32-in-fp32": tf32_in_fp32,
}
