"""The parts of an exported script for quantisation-aware training: layers or graph, epochs, conversion."""

from __future__ import annotations

from precgui.config import QatConfig, RunConfig
from precgui.config.precision_traits import traits
from precgui.engine.export.precisions import ScriptParts
from precgui.engine.export.source import ScriptSource

_LEFT_OUT = "{inner for name in KEPT for inner in model.get_submodule(name).modules()}"


def quantised_pieces(config: RunConfig, source: ScriptSource) -> ScriptParts:
    """The parts of a script for a quantised precision; definitions go to `source`."""
    if config.quantised_by == "torchao":
        return _by_torchao(config, source)
    return _layer_by_layer(config, source)


def _layer_by_layer(config: RunConfig, source: ScriptSource) -> ScriptParts:
    qat = config.qat
    source.take("qat.layers", "LayerQuantization", "quantise_model", "begin_batch", "follow_epoch")
    learned = f"{qat.learned_scales}, {qat.learned_ranges}"
    wanted = f"{traits(config.precision).weight_bits}, {qat.ends!r}, {qat.activations!r}, {qat.per_channel}, {learned}"
    return ScriptParts(
        after_model=[
            f"left_out: set[nn.Module] = {_LEFT_OUT if config.precision_options.keep_fp32 else 'set()'}",
            f"quantizers = quantise_model(model, left_out, LayerQuantization({wanted}))",
        ],
        per_batch=["begin_batch(quantizers)"],
        begin_epoch=[f"follow_epoch(model, quantizers, epoch, {_epochs(qat)})"],
        at_end=_integers_of_layers(config, source) if qat.measure else [],
    )


def _by_torchao(config: RunConfig, source: ScriptSource) -> ScriptParts:
    source.take("qat.pt2e.graph", "export", "prepare", "Switches")
    source.take("qat.pt2e.rebuild", "sample")
    kept = "KEPT" if config.precision_options.keep_fp32 else "()"
    return ScriptParts(
        after_model=[
            "with torch.random.fork_rng(devices=[]):",
            "    graph = export(model, sample(task, device))",
            f"    model = prepare(graph, per_channel={config.qat.per_channel}, kept={kept})",
            "switches = Switches(model)",
        ],
        begin_epoch=[f"switches.begin_epoch(epoch, {_epochs(config.qat)})"],
        at_end=_integers_of_graph(config, source) if config.qat.measure else [],
    )


def _epochs(qat: QatConfig) -> str:
    return (
        f"start={qat.start_epoch}, last_observed={qat.observers_off_after_epoch}, "
        f"last_counted={qat.freeze_bn_after_epoch}"
    )


def _integers_of_layers(config: RunConfig, source: ScriptSource) -> list[str]:
    source.take("qat.measure", "some_batches", "evaluate")
    source.take("qat.conversion", "trained_copy")
    source.take("qat.integer_layers", "convert")
    source.take("qat.folding", "fold", "norms_behind")
    return [
        "for quantizer in quantizers.values():",
        "    quantizer.active = True",
        "batches = some_batches(task)",
        *_with_average(config, "integers = convert(trained_copy(model, task), quantizers)"),
        "with torch.inference_mode():",
        "    fold(integers, norms_behind(integers, cast_floats(batches[0][0], torch.float32)))",
        *_told(),
    ]


def _integers_of_graph(config: RunConfig, source: ScriptSource) -> list[str]:
    source.take("qat.measure", "some_batches", "evaluate", "sizes")
    source.take("qat.pt2e.graph", "convert")
    source.take("qat.pt2e.lowering", "Lowered")
    return [
        "switches.active = True",
        "model.eval()",
        "batches = some_batches(task)",
        *_with_average(config, 'graph = convert(model.to("cpu"))'),
        "inputs = cast_floats(batches[0][0], torch.float32)",
        f"integers = Lowered(graph, inputs, sizes({config.data.batch_size}, batches))",
        *_told(),
    ]


def _with_average(config: RunConfig, line: str) -> list[str]:
    return [line] if config.train.ema_decay is None else ["with average.applied():", f"    {line}"]


def _told() -> list[str]:
    return [
        'told = evaluate(integers, task, batches, torch.device("cpu"))',
        "print(f\"on integers: validation loss {told['loss']!r}\")",
    ]
