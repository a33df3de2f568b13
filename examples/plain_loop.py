"""The smallest loop that can be recorded: python examples/plain_loop.py RUN.h5"""

from __future__ import annotations

import sys

import torch
from torch import nn

import precgui


def main(path: str, steps: int = 200) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with precgui.Recorder(path, model, optimizer, title="plain loop") as recorder:
        for _ in range(steps):
            inputs = torch.randn(64, 16)
            loss = nn.functional.mse_loss(model(inputs), inputs.square().sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, samples=len(inputs))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "plain.h5")
