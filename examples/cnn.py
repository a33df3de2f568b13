"""A CNN in FP16 with loss scaling on images made up on the spot, recorded: python examples/cnn.py RUN.h5"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import precgui


def images(count: int) -> tuple[Tensor, Tensor]:
    """Noise with a bright square in one of four corners, and which one: [count, 1, 16, 16] and [count]."""
    pictures, corners = 0.5 * torch.randn(count, 1, 16, 16), torch.randint(4, (count,))
    for picture, corner in zip(pictures, corners.tolist(), strict=True):
        top, left = 8 * (corner // 2), 8 * (corner % 2)
        picture[:, top + 2 : top + 6, left + 2 : left + 6] += 1
    return pictures, corners


def main(path: str, steps: int = 150) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 4),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device)
    with precgui.Recorder(path, model, optimizer, scaler, title="CNN in FP16", total_steps=steps) as recorder:
        for _ in range(steps):
            inputs, targets = (part.to(device) for part in images(32))
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.float(), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            recorder.step(loss, samples=len(inputs))
        with torch.no_grad():
            inputs, targets = (part.to(device) for part in images(256))
            logits = model.eval()(inputs)
            recorder.evaluated(
                float(nn.functional.cross_entropy(logits, targets)), float((logits.argmax(1) == targets).float().mean())
            )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cnn.h5")
