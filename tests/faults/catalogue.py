"""All planted faults, in the groups of the rules: range, digits, not precision, bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from tests.faults.plants import (
    Compressed,
    Plant,
    Root,
    SquareNorm,
    bad_data,
    kill,
    log_loss,
    nan_loss,
    root_loss,
    scale_weights,
    small_loss,
    store_low,
    swap,
)
from tests.faults.training import Setting


def _both(name: str, plant: Callable[[str], Plant]) -> Iterator[Plant]:
    for model in ("mlp", "gpt"):
        made = plant(model)
        yield replace(made, name=f"{name} {model}")


def _plant(name: str, model: str, base: dict[str, Any], fault: dict[str, Any], rules: str, blame: bool | None,
           module: str = "", weak: bool = False, twin: dict[str, Any] | None = None) -> Plant:  # fmt: skip
    setting = Setting(model=model, **{**base, **fault})
    without = Setting(model=model, **{**base, **(twin or {})})
    return Plant(name, setting, without, tuple(rules.split()), blame, module, weak)


AMP16, PURE16 = {"precision": "fp16-amp"}, {"precision": "bf16-pure"}
SGD = {"optimizer": "sgd"}
BLOCK = "blocks.1"
RANGE = "forward-overflow hidden-overflow"


def _range() -> Iterator[Plant]:
    for factor, weak in ((3e6, False), (3e5, False), (300.0, True)):
        edit = swap(f"{BLOCK}.up", lambda inner, k=factor: Compressed(inner, k))
        yield from _both(f"overflow in the forward pass x{factor:g}", lambda m, e=edit, w=weak: _plant(
            "", m, AMP16, {"edit": e}, RANGE, True, f"{BLOCK}", w))  # fmt: skip
    for factor, weak in ((3e4, False), (1.0, True)):
        edit = swap(f"{BLOCK}.norm", lambda inner, k=factor: SquareNorm(k))
        yield from _both(f"square overflows in a norm x{factor:g}", lambda m, e=edit, w=weak: _plant(
            "", m, AMP16, {"edit": e}, RANGE + " undefined-operation", True, BLOCK, w,
            {"edit": swap(f"{BLOCK}.norm", lambda inner: SquareNorm(1.0))}))  # fmt: skip
    for unit, weak in ((1e-7, False), (1e-6, False), (1e-2, True)):
        yield from _both(f"no loss scale, loss x{unit:g}", lambda m, u=unit, w=weak: _plant(
            "", m, AMP16, {"loss": small_loss(u), "loop": frozenset({"no_scaler"})},
            "gradient-underflow zero-gradients", True, "", w,
            {"loss": small_loss(u), "precision": "fp32"}))  # fmt: skip
    for scale, weak in ((2.0**40, False), (2.0**24, True)):
        yield from _both(f"scale of 2^{int(torch.log2(torch.tensor(scale)))} at the start", lambda m, s=scale,
        w=weak: _plant(
            "", m, AMP16 | {"steps": 120 if w else 24}, {"init_scale": s},
            "scale-too-high scale-collapse no-step-taken", True, "", w))  # fmt: skip
    yield from _both("scale of 2^-8", lambda m: _plant(
        "", m, AMP16, {"init_scale": 2.0**-8, "loss": small_loss(1e-3), "growth_interval": 2000},
        "gradient-underflow zero-gradients", True, "", False,
        {"loss": small_loss(1e-3), "precision": "fp32"}))  # fmt: skip


def _digits() -> Iterator[Plant]:
    for rate, weak in ((3e-5, False), (1e-4, False), (1e-2, True)):
        yield from _both(f"BF16 weights, AdamW at {rate:g}", lambda m, r=rate, w=weak: _plant(
            "", m, {"lr": r, "steps": 150}, PURE16, "stagnation", True, "", w, {"precision": "fp32"}))  # fmt: skip
    for rate, weak in ((3e-4, False), (2e-3, False), (0.1, True)):
        yield from _both(f"BF16 weights, SGD at {rate:g}", lambda m, r=rate, w=weak: _plant(
            "", m, SGD | {"lr": r, "steps": 150}, PURE16, "stagnation", True, "", w,
            {"precision": "fp32"}))  # fmt: skip
    yield from _both("FP16 weights, SGD at 3e-5", lambda m: _plant(
        "", m, SGD | {"lr": 3e-5, "steps": 150}, {"precision": "fp16-pure"}, "stagnation", True, "", False,
        {"precision": "fp32"}))  # fmt: skip
    yield from _both("epsilon vanishes in FP16", lambda m: _plant(
        "", m, {"steps": 60}, {"precision": "fp16-pure", "eps": 1e-8}, "epsilon-vanishes", True, "", False,
        {"precision": "fp32"}))  # fmt: skip


def _innocent() -> Iterator[Plant]:
    yield _plant("NaN in the data of one step, FP32 mlp", "mlp", {}, {"data": bad_data(lambda s: s == 40,
    float("nan"))},
                 "data-not-finite undefined-operation", False)  # fmt: skip
    yield _plant("Inf in the data of one step, FP32 mlp", "mlp", {}, {"data": bad_data(lambda s: s == 40,
    float("inf"))},
                 "data-not-finite undefined-operation", False)  # fmt: skip
    yield _plant("NaN in the data of one step, scaler mlp", "mlp", AMP16, {"data": bad_data(lambda s: s == 40,
    float("nan"))},
                 "data-not-finite undefined-operation", False, weak=True)  # fmt: skip
    yield _plant("NaN in half of the data, scaler mlp", "mlp", AMP16, {"data": bad_data(lambda s: s % 2 == 0,
    float("nan"))},
                 "data-not-finite undefined-operation scale-collapse repeated-skips", False)  # fmt: skip
    for precision in ("fp32", "bf16-amp"):
        yield from _both(f"NaN loss of one batch, {precision}", lambda m, p=precision: _plant(
            "", m, {"precision": p}, {"loss": nan_loss(1000, 30)}, "data-not-finite undefined-operation",
            False))  # fmt: skip
        yield from _both(f"root of zero in the loss, {precision}", lambda m, p=precision: _plant(
            "", m, {"precision": p}, {"loss": root_loss}, "undefined-operation", False))  # fmt: skip
        yield from _both(f"0 log 0 in the loss, {precision}", lambda m, p=precision: _plant(
            "", m, {"precision": p}, {"loss": log_loss}, "undefined-operation data-not-finite", False))  # fmt: skip
    yield from _both("root of zero in the loss, scaler", lambda m: _plant(
        "", m, AMP16, {"loss": root_loss}, "scale-collapse", False))  # fmt: skip
    yield _plant(
        "row masked completely gpt", "gpt", {}, {"options": {"masks": 2}}, "undefined-operation", False, "attention.0"
    )
    yield from _both("derivative of a root at zero", lambda m: _plant(
        "", m, {}, {"edit": swap(f"{BLOCK}.act", lambda inner: Root())}, "undefined-operation", False,
        BLOCK))  # fmt: skip
    for factor, weak in ((1000.0, False), (100.0, False), (2.0, True)):
        for precision in ("fp32", "fp16-amp"):
            yield from _both(f"rate x{factor:g} {precision}", lambda m, f=factor, p=precision, w=weak: _plant(
                "", m, SGD | {"precision": p}, {"lr": f * 0.05}, "divergence no-progress dead-units", False, "", w,
                {"lr": 0.05}))  # fmt: skip
    yield from _both("AdamW rate x100 bf16", lambda m: _plant(
        "", m, {"precision": "bf16-amp"}, {"lr": 0.5}, "divergence no-progress dead-units", False))  # fmt: skip
    for bias, weak in ((-1e3, False), (-0.02, True)):
        yield from _both(f"dead units, bias {bias:g}", lambda m, b=bias, w=weak: _plant(
            "", m, {"steps": 60}, {"edit": lambda model, b=b: [kill(f"blocks.{i}.up", b)(model) for i in range(2)]},

            "dead-units", False, "blocks", w))  # fmt: skip
    yield from _both(
        "rate of zero",
        lambda m: _plant("", m, {}, {"lr": 1e-12}, "no-progress weights-unchanged stagnation rate-too-low", False),
    )
    yield from _both(
        "rate far too low",
        lambda m: _plant("", m, {}, {"lr": 1e-7}, "no-progress weights-unchanged rate-too-low", False),
    )


def _books() -> Iterator[Plant]:
    yield from _both("clipped before unscaled", lambda m: _plant(
        "", m, AMP16 | SGD | {"clip": 1.0, "init_scale": 2.0**16}, {"loop": frozenset({"clip_first"})},
        "clip-before-unscale", False))  # fmt: skip
    yield from _both("clipped before unscaled, at 5", lambda m: _plant(
        "", m, AMP16 | SGD | {"clip": 5.0, "init_scale": 2.0**10}, {"loop": frozenset({"clip_first"})},
        "clip-before-unscale", False))  # fmt: skip
    yield from _both("optimizer.step() in place of scaler.step()", lambda m: _plant(
        "", m, AMP16 | SGD, {"loop": frozenset({"plain_step"})}, "gradients-not-unscaled divergence",
        False))  # fmt: skip
    yield from _both("a second step after a skipped one", lambda m: _plant(
        "", m, AMP16 | {"init_scale": 2.0**30, "steps": 60}, {"loop": frozenset({"second_step"})},
        "skipped-but-changed", False))  # fmt: skip
    yield from _both("scheduler ahead", lambda m: _plant(
        "", m, AMP16 | SGD | {"init_scale": 2.0**40, "steps": 50, "schedule": "cosine", "lr": 0.02},
        {"loop": frozenset({"schedule_always"})}, "scheduler-ahead", False))  # fmt: skip
    yield from _both("scheduler ahead by one", lambda m: _plant(
        "", m, AMP16 | {"init_scale": 2.0**17, "schedule": "cosine"}, {"loop": frozenset({"schedule_always"})},
        "scheduler-ahead", False, "", True))  # fmt: skip
    yield from _both("the optimizer has other tensors", lambda m: _plant(
        "", m, {}, {"loop": frozenset({"foreign_parameters"})}, "foreign-parameters weights-unchanged",
        False))  # fmt: skip
    yield from _both(
        "no optimizer step", lambda m: _plant("", m, {}, {"loop": frozenset({"no_step"})}, "no-step-taken", False)
    )
    yield from _both(
        "graph cut",
        lambda m: _plant(
            "", m, SGD, {"loop": frozenset({"detached"})}, "zero-gradients no-gradients weights-unchanged", False
        ),
    )
    yield from _both("gradients not cleared", lambda m: _plant(
        "", m, SGD | {"momentum": 0.9, "lr": 0.1}, {"loop": frozenset({"keep_gradients"})},
        "gradients-not-cleared divergence", False))  # fmt: skip
    yield from _both("gradients not cleared, AdamW", lambda m: _plant(
        "", m, {"lr": 1e-2}, {"loop": frozenset({"keep_gradients"})}, "gradients-not-cleared divergence no-progress",
        False))  # fmt: skip
    yield from _both("autocast left out", lambda m: _plant(
        "", m, AMP16, {"loop": frozenset({"no_autocast"})}, "autocast-not-seen", False, "", True))  # fmt: skip


def _described() -> Iterator[Plant]:
    """What newer files tell of a loop: dtypes, buffers, averages, step 0, the scaler, passes."""
    for decay, steps, weak in ((0.995, 150, False), (0.9, 60, True)):
        yield from _both(f"average in BF16, decay {decay:g}", lambda m, d=decay, s=steps, w=weak: _plant(
            "", m, {"loop": frozenset({"ema"}), "decay": d, "steps": s}, {"ema_dtype": torch.bfloat16},
            "frozen-average", True, "", w))  # fmt: skip
    norms = {"options": {"norm": torch.nn.BatchNorm1d}}
    yield _plant("running statistics poisoned by a skipped step mlp", "mlp", AMP16 | norms,
                 {"data": bad_data(lambda s: s == 40, float("inf"))}, "poisoned-buffers", None)  # fmt: skip
    yield _plant("running statistics poisoned by a skipped step, FP32 buffers kept mlp", "mlp", AMP16 | norms,
                 {"init_scale": 2.0**22}, "poisoned-buffers", None, weak=True)  # fmt: skip
    yield from _both("every other parameter left out", lambda m: _plant(
        "", m, {}, {"loop": frozenset({"left_out"})}, "parameters-left-out", False))  # fmt: skip
    yield from _both("a weight not initialised", lambda m: _plant(
        "", m, {"steps": 30}, {"edit": scale_weights(f"{BLOCK}.up", float("nan"))}, "weights-not-finite", False,
        f"{BLOCK}.up"))  # fmt: skip
    small = small_loss(1e-7)
    yield from _both("the scaler is made and not used, loss x1e-7", lambda m: _plant(
        "", m, AMP16 | {"loss": small}, {"loop": frozenset({"idle_scaler"})}, "unused-scaler", False, "", False,
        {"loss": small, "precision": "fp32"}))  # fmt: skip
    yield from _both("a scale that grows in each step", lambda m: _plant(
        "", m, AMP16 | {"steps": 40, "lr": 1e-3}, {"growth_interval": 1}, "scale-probing", True))  # fmt: skip
    for parts, weak in ((4, True), (32, True)):
        yield from _both(f"{parts} passes added up in BF16", lambda m, p=parts, w=weak: _plant(
            "", m, {"lr": 1e-2, "precision": "bf16-pure"}, {"accumulation": p}, "swamped-accumulation", True, "",
            w))  # fmt: skip


def _as_it_ran() -> Iterator[Plant]:
    """Dtypes of single layers, autocast to another format than was asked for, and settings of the scaler."""
    yield from _both("autocast to BF16 where FP16 was asked for", lambda m: _plant(
        "", m, AMP16, {"autocast_dtype": torch.bfloat16}, "autocast-not-seen", False, "", True))  # fmt: skip
    small = small_loss(1e-7)
    yield from _both("autocast to FP16 where BF16 was asked for, loss x1e-7", lambda m: _plant(
        "", m, {"precision": "bf16-amp", "loss": small}, {"autocast_dtype": torch.float16},
        "gradient-underflow zero-gradients", True))  # fmt: skip
    layers = ("up", "down", "qkv", "out", "stem", "head")
    yield from _both("most layers stored in BF16, AdamW at 3e-5", lambda m: _plant(
        "", m, {"lr": 3e-5, "steps": 150}, {"edit": store_low(*layers)}, "stagnation", True))  # fmt: skip
    yield from _both("one kind of layer stored in BF16, AdamW at 1e-3", lambda m: _plant(
        "", m, {"lr": 1e-3}, {"edit": store_low("head")}, "stagnation", True, "", True))  # fmt: skip
    yield from _both("scale that hardly falls", lambda m: _plant(
        "", m, AMP16 | {"steps": 60}, {"init_scale": 2.0**30, "backoff": 0.999},
        "scale-too-high no-step-taken scale-collapse", True))  # fmt: skip
    yield from _both("scale that falls by a tenth", lambda m: _plant(
        "", m, AMP16, {"init_scale": 2.0**15, "backoff": 0.9}, "scale-too-high scale-probing", True, "",
        True))  # fmt: skip
    yield from _both("scale that grows by 2^20", lambda m: _plant(
        "", m, AMP16 | {"lr": 1e-3}, {"growth_interval": 3, "growth_factor": 2.0**20},
        "scale-probing repeated-skips scale-too-high", True))  # fmt: skip


def plants() -> list[Plant]:
    """All of them, in a fixed order."""
    return [*_range(), *_digits(), *_innocent(), *_books(), *_described(), *_as_it_ran()]
