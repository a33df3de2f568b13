"""Runs of several ranks, on GPUs and on the CPU."""

from __future__ import annotations

STEPS = 3
BASE = (
    "threads=1", f"train.max_steps={STEPS}", "data.sequence_length=16", "data.epoch_steps=8", "record.tensors=false",
    "parallel.error_every=0",
)  # fmt: skip
RUNS = {
    "ddp": ("parallel.strategy=ddp",),
    "ddp bf16": ("parallel.strategy=ddp", "parallel.gradient_format=bf16"),
    "ddp int8": ("parallel.strategy=ddp", "parallel.gradient_format=int8", "parallel.error_feedback=true"),
    "ddp scaled": ("parallel.strategy=ddp", "precision=fp16-amp"),
    "ddp measured": ("parallel.strategy=ddp", "parallel.gradient_format=bf16", "parallel.error_every=1"),
    "fsdp": ("parallel.strategy=fsdp", "train.clip_norm=0.5", "train.accumulation=2"),
    "fsdp bf16": ("parallel.strategy=fsdp", "precision=bf16-amp"),
    "fsdp off-load": ("parallel.strategy=fsdp", "parallel.offload=true"),
}


def losses_close(name: str, otherwise: float) -> float:
    """By how much losses may differ from those of the CPU: products in 16 bits are added in another order."""
    return 1e-3 if name in ("ddp scaled", "fsdp bf16") else otherwise
