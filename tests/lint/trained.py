"""Scripts that train a tensor, a parameter or adapters in FP16, and scripts that train them in FP32."""

# ruff: noqa: E501

from __future__ import annotations

PROMPT = """
import torch
model = AutoModelForCausalLM.from_pretrained("a/b", torch_dtype=torch.float16).to("cuda").eval()
table = model.get_input_embeddings()
prompt = table(start).detach().clone().requires_grad_(True)
optimizer = torch.optim.Adam([prompt], lr=1e-2)
for step in range(500):
    loss = model(inputs_embeds=prompt).logits.float().logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MADE = """
import torch
noise = torch.nn.Parameter(torch.randn(1, 3, 64, 64, device="cuda", dtype=torch.float16))
optimizer = torch.optim.AdamW([{"params": [noise], "lr": 0.1}], lr=0.01)
for step in range(500):
    loss = net(noise).float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MODULE = """
import torch
class Prompts(torch.nn.Module):
    def __init__(self, tasks, width):
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(tasks, width, dtype=torch.float16))
        self.head = torch.nn.Linear(width, width)
    def forward(self, task):
        return self.values[task]
prompts = Prompts(4, 1024)
optimizer = torch.optim.Adam(prompts.parameters(), lr=3e-3)
for task, x in rows:
    optimizer.zero_grad()
    frozen(x, prompts(task)).float().mean().backward()
    optimizer.step()
"""
ADAPTERS = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16")
weight_dtype = torch.float16
unet = UNet2DConditionModel.from_pretrained("a/b")
unet.requires_grad_(False)
unet.add_adapter(LoraConfig(r=8, target_modules=["to_k", "to_q"]))
unet.to(accelerator.device, dtype=weight_dtype)
trained = [p for p in unet.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4)
unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)
for x in loader:
    loss = unet(x).float().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""
TRAINER = """
import torch
from peft import get_peft_model
from transformers import Trainer, TrainingArguments
model = get_peft_model(AutoModelForCausalLM.from_pretrained("a/b"), settings)
model.half()
trainer = Trainer(model=model, args=TrainingArguments("out", fp16=True), train_dataset=rows)
trainer.train()
"""

FAULTS: dict[str, list[str]] = {
    "tensor-trained-in-fp16": [
        PROMPT, PROMPT.replace("table(start)", "model.get_input_embeddings().weight[start]"), PROMPT.replace("table(start)", "model.model.embed_tokens(start)"), PROMPT.replace("Adam([prompt]", "SGD([prompt]"), PROMPT.replace("torch.optim.Adam([prompt]", "torch.optim.Adam(params=[prompt]"),
        PROMPT.replace("prompt = table(start).detach().clone().requires_grad_(True)", "prompt = torch.nn.Parameter(table.weight[:20].clone())"), PROMPT.replace("table(start).detach().clone()", "torch.zeros_like(table(start))"),
        PROMPT.replace("table(start).detach().clone()", "torch.cat([table(start), table(end)], dim=1).detach()"), PROMPT.replace("table(start)", "table.weight[start].mean(0)"), PROMPT.replace("model = AutoModelForCausalLM.from_pretrained(\"a/b\", torch_dtype=torch.float16).to(\"cuda\").eval()", "model = load()\nmodel.half()"),
        MADE, MADE.replace("torch.nn.Parameter(torch.randn(1, 3, 64, 64, device=\"cuda\", dtype=torch.float16))", "torch.rand(1, 3, 64, 64).cuda().half().requires_grad_()"), MADE.replace("noise = ", "start = x.half()\nnoise = ").replace("torch.randn(1, 3, 64, 64, device=\"cuda\", dtype=torch.float16)", "0.1 * torch.randn_like(start)"),
        MODULE, MODULE.replace("torch.nn.Parameter(torch.zeros(tasks, width, dtype=torch.float16))", "torch.nn.Embedding(tasks, width, dtype=torch.half)"), MODULE.replace("Prompts(4, 1024)", "Prompts(4, 1024).to(device)"),
    ],
    "adapters-in-fp16": [
        ADAPTERS, ADAPTERS.replace("trained = [p for p in unet.parameters() if p.requires_grad]\n", "").replace("AdamW(trained", "AdamW(filter(lambda p: p.requires_grad, unet.parameters())"), ADAPTERS.replace("unet.to(accelerator.device, dtype=weight_dtype)", "unet.half()"),
        ADAPTERS.replace("accelerator.backward(loss)", "loss.backward()").replace('Accelerator(mixed_precision="fp16")', "Accelerator()"), TRAINER, TRAINER.replace(", fp16=True", ""), TRAINER.replace("model.half()", "model = model.to(torch.float16)"),
        ADAPTERS.replace("unet.add_adapter(LoraConfig(r=8, target_modules=[\"to_k\", \"to_q\"]))", "unet = get_peft_model(unet, LoraConfig(r=8))"),
    ],
}  # fmt: skip
SOUND: dict[str, list[str]] = {
    "tensor-trained-in-fp16": [
        PROMPT.replace("table(start).detach()", "table(start).detach().float()"), PROMPT.replace(", torch_dtype=torch.float16", ""), PROMPT.replace("torch.float16", "torch.bfloat16"), PROMPT.replace("torch.float16", "dtype"), PROMPT.replace("table(start)", "encode(start)"),
        PROMPT.replace("loss.backward()", "master = 1\n    loss.backward()"), PROMPT.replace("torch.optim.Adam([prompt]", "AdamFP32([prompt]"), PROMPT.replace("optimizer =", "prompt = prompt.float()\noptimizer ="), PROMPT.replace("optimizer =", "if wide:\n    prompt = prompt.float()\noptimizer ="),
        PROMPT.replace("for step", "optimizer = FP16_Optimizer(optimizer)\nfor step"), PROMPT.replace("    loss.backward()\n", ""), PROMPT.replace("torch.zeros_like", "x").replace("table(start).detach().clone()", "torch.zeros_like(table(start), dtype=torch.float32)"),
        MADE.replace(", dtype=torch.float16", ""), MADE.replace("torch.float16", "torch.float32"), MADE.replace("[noise]", "[other]"), MADE.replace("64, 64, device=\"cuda\", dtype=torch.float16)", "64, 64, dtype=torch.float16).float()"),
        MODULE.replace(", dtype=torch.float16", ""), MODULE.replace("Prompts(4, 1024)", "Prompts(4, 1024).float()"), MODULE.replace("optimizer =", "prompts.float()\noptimizer ="), MODULE.replace("dtype=torch.float16)", "dtype=torch.float16), requires_grad=False"), MODULE.replace("prompts.parameters()", "frozen.parameters()"),
    ],
    "adapters-in-fp16": [
        ADAPTERS.replace("trained =", "cast_training_params(unet, dtype=torch.float32)\ntrained ="), ADAPTERS.replace("unet.add_adapter(LoraConfig(r=8, target_modules=[\"to_k\", \"to_q\"]))\n", "").replace("trained =", "unet.add_adapter(LoraConfig(r=8))\ntrained ="),
        ADAPTERS.replace("trained =", "for p in unet.parameters():\n    p.data = p.data.float()\ntrained ="), ADAPTERS.replace("unet.to(accelerator.device, dtype=weight_dtype)", "unet.to(accelerator.device)"), ADAPTERS.replace("torch.float16", "torch.bfloat16").replace("fp16", "bf16"),
        ADAPTERS.replace("weight_dtype = torch.float16", "weight_dtype = torch.float32\nif args.half:\n    weight_dtype = torch.float16"), ADAPTERS.replace("p in unet.parameters()", "p in head.parameters()"), TRAINER.replace("model.half()\n", ""),
        TRAINER.replace("model = get_peft_model(AutoModelForCausalLM.from_pretrained(\"a/b\"), settings)\nmodel.half()", "model = AutoModelForCausalLM.from_pretrained(\"a/b\", torch_dtype=torch.float16)\nmodel = get_peft_model(model, settings)"),
        ADAPTERS.replace("trained =", "unet.float()\ntrained ="),
    ],
}  # fmt: skip
