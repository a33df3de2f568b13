"""Methods and functions of tensors and models by what they keep of their operand."""

from __future__ import annotations

CASTS = {"half": "fp16", "bfloat16": "bf16", "float": "fp32", "double": "fp64"}
CONVERSIONS = frozenset({*CASTS, "to", "type"})
SAME_TENSOR = frozenset({"detach", "contiguous", "requires_grad_"})
SAME_OBJECT = SAME_TENSOR | {"cuda", "cpu", "eval", "train", "clone", "to", "type"}  # a model, too
SAME_VALUES = SAME_OBJECT | CONVERSIONS | {
    "squeeze", "unsqueeze", "view", "reshape", "gather", "flatten", "transpose", "permute", "t",
}  # fmt: skip
SAME_FORMAT = (SAME_VALUES - CONVERSIONS) | {
    "abs", "sum", "mean", "var", "std", "pow", "square", "sqrt", "exp", "clamp", "norm", "amax", "amin", "relu",
}  # fmt: skip
SAME_SHAPE = SAME_TENSOR | CONVERSIONS | {
    "relu", "sigmoid", "tanh", "softplus", "exp", "abs", "clamp", "cuda", "cpu", "clone", "sqrt", "sin", "cos",
    "square", "log",
}  # fmt: skip
SAME_DEVICE = SAME_TENSOR | CONVERSIONS | {"t"}
FP32_IN_AUTOCAST = frozenset({"sum", "pow", "square", "exp", "norm"})  # on CUDA, of SAME_FORMAT
PRODUCTS = frozenset({"matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "linear"})
