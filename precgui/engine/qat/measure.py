"""Size, accuracy and latency of the integer model, the latency in one paired run."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.casting import cast_floats
from precgui.engine.emulation.lstm_kernel import run_without_lstm_kernel
from precgui.engine.qat.conversion import Converted
from precgui.engine.tasks.base import Batch, Task
from precgui.engine.torch_private import tree_map
from precgui.events import Metric
from precgui.sentences import Sentence, counted, recased, together

_ENOUGH = 1024  # samples of the validation set: three models are evaluated, two of them on the CPU
_ROUNDS_S = 1.0  # of the latency of one batch size
_FEWEST, _MOST = 10, 100  # rounds


def some_batches(task: Task) -> list[Batch]:
    """The first batches of the validation set, of about a thousand samples."""
    return enough(task.validation_batches())


def enough(batches: Iterable[Batch]) -> list[Batch]:
    taken: list[Batch] = []
    for batch in batches:
        taken.append(batch)
        if sum(len(targets) for _, targets in taken) >= _ENOUGH:
            break
    return taken


def sizes(batch_size: int, batches: Sequence[Batch]) -> tuple[int, ...]:
    """The batch sizes whose latency is measured."""
    return tuple(dict.fromkeys((1, min(batch_size, len(batches[0][1])))))


def measure(
    converted: Converted,
    fake: Mapping[str, float],
    task: Task,
    batches: Sequence[Batch],
    measured_sizes: Sequence[int],
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """The figures of a converted model on the CPU, as built-in types.

    `bytes` of the saved weights; `evaluation` has loss and metric of the trained model in FP32, with rounded values as
    in training (`fake`, given), and on integers; `latency_s` is the best of paired rounds, by batch size.
    """
    facts: dict[str, Any] = {
        "layers": {name: dict(errors) for name, errors in converted.layers.items()},
        "bytes": {"fp32": saved_bytes(converted.plain.state_dict()), "integer": saved_bytes(converted.state)},
        "evaluation": {"fake": dict(fake)},
        "native_layers": converted.native,
        "evaluated_samples": sum(len(targets) for _, targets in batches),
        "threads": torch.get_num_threads(),
    }
    inputs = cast_floats(batches[0][0], torch.float32)
    models = {"fp32": converted.plain, "integer": converted.integer}
    with torch.inference_mode():
        for name, model in models.items():
            if not stopped():
                facts["evaluation"][name] = evaluate(model, task, batches, torch.device("cpu"))
        contenders: dict[str, Callable[[Any], Any]] = {**models, "bf16": _autocast(converted.plain)}
        for size in measured_sizes:
            if not stopped():
                first = tree_map(lambda value, n=size: value[:n], inputs)
                facts.setdefault("latency_s", {})[str(size)] = _latency(contenders, first)
    return facts


def saved_bytes(state: Mapping[str, Tensor]) -> int:
    """The size of a state dict as a file."""
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.tell()


def evaluate(model: nn.Module, task: Task, batches: Sequence[Batch], device: torch.device) -> dict[str, float]:
    """Loss, and the metric where it follows from outputs, of a model in evaluation."""
    loss, count, scores = 0.0, 0, []
    with torch.inference_mode():
        for inputs, targets in batches:
            outputs = cast_floats(model(cast_floats(inputs, torch.float32, device)), torch.float32, torch.device("cpu"))
            loss += float(task.loss(outputs, targets)) * len(targets)
            count += len(targets)
            scores.append(task.score(outputs, targets))
    score = {"metric": task.result(scores)} if task.metric.of_outputs else {}
    return {"loss": loss / count, **score}


def _autocast(model: nn.Module) -> Callable[[Any], Any]:
    run_without_lstm_kernel(model.modules())

    def run(inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(inputs)

    return run


def _latency(contenders: Mapping[str, Callable[[Any], Any]], inputs: Any) -> dict[str, float]:
    """Seconds of a forward pass, the least of rounds in which each contender runs once: other work only adds to it."""
    begin_s = time.process_time()  # of this process alone: a busy machine gets no fewer rounds
    for run in contenders.values():
        run(inputs)  # warms up, too
    first_s = time.process_time() - begin_s
    rounds = min(_MOST, max(_FEWEST, int(_ROUNDS_S / max(first_s, 1e-6))))
    visited: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            visited[name].append(_timed(run, inputs))
    return {name: min(values) for name, values in visited.items()}


def _timed(run: Callable[[Any], Any], inputs: Any) -> float:
    begin = time.perf_counter()
    run(inputs)
    return time.perf_counter() - begin


def sentences(facts: Mapping[str, Any], metric: Metric) -> list[str]:
    """The figures as two sentences."""
    size, evaluation = facts["bytes"], facts["evaluation"]
    smaller = {
        "integers": size["integer"] / 1024, "fp32": size["fp32"] / 1024, "times": size["fp32"] / size["integer"],
    }  # fmt: skip
    if all("metric" in evaluation.get(name, {}) for name in ("fp32", "fake", "integer")):
        form = ".2%" if metric.unit == "%" else ".4g"
        in_fp32, rounded, on_integers = (
            format(evaluation[name]["metric"], form) for name in ("fp32", "fake", "integer")
        )
        first = Sentence(
            "converted to integers: weights of {integers:.0f} KiB instead of {fp32:.0f} KiB ({times:.1f} times "
            "smaller); {metric} {in_fp32} with weights in FP32, {rounded} rounded as in training, {on_integers} on "
            "integers",
            **smaller,
            metric=_in_a_sentence(metric.title),
            in_fp32=in_fp32,
            rounded=rounded,
            on_integers=on_integers,
        )
    else:
        first = Sentence(
            "converted to integers: weights of {integers:.0f} KiB instead of {fp32:.0f} KiB ({times:.1f} times "
            "smaller)",
            **smaller,
        )
    name, worst = max(facts["layers"].items(), key=lambda item: item[1]["output_error"])
    latencies = [_latency_sentence(batch, seconds) for batch, seconds in facts.get("latency_s", {}).items()]
    latencies.append(
        Sentence(
            "largest quantisation error: {error:.1%} of the result of {layer}", error=worst["output_error"], layer=name
        )
    )
    return [first, together(*latencies, between="; ")]


def _in_a_sentence(title: str) -> str:
    """A title in lower case, which can still be translated where only its first letter is a capital."""
    inside = recased(title, "lower")
    return inside if inside == title.lower() else title.lower()


def _latency_sentence(batch: str, seconds: Mapping[str, float]) -> Sentence:
    integer_s = seconds["integer"]
    others = together(
        *(
            Sentence(
                "{format} {ms:.2f} ms (integers take {times:.2f} times as long)",
                format=label,
                ms=seconds[name] * 1e3,
                times=integer_s / seconds[name],
            )
            for name, label in (("fp32", "FP32"), ("bf16", "BF16"))
        ),
        between=" and ",
    )
    return counted(
        "{count} sample on the CPU: integers {integer_ms:.2f} ms, {others}",
        "{count} samples on the CPU: integers {integer_ms:.2f} ms, {others}",
        int(batch),
        integer_ms=integer_s * 1e3,
        others=others,
    )
