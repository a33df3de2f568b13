"""Scripts in which autocast or a cast gives 16 bits to what torch has only in FP32, and scripts that widen before."""

# ruff: noqa: E501

from __future__ import annotations

from tests.lint.loops import LOOP

INVERSE = (
    """
class Homography(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Conv2d(2, 64, 3), torch.nn.ReLU(), torch.nn.Flatten())
        self.head = torch.nn.Linear(2048, 9)
    def forward(self, x):
        return self.head(self.features(x)).view(-1, 3, 3)
def back(image, matrix):
    inverse = torch.inverse(matrix)
    return warp(image, inverse)
def train(model, optimizer, loader, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            matrix = model(x)
            loss = torch.nn.functional.l1_loss(back(x, matrix), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
model = Homography().to(device)
train(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, torch.amp.GradScaler("cuda"))
"""
).replace("\nclass", "\nimport torch\nclass", 1)
WHITENING = """
import torch
class Whitening(torch.nn.Module):
    def forward(self, x):
        x = x - x.mean(0)
        covariance = x.T @ x / x.shape[0]
        factor = torch.linalg.cholesky(covariance)
        return torch.linalg.solve_triangular(factor.float(), x.float().T, upper=False)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Whitening() for _ in range(3)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
net = Net()
for x in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = net(x).mean()
    loss.backward()
"""
PERIODS = """
import torch
LENGTH, HORIZON = 96, 96
def periods(x, k):
    return torch.fft.rfft(x, dim=1).abs().mean(0)
class Block(torch.nn.Module):
    def forward(self, x):
        b, t, n = x.shape
        return x * periods(x, 3).sum()
class Forecaster(torch.nn.Module):
    def __init__(self, channels, width=64):
        super().__init__()
        self.enter = torch.nn.Linear(channels, width)
        self.extend = torch.nn.Linear(LENGTH, LENGTH + HORIZON)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(2)])
    def forward(self, x):
        h = self.extend(self.enter(x).transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            h = block(h)
        return h
model = Forecaster(7)
with torch.autocast("cuda", dtype=torch.float16):
    y = model(x)
"""
LIGHTNING = """
import lightning as L
import torch
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(64, 16)
    def training_step(self, batch, index):
        z = self.encoder(batch)
        gram = torch.bmm(z.unsqueeze(2), z.unsqueeze(1))
        return torch.logdet(gram).mean()
trainer = L.Trainer(precision="16-mixed", accelerator="gpu")
trainer.fit(Net(), loader)
"""

FAULTS: dict[str, list[str]] = {
    "factored-in-16-bits": [
        INVERSE, INVERSE.replace("torch.inverse(matrix)", "matrix.inverse()"), INVERSE.replace("torch.inverse(matrix)", "torch.linalg.inv(matrix)"), INVERSE.replace("torch.inverse(matrix)", "torch.linalg.solve(matrix, eye)"), INVERSE.replace("torch.inverse(matrix)", "torch.det(matrix)"),
        INVERSE.replace("torch.float16", "torch.bfloat16").replace("scaler.scale(loss)", "loss").replace("scaler.step(optimizer)\n        scaler.update()", "optimizer.step()").replace(", scaler)", ")").replace(', torch.amp.GradScaler("cuda"))', ")"),
        INVERSE.replace("def back(image, matrix):", "@torch.compile\ndef back(image, matrix):"), WHITENING, WHITENING.replace("x.T @ x / x.shape[0]", "torch.matmul(x.T, x)"), WHITENING.replace("torch.linalg.cholesky(covariance)", "torch.linalg.eigh(covariance)[1]"),
        LIGHTNING, LIGHTNING.replace("16-mixed", "bf16-mixed"), LIGHTNING.replace("torch.logdet(gram)", "gram.slogdet()[1]"), "import torch\nx = x.half()\ny = torch.linalg.svdvals(x)\n", "import torch\ny = torch.inverse(x.half())\n",
    ],
    "fft-in-16-bits": [
        PERIODS, PERIODS.replace("rfft(x, dim=1)", "fft(x, n=100, dim=1)"), PERIODS.replace("torch.float16", "torch.bfloat16").replace("LENGTH, HORIZON = 96, 96", "LENGTH, HORIZON = 128, 128"), PERIODS.replace("rfft(x, dim=1)", "rfft2(x)").replace("torch.float16", "torch.bfloat16"),
        PERIODS.replace("h = self.extend(self.enter(x).transpose(1, 2)).transpose(1, 2)", "h = self.extend(self.enter(x))").replace("dim=1", "dim=-1"), "import torch\nx = torch.randn(8, 1000).half()\ny = torch.fft.rfft(x)\n",
    ],
}  # fmt: skip
SOUND: dict[str, list[str]] = {
    "factored-in-16-bits": [
        INVERSE.replace("torch.inverse(matrix)", "torch.inverse(matrix.float())"), INVERSE.replace("            loss =", "        with torch.autocast('cuda', enabled=False):\n            loss =").replace("torch.inverse(matrix)", "torch.inverse(matrix.float())"),
        INVERSE.replace("            loss =", "        loss ="), INVERSE.replace('autocast("cuda"', 'autocast("cpu"'), INVERSE.replace("matrix = model(x)", "matrix = other(x)"), INVERSE.replace("def back", "@torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)\ndef back"),
        INVERSE.replace("torch.nn.Linear(2048, 9)", "torch.nn.LayerNorm(9)"), INVERSE.replace("    inverse =", "    with torch.autocast('cuda', enabled=False):\n        matrix = matrix.float()\n    inverse ="), INVERSE.replace("self.head(self.features(x)).view", "self.head(self.features(x)).exp().view"),
        INVERSE.replace("self.head(self.features(x)).view(-1, 3, 3)", "self.head(self.features(x)).view(-1, 3, 3) + torch.eye(3)"), INVERSE.replace("Homography().to(device)", "Homography().double()"), INVERSE.replace("torch.inverse(matrix)", "torch.matrix_exp(matrix)"),
        WHITENING.replace("torch.linalg.cholesky(covariance)", "torch.linalg.cholesky(covariance.float())"), WHITENING.replace("with torch.autocast(\"cuda\", dtype=torch.bfloat16):", "with torch.no_grad():"), WHITENING.replace("x.T @ x / x.shape[0]", "torch.cdist(x, x)"),
        WHITENING.replace("        x = x - x.mean(0)\n", "        x = (x - x.mean(0)).double()\n"), WHITENING.replace("net(x)", "other(x)"), WHITENING.replace("        covariance", "        with torch.autocast('cuda', enabled=False):\n          covariance"),
        LIGHTNING.replace("16-mixed", "32-true"), LIGHTNING.replace('accelerator="gpu"', 'accelerator="cpu"'), LIGHTNING.replace("torch.logdet(gram)", "torch.logdet(gram.float())"), LIGHTNING.replace("training_step", "measure"), LOOP.replace("import torch", "import torch\nm = torch.inverse(k)"),
        "import numpy as np\nx = x.half()\ny = np.linalg.inv(x)\n",
    ],
    "fft-in-16-bits": [
        PERIODS.replace("96, 96", "128, 128"), PERIODS.replace("rfft(x, dim=1)", "rfft(x.float(), dim=1)"), PERIODS.replace("rfft(x, dim=1)", "rfft(x, n=256, dim=1)"), PERIODS.replace("LENGTH + HORIZON)", "length(LENGTH))"), PERIODS.replace("        b, t, n = x.shape\n", ""), PERIODS.replace("b, t, n = x.shape", "b, c, t, n = x.shape"),
        PERIODS.replace("rfft(x, dim=1)", "rfft2(x)"), PERIODS.replace('with torch.autocast("cuda", dtype=torch.float16):', "with torch.no_grad():"), PERIODS.replace("y = model(x)", "with torch.autocast('cuda', enabled=False):\n        y = model(x)"), PERIODS.replace("return torch.fft", "x = x.to(dtype)\n    return torch.fft"),
        "import torch\nx = torch.randn(8, 1024).half()\ny = torch.fft.rfft(x)\n", "import torch\nx = torch.randn(8, 1000)\ny = torch.fft.rfft(x).half()\n",
    ],
}  # fmt: skip
