"""The error of each layer in several precisions: one batch, the same weights, compared with FP64."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig, build
from precgui.engine import backend_flags, execution, precisions, tasks
from precgui.engine import device as devices
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.precisions.base import Precision
from precgui.engine.snapshot.replay import StepProgress, train_to_snapshot
from precgui.engine.snapshot.step import StepSnapshot, read_snapshot, set_random_state
from precgui.engine.tasks.base import Task
from precgui.engine.torch_private import tree_leaves
from precgui.sentences import L_, Sentence

EXACT = "fp64"
_HALVINGS = 24  # of the loss scale, until the gradients are finite
_COMPILED = "_orig_mod."
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass
class Distance:
    """Sums over elements, from which distances follow: of the squared error, of both squares, of the product."""

    error: float = 0.0
    low: float = 0.0
    exact: float = 0.0
    product: float = 0.0

    def add(self, low: Tensor, exact: Tensor) -> None:
        """Take in a pair of tensors of the same shape."""
        a, b = low.detach().double().reshape(-1), exact.reshape(-1)
        self.error += float((a - b).square().sum())
        self.low += float(a.square().sum())
        self.exact += float(b.square().sum())
        self.product += float(torch.dot(a, b))

    def to_json(self) -> dict[str, float | None]:
        """`relative_l2`, `cosine` and `sqnr_db`; None where a number is not finite or not defined."""
        if not math.isfinite(self.error) or not self.exact:
            return {"relative_l2": None, "cosine": None, "sqnr_db": None}
        relative = math.sqrt(self.error / self.exact)
        cosine = self.product / math.sqrt(self.low * self.exact) if self.low else None
        return {
            "relative_l2": relative, "cosine": cosine, "sqnr_db": -20 * math.log10(relative) if relative else None,
        }  # fmt: skip


Table = dict[str, dict[str, Distance]]  # by layer, then by precision


@dataclass
class LayerErrors:
    """Distances of the outputs and of the gradients of each layer; layers in the order of the forward pass."""

    step: int
    precisions: list[str]
    kinds: dict[str, str]  # class of each layer
    forward: Table
    gradient: Table
    losses: dict[str, float]
    scales: dict[str, float]
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The keys of `precgui replay --layers --json`."""

        def row(table: Table, layer: str) -> dict[str, Any]:
            return {name: distance.to_json() for name, distance in table[layer].items()}

        return {
            "step": self.step, "precisions": self.precisions,
            "losses": {name: value if math.isfinite(value) else None for name, value in self.losses.items()},
            "scales": self.scales,
            "layers": [
                {"name": layer, "kind": kind, "forward": row(self.forward, layer),
                 "gradient": row(self.gradient, layer)}
                for layer, kind in self.kinds.items()
            ],
            "notes": self.notes,
        }  # fmt: skip


def layer_errors_of_run(
    config: RunConfig,
    step: int,
    snapshot: Path | None,
    names: Sequence[str],
    stopped: Callable[[], bool],
    progress: StepProgress = lambda step: None,
) -> LayerErrors:
    """`layer_errors` of a step of a run, from the file of its snapshot or trained again up to it."""
    state = train_to_snapshot(config, step, stopped, progress) if snapshot is None else read_snapshot(snapshot)
    return layer_errors(config, state, names, stopped)


def layer_errors(
    config: RunConfig, snapshot: StepSnapshot, names: Sequence[str], stopped: Callable[[], bool] = lambda: False
) -> LayerErrors:
    """Forward and backward pass of a snapshot in FP64 and in up to five precisions.

    Raises EngineError for weights that do not fit the model and for precisions that cannot be made, Stopped when
    `stopped()` became true.
    """
    with backend_flags.restored():
        comparison = _Comparison(config, snapshot)
        for name in names:
            if stopped():
                raise Stopped
            comparison.compare(name)
        return comparison.result


class _Comparison:
    """The batch in FP64, and beside it in one precision after the other."""

    def __init__(self, config: RunConfig, snapshot: StepSnapshot) -> None:
        self._snapshot = snapshot
        self._tree = config.model_dump()
        self._device = devices.choose(config.device)
        self._scale = snapshot.scale if snapshot.scale != 1 else config.scaling.initial_scale
        torch.manual_seed(config.seed)
        devices.pin_threads(config.threads)
        self._task: Task = tasks.make(config, lambda _: None)
        self._model = _with_weights(self._task.model(), snapshot.weights)
        self.result = LayerErrors(snapshot.step, [], {}, defaultdict(dict), defaultdict(dict), {}, {})
        if _stop_dropout(self._model):
            self.result.notes.append(L_("dropout is off in this comparison"))
        self._outputs: dict[str, list[Tensor]] = defaultdict(list)
        self._gradients: dict[str, dict[str, Tensor]] = {}
        self._pass(EXACT, self._keep_output, self._keep_gradients)

    def compare(self, name: str) -> None:
        """Take one precision into the result."""
        self._calls: dict[str, int] = defaultdict(int)
        self._name = name
        self._pass(name, self._compare_output, self._compare_gradients)
        self.result.precisions.append(name)

    def _pass(
        self, name: str, on_output: Callable[[str, nn.Module, Tensor], None],
        on_gradients: Callable[[nn.Module, float], None],
    ) -> None:  # fmt: skip
        """Forward and backward in one precision, again at half the loss scale while its gradients overflow."""
        scale = self._scale
        for last in (*(False,) * _HALVINGS, True):
            scaling = self._tree["scaling"] | {"initial_scale": scale}
            config = build(self._tree | {"precision": name, "precision_schedule": {}, "scaling": scaling})
            precision = precisions.make(config, self._device)
            precision.prepare()
            model = precision.convert(deepcopy(self._model)).train()
            _stop_dropout(model)
            precision.continue_from(self._snapshot.batch_count)
            set_random_state(self._snapshot, self._device)
            with _outputs_of(model, on_output if scale == self._scale else _ignored):
                loss = self._loss(model, precision, config)
            if precision.scaling_mode == "none" or last or _is_finite(model):
                break
            scale /= 2
        self.result.losses[name] = loss
        self.result.scales[name] = precision.scale
        on_gradients(model, precision.scale)

    def _loss(self, model: nn.Module, precision: Precision, config: RunConfig) -> float:
        """The mean loss over the batches of the step, with its gradients left in the model."""
        batches = self._snapshot.batches
        samples = sum(len(targets) for _, targets in batches)
        losses = []
        for batch in batches:
            inputs, targets = precision.convert_input(*batch)
            with precision.forward_context(), execution.attention(config.train.attention):
                outputs = model(inputs)
            loss = self._task.loss(precision.convert_output(outputs), targets) * (len(targets) / samples)
            precision.backward(loss)
            losses.append(float(loss.detach()))
        return math.fsum(losses)

    def _keep_output(self, layer: str, module: nn.Module, output: Tensor) -> None:
        self.result.kinds.setdefault(layer, type(module).__name__)
        self._outputs[layer].append(output.detach().to(torch.float64, copy=True))

    def _keep_gradients(self, model: nn.Module, scale: float) -> None:
        for layer, module in model.named_modules():
            own = {n: p.grad.double() / scale for n, p in module.named_parameters(recurse=False) if p.grad is not None}
            if own:
                self._gradients[layer] = own
                self.result.kinds.setdefault(layer, type(module).__name__)

    def _compare_output(self, layer: str, module: nn.Module, output: Tensor) -> None:
        exact, call = self._outputs.get(layer, []), self._calls[layer]
        self._calls[layer] += 1
        if call < len(exact) and exact[call].shape == output.shape:
            self.result.forward[layer].setdefault(self._name, Distance()).add(output, exact[call])

    def _compare_gradients(self, model: nn.Module, scale: float) -> None:
        for layer, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                exact = self._gradients.get(layer, {}).get(name)
                if exact is not None and parameter.grad is not None and exact.shape == parameter.grad.shape:
                    distance = self.result.gradient[layer].setdefault(self._name, Distance())
                    distance.add(parameter.grad.double() / scale, exact)


def _ignored(layer: str, module: nn.Module, output: Tensor) -> None:
    """The outputs of a repeated pass are those of the first one: the loss scale is no part of the forward pass."""


@contextlib.contextmanager
def _outputs_of(model: nn.Module, visit: Callable[[str, nn.Module, Tensor], None]) -> Iterator[None]:
    """Call `visit` with the first floating-point output of every innermost module, and of those with weights."""

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def visit_output(module: nn.Module, inputs: Any, outputs: Any) -> None:
            floats = [o for o in tree_leaves(outputs) if isinstance(o, Tensor) and o.is_floating_point()]
            if floats:
                visit(name, module, floats[0])

        return visit_output

    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            inside = "parametrizations" in name.split(".")
            if name and not inside and (not any(module.children()) or any(True for _ in module.parameters(False))):
                stack.callback(module.register_forward_hook(hook(name)).remove)
        yield


def _with_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The FP32 model with the weights of a run, in whatever format the run keeps them."""
    plain = {name.replace(_COMPILED, ""): value for name, value in weights.items()}
    try:
        model.load_state_dict(plain)
    except RuntimeError as error:
        raise EngineError(
            Sentence(
                "the weights of this run do not fit the model in FP32, so they cannot be tried in other precisions "
                "({fault}); take a run that is not quantised",
                fault=str(error).splitlines()[-1].strip(),
            )
        ) from None
    return model


def _stop_dropout(model: nn.Module) -> bool:
    """Turn dropout modules off; whether there are any."""
    dropouts = [m for m in model.modules() if isinstance(m, _DROPOUTS)]
    for module in dropouts:
        module.eval()
    return any(module.p for module in dropouts)


def _is_finite(model: nn.Module) -> bool:
    return all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
