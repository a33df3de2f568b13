"""Scripts that leave the loop to a trainer, with one mistake in what they ask of it, and without it."""

from __future__ import annotations

LIGHTNING = """
import lightning as L
from lab import Encoder, loader
trainer = L.Trainer(max_epochs=4, precision="16-true")
trainer.fit(Encoder(), loader)
"""
TRANSFORMERS = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16)
args = TrainingArguments(output_dir="out", learning_rate=2e-5, fp16=True)
trainer = Trainer(model=model, args=args, train_dataset=data)
trainer.train()
"""
DEEPSPEED = """
import deepspeed
config = {"train_batch_size": 8, "fp16": {"enabled": True, "loss_scale": 1}}
engine, *_ = deepspeed.initialize(model=net, config=config)
for x in loader:
    engine.backward(engine(x))
    engine.step()
"""
FAULTS: dict[str, list[str]] = {
    "fp16-weights-of-a-trainer": [
        LIGHTNING,
        TRANSFORMERS,
        TRANSFORMERS.replace(", fp16=True", ""),
        TRANSFORMERS.replace(", torch_dtype=torch.float16", "").replace(
            "args =", "model = model.half().cuda()\nargs ="
        ),
        TRANSFORMERS.replace("trainer = Trainer(", "Trainer(").replace("=data)\ntrainer.train()", "=data).train()"),
    ],
    "loss-scale-of-1": [DEEPSPEED, DEEPSPEED.replace("1}}", "1.0}}")],
}
SOUND: dict[str, list[str]] = {
    "fp16-weights-of-a-trainer": [
        LIGHTNING.replace("16-true", "16-mixed"),
        LIGHTNING.replace(".fit(", ".predict("),
        LIGHTNING.replace('"16-true"', '"16-true", strategy="deepspeed_stage_2"'),
        LIGHTNING.replace('"16-true"', '"16-true", strategy=DeepSpeedStrategy(stage=2)'),
        TRANSFORMERS.replace(", torch_dtype=torch.float16", ""),
        TRANSFORMERS.replace(".train()", ".evaluate()"),
        TRANSFORMERS.replace("args =", "model = get_peft_model(model, LoraConfig())\nargs ="),
        TRANSFORMERS.replace("fp16=True", 'deepspeed="zero.json"'),
        TRANSFORMERS.replace("fp16=True", "**settings"),
        TRANSFORMERS.replace("args =", "if last:\n    model = model.float()\nargs ="),
    ],
    "loss-scale-of-1": [
        DEEPSPEED.replace("1}}", "0}}"),
        DEEPSPEED.replace("1}}", "128}}"),
        DEEPSPEED.replace("True", "False"),
        DEEPSPEED.replace("True", '"auto"'),
    ],
}
