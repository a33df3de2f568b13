"""A model as an exported graph that torchao prepares for training on integers, and converts (PT2E)."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import TorchDynamoException
from torch.utils import _pytree as pytree

_told = logging.getLogger("torch.utils._pytree")
_told.disabled = True  # torchao 0.18 registers its enums in a way that torch 2.15 complains of
from torchao.quantization.pt2e import (  # noqa: E402
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e  # noqa: E402
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (  # noqa: E402
    QuantizationConfig,
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)

_told.disabled = False

_ATEN = torch.ops.aten
_BATCH_NORM = _ATEN.batch_norm.default
_TRAINING = 5  # the place of its argument
_DROPOUT = {  # with the place of the argument that says whether it is training
    _ATEN.dropout.default: 2,
    _ATEN.dropout_.default: 2,
    _ATEN.feature_dropout.default: 2,
    _ATEN.feature_dropout_.default: 2,
    _ATEN.alpha_dropout.default: 2,
    _ATEN.alpha_dropout_.default: 2,
}
_WITH_DROPOUT = {  # with the place of its probability
    _ATEN.scaled_dot_product_attention.default: 4,
    _ATEN.lstm.input: 5,
    _ATEN.gru.input: 5,
}
_MARK = "quantization_annotation"
_PRODUCTS = (_ATEN.linear.default, _ATEN.conv1d.default, _ATEN.conv2d.default)
NOT_EXPORTABLE = (TorchDynamoException, RuntimeError, ValueError, TypeError, AttributeError, AssertionError, KeyError)


def export(model: nn.Module, inputs: Any) -> fx.GraphModule:
    """The model as a graph with the same parameters, for any number of samples.

    Raises one of NOT_EXPORTABLE where torch.export cannot follow the model, or where the graph, which knows batch norm
    and dropout only, would behave differently in evaluation.
    """
    model.eval()
    with torch.no_grad():
        wanted = model(inputs)
    model.train()
    shapes = (pytree.tree_map(lambda value: {0: torch.export.Dim.DYNAMIC}, inputs),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of recurrent layers, which lay out their weights anew
        graph: fx.GraphModule = torch.export.export(model, (_copied(inputs),), dynamic_shapes=shapes).module()
    _tell_apart(graph)
    if random := [str(node.target) for node in graph.graph.nodes if _is_random(node)]:
        raise ValueError(f"its graph would go on drawing random numbers in evaluation ({random[0]})")
    set_mode(graph, training=False, norms=False)
    with torch.no_grad():
        same = pytree.tree_map(_are_close, graph(inputs), wanted)
    if not all(pytree.tree_leaves(same)):
        raise ValueError("its graph gives other results in evaluation than the model itself")
    return graph


def _is_random(node: fx.Node) -> bool:
    """Whether an operation draws random numbers that are no dropout, such as stochastic depth."""
    target: Any = node.target
    if node.op != "call_function" or target in _DROPOUT:
        return False
    place = _WITH_DROPOUT.get(target)
    if place is not None and not any(node.args[place : place + 1]):
        return False
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _are_close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-3 * theirs.abs().max())


def _tell_apart(graph: fx.GraphModule) -> None:
    """Name each use of a module that is called several times: torchao takes the uses of one ReLU for one operation."""
    for node in graph.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            node.meta["nn_module_stack"] = {
                key: (f"{name}@{key.partition('@')[2]}" if "@" in key else name, kind)
                for key, (name, kind) in stack.items()
            }


def _copied(inputs: Any) -> Any:
    return pytree.tree_map(lambda value: value.clone(), inputs)


class _Quantizer(X86InductorQuantizer):  # type: ignore[misc]
    """torchao's, for convolutions that stay in FP32, too: with batch norm behind them, it would trip over its marks."""

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        super().annotate(model)
        for node in model.graph.nodes:
            mark = node.meta.get(_MARK)
            if node.target in _PRODUCTS and mark is not None and not mark.input_qspec_map:
                del node.meta[_MARK]
        return model


def prepare(graph: fx.GraphModule, *, per_channel: bool, kept: Iterable[str]) -> fx.GraphModule:
    """The graph with fake quantisation as torchao's quantizer for x86 wants it; modules in `kept` stay in FP32."""
    quantizer = _Quantizer().set_global(_configuration(per_channel=per_channel))
    for name in kept:
        quantizer.set_module_name_qconfig(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a paragraph for each pooling beside a module in FP32
        prepared: fx.GraphModule = prepare_qat_pt2e(graph, quantizer)
    return prepared


def _configuration(*, per_channel: bool) -> QuantizationConfig:
    """torchao's own, but for the range of weights, which is that of the weights themselves.

    Its moving average lags a hundred steps behind: short runs would end with most of their weights clipped.
    """
    wanted = get_default_x86_inductor_quantization_config(is_qat=True)
    observer = MovingAveragePerChannelMinMaxObserver if per_channel else MovingAverageMinMaxObserver
    maker = FusedMovingAvgObsFakeQuantize.with_args(observer=observer, averaging_constant=1.0, eps=2**-12)
    kind = torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric
    weight = dataclasses.replace(
        wanted.weight, qscheme=kind, ch_axis=0 if per_channel else None, observer_or_fake_quant_ctr=maker
    )
    return dataclasses.replace(wanted, weight=weight)


def set_mode(graph: fx.GraphModule, *, training: bool, norms: bool) -> None:
    """Let dropout drop while `training`, and batch norm take the statistics of the batch with `norms`."""
    changed = False
    for node in graph.graph.nodes:
        place, wanted = (_TRAINING, norms) if node.target is _BATCH_NORM else (_DROPOUT.get(node.target), training)
        if place is not None and node.args[place] != wanted:
            node.update_arg(place, wanted)
            changed = True
    if changed:
        graph.recompile()


def set_quantisation(graph: fx.GraphModule, *, active: bool, observing: bool) -> None:
    """Whether values are rounded, and whether their ranges follow them."""
    for module in graph.modules():
        if isinstance(module, FusedMovingAvgObsFakeQuantize):
            module.enable_fake_quant(active)
            module.enable_observer(observing)


def products(graph: fx.GraphModule) -> Iterator[tuple[str, fx.Node]]:
    """The quantised layers: the name of each and the node that multiplies."""
    for node in graph.graph.nodes:
        if node.target in _PRODUCTS and is_rounded(graph, node.args[1]):
            yield _weight_name(node.args[1]), node


def is_rounded(graph: fx.GraphModule, node: Any) -> bool:
    return node.op == "call_module" and isinstance(graph.get_submodule(node.target), FusedMovingAvgObsFakeQuantize)


def _weight_name(node: fx.Node) -> str:
    while node.op != "get_attr":
        node = node.all_input_nodes[0]
    return str(node.target).removesuffix(".weight")


def convert(graph: fx.GraphModule) -> fx.GraphModule:
    """The prepared graph, in evaluation, on integers; it is changed and must not be used again."""
    _fold_norms(graph)
    converted: fx.GraphModule = convert_pt2e(graph)
    for node in list(converted.graph.nodes):
        if node.target is _ATEN.add_.Tensor and str(node.args[0].target).endswith("num_batches_tracked"):
            converted.graph.erase_node(node)
        elif node.op == "get_attr":
            _make_constant(converted, str(node.target))
    converted.graph.eliminate_dead_code()
    converted.recompile()
    return converted


def _make_constant(graph: fx.GraphModule, target: str) -> None:
    owner, _, name = target.rpartition(".")
    module = graph.get_submodule(owner)
    value = getattr(module, name)
    if isinstance(value, Tensor) and value.requires_grad:
        delattr(module, name)
        module.register_buffer(name, value.detach())


def _fold_norms(graph: fx.GraphModule) -> None:
    """Take batch norms into the convolutions before them, as torchao would after a search of half a minute.

    torchao trains on the rounded product of the weight and the factor of the norm and divides the result by it, so the
    norm is but a shift of the undivided result.
    """
    for norm in [node for node in graph.graph.nodes if node.target is _BATCH_NORM]:
        found = _before(norm)
        if found is None:
            continue
        convolution, bias = found
        _, factor_of, shift_of, mean, variance, _, _, eps, *_ = norm.args
        gain, shift, mean_value, variance_value = (value_of(graph, n) for n in (factor_of, shift_of, mean, variance))
        start = 0.0 if bias is None else value_of(graph, bias)
        folded = shift + (start - mean_value) * gain * (variance_value + eps).rsqrt()
        name = f"{str(factor_of.target).replace('.', '_')}_folded"
        graph.register_buffer(name, folded.detach())
        with graph.graph.inserting_before(convolution):
            convolution.args = (*convolution.args[:2], graph.graph.get_attr(name), *convolution.args[3:])
        norm.replace_all_uses_with(convolution)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _before(norm: fx.Node) -> tuple[fx.Node, fx.Node | None] | None:
    """The convolution of torchao's pattern before a batch norm and its bias; None where there is another pattern."""
    node: Any = norm.args[0]
    bias = None
    if node.target is _ATEN.add.Tensor:
        node, shaped = node.args
        bias = shaped.all_input_nodes[0] if isinstance(shaped, fx.Node) and shaped.all_input_nodes else None
        if bias is None:
            return None
    if node.target is not _ATEN.div.Tensor or node.args[0].target not in _PRODUCTS:
        return None
    return node.args[0], bias


def value_of(graph: fx.GraphModule, node: fx.Node) -> Tensor:
    value: Any = graph
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value  # type: ignore[no-any-return]


class Switches:
    """The interface of a prepared graph: `train` and `eval`, which exported graphs refuse, and the rules of each epoch.

    Values are rounded when `active`; in training ranges follow them while `observing`, and batch norms count while
    `counting`.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph, self.active, self.observing, self.counting = graph, True, True, True
        graph.train = self.set  # type: ignore[method-assign]
        graph.eval = lambda: self.set(False)  # type: ignore[method-assign]

    def set(self, mode: bool = True) -> fx.GraphModule:
        """As `nn.Module.train`."""
        for module in self.graph.modules():
            module.training = mode
        set_mode(self.graph, training=mode, norms=mode and self.counting)
        set_quantisation(self.graph, active=self.active, observing=mode and self.observing)
        return self.graph

    def begin_epoch(self, epoch: int, *, start: int, last_observed: int | None, last_counted: int | None) -> None:
        """Follow the rules of an epoch, counted from 1, that trains."""
        self.active = epoch >= start
        self.observing = last_observed is None or epoch <= last_observed
        self.counting = last_counted is None or epoch <= last_counted
        self.set()


def kept_first(inputs: Any, count: int) -> Any:
    """The first samples of a batch, in memory of their own."""
    return pytree.tree_map(lambda value: value[:count].clone(), inputs)
