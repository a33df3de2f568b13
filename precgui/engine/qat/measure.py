"""What the integers cost and gain: size, accuracy, latency in one paired run, and the error of each layer."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.casting import cast_floats
from precgui.engine.qat.folding import fold, norms_behind
from precgui.engine.qat.integer import Integer, convert
from precgui.engine.qat.layers import Quantizer
from precgui.engine.tasks import Batch, Task, ratio

_ENOUGH = 1024  # samples of the validation set: three models are evaluated, two of them on the CPU
_ROUNDS_S = 1.0  # of the latency of one batch size
_FEWEST, _MOST = 5, 50  # rounds


def trained_copy(model: nn.Module, task: Task) -> nn.Module:
    """The trained weights in a model without quantisers, on the CPU."""
    plain = task.model()
    names = plain.state_dict().keys()
    plain.load_state_dict({name: value.cpu() for name, value in model.state_dict().items() if name in names})
    return plain.eval()


def measure(
    model: nn.Module, quantizers: Mapping[str, Quantizer], task: Task, batch_size: int, stopped: Callable[[], bool]
) -> tuple[nn.Module, dict[str, Any]]:
    """Convert and measure on the CPU: the integer model, and the figures as built-in types.

    Batch norms are folded into the layers before them, in FP32 as well: both sides of a ratio run at their best.
    `bytes` of the saved weights; `loss` and `metric` of the trained model in FP32, with rounded weights as in training
    (`fake`), and on integers; `latency_s` is the median over paired rounds, by batch size; `layers` gives for each
    layer the relative error of its weights and of its result in the L2 norm.
    """
    plain = trained_copy(model, task)
    integer = convert(trained_copy(model, task), quantizers)
    batches = _some(task.validation_batches())
    facts: dict[str, Any] = {}
    device = next(model.parameters()).device
    model.eval()
    inputs = cast_floats(batches[0][0], torch.float32)
    with torch.inference_mode():
        facts["layers"] = _layer_errors(plain, integer, quantizers, inputs)
        for one in (plain, integer):
            fold(one, norms_behind(one, inputs))
        facts["bytes"] = {"fp32": saved_bytes(plain), "integer": saved_bytes(integer)}
        runs = {
            "fp32": (plain, torch.device("cpu")),
            "fake": (model, device),
            "integer": (integer, torch.device("cpu")),
        }
        facts["evaluation"] = {
            name: _evaluate(one, task, batches, where) for name, (one, where) in runs.items() if not stopped()
        }
        contenders: dict[str, Callable[[Any], Any]] = {"fp32": plain, "bf16": _autocast(plain), "integer": integer}
        for size in dict.fromkeys((1, min(batch_size, len(batches[0][1])))):
            if not stopped():
                facts.setdefault("latency_s", {})[str(size)] = _latency(contenders, _first(inputs, size))
    facts["native_layers"] = sum(m.native for m in integer.modules() if isinstance(m, Integer))
    facts["evaluated_samples"] = sum(len(targets) for _, targets in batches)
    facts["threads"] = torch.get_num_threads()
    return integer, facts


def _some(batches: Iterable[Batch]) -> list[Batch]:
    taken: list[Batch] = []
    for batch in batches:
        taken.append(batch)
        if sum(len(targets) for _, targets in taken) >= _ENOUGH:
            break
    return taken


def saved_bytes(model: nn.Module) -> int:
    """The size of the state dict as a file."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()


def _evaluate(model: nn.Module, task: Task, batches: list[Any], device: torch.device) -> dict[str, float]:
    loss, count, scores = 0.0, 0, []
    for inputs, targets in batches:
        outputs = cast_floats(model(cast_floats(inputs, torch.float32, device)), torch.float32, torch.device("cpu"))
        loss += float(task.loss(outputs, targets)) * len(targets)
        count += len(targets)
        scores.append(task.score(outputs, targets))
    score = {"metric": ratio(scores)} if task.metric.of_outputs else {}
    return {"loss": loss / count, **score}


def _layer_errors(
    plain: nn.Module, integer: nn.Module, quantizers: Mapping[str, Quantizer], inputs: Any
) -> dict[str, dict[str, float]]:
    """Each layer on the input that it has in the integer model: errors do not add up from layer to layer."""
    errors: dict[str, dict[str, float]] = {}

    def look(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:
            layer: Any = plain.get_submodule(name)
            integers, scale = quantizers[name].integers(layer.weight)
            errors[name] = {
                "bits": float(quantizers[name].bits),
                "weight_error": _relative(integers.mul_(scale), layer.weight),
                "output_error": _relative(result, layer(*args)),
            }

        return hook

    hooks = [integer.get_submodule(name).register_forward_hook(look(name)) for name in quantizers]
    integer(inputs)
    for hook in hooks:
        hook.remove()
    return errors


def _relative(value: Tensor, reference: Tensor) -> float:
    size = float(reference.float().norm())
    return float((value.float() - reference.float()).norm()) / size if size else 0.0


def _autocast(model: nn.Module) -> Callable[[Any], Any]:
    def run(inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(inputs)

    return run


def _first(value: Any, count: int) -> Any:
    if isinstance(value, Tensor):
        return value[:count]
    return type(value)(_first(item, count) for item in value)


def _latency(contenders: Mapping[str, Callable[[Any], Any]], inputs: Any) -> dict[str, float]:
    """Seconds of a forward pass, the median over rounds in which each contender runs once."""
    first_s = sum(_timed(run, inputs) for run in contenders.values())  # warms up, too
    rounds = min(_MOST, max(_FEWEST, int(_ROUNDS_S / max(first_s, 1e-6))))
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            seen[name].append(_timed(run, inputs))
    return {name: statistics.median(values) for name, values in seen.items()}


def _timed(run: Callable[[Any], Any], inputs: Any) -> float:
    begin = time.perf_counter()
    run(inputs)
    return time.perf_counter() - begin


def sentences(facts: Mapping[str, Any], metric: str) -> list[str]:
    """The figures as two sentences."""
    size, evaluation = facts["bytes"], facts["evaluation"]
    first = (
        f"converted to integers: {size['integer'] / 1024:.0f} KiB instead of {size['fp32'] / 1024:.0f} KiB "
        f"({size['fp32'] / size['integer']:.1f} times smaller)"
    )
    if "metric" in evaluation.get("integer", {}):
        shares = [f"{evaluation[name]['metric']:.2%}" for name in ("fp32", "fake", "integer")]
        first += "; {} {} with weights in FP32, {} rounded as in training, {} on integers".format(metric, *shares)
    name, worst = max(facts["layers"].items(), key=lambda item: item[1]["output_error"])
    told = [_latency_sentence(batch, seconds) for batch, seconds in facts.get("latency_s", {}).items()]
    told.append(f"largest quantisation error: {worst['output_error']:.1%} of the result of {name}")
    return [first, "; ".join(told)]


def _latency_sentence(batch: str, seconds: Mapping[str, float]) -> str:
    integer_s = seconds["integer"]
    others = " and ".join(
        f"{label} {seconds[name] * 1e3:.2f} ms ({seconds[name] / integer_s:.2f}x)"
        for name, label in (("fp32", "FP32"), ("bf16", "BF16"))
    )
    return f"{batch} sample{'' if batch == '1' else 's'} on the CPU: integers {integer_s * 1e3:.2f} ms, {others}"
