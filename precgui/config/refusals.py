"""Settings of a valid config that no run can have together: all of them at once, before torch is loaded.

What needs the model, such as patterns of its layers, is found when it is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from precgui.config.new_places import folder_fault, place_fault, tensor_file_fault
from precgui.config.precision_traits import traits
from precgui.config.sections import BESIDE_THE_RUN
from precgui.config.tree import RunConfig
from precgui.config.validation import ConfigError, build
from precgui.sentences import L_, Sentence, together

# Whose forward and backward pass is the same work in each step: no seeds, scales or observers that the host changes.
IN_A_GRAPH = ("fp64", "fp32", "tf32", "bf16-amp", "bf16-pure", "bf16-sr")
_NOT_IN_A_GRAPH = {
    "detection": L_("the number of objects differs from image to image"),
    "cartpole": L_("the host plays the episodes"),
    "gan": L_("parts of the model are held still in turns"),
}  # by task
WITH_ADAPTERS = ("fp32", "tf32", "bf16-amp", "fp16-amp")  # that leave layers and their storage as they are


def refusals(config: RunConfig) -> dict[str, str]:
    """A sentence for each setting that does not go with the others, by the path of the setting."""
    found: dict[str, list[str]] = {}
    rules = (_of_adapters, _of_pruning, _of_precision, _of_graph, _of_power)
    for key, sentence in (each for rule in rules for each in rule(config)):
        found.setdefault(key, []).append(sentence)
    return {key: together(*sentences, between="; ") for key, sentences in found.items()}


def place_refusals(config: RunConfig) -> dict[str, str]:
    """A sentence for each file that the config names and that cannot be read, or made, by the path of the setting."""
    return {key: fault for key, fault in _of_places(config) if fault}


def require_startable(config: RunConfig, of_machine: Mapping[str, str] | None = None) -> None:
    """Raises ConfigError, with a sentence for each fault, for a config that cannot be started here and now.

    `of_machine` are faults that are known of this machine, by the path of the setting; those of the config come first.
    """
    if found := {**(of_machine or {}), **place_refusals(config), **refusals(config)}:
        raise ConfigError(found)


def build_compatible(tree: Mapping[str, Any]) -> RunConfig:
    """As `build`, for a config that is to be started. Raises ConfigError, also for settings that do not go together."""
    config = build(tree)
    if found := refusals(config):
        raise ConfigError(found)
    return config


def _of_adapters(config: RunConfig) -> Iterator[tuple[str, str]]:
    if config.adapter.kind == "none":
        return
    if config.precision not in WITH_ADAPTERS:
        yield (
            "precision",
            Sentence(
                "adapter.kind = lora goes with {names}, not with {precision}; base.format holds the base in "
                "other formats",
                names=", ".join(WITH_ADAPTERS),
                precision=config.precision,
            ),
        )
    if config.train.compile:
        yield (
            "train.compile",
            L_("adapter.kind = lora: the unpacking of weights is not compiled; set train.compile = false"),
        )  # fmt: skip


def _of_pruning(config: RunConfig) -> Iterator[tuple[str, str]]:
    pruning, most = config.pruning, config.train.max_steps
    if pruning.method == "none":
        return
    if pruning.method == "wanda" and config.train.compile:
        yield (
            "pruning.method",
            L_(
                "pruning.method = wanda reads the inputs of layers, which a compiled model does not show; set "
                "train.compile = false or choose magnitude"
            ),
        )
    if most is None:
        return
    if pruning.start >= 1 and pruning.start > most:
        yield "pruning.start", outside_of_run("pruning.start", int(pruning.start), most)
    if pruning.method != "2:4" and pruning.end > 1 and pruning.end > most:
        yield "pruning.end", outside_of_run("pruning.end", int(pruning.end), most)


def outside_of_run(key: str, step: int, total_steps: int) -> str:
    """The sentence on a moment of pruning that comes after the last step."""
    return Sentence(
        "{key} is step {step}, but the run has {count} steps; choose a share such as 0.7",
        key=key,
        step=step,
        count=total_steps,
    )


def _of_precision(config: RunConfig) -> Iterator[tuple[str, str]]:
    options, is_integer = config.precision_options, traits(config.precision).weight_bits is not None
    if config.precision == "fp8" and options.fp8_amax == "delayed" and options.fp8_scaling == "rowwise":
        yield (
            "precision_options.fp8_amax",
            L_(
                "precision_options.fp8_amax = delayed goes with fp8_scaling = tensorwise only: rows change from batch "
                "to batch; set one of them back"
            ),
        )
    plain = options.rounding == "nearest_even" and options.accumulator is None
    if config.precision == "fp8" and options.fp8_sums == "hopper" and not plain:
        yield (
            "precision_options.fp8_sums",
            L_(
                "precision_options.fp8_sums = hopper goes with rounding = nearest_even and no accumulator only, as the "
                "hardware has it; set one of them back"
            ),
        )
    if is_integer and config.qat.save_to and not config.qat.measure:
        yield (
            "qat.save_to",
            L_("qat.save_to keeps the converted model, which qat.measure = false does not make; set it true"),
        )


def _of_graph(config: RunConfig) -> Iterator[tuple[str, str]]:
    """A CUDA graph launches the same work in each step, for which nothing waits and which uploads nothing."""
    train, reason = config.train, ""
    if not train.cuda_graph:
        return
    if config.precision not in IN_A_GRAPH:
        reason = Sentence(
            "goes with precision {names}, not with {precision}", names=", ".join(IN_A_GRAPH), precision=config.precision
        )
    elif config.scaling.mode not in ("auto", "none"):
        reason = Sentence(
            "does not go with scaling.mode = {mode}: the host decides on each step", mode=config.scaling.mode
        )
    elif train.compile:
        reason = L_("does not go with train.compile; choose one of them")
    elif train.checkpointing or train.offload_activations:
        name = "checkpointing" if train.checkpointing else "offload_activations"
        reason = Sentence("does not go with train.{name}, which works from the host in the backward pass", name=name)
    elif config.precision_schedule:
        reason = L_("does not go with a precision_schedule: the graph would stay in the first precision")
    elif config.parallel.strategy != "none":
        reason = Sentence("does not go with parallel.strategy = {strategy}", strategy=config.parallel.strategy)
    elif config.pruning.method == "wanda":
        reason = L_("does not go with pruning.method = wanda, which reads the inputs of layers")
    elif config.task in _NOT_IN_A_GRAPH:
        reason = Sentence(
            "does not go with task {task}: {reason}", task=config.task, reason=_NOT_IN_A_GRAPH[config.task]
        )
    elif config.device.partition(":")[0] not in ("auto", "cuda"):
        reason = Sentence("needs an NVIDIA GPU, but device is {device}", device=config.device)
    if reason:
        yield "train.cuda_graph", Sentence("train.cuda_graph {reason}; set train.cuda_graph = false", reason=reason)


def _of_power(config: RunConfig) -> Iterator[tuple[str, str]]:
    """A limit is set by NVIDIA's driver, for the GPU that trains."""
    watts, kind = config.power.limit_w, config.device.partition(":")[0]
    if watts is not None and kind not in ("auto", "cuda"):
        yield (
            "power.limit_w",
            Sentence(
                "power.limit_w = {watts:g} is a limit of an NVIDIA GPU, but device is {device}; leave it empty",
                watts=watts,
                device=config.device,
            ),
        )


def _of_places(config: RunConfig) -> Iterator[tuple[str, str]]:
    has_adapters = config.adapter.kind != "none"
    if config.train.save_to not in ("", BESIDE_THE_RUN):
        yield "train.save_to", (folder_fault if has_adapters else tensor_file_fault)(config.train.save_to)
    if has_adapters and config.adapter.save_to:
        yield "adapter.save_to", tensor_file_fault(config.adapter.save_to)
    if traits(config.precision).weight_bits is not None and config.qat.save_to not in ("", BESIDE_THE_RUN):
        yield "qat.save_to", place_fault(config.qat.save_to)
    if has_adapters:
        for key, path in (("base.weights", config.base.weights), ("adapter.weights", config.adapter.weights)):
            if path and not Path(path).expanduser().exists():
                yield (
                    key,
                    Sentence("there is no {path}; name a file or folder that exists, or leave it empty", path=path),
                )
