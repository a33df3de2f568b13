"""The loop of an exported script: batches through the model, the update, validation; as lines of its main function."""

from __future__ import annotations

from precgui.config import RunConfig
from precgui.config.precision_traits import traits
from precgui.engine.export.precisions import ScriptParts
from precgui.engine.export.source import ScriptSource

_BACKENDS = {"math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


def scaling(config: RunConfig) -> str:
    """The loss scaling that the run had: none, static or dynamic."""
    automatic = traits(config.precision).loss_scaling
    return automatic if config.scaling.mode == "auto" else config.scaling.mode


def scaler_lines(config: RunConfig, made: ScriptParts) -> list[str]:
    if scaling(config) == "none":
        return []
    wanted = config.scaling
    return [
        f"scaler = {made.scaler}(",
        f"    device.type, init_scale={wanted.initial_scale}, growth_factor={wanted.growth_factor},",
        f"    backoff_factor={wanted.backoff_factor}, growth_interval={wanted.growth_interval},",
        ")",
    ]


def taken_lines(config: RunConfig, made: ScriptParts) -> list[str]:
    """Where something follows an update only: a list that is filled when the scaler lets the optimizer step."""
    if scaling(config) == "none" or not _after_taken(config, made):
        return []
    return ["taken: list[bool] = []", "optimizer.register_step_post_hook(lambda *_: taken.append(True))"]


def _after_taken(config: RunConfig, made: ScriptParts) -> list[str]:
    return [*made.after_step_taken, *(["average.update()"] if config.train.ema_decay is not None else [])]


def forward_lines(config: RunConfig, made: ScriptParts, source: ScriptSource) -> list[str]:
    """A nested function: a batch through the model."""
    lines = ["def forward(inputs: Any, targets: Any) -> tuple[Any, Any]:"]
    lines += [f"    {line}" for line in made.per_batch]
    lines.append(f"    inputs = cast_floats(inputs, {made.storage}, device)")
    lines.append(f"    targets = cast_floats(targets, {made.targets}, device)")
    if config.train.channels_last:
        source.take("execution", "channels_last")
        lines.append("    inputs = channels_last(inputs)")
    contexts = [made.cast] if made.cast else []
    if config.train.attention != "auto":
        contexts.append(f"sdpa_kernel(SDPBackend.{_BACKENDS[config.train.attention]})")
    if contexts:
        return [
            *lines,
            f"    with {', '.join(contexts)}:",
            "        outputs = model(inputs)",
            f"    return cast_floats(outputs, {made.targets}), targets",
        ]
    return [*lines, f"    return cast_floats(model(inputs), {made.targets}), targets"]


def training_lines(config: RunConfig, made: ScriptParts, source: ScriptSource) -> list[str]:
    count = config.train.accumulation
    steps = "task.steps_per_epoch" if count == 1 else f"math.ceil(task.steps_per_epoch / {count})"
    total = f"{config.train.epochs} * {steps}"
    total = total if config.train.max_steps is None else f"min({config.train.max_steps}, {total})"
    lines = [
        f"total_steps = {total}",
        "step = epoch = 0",
        "while step < total_steps:",
        "    epoch += 1",
        "    model.train()",
        *(f"    {line}" for line in made.begin_epoch),
    ]
    batches = "task.train_batches()"
    loop = f"for inputs, targets in {batches}:" if count == 1 else f"for group in groups({batches}, {count}):"
    lines += [f"    {loop}", "        if step == total_steps:", "            break", "        step += 1"]
    inner = [*_rate(config), "optimizer.zero_grad(set_to_none=True)", *_backward(config), *made.before_unscale]
    inner += [*_clip(config, source), *_update(config, made), *_shown(config)]
    return [*lines, *(f"        {line}" for line in inner)]


def _rate(config: RunConfig) -> list[str]:
    if config.optimizer.schedule == "constant":
        return []
    return [
        "for parameters in optimizer.param_groups:",
        f'    parameters["lr"] = {config.optimizer.lr} * 0.5 * (1 + math.cos(math.pi * (step - 1) / total_steps))',
    ]


def _backward(config: RunConfig) -> list[str]:
    scaled = "loss.backward()" if scaling(config) == "none" else "scaler.scale(loss).backward()"
    if config.train.accumulation == 1:
        return ["outputs, targets = forward(inputs, targets)", "loss = task.loss(outputs, targets)", scaled]
    return [
        "samples = sum(len(targets) for _, targets in group)",
        "losses = []",
        "for inputs, targets in group:",
        "    outputs, targets = forward(inputs, targets)",
        "    loss = task.loss(outputs, targets)",
        "    if len(group) > 1:",
        "        loss = loss * (len(targets) / samples)",
        f"    {scaled}",
        "    losses.append(loss.detach())",
        "loss = torch.stack(losses).sum()",
    ]


def _clip(config: RunConfig, source: ScriptSource) -> list[str]:
    lines = [] if scaling(config) == "none" else ["scaler.unscale_(optimizer)"]
    if config.train.clip_norm is None:
        return lines
    source.take("train", "single_norms", "total_norm")
    return [
        *lines,
        "clipped = [weight for weight in weights if weight.grad is not None]",
        "norm = total_norm(single_norms([weight.grad for weight in clipped]))",
        f"nn.utils.clip_grads_with_norm_(clipped, {config.train.clip_norm}, norm)",
    ]


def _update(config: RunConfig, made: ScriptParts) -> list[str]:
    after = _after_taken(config, made)
    if scaling(config) == "none":
        return ["optimizer.step()", *made.after_step, *after]
    update = f"scaler.update({config.scaling.initial_scale})" if scaling(config) == "static" else "scaler.update()"
    lines = ["scaler.step(optimizer)", update, *made.after_step]
    if not after:
        return lines
    return ["taken.clear()", *lines, "if taken:", *(f"    {line}" for line in after)]


def _shown(config: RunConfig) -> list[str]:
    return ['print(f"step {step}: loss {loss.item()!r}")']


def validation_lines(config: RunConfig) -> list[str]:
    lent = "torch.inference_mode()" if config.train.ema_decay is None else "average.applied(), torch.inference_mode()"
    return [
        "    model.eval()",
        "    total, samples, scores = 0.0, 0, []",
        f"    with {lent}:",
        "        for inputs, targets in task.validation_batches():",
        "            outputs, targets = forward(inputs, targets)",
        "            total += float(task.loss(outputs, targets)) * len(targets)",
        "            samples += len(targets)",
        "            scores.append(task.score(outputs, targets))",
        '    told = f"{task.metric.title} {task.result(scores)!r}"',
        '    print(f"epoch {epoch}: validation loss {total / samples!r}, {told}")',
    ]
