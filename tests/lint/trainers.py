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
ENGINE = """
import deepspeed, torch
config = {"train_batch_size": 8, "fp16": {"enabled": True}}
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(engine(x.half()), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
THROUGH = ENGINE.replace("loss.backward()", "engine.backward(loss)").replace("optimizer.step()", "engine.step()")
SHARDED = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
net = FSDP(Net().cuda())
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
WRAP = "FSDP(Net().cuda())"
FAULTS: dict[str, list[str]] = {
    "past-deepspeed": [
        ENGINE,
        ENGINE.replace("optimizer.step()", "engine.step()"),
        ENGINE.replace("loss.backward()", "engine.backward(loss)"),
        ENGINE.replace("config=config", "config_params=config"),
        ENGINE.replace("config=config", 'config="zero.json"'),  # the input is cast to FP16
        ENGINE.replace("x.half()", "x").replace("engine, _, _, _ =", "engine, *_ ="),
        ENGINE.replace("config = {", "def settings():\n    return {").replace("config=config", "config=settings()"),
        ENGINE.replace("deepspeed.initialize(", "deepspeed.initialize(").replace(
            "loss.backward()", "(loss / 4).backward()"
        ),
    ],
    "fsdp-with-plain-scaler": [
        SHARDED,
        SHARDED.replace('GradScaler("cuda")', "GradScaler()"),
        SHARDED.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=amp)'),
        SHARDED.replace(WRAP, "FSDP(Net().cuda(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)"),
        SHARDED.replace(f"net = {WRAP}", "net = Net()\nif args.shard:\n    net = FSDP(net)"),
    ],
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
    "past-deepspeed": [
        THROUGH,
        ENGINE.replace('"enabled": True', '"enabled": False'),
        ENGINE.replace('"fp16"', '"bf16"').replace("x.half()", "x"),
        ENGINE.replace("config=config", 'config="zero.json"').replace("x.half()", "x"),
        ENGINE.replace("loss.backward()", "engine.scale(loss).backward()").replace("optimizer.step()", "engine.step()"),
        THROUGH.replace("engine, _, _, _ =", "engine, optimizer, _, _ =").replace("engine.step()", "optimizer.step()"),
        # Another network beside that of the engine.
        THROUGH + "    critic_loss(critic(x), y).backward()\n    critic_optimizer.step()\n",
        ENGINE.replace("engine(x.half())", "other(x.half())").replace("optimizer.step()", "engine.step()"),
        ENGINE.replace(
            "    loss.backward()\n    optimizer.step()",
            "    if args.zero:\n        engine.backward(loss)\n"
            "        engine.step()\n    else:\n        loss.backward()",
        ),
    ],
    "fsdp-with-plain-scaler": [
        SHARDED.replace("torch.amp.GradScaler", "ShardedGradScaler"),
        # The DTensors of FSDP2 tell one another of Inf.
        SHARDED.replace("FullyShardedDataParallel as FSDP", "fully_shard").replace(WRAP, "fully_shard(Net().cuda())"),
        SHARDED.replace(WRAP, "FSDP(Net().cuda(), sharding_strategy=ShardingStrategy.NO_SHARD)"),
        SHARDED.replace(WRAP, "FSDP(Net().cuda(), sharding_strategy=strategy)"),
        SHARDED.replace(WRAP, "FSDP(Net().cuda(), **settings)"),
        SHARDED.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)'),
        SHARDED.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=amp)').replace("float16", "bfloat16"),
        SHARDED.replace(WRAP, "torch.nn.parallel.DistributedDataParallel(Net().cuda())"),
        SHARDED.replace(f"net = {WRAP}", "net = Net()\nif args.shard:\n    net = FSDP(net)").replace(
            "scaler = torch", "if args.shard:\n    scaler = make()\nelse:\n    scaler = torch"
        ),
    ],
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
