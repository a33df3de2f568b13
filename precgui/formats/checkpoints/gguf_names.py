"""Names of tensors in GGUF files and those of the same tensors in models of transformers, of LLaMA's kind and GPT-2.

llama.cpp keeps the rows of queries and keys of LLaMA in another order: the two halves of each head that are turned
together lie side by side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.formats.checkpoints.tensor import CheckpointTensor, Singles

_LAYER = re.compile(r"(?:model|transformer)\.(?:language_model\.)?(?:layers|h)\.(\d+)\.(.+)")
_OF_LAYERS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "ln_1": "attn_norm", "ln_2": "ffn_norm",
}  # fmt: skip
_WHOLE = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
}  # fmt: skip
_TRANSPOSED = re.compile(r"transformer\.h\.\d+\.(?:attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")
_TURNED = re.compile(r"blk\.\d+\.attn_([qk])\.(?:weight|bias)")
TURNED_ARCHITECTURE = "llama"
_ARCHITECTURES = {"mistral": TURNED_ARCHITECTURE}  # of model_type, where the names differ
_VALUES = {
    "context_length": ("max_position_embeddings", "n_positions"), "block_count": ("num_hidden_layers", "n_layer"),
    "embedding_length": ("hidden_size", "n_embd"), "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"), "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",), "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon",), "rope.freq_base": ("rope_theta",),
    "vocab_size": ("vocab_size",),
}  # fmt: skip
_FLOATS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base")


def header_values(config: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The entries of a header of GGUF that a config.json of transformers tells."""
    kind = config.get("model_type")
    architecture = _ARCHITECTURES.get(kind, kind) if isinstance(kind, str) else "unknown"
    values: dict[str, str | int | float] = {"general.architecture": architecture}
    for key, names in _VALUES.items():
        found = next((config[name] for name in names if name in config), None)
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < 1 << 32:
            values[f"{architecture}.{key}"] = float(found) if key in _FLOATS else int(found)
    return values


def gguf_name(name: str) -> str:
    """The name of a tensor of transformers in GGUF; the name itself where it is of another kind."""
    stem, _, end = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{end}"
    match = _LAYER.fullmatch(stem)
    if match is None or match[2] not in _OF_LAYERS:
        return name
    return f"blk.{match[1]}.{_OF_LAYERS[match[2]]}.{end}"


def is_transposed(*names: str) -> bool:
    """Whether one of these names is that of a matrix that GPT-2 keeps as [inputs, outputs]."""
    return any(_TRANSPOSED.fullmatch(name) for name in names)


def heads_of(name: str, values: Mapping[str, Any]) -> int:
    """How many heads the rows of a tensor of GGUF are turned for, by the values of its header; 0 where they are not."""
    match = _TURNED.fullmatch(name)
    if match is None or values.get("general.architecture") != TURNED_ARCHITECTURE:
        return 0
    heads = values.get("llama.attention.head_count")
    kept = values.get("llama.attention.head_count_kv", heads) if match[1] == "k" else heads
    return kept if isinstance(kept, int) and kept > 0 else 0


def turned_rows(rows: int, heads: int) -> NDArray[np.int64]:
    """For each row of GGUF the row of transformers that it is."""
    order = np.arange(rows).reshape(heads, 2, -1)
    turned: NDArray[np.int64] = np.ascontiguousarray(order.swapaxes(1, 2)).reshape(-1)
    return turned


def in_order_of_transformers(tensor: CheckpointTensor, heads: int) -> CheckpointTensor:
    """The tensor with the rows of each head as transformers has them; itself where they do not divide so."""
    if not tensor.shape or tensor.why_not or tensor.shape[0] % (2 * heads):
        return tensor
    line = tensor.size // tensor.shape[0]
    head = tensor.shape[0] // heads * line  # numbers of a head

    def read(start: int, stop: int) -> Singles:
        first, last = start // head * head, -(-stop // head) * head
        turned = tensor.read(first, last).reshape(-1, head // line // 2, 2, line)
        values: Singles = np.ascontiguousarray(turned.swapaxes(1, 2)).reshape(-1)
        return values[start - first : stop - first]

    return replace(tensor, read=read, words=None, doubles=None)
