"""Scripts in which a value overflows, wraps around or has no finite slope, and scripts that avoid it."""

# ruff: noqa: E501

from __future__ import annotations

MASKED = """
import torch
class Pool(torch.nn.Module):
    def forward(self, x, padding):
        with torch.autocast("cuda", enabled=False):
            scores = self.score(x.float()).squeeze(-1)
            scores = scores.masked_fill(padding, -1e9)
            return scores.softmax(-1)
def train(pool, head, loader, optimizer, scaler):
    for x, padding, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(head(pool(x, padding)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
MASKED_AFTER = """
import torch
def train(net, loader, optimizer, scaler):
    for x, padding, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            scores = net(x)
        scores = scores.float()
        scores = scores.masked_fill(padding, -1e9)
        loss = torch.nn.functional.cross_entropy(scores, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
IN_A_FUNCTION = """
import torch
def loss_of(scores, padding, y):
    scores = scores.masked_fill(padding, -1e9)
    return torch.nn.functional.cross_entropy(scores, y)
def train(net, loader, optimizer, scaler):
    for x, padding, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            scores = net(x)
        loss = loss_of(scores.float(), padding, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
FAULTS: dict[str, list[str]] = {
    "mask-beyond-fp16": [
        MASKED.replace(", enabled=False", ", torch.float16"), MASKED_AFTER.replace("        scores = scores.float()\n", ""),
        MASKED.replace("            scores = self.score(x.float()).squeeze(-1)\n", "").replace("        with torch.autocast(\"cuda\", enabled=False):\n",
                       "        with torch.autocast(\"cuda\", torch.float16):\n            scores = self.score(x.float())\n        with torch.autocast(\"cuda\", enabled=False):\n"),
        IN_A_FUNCTION.replace("scores.float()", "scores"),
        IN_A_FUNCTION.replace("        loss = ", "            loss = ").replace("scores.float()", "scores"),
        MASKED_AFTER.replace("scores = scores.float()", "scores = scores @ scores.float().T").replace("        scores = scores", "            scores = scores"),
    ],
}  # fmt: skip
SOUND: dict[str, list[str]] = {
    "mask-beyond-fp16": [
        MASKED, MASKED_AFTER, IN_A_FUNCTION,
        MASKED.replace("enabled=False", "torch.float16").replace("self.score(x.float()).squeeze(-1)", "self.score(x).float().squeeze(-1)"),
        MASKED_AFTER.replace("scores = scores.float()\n", "scores = scores.to(torch.float32) / 8\n"),
        MASKED_AFTER.replace("        scores = scores", "            scores = scores"),
        MASKED_AFTER.replace("        scores = scores.float()\n", "").replace("scores.masked_fill(padding", "torch.zeros(4, 4).masked_fill(padding"),
        MASKED_AFTER.replace("        scores = scores.float()\n", "").replace("scores = scores.masked_fill(padding", "scores = torch.masked_fill(scores.float(), padding"),
        MASKED_AFTER.replace("-1e9", "float('-inf')"),
    ],
}  # fmt: skip
