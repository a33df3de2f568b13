"""The parts of an exported script that depend on the precision: definitions, lines after the model, casts, the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from precgui.config import EMULATED, PrecisionOptions, RunConfig
from precgui.config.precision_traits import traits
from precgui.engine.emulation.functional import rounds_everywhere
from precgui.engine.export.source import ScriptSource
from precgui.formats.model import FloatFormat
from precgui.formats.registry import blocks, get

_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


@dataclass
class ScriptParts:
    """Source of the parts in which precisions differ; lines are those of the main function."""

    tf32: bool = False
    after_model: list[str] = field(default_factory=list)
    weights: str = "[parameter for parameter in model.parameters() if parameter.requires_grad]"
    cast: str = ""
    storage: str = "torch.float32"  # dtype of floating-point inputs
    targets: str = "torch.float32"  # dtype of floating-point targets and of what the loss sees
    per_batch: list[str] = field(default_factory=list)
    before_unscale: list[str] = field(default_factory=list)
    after_step: list[str] = field(default_factory=list)
    after_step_taken: list[str] = field(default_factory=list)
    begin_epoch: list[str] = field(default_factory=list)  # after model.train()
    at_end: list[str] = field(default_factory=list)
    scaler: str = "torch.amp.GradScaler"
    tables: dict[str, str] = field(default_factory=dict)


def pieces(config: RunConfig, device: str, notes: str, source: ScriptSource) -> ScriptParts:
    """The parts for the precision of `config`, as it ran on `device`; definitions go to `source`."""
    family, _, _ = config.precision.partition(":")
    build = _BUILDERS.get(family, _low)
    return build(_Context(config, device.partition(":")[0], notes, source))


@dataclass(frozen=True)
class _Context:
    config: RunConfig
    device: str
    notes: str  # what the run said about itself: emulated or native
    source: ScriptSource

    @property
    def options(self) -> PrecisionOptions:
        return self.config.precision_options

    def keep(self, returns: str) -> list[str]:
        """Lines that put the kept modules back to FP32."""
        if not self.options.keep_fp32:
            return []
        self.source.take("precisions.fp32_modules", "run_in_fp32")
        return ["for name in KEPT:", f"    run_in_fp32(model.get_submodule(name), device.type, {returns})"]

    def emulate(self, products: str, *, recurrent: bool) -> list[str]:
        """Lines that turn every layer but the kept ones."""
        self.source.take("emulation.layers", "MatmulArithmetic", "emulate_products", "layers")
        lines = ["def products(name: str) -> MatmulArithmetic:", f"    return {products}", ""]
        left_out = "{inner for name in KEPT for inner in model.get_submodule(name).modules()}"
        lines += [f"left_out: set[nn.Module] = {left_out if self.options.keep_fp32 else 'set()'}"]
        lines += ["emulate_products(layers(model, left_out), products)"]
        if recurrent:
            self.source.take("emulation.recurrent", "emulate_recurrent", "recurrent_layers")
            lines += ["emulate_recurrent(recurrent_layers(model, left_out), products)"]
        return ["", *lines]

    def emulate_everywhere(self, made: ScriptParts, products: str) -> list[str]:
        """Lines that turn layers, and the rest where the run rounded that, too."""
        if not rounds_everywhere(self.config):
            return self.emulate(products, recurrent=False)
        self.source.take("emulation.functional", "FUNCTIONAL", "FunctionalRoundingMode", "leave_alone")
        made.cast = "FunctionalRoundingMode(functional)"
        kept = ["for name in KEPT:", "    leave_alone(model.get_submodule(name))"] * bool(self.options.keep_fp32)
        return [*self.emulate(products, recurrent=True), *kept, "functional = products(FUNCTIONAL)"]


def _full(context: _Context) -> ScriptParts:
    if context.config.precision == "fp64":
        context.source.take("casting", "cast_floats")
        return ScriptParts(after_model=["model.double()"], storage="torch.float64", targets="torch.float64")
    if context.config.precision == "fp32" or "TF32 is emulated" not in context.notes:
        return ScriptParts(tf32=context.config.precision == "tf32")
    made = ScriptParts(tf32=True)
    context.source.take("emulation.operands", "FormatCast")
    _add_format(context.source, made, "tf32")
    lines = context.emulate_everywhere(made, 'MatmulArithmetic("tf32", to_tf32, to_tf32, to_tf32)')
    made.after_model = ['to_tf32 = FormatCast("tf32")', *lines]
    return made


def _amp(context: _Context) -> ScriptParts:
    dtype = _DTYPES[traits(context.config.precision).operand]
    lines = _fp16_layers(context) if dtype == "torch.float16" else []
    cast = f"torch.autocast(device.type, dtype={dtype})"
    if lines:
        context.source.take("emulation.fp16_on_cpu", "Fp16ProductMode")
        cast = f"{cast}, Fp16ProductMode()"
    return ScriptParts(after_model=[*lines, *context.keep("None")], cast=cast)


def _fp16_layers(context: _Context) -> list[str]:
    if context.device != "cpu":
        return []
    context.source.take("emulation.operands", "TorchCast")
    made = 'MatmulArithmetic("fp16", to_fp16, to_fp16, to_fp16, result=to_fp16, bias=to_fp16)'
    return ["# Rounded to FP16, multiplied in FP32: CPUs have no fast FP16 training kernels.",
            "to_fp16 = TorchCast(torch.float16)", *context.emulate(made, recurrent=True)]  # fmt: skip


def _pure(context: _Context) -> ScriptParts:
    name = context.config.precision
    dtype = _DTYPES[traits(name).storage]
    context.source.take("casting", "cast_floats")
    lines = _fp16_layers(context) if name == "fp16-pure" else []
    made = ScriptParts(after_model=[*lines, f"model.to({dtype})", *context.keep(dtype)], storage=dtype)
    if name == "fp16-pure":
        context.source.take("precisions.pure", "_FP16Scaler")
        made.scaler = "_FP16Scaler"
        if lines:
            context.source.take("emulation.fp16_on_cpu", "Fp16ProductMode")
            made.cast = "Fp16ProductMode()"
    if name == "bf16-sr" or context.options.master_weights:
        _masters(context, made)
    return made


def _masters(context: _Context, made: ScriptParts) -> None:
    context.source.take("precisions.master_weights", "MasterWeights")
    trained, more = made.weights, ""
    if context.config.precision == "bf16-sr":
        context.source.take("emulation.operands", "BatchSeed")
        context.source.take("quantize.torch_form", "quantize")
        _add_format(context.source, made, "bf16")
        made.after_model += [
            "clock = BatchSeed(SEED)",
            "",
            "def write_back(weight: Tensor, place: int) -> Tensor:",
            '    return quantize(weight, "bf16", rounding="stochastic", seed=clock.draw(f"weight {place}"))',
            "",
        ]
        made.after_step.append("clock.tick += 1")
        more = ", kept=False, write_back=write_back"
    made.after_model.append(f"masters = MasterWeights({trained}{more})")
    made.weights = "masters.parameters"
    made.before_unscale.append("masters.take_gradients()")
    made.after_step.append("masters.give_weights()")


def _low(context: _Context) -> ScriptParts:
    made = ScriptParts(per_batch=["clock.tick += 1"])
    context.source.take(
        "emulation.operands", "BatchSeed", "RoundingSpec", "Identity", "FormatCast", "BlockCast", "ScaledCast"
    )
    roles = [_operand(context, made, role) for role in ("weight", "activation", "gradient")]
    accumulator = _accumulator(context, made)
    lines = ["clock = BatchSeed(SEED)", f'mode = "{context.options.rounding}"']
    if "FP8 is native" in context.notes:
        context.source.take("emulation.native_fp8", "fits", "use_native")
        scales = ", ".join(f"({_scale(context, role)})" for role in ("activation", "weight", "gradient"))
        lines += [
            "for layer in model.modules():",
            "    if fits(layer):",
            f"        use_native(layer, Scales({scales}))",
        ]
    operands = [f"    {part}," for part in (f'"{context.config.precision}"', *roles)]
    arguments = ["MatmulArithmetic(", *(f"    {line}" for line in operands), *accumulator, "    )"]
    lines += context.emulate_everywhere(made, "\n".join(arguments))
    made.after_model = lines
    if context.options.updates:
        stored = _round(context, made, context.options.updates, 'f"{name}.stored"')
        kept = "{p for name in KEPT for p in model.get_submodule(name).parameters()}"
        made.after_model += [
            "stored = [",
            f"    (p, {stored})",
            "    for name, p in model.named_parameters()",
            *(["    if p not in kept"] if context.options.keep_fp32 else []),
            "]",
            "store(stored)",
        ]
        if context.options.keep_fp32:
            made.after_model.insert(-7, f"kept = {kept}")
        made.after_step_taken.append("store(stored)")
    return made


def _formats(config: RunConfig, role: str) -> str:
    if not config.precision.startswith(EMULATED):
        formats = traits(config.precision)
        return formats.gradient_operand if role == "gradient" else formats.operand
    chosen = {"weight": "weights", "activation": "activations", "gradient": "gradients"}[role]
    own: str | None = getattr(config.precision_options, chosen)
    return own or config.precision.removeprefix(EMULATED)


def _operand(context: _Context, made: ScriptParts, role: str) -> str:
    name, place = _formats(context.config, role), f'f"{{name}}.{role}"'
    if context.config.precision == "fp8":
        _add_format(context.source, made, name)
        return f'ScaledCast("{name}", RoundingSpec(mode, clock, {place}), {_scale(context, role)})'
    return _round(context, made, name, place)


def _scale(context: _Context, role: str) -> str:
    options = context.options
    history = options.fp8_history if options.fp8_amax == "delayed" else 0
    fmt = get(_formats(context.config, role))
    assert isinstance(fmt, FloatFormat)
    return f"AmaxScale({float(fmt.max_finite)}, clock, rowwise={options.fp8_scaling == 'rowwise'}, history={history})"


def _round(context: _Context, made: ScriptParts, name: str, place: str) -> str:
    """An expression that makes the rounding to a format, as `precisions.low` makes it."""
    rounding = f"RoundingSpec(mode, clock, {place})"
    if name == "fp32":
        return "Identity()"
    if name in blocks():
        block = blocks()[name]
        context.source.take("formats.model", "BlockFormat")
        made.tables[f"BLOCKS[{name!r}]"] = repr(block)
        _add_format(context.source, made, block.element)
        if block.two_level:
            _add_format(context.source, made, block.scale)
        return f'BlockCast("{name}", {rounding}, "{context.options.scale_rule}")'
    _add_format(context.source, made, name)
    fmt = get(name)
    if isinstance(fmt, FloatFormat):
        return f'FormatCast("{name}", {rounding})'
    return f'ScaledCast("{name}", {rounding}, AmaxScale({float(fmt.value(fmt.max_ordinal))}, clock))'


def _accumulator(context: _Context, made: ScriptParts) -> list[str]:
    name = context.options.accumulator
    if name is None:
        return []
    rounding = _round(context, made, name, 'f"{name}.sum"')
    return [f"        accumulator=Accumulator(partial({rounding}, axis=-1), {context.options.accumulator_block}),"]


def _add_format(source: ScriptSource, made: ScriptParts, name: str) -> None:
    fmt = get(name)
    source.take("formats.model", type(fmt).__name__)
    made.tables[f"FORMATS[{name!r}]"] = repr(fmt)


_BUILDERS: dict[str, Callable[[_Context], ScriptParts]] = {
    **dict.fromkeys(("fp64", "fp32", "tf32"), _full),
    **dict.fromkeys(("bf16-amp", "fp16-amp"), _amp),
    **dict.fromkeys(("bf16-pure", "fp16-pure", "bf16-sr"), _pure),
}
