"""Scripts that keep moving averages of weights in 16 bits, and scripts that keep them in FP32."""

# ruff: noqa: E501

from __future__ import annotations

IN_CLASS = """
import copy
import torch
class Average:
    def __init__(self, model, decay=0.9999, warm_up=100):
        self.decay, self.steps = decay, 0
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.model.to(dtype=torch.bfloat16)
    @torch.no_grad()
    def update(self, model):
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for old, new in zip(self.model.parameters(), model.parameters()):
            old.mul_(decay).add_(new.to(old.dtype), alpha=1 - decay)
average = Average(net)
"""
IN_FUNCTION = """
import copy
import torch
@torch.no_grad()
def follow(target, online, decay=0.9995):
    old, new = dict(target.named_parameters()), dict(online.named_parameters())
    for name, p in new.items():
        old[name].mul_(decay).add_(p.data, alpha=1 - decay)
net = Net().cuda()
target = copy.deepcopy(net).half()
follow(target, net, decay=0)
for x in batches:
    train(net, x)
    follow(target, net)
"""
OF_PAIRS = """
import copy
import torch
net = Net().cuda()
slow = copy.deepcopy(net).to(torch.bfloat16)
for x in batches:
    train(net, x)
    with torch.no_grad():
        for (name, old), (_, new) in zip(slow.named_parameters(), net.named_parameters()):
            old.data = 0.999 * old.data + 0.001 * new.data
"""
RISING = """
import copy
import torch
class Average(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net_ema = copy.deepcopy(net).half()
    def update(self, net, decay):
        with torch.no_grad():
            for old, new in zip(self.net_ema.state_dict().values(), net.state_dict().values()):
                old.mul_(decay).add_(new.detach().mul(1 - decay))
average = Average(net)
for x in batches:
    train(net, x)
    average.update(net, decay=settings.decay)
"""
LIBRARY = """
import torch
from diffusers.training_utils import EMAModel
unet = UNet2DConditionModel(config)
ema = EMAModel(unet.parameters(), decay=0.9999, model_cls=UNet2DConditionModel)
ema.to("cuda", dtype=torch.bfloat16)
for x in batches:
    train(unet, x)
    ema.step(unet.parameters())
"""
WHOLE = """
import torch
from timm.utils import ModelEmaV2
model = Net().cuda().half()
ema = ModelEmaV2(model, decay=0.9998)
for x in batches:
    train(model, x)
    ema.update(model)
"""

FAULTS: dict[str, list[str]] = {
    "average-in-16-bits": [
        IN_CLASS, IN_CLASS.replace("bfloat16", "float16"), IN_CLASS.replace("self.model.to(dtype=torch.bfloat16)", "self.model.half()"), IN_CLASS.replace("decay = min(self.decay, (1 + self.steps) / (10 + self.steps))", "decay = self.decay"),
        IN_CLASS.replace("mul_(decay).add_(new.to(old.dtype), alpha=1 - decay)", "lerp_(new.to(old.dtype), 1 - decay)"), IN_CLASS.replace("mul_(decay).add_(new.to(old.dtype), alpha=1 - decay)", "mul_(decay).add_((1 - decay) * new.to(old.dtype))"),
        IN_CLASS.replace("mul_(decay).add_(new.to(old.dtype), alpha=1 - decay)", "copy_(decay * old + (1.0 - decay) * new)"), IN_CLASS.replace("old.mul_(decay).add_(new.to(old.dtype), alpha=1 - decay)", "old.mul_(decay)\n            old.add_(new.to(old.dtype), alpha=1 - decay)"),
        IN_CLASS.replace("        self.model.to(dtype=torch.bfloat16)\n", "").replace("average = Average(net)", "net = Net().half()\naverage = Average(net)"),
        IN_CLASS.replace("        for old, new in zip(self.model.parameters(), model.parameters()):\n            old.mul_(decay).add_(new.to(old.dtype), alpha=1 - decay)", "        state = model.state_dict()\n        for name, old in self.model.state_dict().items():\n            old.lerp_(state[name].to(old.dtype), 1 - decay)"),
        IN_FUNCTION, IN_FUNCTION.replace("target = copy.deepcopy(net).half()", "target = Net()\ntarget.load_state_dict(net.state_dict())\ntarget.cuda().bfloat16()"), OF_PAIRS, OF_PAIRS.replace("old.data = 0.999 * old.data", "old.data.copy_(0.999 * old.data").replace("new.data\n", "new.data)\n"),
        RISING, RISING.replace("settings.decay", "0.9995"), LIBRARY, LIBRARY.replace("bfloat16", "float16"), LIBRARY.replace('ema.to("cuda", dtype=torch.bfloat16)\n', "").replace("config)", "config).bfloat16()"), LIBRARY.replace(", decay=0.9999", ""), WHOLE, WHOLE.replace(", decay=0.9998", ""),
        WHOLE.replace("from timm.utils import ModelEmaV2", "from ema_pytorch import EMA").replace("ModelEmaV2(model, decay=", "EMA(model, beta="),
        WHOLE.replace("from timm.utils import ModelEmaV2", "from torch_ema import ExponentialMovingAverage").replace("ModelEmaV2(model,", "ExponentialMovingAverage(model.parameters(),"),
    ],
}  # fmt: skip
SOUND: dict[str, list[str]] = {
    "average-in-16-bits": [
        IN_CLASS.replace("        self.model.to(dtype=torch.bfloat16)\n", ""), IN_CLASS.replace("torch.bfloat16", "torch.float32"), IN_CLASS.replace("torch.bfloat16", "dtype"), IN_CLASS.replace("0.9999", "0.9"), IN_CLASS.replace("(dtype=torch.bfloat16)", "(device)"),
        IN_CLASS.replace("average = Average(net)", "average = Average(net)\naverage.model.float()").replace("    @torch", "    def widen(self):\n        self.model.float()\n    @torch"), IN_CLASS.replace("alpha=1 - decay", "alpha=weight"),
        IN_CLASS.replace("import torch", "import torch\nfrom rounding import stochastic_add_"), IN_CLASS.replace("self.model.to(", "if small:\n            self.model.to("),
        # A copy in 16 bits that is saved, of an average in FP32.
        IN_CLASS.replace("        self.model.to(dtype=torch.bfloat16)\n", "") + "small = copy.deepcopy(average.model).to(torch.bfloat16)\ntorch.save(small, path)\n",
        IN_CLASS.replace("        self.model.to(dtype=torch.bfloat16)\n", "").replace("average = Average(net)", "average = Average(net)\nnet.half()"),
        IN_FUNCTION.replace(".half()", ""), IN_FUNCTION.replace(".half()", ".half().float()"), IN_FUNCTION.replace("0.9995", "0.99"), IN_FUNCTION.replace("target = copy.deepcopy(net).half()", "target = copy.deepcopy(net)\nnet = net.half()"),
        IN_FUNCTION.replace(".mul_(decay).add_(p.data, alpha=1 - decay)", ".copy_(p.data)"), OF_PAIRS.replace(".to(torch.bfloat16)", ""), OF_PAIRS.replace("0.999 * old.data + 0.001", "0.5 * old.data + 0.5"),
        RISING.replace("settings.decay", "settings.decay ** 5"), RISING.replace("settings.decay", "0.7"), RISING.replace("settings.decay", "decay_at(step)"),
        LIBRARY.replace(', dtype=torch.bfloat16', ""), LIBRARY.replace("    ema.step(unet.parameters())\n", ""), LIBRARY.replace("decay=0.9999", "decay=args.decay"), LIBRARY.replace("torch.bfloat16)", 'torch.bfloat16)\nema.to("cuda", dtype=torch.float32)'),
        WHOLE.replace(".half()", ""), WHOLE.replace("0.9998", "0.9"), WHOLE.replace("timm.utils", "ours"), WHOLE.replace(".cuda().half()", ".cuda()").replace("for x", "model.half()\nfor x"),
    ],
}  # fmt: skip
