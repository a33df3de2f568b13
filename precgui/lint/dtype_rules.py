"""Formats written into a script: FP16 by hand, deprecated names, masks and positions that do not fit, TF32."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from precgui.events import Severity
from precgui.lint.scaler_rules import is_optimizer
from precgui.lint.source import CallSite, Source, keyword, number

Mistakes = Iterator[tuple[int, Severity, str, str]]
_FP16_WEIGHTS = "{model} is trained with FP16 weights: small updates and gradients are lost"
_FP16_WEIGHTS_SCALED = (
    "{model} is trained with FP16 weights: small updates and gradients are lost, and torch's scaler refuses FP16 "
    "gradients"
)
_FP16_LARGEST = 65504.0
_FP16_SMALLEST = 6e-8
_HALF = ("torch.half", "torch.float16")
_SENSITIVE = (
    "softmax", "log_softmax", "cross_entropy", "nll_loss", "kl_div", "mse_loss", "binary_cross_entropy_with_logits",
    "binary_cross_entropy", "logsumexp", "layer_norm", "normalize",
)  # fmt: skip
_EXACT_UP_TO = {"bf16": 256, "fp16": 2048}  # all whole numbers
_SWITCHES_OLD = ("allow_tf32", "set_float32_matmul_precision")
_SWITCHES_NEW = ("fp32_precision",)


def _makes(source: Source, node: ast.AST, method: str, dtypes: tuple[str, ...]) -> bool:
    """Whether an expression is `x.half()`, `x.to(torch.float16)` or the like."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == method and not node.args:
        return True
    given = [*node.args, *(each.value for each in node.keywords if each.arg == "dtype")]
    return node.func.attr in ("to", "type") and any(source.name_of(each) in dtypes for each in given)


def _is_half(source: Source, node: ast.AST) -> bool:
    return _makes(source, node, "half", _HALF)


def _trains(source: Source) -> bool:
    return bool([site for site in source.of("backward") if site.owner])


def deprecated_amp(source: Source) -> Mistakes:
    """torch.cuda.amp and torch.cpu.amp, deprecated since 2.4."""
    lines: dict[int, str] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("torch.cuda.amp", "torch.cpu.amp"):
            lines[node.lineno] = node.module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            name = source.name_of(node)
            if name.startswith(("torch.cuda.amp.", "torch.cpu.amp.")):
                lines.setdefault(node.lineno, name.rpartition(".")[0])
    for line, name in lines.items():
        device = name.split(".")[1]
        yield (
            line, "warning", f"{name} is deprecated",
            f'torch.amp.autocast("{device}", ...) and torch.amp.GradScaler("{device}")',
        )  # fmt: skip


def low_by_hand(source: Source) -> Mistakes:
    """Softmax, a norm or a loss of operands that were cast to FP16 by hand."""
    for site in source.of(*_SENSITIVE):
        operands = [*site.node.args, *(each.value for each in site.node.keywords if each.arg in ("input", "dtype"))]
        if site.method in ("softmax", "log_softmax", "logsumexp") and isinstance(site.node.func, ast.Attribute):
            operands.append(site.node.func.value)
        if any(_is_half(source, each) or source.name_of(each) in _HALF for each in operands):
            yield (
                site.line, "warning", f"{site.method} is computed in FP16 by hand: exp and sums overflow at 65504",
                "leave the operands in FP32 (.float()), or let autocast choose",
            )  # fmt: skip


def half_weights(source: Source) -> Mistakes:
    """A model converted to FP16 in a script that trains."""
    if not _trains(source):
        return
    models = {ast.unparse(site.node.func.value) for site in source.of("parameters", "named_parameters", "train")
              if isinstance(site.node.func, ast.Attribute)}  # fmt: skip
    for site in source.calls:
        owner = next(iter(sorted(models & {site.owner, *source.assigned(site.node)})), "")
        if _is_half(source, site.node) and owner:
            yield (
                site.line, "error" if source.scalers else "warning",
                (_FP16_WEIGHTS_SCALED if source.scalers else _FP16_WEIGHTS).format(model=owner),
                "keep FP32 weights and use torch.autocast with a GradScaler",
            )  # fmt: skip
            yield from _small_eps(source)


def _small_eps(source: Source) -> Mistakes:
    for site in source.of("Adam", "AdamW"):
        eps = number(keyword(site.node, "eps", 3))
        value = 1e-8 if keyword(site.node, "eps", 3) is None else eps
        if value is not None and value < _FP16_SMALLEST:
            yield (
                site.line, "error", f"eps = {value:g} is zero in FP16: where a gradient vanishes, weights become NaN",
                "eps=1e-4, or keep FP32 weights",
            )  # fmt: skip


def no_scaler(source: Source) -> Mistakes:
    """Autocast to FP16 around a loss that is never scaled."""
    if source.scalers or not _trains(source) or "scaler" in source.text.lower() or "scale_loss" in source.text:
        return  # somebody else's
    if any(
        name.startswith(("accelerate", "deepspeed", "apex", "lightning", "pytorch_lightning"))
        for name in source.imports.values()
    ):
        return
    for node, call in source.autocasts:
        scope = source.scope(node)
        if _is_fp16_autocast(source, call) and any(
            site.method == "backward" and site.owner for site in source.inside(scope)
        ):
            yield (
                node.lineno, "warning", "autocast to FP16 without a gradient scaler: small gradients become zero",
                "torch.amp.GradScaler, or dtype=torch.bfloat16",
            )  # fmt: skip
            return


def _is_fp16_autocast(source: Source, call: ast.Call) -> bool:
    dtype = keyword(call, "dtype", 1)
    enabled = keyword(call, "enabled")
    if isinstance(enabled, ast.Constant) and enabled.value is False:
        return False
    if dtype is not None:
        return source.name_of(dtype) in _HALF
    device = keyword(call, "device_type", 0)
    on_cuda = isinstance(device, ast.Constant) and str(device.value).startswith("cuda")
    return on_cuda or source.name_of(call.func) == "torch.cuda.amp.autocast"


def scaler_with_bf16(source: Source) -> Mistakes:
    """A scaler beside autocast to BF16, which has the range of FP32."""
    dtypes = {source.name_of(dtype) for _, call in source.autocasts if (dtype := keyword(call, "dtype", 1)) is not None}
    if dtypes != {"torch.bfloat16"} or len(source.autocasts) != len(
        [c for _, c in source.autocasts if keyword(c, "dtype", 1)]
    ):
        return
    for name, call in source.scalers.items():
        if keyword(call, "enabled") is None:
            yield (
                call.lineno, "info", f"the scaler {name} is not needed: BF16 has the range of FP32",
                "leave it out, or enabled=(dtype == torch.float16)",
            )  # fmt: skip


def large_mask(source: Source) -> Mistakes:
    """A finite mask value beyond FP16 in a script that uses FP16."""
    fp16 = bool(source.scalers) or any(_is_fp16_autocast(source, call) for _, call in source.autocasts)
    for site in source.of("masked_fill", "masked_fill_"):
        value = number(keyword(site.node, "value", 1))
        if fp16 and value is not None and _FP16_LARGEST < abs(value) < float("inf"):
            yield (
                site.line, "warning", f"a mask of {value:g} does not fit into FP16 (65504): torch raises, or it "
                f"becomes Inf",
                'float("-inf") in a row that is not masked completely, or torch.finfo(scores.dtype).min',
            )  # fmt: skip


def low_positions(source: Source) -> Mistakes:
    """Positions counted in 16 bits: BF16 has no odd integers above 256, FP16 none above 2048."""
    for site in source.calls:
        inner, low = _counted(source, site)
        if inner is not None and _length(inner) > _EXACT_UP_TO[low]:
            yield (
                site.line, "warning", "positions are counted in 16 bits: BF16 has no odd integers above 256, FP16 "
                "none above 2048",
                "count in FP32 and convert sine and cosine",
            )  # fmt: skip


def _counted(source: Source, site: CallSite) -> tuple[ast.Call | None, str]:
    """The torch.arange or torch.randint whose whole numbers are in 16 bits: made so, or cast here, also by a name."""
    dtype = keyword(site.node, "dtype")
    built_as = source.name_of(dtype) if dtype is not None and site.name == "torch.arange" else ""
    if built_as in (*_HALF, "torch.bfloat16"):
        return site.node, "bf16" if built_as == "torch.bfloat16" else "fp16"
    is_bf16 = _makes(source, site.node, "bfloat16", ("torch.bfloat16",))
    inner = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
    if inner is None or not (is_bf16 or _is_half(source, site.node)):
        return None, ""
    if isinstance(inner, ast.Name):
        values = [node.value for node in ast.walk(source.tree) if isinstance(node, ast.Assign)
                  and any(isinstance(each, ast.Name) and each.id == inner.id for each in node.targets)]  # fmt: skip
        inner = values[0] if len(values) == 1 else inner
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in ("float", "to"):
        inner = inner.func.value
    if isinstance(inner, ast.Call) and source.name_of(inner.func) in ("torch.arange", "torch.randint"):
        return inner, "bf16" if is_bf16 else "fp16"
    return None, ""


def _length(call: ast.Call) -> float:
    """The largest number written into a call, infinite where one of its arguments is none."""
    given = [each for each in call.args if not isinstance(each, ast.Tuple | ast.List)]
    values = [number(each) for each in given]
    known = [value for value in values if value is not None]
    return max(known, default=float("inf")) if len(known) == len(values) else float("inf")


def bce_in_autocast(source: Source) -> Mistakes:
    """Binary cross entropy of probabilities inside autocast, which torch refuses on CUDA."""
    losses = {ast.unparse(node.targets[0]) for node in ast.walk(source.tree)
              if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
              and source.name_of(node.value.func).rpartition(".")[2] == "BCELoss"}  # fmt: skip
    for node, call in source.autocasts:
        if isinstance(enabled := keyword(call, "enabled"), ast.Constant) and enabled.value is False:
            continue
        for site in source.inside(node):
            if site.method == "binary_cross_entropy" or ast.unparse(site.node.func) in losses:
                yield (
                    site.line, "error", "binary cross entropy of probabilities inside autocast: torch refuses it on "
                    "CUDA",
                    "binary_cross_entropy_with_logits (BCEWithLogitsLoss) on the logits",
                )  # fmt: skip


def tf32(source: Source) -> Mistakes:
    """Both ways to switch TF32 in one script; or none in one that trains in FP32 on CUDA."""
    names = [(node, source.name_of(node)) for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)]
    old = [node for node, name in names if name.startswith("torch.") and name.rpartition(".")[2] in _SWITCHES_OLD]
    new = [
        node for node, name in names if name.startswith("torch.backends") and name.rpartition(".")[2] in _SWITCHES_NEW
    ]
    if old and new:
        yield (
            old[0].lineno, "warning", "TF32 is switched by the old and by the new interface: torch raises when the "
            "old one is read",
            "use fp32_precision only",
        )  # fmt: skip
    mixed = source.autocasts or source.scalers or any(_is_half(source, site.node) for site in source.calls)
    cuda = [site for site in source.calls if site.method == "cuda" or any(
        isinstance(each, ast.Constant) and str(each.value).startswith("cuda") for each in site.node.args)]  # fmt: skip
    if not old and not new and not mixed and cuda and _trains(source) and source.of("step"):
        yield (
            cuda[0].line, "info", "trains in FP32 on CUDA and says nothing of TF32: off in products, on in "
            "convolutions",
            'torch.backends.fp32_precision = "tf32" for speed, "ieee" for true FP32',
        )  # fmt: skip


def gradients_not_cleared(source: Source) -> Mistakes:
    """backward() and step() in a loop, and gradients are never set to zero."""
    steps = [
        site for site in source.of("step")
        if (not site.node.args and is_optimizer(source, site.owner)) or site.owner in source.scaling
    ]  # fmt: skip
    looped = [site for site in steps if source.repeats(site.node)]
    cleared = source.of("zero_grad", "zero_grad_", "zero_gradients") or any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Store)
        for node in ast.walk(source.tree)
    ) or any(site.owner.endswith(".grad") for site in source.of("zero_", "fill_", "detach_"))  # fmt: skip
    direct = [site for site in source.of("backward") if site.owner and source.repeats(site.node)]
    if looped and direct and not cleared:
        yield (
            looped[0].line,
            "error",
            "gradients are never cleared: each step adds to those before",
            "optimizer.zero_grad()",
        )


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "deprecated-amp": deprecated_amp,
    "fp16-by-hand": low_by_hand,
    "fp16-weights": half_weights,
    "no-scaler": no_scaler,
    "scaler-with-bf16": scaler_with_bf16,
    "mask-beyond-fp16": large_mask,
    "positions-in-16-bits": low_positions,
    "bce-in-autocast": bce_in_autocast,
    "tf32-unawares": tf32,
    "gradients-not-cleared": gradients_not_cleared,
}
