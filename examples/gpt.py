"""A small GPT on the bytes of a text, in BF16 autocast, recorded: python examples/gpt.py RUN.h5 [TEXT]"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import precgui

LENGTH, WIDTH, HEADS, DEPTH = 64, 128, 4, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norm_a(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_b(x))


class GPT(nn.Module):
    """Bytes [batch, length] to logits [batch, length, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.norm(self.blocks(x)))


def main(path: str, text: Path, steps: int = 200) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with precgui.Recorder(path, model, optimizer, title="GPT on bytes", precision="bf16-amp") as recorder:
        for _ in range(steps):
            starts = torch.randint(len(data) - LENGTH - 1, (16,))
            pieces = torch.stack([data[start : start + LENGTH + 1] for start in starts]).to(device)
            with torch.autocast(device, torch.bfloat16):
                logits = model(pieces[:, :-1])
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), pieces[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            recorder.step(loss, samples=len(pieces))


if __name__ == "__main__":
    here = sys.argv[1] if len(sys.argv) > 1 else "gpt.h5"
    main(here, Path(sys.argv[2] if len(sys.argv) > 2 else __file__))
