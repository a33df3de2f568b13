"""Short real trainings with a recorder, into which faults are planted: two models, every 16-bit precision."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precgui
from precgui.config import RecordConfig

VOCABULARY, LENGTH, PIXELS, CLASSES = 24, 12, 36, 10
Edit = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Setting:
    """One training. The fields from `edit` on are where faults are planted; their defaults plant nothing."""

    model: Literal["mlp", "gpt"] = "mlp"
    precision: str = "fp32"  # fp32, bf16-amp, fp16-amp, bf16-pure, fp16-pure, bf16-master
    optimizer: str = "adamw"
    lr: float = 0.0  # 0: the usual one
    steps: int = 90
    batch: int = 32
    seed: int = 0
    schedule: str = "constant"  # cosine, warmup
    clip: float = 0.0
    init_scale: float = 2.0**12
    growth_interval: int = 25
    accumulation: int = 1
    options: dict[str, Any] = field(default_factory=dict)  # of the model
    eps: float = 0.0
    beta2: float = 0.999
    momentum: float = 0.9
    weight_decay: float = 0.0
    record_all: bool = True
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    edit: Edit | None = None  # of the model, before the first step
    edit_at: int = 0  # or before this step
    data: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    loop: frozenset[str] = frozenset()  # see `_Loop`
    told_precision: str = ""
    batches_seed: int = 1
    ema_dtype: torch.dtype = torch.float32
    decay: float = 0.98  # of the average
    lr_at: Callable[[int], float] | None = None  # a factor on the rate
    backoff: float = 0.5  # of the scaler
    growth_factor: float = 2.0
    device: str = "cpu"
    autocast_dtype: torch.dtype | None = None  # in place of that of the precision


@dataclass(frozen=True)
class Progress:
    """`initial` and `final` are losses on data that the training has not seen, in the precision of the training."""

    initial: float
    final: float


@dataclass(frozen=True)
class Outcome(Progress):
    """Of a training that was recorded into the run file `path`."""

    path: Path


class Block(nn.Module):
    """Linear, norm, ReLU with a residual, or attention and a feed-forward part."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm, self.up = norm(width), nn.Linear(width, 2 * width)
        self.act, self.down = nn.ReLU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Attention(nn.Module):
    def __init__(self, width: int, masks: int = 1) -> None:
        super().__init__()
        self.qkv, self.softmax, self.out = nn.Linear(width, 3 * width), nn.Softmax(-1), nn.Linear(width, width)
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        above = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        if self.masks == 1:
            scores = scores.masked_fill(above, -math.inf)
        else:
            mask = torch.zeros_like(scores) + above * torch.finfo(scores.dtype).min
            for _ in range(self.masks):
                scores = scores + mask
            first = torch.arange(x.shape[1], device=x.device) == 0
            scores = scores + torch.where(first, -math.inf, 0.0)[:, None].to(scores.dtype)
        return self.out(self.softmax(scores) @ v)


class Mlp(nn.Module):
    def __init__(self, depth: int = 3, width: int = 32, dropout: float = 0.0, norm: Any = nn.LayerNorm) -> None:
        super().__init__()
        self.stem = nn.Linear(PIXELS, width)
        self.blocks = nn.Sequential(*[Block(width, norm) for _ in range(depth)])
        self.drop, self.norm, self.head = nn.Dropout(dropout), norm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.drop(self.blocks(self.stem(x)))))


class Gpt(nn.Module):
    def __init__(
        self, depth: int = 2, width: int = 32, dropout: float = 0.0, tied: bool = False, masks: int = 1
    ) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.attention = nn.ModuleList([Attention(width, masks) for _ in range(depth)])
        self.blocks = nn.ModuleList([Block(width, nn.LayerNorm) for _ in range(depth)])
        self.drop, self.norm, self.head = nn.Dropout(dropout), nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        nn.init.normal_(self.embed.weight, std=0.3)
        nn.init.normal_(self.place.weight, std=0.3)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place.weight[: x.shape[1]]
        for attention, block in zip(self.attention, self.blocks, strict=True):
            h = block(h + attention(h))
        logits: Tensor = self.head(self.norm(self.drop(h)))
        return logits


def batches(setting: Setting, seed: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Patterns with noise and their classes, or texts of a random chain and the next letters."""
    fixed = torch.Generator().manual_seed(99)
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, PIXELS, generator=fixed)
    chain = torch.softmax(2.5 * torch.randn(VOCABULARY, VOCABULARY, generator=fixed), 1)
    for _ in range(count):
        if setting.model == "mlp":
            classes = torch.randint(CLASSES, (setting.batch,), generator=generator)
            noise = torch.randn(setting.batch, PIXELS, generator=generator)
            yield patterns[classes] + 1.2 * noise, classes
        else:
            text = [torch.randint(VOCABULARY, (setting.batch,), generator=generator)]
            for _ in range(LENGTH):
                text.append(torch.multinomial(chain[text[-1]], 1, generator=generator)[:, 0])
            whole = torch.stack(text, 1)
            yield whole[:, :-1], whole[:, 1:]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.float().flatten(0, -2), targets.flatten())


LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
RATES = {("mlp", "adamw"): 3e-3, ("mlp", "sgd"): 0.05, ("gpt", "adamw"): 3e-3, ("gpt", "sgd"): 0.1}


class _Loop:
    """The training loop. `setting.loop` may hold: clip_first, plain_step, second_step, keep_gradients, schedule_always,
    no_scaler, idle_scaler, no_autocast, foreign_parameters, detached, no_step, left_out (the optimizer gets every
    other parameter), ema (an average of the weights in `setting.ema_dtype` is what is evaluated)."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        torch.manual_seed(setting.seed)
        self.model: nn.Module = (Mlp if setting.model == "mlp" else Gpt)(**setting.options)
        self.dtype = LOW.get(setting.precision.partition("-")[0], torch.float32)
        self.pure = setting.precision.endswith("-pure")
        if self.pure:
            self.model.to(self.dtype)
        if setting.edit and not setting.edit_at:
            setting.edit(self.model)
        self.model.to(setting.device)
        self.lr = setting.lr or RATES[setting.model, setting.optimizer]
        self.optimizer = self._optimizer()
        fp16 = setting.precision.startswith("fp16") and not setting.loop & {"no_scaler"}
        self.scaler = torch.amp.GradScaler(
            setting.device, init_scale=setting.init_scale, growth_interval=setting.growth_interval,
            backoff_factor=setting.backoff, growth_factor=setting.growth_factor,
            enabled=fp16 or "idle_scaler" in setting.loop,
        )  # fmt: skip
        self.scheduled = 0
        self.ema = copy.deepcopy(self.model).to(setting.ema_dtype) if "ema" in setting.loop else None

    @torch.no_grad()
    def _average(self) -> None:
        for kept, own in zip(self.ema.parameters() if self.ema else (), self.model.parameters(), strict=False):
            kept.mul_(self.setting.decay).add_(own.to(kept.dtype), alpha=1 - self.setting.decay)

    def _optimizer(self) -> torch.optim.Optimizer:
        setting = self.setting
        weights: Sequence[Any] = [p for p in self.model.parameters() if p.requires_grad]
        if "left_out" in setting.loop:
            weights = weights[1::2]
        if "foreign_parameters" in setting.loop:
            weights = [nn.Parameter(p.detach().clone()) for p in weights]
        if setting.optimizer == "sgd":
            return torch.optim.SGD(weights, self.lr, momentum=setting.momentum, weight_decay=setting.weight_decay)
        eps = setting.eps or (1e-4 if setting.precision == "fp16-pure" else 1e-8)
        betas = (0.9, setting.beta2)
        return torch.optim.AdamW(weights, self.lr, betas=betas, eps=eps, weight_decay=setting.weight_decay)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.pure and inputs.is_floating_point():
            inputs = inputs.to(self.dtype)
        amp = self.setting.precision.endswith("-amp") and "no_autocast" not in self.setting.loop
        dtype = self.setting.autocast_dtype or self.dtype
        with torch.autocast(self.setting.device, dtype) if amp else contextlib.nullcontext():
            outputs: Tensor = self.model(inputs)
        return outputs.detach().requires_grad_() if "detached" in self.setting.loop else outputs

    def rate(self, step: int) -> float:
        setting, done = self.setting, step - 1
        factor = setting.lr_at(step) if setting.lr_at else 1.0
        if setting.schedule == "cosine":
            factor *= 0.5 * (1 + math.cos(math.pi * min(done / setting.steps, 1)))
        elif setting.schedule == "warmup":
            factor *= min((done + 1) / 20, 1)
        return self.lr * factor

    def step(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        flags, setting = self.setting.loop, self.setting
        if setting.edit and setting.edit_at == step:
            setting.edit(self.model)
            self.model.to(setting.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.scheduled + 1)
        if "keep_gradients" not in flags:
            self.model.zero_grad()
        total = torch.zeros((), device=setting.device)
        for part, wanted in zip(inputs.chunk(setting.accumulation), targets.chunk(setting.accumulation), strict=True):
            loss = (setting.loss or cross_entropy)(self.forward(part), wanted) / setting.accumulation
            (loss if "idle_scaler" in flags else self.scaler.scale(loss)).backward()
            total = total + loss.detach()
        if "foreign_parameters" not in flags:
            self._clip()
        self._update(flags)
        self._average()
        return total

    def _clip(self) -> None:
        if self.setting.clip:
            if "clip_first" not in self.setting.loop and not self._half():
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.setting.clip)

    def _half(self) -> bool:
        return any(p.dtype is torch.float16 for p in self.model.parameters())

    def _update(self, flags: frozenset[str]) -> None:
        before = self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
        if "no_step" in flags or "foreign_parameters" in flags:
            if "foreign_parameters" in flags:
                for weight, own in zip(self.optimizer.param_groups[0]["params"], self.model.parameters(), strict=False):
                    weight.grad = own.grad
                self.optimizer.step()
            self.scheduled += 1
            return
        if flags & {"plain_step", "idle_scaler"}:
            self.optimizer.step()
        elif self._half() and self.scaler.is_enabled():
            self._half_step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if "second_step" in flags:
            self.optimizer.step()
        skipped = self.scaler.is_enabled() and self.scaler.get_scale() < before
        self.scheduled += 1 if "schedule_always" in flags or not skipped else 0

    def _half_step(self) -> None:
        """torch's scaler refuses FP16 gradients; so did everybody who trained like this by hand."""
        original = self.scaler._unscale_grads_
        self.scaler._unscale_grads_ = lambda o, inv, inf, _allow: original(o, inv, inf, True)
        try:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        finally:
            self.scaler._unscale_grads_ = original


ALL = RecordConfig(budget=100, weights_every=2, optimizer_every=4, activations_every=3, activation_gradients_every=4)


def train(path: Path, setting: Setting) -> Outcome:
    """Run the loop into a run file; a complete one that is there already is taken as it is."""
    if (outcome := kept(path)) is not None:
        return outcome
    path.unlink(missing_ok=True)
    loop = _Loop(setting)
    record = ALL if setting.record_all else RecordConfig()
    scaler = loop.scaler if loop.scaler.is_enabled() else None
    with contextlib.ExitStack() as open_until_the_end:
        open_until_the_end.enter_context(torch.random.fork_rng())
        initial = evaluate(loop)
        recorder = open_until_the_end.enter_context(
            precgui.Recorder(path, loop.model, loop.optimizer, scaler, ema=loop.ema, record=record,
                             total_steps=setting.steps, precision=setting.told_precision or _told(setting),
                             title=path.stem)
        )  # fmt: skip
        recorder.evaluated(initial)
        for loss in losses(loop):
            recorder.step(loss, samples=setting.batch)
        final = evaluate(loop)
        recorder.evaluated(final)
    return Outcome(initial, final, path)


def losses(loop: _Loop) -> Iterator[Tensor]:
    """The loss of each step, as it is made."""
    setting = loop.setting
    torch.manual_seed(setting.seed + 7)
    for step, (inputs, targets) in enumerate(batches(setting, setting.batches_seed, setting.steps), 1):
        if setting.data:
            inputs, targets = setting.data(step, inputs, targets)
        yield loop.step(step, inputs.to(setting.device), targets.to(setting.device))


def progress(setting: Setting) -> Progress:
    """Run the loop without recording it, at most once for settings that are equal and hold no functions."""
    functions = (setting.loss, setting.edit, setting.data, setting.lr_at, *setting.options.values())
    if any(map(callable, functions)):
        return _progress(setting)
    if (key := repr(setting)) not in _MADE:
        _MADE[key] = _progress(setting)
    return _MADE[key]


_MADE: dict[str, Progress] = {}


def _progress(setting: Setting) -> Progress:
    loop = _Loop(setting)
    with torch.random.fork_rng():
        initial = evaluate(loop)
        for _ in losses(loop):
            pass
        return Progress(initial, evaluate(loop))


def kept(path: Path) -> Outcome | None:
    """The outcome of a training whose file is kept; None where there is none or it was cut off."""
    if not path.exists():
        return None
    with precgui.open_run(path) as run:
        losses = run.series("val_loss")[1].tolist()
        complete = run.status == "completed" and len(losses) >= 2
    return Outcome(losses[0], losses[-1], path) if complete else None


def _told(setting: Setting) -> str:
    return setting.precision if setting.precision.endswith("-amp") and "no_scaler" not in setting.loop else ""


@torch.no_grad()
def evaluate(loop: _Loop) -> float:
    model, loop.model = loop.model, copy.deepcopy(loop.ema).float() if loop.ema is not None else loop.model
    loop.model.eval()
    place = loop.setting.device
    losses = [cross_entropy(loop.forward(x.to(place)).float(), y.to(place)) for x, y in batches(loop.setting, 12345, 6)]
    loop.model = model.train()
    return float(torch.stack(losses).mean())
