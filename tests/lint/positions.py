"""Scripts that count positions or round angles in 16 bits, and scripts that keep them in FP32."""

# ruff: noqa: E501

from __future__ import annotations

ROTARY = """
import torch
class Rotary(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2).float() / width)
        self.register_buffer("frequencies", frequencies, persistent=False)
    def forward(self, x):
        t = torch.arange(x.shape[-2], device=x.device).type_as(self.frequencies)
        angles = torch.outer(t, self.frequencies)
        return angles.cos(), angles.sin()
class Attention(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rotary = Rotary(width)
def train(model, batches):
    model = model.to(torch.bfloat16)
    masters = [p.detach().float() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    for x in batches:
        model.zero_grad()
        model(x).float().mean().backward()
        for m, p in zip(masters, model.parameters()):
            m.grad = p.grad.float()
        optimizer.step()
"""
ANGLES = """
import torch
def tables(length, width):
    inverse = 1.0 / 10000 ** (torch.arange(0, width, 2).float() / width)
    angles = torch.outer(torch.arange(length).float(), inverse)
    angles = torch.cat((angles, angles), -1).to(torch.bfloat16)
    return angles.cos(), angles.sin()
"""
IN_AUTOCAST = """
import torch
class Rotary(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("inverse", 1.0 / 10000 ** (torch.arange(0, width, 2).float() / width))
    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)
        angles = positions[:, None].float() @ self.inverse[None]
        return angles.cos(), angles.sin()
model = Model(Rotary(64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in batches:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x)
    loss.backward()
    optimizer.step()
"""
SINGLE = """
import torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.arange(4096).float())
model = Block().half()
"""
FREQUENCIES = ROTARY.replace(".type_as(self.frequencies)", "").replace(
    "torch.outer(t, self.frequencies)", "torch.outer(t.float(), self.frequencies.float())"
)
STEPS = """
import torch
def embedding(t, width):
    frequencies = torch.exp(-9.2 * torch.arange(width // 2, device=t.device) / width)
    angles = t.float()[:, None] * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
class Denoiser(torch.nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.time = torch.nn.Linear(width, width)
    def forward(self, x, timestep):
        return x + self.time(embedding(timestep, 512).to(x.dtype))
dtype = torch.bfloat16
model = Denoiser()
for x in batches:
    sigma = torch.sigmoid(torch.randn(len(x)))
    timestep = (sigma * 1000).to(dtype)
    model(x, timestep).mean().backward()
"""

FAULTS: dict[str, list[str]] = {
    "positions-in-16-bits": [
        ROTARY, ROTARY.replace(".type_as(self.frequencies)", ".to(self.frequencies.dtype)"), ROTARY.replace("device=x.device).type_as(self.frequencies)", "device=x.device, dtype=self.frequencies.dtype)"),
        ROTARY.replace("torch.bfloat16", "torch.float16").replace("t = torch.arange(x.shape[-2], device=x.device)", "t = torch.arange(x.shape[-2], device=x.device)[None]"),
        SINGLE, SINGLE.replace(".float()", "").replace("4096", "4096, dtype=torch.float32"), "import torch\nplaces = torch.arange(4096)[:, None].to(torch.bfloat16)\n", "import torch\ntimesteps = torch.randint(0, scheduler.config.num_train_timesteps, (8,))\ny = net(x, timesteps.bfloat16())\n", "import torch\nplaces = torch.arange(n).unsqueeze(0).expand(4, -1).bfloat16()\n",
        "import torch\nx = x.half()\nplaces = torch.arange(8192, dtype=x.dtype)\n", "import torch\ny = y.to(torch.bfloat16)\nplaces = torch.arange(n)\nplaces = places.view(-1, 1).type_as(y)\n",
    ],
    "frequencies-in-16-bits": [
        FREQUENCIES, FREQUENCIES.replace("torch.bfloat16", "torch.float16"), FREQUENCIES.replace("torch.outer(t.float(), self.frequencies.float())", "t[:, None].float() * self.frequencies.float()[None]"),
        FREQUENCIES.replace("1.0 / 10000 ** (torch.arange(0, width, 2).float() / width)", "torch.exp(torch.arange(0, width, 2).float() * (-9.2 / width))"), FREQUENCIES.replace("x.shape[-2]", "4096"), FREQUENCIES.replace("t.float(), self.frequencies.float()", "t, self.frequencies"),
        FREQUENCIES.replace("def train(model, batches):\n    model =", "model = Attention(64).to(device)\nmodel = model.to(torch.bfloat16)\ndef train(model, batches):\n    model ="),
    ],
    "angles-in-16-bits": [
        STEPS, STEPS.replace("sigma * 1000", "1000.0 * sigma"), STEPS.replace("torch.sigmoid(torch.randn(len(x)))", "torch.rand(len(x))"), STEPS.replace("(sigma * 1000).to(dtype)", "sigma * steps").replace("dtype =", "steps = 1000\ndtype =").replace("model(x, timestep)", "model(x, timestep.bfloat16())"),
        ANGLES, ANGLES.replace("torch.bfloat16", "torch.float16"), ANGLES.replace("torch.cat((angles, angles), -1).to(torch.bfloat16)", "angles.bfloat16().repeat(1, 2)"), ANGLES.replace("    return", "    angles = angles.float()\n    return"),
        ANGLES.replace("torch.outer(torch.arange(length).float(), inverse)", "torch.arange(length)[:, None] * inverse"), IN_AUTOCAST, IN_AUTOCAST.replace("positions[:, None].float() @ self.inverse[None]", "torch.matmul(positions[:, None].float(), self.inverse[None])"),
        "import torch\ndef embedding(timesteps, width):\n    frequencies = torch.exp(-9.2 * torch.arange(0, width // 2) / width)\n    angles = (timesteps[:, None] * frequencies[None]).half()\n    return torch.cat([torch.cos(angles), torch.sin(angles)], -1)\n",
    ],
}  # fmt: skip
SOUND: dict[str, list[str]] = {
    "positions-in-16-bits": [
        ROTARY.replace(".type_as(self.frequencies)", ".float()"), ROTARY.replace("model = model.to(torch.bfloat16)", "model = model.cuda()"), ROTARY.replace("def train", "rotary = Rotary(64)\ndef train"), ROTARY.replace(".type_as(self.frequencies)", ".type_as(x)"),
        # Tables that are made with the module, before the model is cast.
        ROTARY.replace("    def forward(self, x):", "        self.fill(8192)\n    def fill(self, n):").replace("x.shape[-2], device=x.device", "n"),
        ROTARY.replace("persistent=False)\n", "persistent=False)\n        t = torch.arange(8192).type_as(self.frequencies)\n").replace("device=x.device).type_as(self.frequencies)", "device=x.device).float()"),
        SINGLE.replace(".float()", ""), SINGLE.replace(".half()", ""), SINGLE.replace("4096", "1024"), SINGLE.replace("arange(4096).float()", "arange(4096).float().div(4096)"), "import torch\nslopes = torch.arange(num_heads).to(torch.bfloat16)\n",
        "import torch\nsize = 1\nwhile room(size):\n    grid = torch.arange(-size, size).to(torch.float16)\n    size += 1\n", "import torch\ntimesteps = torch.randint(0, scheduler.config.num_train_timesteps, (8,))\nreference(x.half(), timesteps.half())\n",
        "import torch\nplaces = torch.arange(4096)[:, 1:].to(x.dtype)\n", "import torch\nplaces = (torch.arange(4096) / 4096).to(torch.bfloat16)\n", "import torch\nx = x.half()\nplaces = torch.arange(1024, dtype=x.dtype)\n",
        "import torch\nplaces = torch.arange(4096)\nplaces = places[:128].bfloat16()\n", "import torch\nE, M = 9, 16\nscale = torch.arange(1, E * M + 1, dtype=torch.bfloat16)\n",
        "import torch\ndef rows(n):\n    assert n <= 2048\n    return torch.arange(n, dtype=torch.float16)\n",
    ],
    "frequencies-in-16-bits": [
        FREQUENCIES.replace("model = model.to(torch.bfloat16)", "model = model.cuda()"), FREQUENCIES.replace("torch.bfloat16", "dtype"), FREQUENCIES.replace("x.shape[-2]", "128"), FREQUENCIES.replace("torch.arange(x.shape[-2]", "torch.arange(height"),
        FREQUENCIES.replace("    def forward", "    def _apply(self, change):\n        return self\n    def forward"), FREQUENCIES.replace("        t = ", "        self.frequencies = make(x.device)\n        t = "), FREQUENCIES.replace("1.0 / 10000 ** (torch.arange(0, width, 2).float() / width)", "torch.linspace(0, 1, width)"),
        FREQUENCIES.replace("frequencies = 1.0", "angles = 1.0").replace("persistent=False)", "persistent=False)", 1).replace('self.register_buffer("frequencies", frequencies,', 'self.register_buffer("frequencies", angles.cos(),'), FREQUENCIES.replace("def train", "rotary = Rotary(64)\ndef train"), ROTARY,
    ],
    "angles-in-16-bits": [
        STEPS.replace(".to(dtype)", ""), STEPS.replace("torch.bfloat16", "torch.float32"), STEPS.replace("torch.bfloat16", "torch.float16"), STEPS.replace("1000", "1"), STEPS.replace("timestep = (sigma * 1000).to(dtype)", "noisy = (sigma * 1000).to(dtype)\n    timestep = sigma * 1000"), STEPS.replace("model(x, timestep)", "other(x, timestep)"),
        ANGLES.replace(".to(torch.bfloat16)", "").replace("angles.cos(), angles.sin()", "angles.cos().bfloat16(), angles.sin().bfloat16()"), ANGLES.replace(".to(torch.bfloat16)", ".to(dtype)"), ANGLES.replace("torch.bfloat16", "torch.float32"),
        IN_AUTOCAST.replace("@ self.inverse", "* self.inverse"), IN_AUTOCAST.replace("        angles", "        with torch.autocast('cuda', enabled=False):\n            angles"), IN_AUTOCAST.replace("    def forward", "    @torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)\n    def forward"),
        IN_AUTOCAST.replace("dtype=torch.bfloat16", "enabled=False"), "import torch\ny = torch.sin(torch.arange(0, 10, 0.1).half())\n", "import torch\nx = x.half()\ny = torch.sin(x * 30)\n", "import torch\nhour = (2 * 3.14159 * torch.arange(24) / 24).half()\ny = hour.cos()\n",
    ],
}  # fmt: skip
