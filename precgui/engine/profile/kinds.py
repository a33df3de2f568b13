"""The kind of work of each operation that the profiler names."""

from __future__ import annotations

import functools
import re

from precgui.engine.torch_private import aten_names
from precgui.sentences import L_

PRODUCT, CONVOLUTION, ATTENTION, RECURRENT = L_("product"), L_("convolution"), L_("attention"), L_("recurrent")
NORMALISATION, ELEMENTWISE, CAST, COPY = L_("normalisation"), L_("element-wise"), L_("cast"), L_("copy")
OPTIMIZER, DATA, DISPATCH, FUSED = L_("optimizer"), L_("data"), L_("dispatch"), L_("fused")
MULTIPLIED = (PRODUCT, CONVOLUTION, ATTENTION, RECURRENT)  # the work that a format's peak is about

_PRODUCTS = re.compile(
    r"(add)?(mm|bmm|mv|baddbmm)_?|addbmm|_?scaled_mm\w*|_int_mm|mkldnn_linear\w*|_addmm_activation|einsum"
)
_CONVOLUTIONS = re.compile(r"convolution\w*|_?convolution_\w*|mkldnn_convolution\w*|cudnn_convolution\w*|_slow_conv\w*")
_ATTENTION = re.compile(r"_scaled_dot_product\w+|_(flash|efficient)_attention\w*")
_RECURRENT = re.compile(r"mkldnn_rnn_layer\w*|_cudnn_rnn\w*|_thnn_fused_\w+_cell\w*|lstm_cell|gru_cell")
_NORMS = re.compile(r"(native|cudnn|miopen|_fused)_?\w*norm\w*|_batch_norm_with_update\w*|\w+_norm_backward")
_COPIES = re.compile(r"copy_|clone|contiguous|cat|stack|_cat|resize_|_copy_from\w*|_pin_memory|_foreach_copy_")
_DISPATCH = re.compile(
    r"empty\w*|new_empty\w*|as_strided\w*|view\w*|_unsafe_view|reshape\w*|_reshape_alias|t|transpose|permute|expand|"
    r"squeeze|unsqueeze|select|slice|detach_?|alias|lift_fresh|unbind|split\w*|chunk|flatten|narrow|unfold|numpy_T|"
    r"resolve_(conj|neg)|is_\w+|item|_local_scalar_dense|result_type|to|set_|record_stream|linear|matmul|conv\dd|"
    r"layer_norm|batch_norm|_batch_norm_impl_index\w*|scaled_dot_product_attention|_fused_sdp_choice|lstm|gru|"
    r"cross_entropy_loss|nll_loss\w*_nd|pad|accumulate_grad|broadcast_tensors|expand_as|type_as|meshgrid|movedim"
)


def kind_of(name: str, *, converts: bool = False) -> str | None:
    """The kind of an operation of ATen by its name without the name space; None where its parts are listed instead.

    `converts`: a copy from one format to another.
    """
    if name in ("_to_copy", "copy_") and converts:
        return CAST
    for pattern, kind in (
        (_PRODUCTS, PRODUCT),
        (_CONVOLUTIONS, CONVOLUTION),
        (_ATTENTION, ATTENTION),
        (_RECURRENT, RECURRENT),
        (_NORMS, NORMALISATION),
        (_COPIES, COPY),
    ):
        if pattern.fullmatch(name):
            return kind
    return None if _DISPATCH.fullmatch(name) or name == "_to_copy" else ELEMENTWISE


# Names that Inductor gives: `graph_3_cpp_fused_add_native_layer_norm_0`, `triton_poi_fused_gelu_2`.
_FUSED = re.compile(r"(?:graph_\d+_)?(?:cpp_fused|triton_[a-z]+_fused)(?:_(?P<operations>\w+?))?_\d+")


@functools.cache
def fused_operations(kernel: str) -> tuple[str, ...] | None:
    """The operations of ATen that a kernel of torch.compile holds, from its name; None for any other kernel.

    Inductor joins their names by "_", which is also inside of names: of all ways to read them, that with the fewest
    names, then the first. Long lists are cut off by Inductor; the cut name stands as it is.
    """
    match = _FUSED.fullmatch(kernel)
    return None if match is None else _fewest_names([word for word in (match["operations"] or "").split("_") if word])


def _fewest_names(words: list[str]) -> tuple[str, ...]:
    known = _names()
    best: list[tuple[int, tuple[str, ...]]] = [(0, ())]  # for the first n words: (unknown names, names)
    for end in range(1, len(words) + 1):
        options = []
        for start in range(end):
            name = "_".join(words[start:end])
            if name in known or end - start == 1:
                unknown, names = best[start]
                options.append((unknown + (name not in known), (*names, name)))
        best.append(min(options, key=lambda option: (option[0], len(option[1]))))
    return best[-1][1]


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(name.strip("_") for name in aten_names())


# Names of CUDA kernels that run on tensor cores: the instruction is in the name, but for cuBLAS from Hopper on.
_TENSOR_CORES = re.compile(
    r"s1688|s16816|s161616|s884|h884|h1688|h16816|i8816|i16832|imma|hmma|qmma|tensorop|gmma|tcgen05|wgmma|_mma_|"
    r"tf32f32|bf16bf16|f16f16|e4m3|e5m2|nvjet|flash_fwd|flash_bwd|fmha",
    re.IGNORECASE,
)
_SIMT = re.compile(r"simt|sgemm|dgemm|ffma", re.IGNORECASE)


def uses_tensor_cores(kernel: str) -> bool | None:
    """Whether a CUDA kernel used tensor cores, by its name; None where the name does not show it."""
    if _TENSOR_CORES.search(kernel):
        return True
    return False if _SIMT.search(kernel) else None
