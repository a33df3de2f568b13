"""Scripts that ask a trainer for 16 bits, or a published model in FP16, and sound ones."""

# ruff: noqa: E501

from __future__ import annotations

STEPS = """
import lightning as L
import torch
from torch import nn
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
        self.criterion = nn.BCELoss()
    def training_step(self, batch, index):
        x, y = batch
        return self.criterion(self.body(x), y)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
L.Trainer(accelerator="gpu", precision="16-mixed").fit(Net(), loader)
"""
OUTSIDE = STEPS.replace(
    "        return self.criterion",
    "        with torch.autocast('cuda', enabled=False):\n          return self.criterion",
)
MASKED = """
import lightning as L
import torch
class Attention(torch.nn.Module):
    def forward(self, q, k, mask):
        scores = torch.bmm(q, k.transpose(1, 2))
        return scores.masked_fill(mask, -1e9).softmax(-1)
class Net(L.LightningModule):
    def training_step(self, batch, index):
        return Attention()(*batch).mean()
L.Trainer(precision=16).fit(Net(), loader)
"""
CLIPPED = """
import lightning as L
import torch
class Net(L.LightningModule):
    def training_step(self, batch, index):
        return self.loss(batch)
    def on_after_backward(self):
        self.log("norm", torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0))
L.Trainer(precision="16-mixed").fit(Net(), loader)
"""
CLOSURE = """
import torch
optimizer = torch.optim.LBFGS(net.parameters())
scaler = torch.amp.GradScaler("cuda")
def closure():
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = net(x).mean()
    scaler.scale(loss).backward()
    return loss
for i in range(20):
    scaler.step(optimizer, closure)
    scaler.update()
"""
T5 = """
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments
NAME = "google/mt5-base"
model = AutoModelForSeq2SeqLM.from_pretrained(NAME)
arguments = Seq2SeqTrainingArguments("out", fp16=True)
Seq2SeqTrainer(model, arguments, train_dataset=data).train()
"""
SDXL = """
import torch
from diffusers import AutoencoderKL
vae = AutoencoderKL.from_pretrained("stabilityai/stable-diffusion-xl-base-1.0", subfolder="vae", torch_dtype=torch.float16)
latents = vae.encode(pixels.half()).latent_dist.sample()
"""

FAULTS: dict[str, list[str]] = {
    "bce-in-autocast": [STEPS, STEPS.replace("16-mixed", "bf16-mixed"), STEPS.replace("training_step", "validation_step")],
    "mask-beyond-fp16": [MASKED],
    "past-lightning": [CLIPPED],
    "closure-of-a-scaler": [CLOSURE, CLOSURE.replace("optimizer, closure)", "optimizer, closure=closure)")],
    "model-beyond-fp16": [
        T5, SDXL, T5.replace("google/mt5-base", "google/flan-t5-xl"), SDXL.replace("torch_dtype", "dtype"),
        "import torch\nfrom transformers import T5ForConditionalGeneration as T5\nmodel = T5.from_pretrained('google/t5-v1_1-large').half()\n",
        "import torch\nfrom transformers import T5ForConditionalGeneration as T5\nmodel = T5.from_pretrained('google/t5-v1_1-large', torch_dtype=torch.half)\nmodel.to(torch.float16)\n",
    ],
}  # fmt: skip
SOUND: dict[str, list[str]] = {
    "bce-in-autocast": [
        OUTSIDE, STEPS.replace("16-mixed", "32-true"), STEPS.replace('"gpu"', '"cpu"'), STEPS.replace("training_step", "closing_report"),
        STEPS.replace('"16-mixed"', "args.precision"), STEPS.replace("BCELoss", "BCEWithLogitsLoss").replace(", nn.Sigmoid()", ""),
    ],
    "mask-beyond-fp16": [MASKED.replace("precision=16", "precision='bf16-mixed'"), MASKED.replace("scores.masked_fill", "scores.float().masked_fill")],
    "past-lightning": [
        CLIPPED.replace("on_after_backward(self)", "on_before_optimizer_step(self, optimizer)"), CLIPPED.replace("16-mixed", "bf16-mixed"),
    ],
    "closure-of-a-scaler": [
        CLOSURE + "scaler = ClosureGradScaler() if closures else scaler\n",
        CLOSURE.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)'), CLOSURE.replace("optimizer, closure", "optimizer"),
    ],
    "model-beyond-fp16": [
        # The layer that overflows stays in FP32 where the model is loaded in FP16.
        "import torch\nfrom transformers import T5ForConditionalGeneration as T5\nmodel = T5.from_pretrained('google/t5-v1_1-large', torch_dtype=torch.half)\n",
        T5.replace("fp16=True", "bf16=True"), T5.replace("fp16=True", "fp16=args.fp16"), T5.replace("mt5-base", "bert_uncased_L-2"),
        SDXL.replace("float16", "bfloat16"), SDXL.replace("stabilityai/stable-diffusion-xl-base-1.0", "madebyollin/sdxl-vae-fp16-fix"), SDXL.replace("base-1.0", "base-1.0/vae-fix"),
        T5.replace("AutoModelForSeq2SeqLM.", "AutoTokenizer."), SDXL.replace(", torch_dtype=torch.float16", ""),
    ],
}  # fmt: skip
