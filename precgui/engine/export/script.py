"""A run as a plain PyTorch script, without precgui: what it needs of precgui's source, written out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from precgui import __version__
from precgui.config import RunConfig, build
from precgui.engine.errors import EngineError
from precgui.engine.export.loop import forward_lines, scaler_lines, taken_lines, training_lines, validation_lines
from precgui.engine.export.precisions import ScriptParts, pieces
from precgui.engine.export.qat import quantised_pieces
from precgui.engine.export.source import ScriptSource, import_lines
from precgui.engine.export.tasks import ScriptedTask, scripted

_IMPORTS = (
    "import contextlib",
    "import itertools",
    "import math",
    "from fractions import Fraction",
    "from collections.abc import Iterable, Iterator, Mapping",
    "from functools import partial",
    "from pathlib import Path",
    "from types import SimpleNamespace",
    "from typing import Any",
    "import torch",
    "from torch import Tensor, nn",
    "from torch.nn.attention import SDPBackend, sdpa_kernel",
)


def write_script(config: RunConfig, environment: Mapping[str, Any], path: Path) -> list[Path]:
    """Write the script and the files it reads beside it; returns what was written.

    `environment` is the run's (device, threads, notes, kept modules, data). Raises EngineError when a file exists or
    cannot be written.
    """
    text, files = script(config, environment)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        beside = [path.with_name(source.name) for source in files]
        for source, target in zip(files, beside, strict=True):
            if not target.exists():
                shutil.copyfile(source, target)
    except FileExistsError:
        raise EngineError(f"{path} already exists; choose another name or delete it first") from None
    except OSError as error:
        raise EngineError(f"{path} cannot be written: {error.strerror}; choose another place") from None
    return [path, *beside]


def script(config: RunConfig, environment: Mapping[str, Any]) -> tuple[str, tuple[Path, ...]]:
    """The text of the script and the files that belong beside it. Raises EngineError for a rounding twin."""
    if config.train.rounding_twin:
        raise EngineError("a rounding twin has no script of its own: export the run that it is the twin of")
    environment = _usable(environment)
    source = ScriptSource()
    device = str(environment.get("device") or "cpu")
    source.take("backend_flags", "set_fp32_arithmetic")
    source.take("casting", "cast_floats")
    notes = " ".join(environment.get("notes") or ())
    quantised = config.precision.endswith("-qat")
    made = quantised_pieces(config, source) if quantised else pieces(config, device, notes, source)
    task = scripted(config, environment, source)
    lines = "\n".join(_main(config, environment, task, made, source)).splitlines()
    main = "\n".join(f"    {line}" if line else "" for line in lines)
    functions = [*task.functions, *_functions(config, made)]
    body = "\n\n\n".join([source.text(), *functions, f"def main() -> None:\n{main}"])
    constants = _constants(config, environment, task, body)
    imports = import_lines([*_IMPORTS, *source.imports], constants + body)
    title = "".join(c if c.isprintable() else " " for c in config.display_title)
    title = title.replace("\\", "/").replace('"', "'")
    head = f'"""{title}: a run of precgui {__version__} as a plain PyTorch script."""'
    top = "\n\n".join([head, "from __future__ import annotations", imports, constants])
    return f'{top}\n\n\n{body}\n\n\nif __name__ == "__main__":\n    main()\n', task.files


def _usable(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the environment that the script needs, without values of types that no run file of ours has."""
    threads, data = environment.get("threads"), environment.get("data")
    lists = {name: environment.get(name) for name in ("notes", "kept_in_fp32")}
    return {
        **environment,
        "threads": threads if isinstance(threads, int) and 0 < threads < 1 << 16 else None,
        "data": data if isinstance(data, Mapping) else {},
        **{name: [str(each) for each in value] if isinstance(value, list) else [] for name, value in lists.items()},
    }


def _constants(config: RunConfig, environment: Mapping[str, Any], task: ScriptedTask, body: str) -> str:
    constants = [f"SEED = {config.seed}", *task.constants]
    if "KEPT" in body:
        kept = [str(name) for name in environment.get("kept_in_fp32") or ()]
        constants.append(f"KEPT = {kept!r}  # modules that stay in FP32")
    return "\n".join(constants)


def _functions(config: RunConfig, made: ScriptParts) -> list[str]:
    functions = []
    if config.train.accumulation > 1:
        functions.append(_GROUPS)
    if made.after_step_taken:
        functions.append(_STORE)
    return functions


_GROUPS = '''def groups(batches: Iterable[Any], count: int) -> Iterator[list[Any]]:
    """Up to `count` batches at a time."""
    iterator = iter(batches)
    while group := list(itertools.islice(iterator, count)):
        yield group'''

_STORE = '''@torch.no_grad()
def store(stored: list[tuple[nn.Parameter, OperandQuantizer]]) -> None:
    """Round the weights to the format in which they are kept."""
    for parameter, to_format in stored:
        parameter.copy_(to_format(parameter.detach(), -1))'''


def _main(
    config: RunConfig, environment: Mapping[str, Any], task: ScriptedTask, made: ScriptParts, source: ScriptSource
) -> list[str]:
    """The lines of the main function: setting up, training, validation."""
    lines = [f"torch.set_num_threads({int(environment.get('threads') or config.threads or 1)})"]
    lines.append(f"device = torch.device({str(environment.get('device') or 'cpu')!r})")
    lines.append(f"set_fp32_arithmetic(tf32={made.tf32})")
    if config.train.deterministic:
        lines += ["torch.use_deterministic_algorithms(True)", "torch.backends.cudnn.benchmark = False"]
    lines += [f"{name} = {fmt}" for name, fmt in made.tables.items()]
    lines += [
        "torch.manual_seed(SEED)",
        "config = settings(CONFIG)",
        f"task = {task.make}",
        "tell_other_data(task.facts)",
        "model = task.model().to(device)",
        *made.after_model,
        *_mechanics(config, source),
        f"weights = {made.weights}",
        f"optimizer = {_optimizer(config)}",
        *_averaging(config, source),
        *scaler_lines(config, made),
        *taken_lines(config, made),
        "",
        *forward_lines(config, made, source),
        "",
        *training_lines(config, made, source),
        *validation_lines(config),
        *made.at_end,
    ]
    return lines


def _mechanics(config: RunConfig, source: ScriptSource) -> list[str]:
    lines = []
    if config.train.channels_last:
        lines.append("model.to(memory_format=torch.channels_last)")
    if config.train.checkpointing:
        source.take("execution", "checkpoint_segments")
        lines.append("checkpoint_segments(model)")
    if config.train.compile:
        source.take("execution", "compile_model")
        lines.append("compile_model(model)")
    return lines


def _optimizer(config: RunConfig) -> str:
    wanted = config.optimizer
    if wanted.name == "sgd":
        return (
            f"torch.optim.SGD(weights, lr={wanted.lr}, momentum={wanted.momentum}, weight_decay={wanted.weight_decay})"
        )
    return f"torch.optim.AdamW(weights, lr={wanted.lr}, eps={wanted.eps}, weight_decay={wanted.weight_decay})"


def _averaging(config: RunConfig, source: ScriptSource) -> list[str]:
    if config.train.ema_decay is None:
        return []
    source.take("ema", "WeightAverage")
    return [
        "trained = [parameter for parameter in model.parameters() if parameter.requires_grad]",
        f"average = WeightAverage(trained, weights, {config.train.ema_decay})",
    ]


def serve(emit: Callable[[Any], None], control: object, *, config: Any, environment: Any, path: str) -> None:
    """Task of a child process: emits the list of written paths, or the sentence why there is none."""
    try:
        emit([str(written) for written in write_script(build(config), environment, Path(path))])
    except EngineError as error:
        emit(str(error))
