"""Networks for sequences of bytes: a decoder-only transformer and an LSTM."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_GPT_DEPTH_WIDTH_HEADS = {"small": (2, 128, 4), "medium": (6, 384, 6), "large": (12, 832, 13)}
_LSTM_LAYERS_WIDTH = {"small": (1, 192), "medium": (2, 512), "large": (3, 1536)}
VOCABULARY = 256


class Attention(nn.Module):
    """Multi-head self-attention on [batch, length, width]."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and added to its input (GPT-2)."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.activation = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.activation(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Bytes [batch, length] to logits of the next byte [batch, length, 256]; large has 100 million parameters."""

    def __init__(self, size: str, longest: int) -> None:
        super().__init__()
        depth, width, heads = _GPT_DEPTH_WIDTH_HEADS[size]
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self._initialise(depth)

    def _initialise(self, depth: int) -> None:
        """Normal weights of standard deviation 0.02, smaller where a block adds to its input (Radford et al. 2019)."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                adds = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * depth) ** 0.5 if adds else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(places)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def language_model(name: str, size: str, longest: int) -> nn.Module:
    """`gpt` or `lstm` for sequences of at most `longest` bytes."""
    return Lstm(size) if name == "lstm" else Gpt(size, longest)


class Lstm(nn.Module):
    """Bytes [batch, length] to logits of the next byte [batch, length, 256]."""

    def __init__(self, size: str) -> None:
        super().__init__()
        layers, width = _LSTM_LAYERS_WIDTH[size]
        self.token = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.token(tokens))
        logits: Tensor = self.head(hidden)
        return logits
