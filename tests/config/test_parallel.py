"""`[parallel]`: the formats that gradients are sent in, and what is refused before a start, each in one sentence."""

from __future__ import annotations

import pytest

from precgui import config
from precgui.config.precision_traits import TRAITS

SHARDED = {"fp64", "fp32", "bf16-amp", "fp16-amp", "bf16-pure", "fp16-pure", "fp8"}  # each trained on two ranks
PRECISIONS = [*TRAITS, "emulated:e4m3fn", "emulated:int4"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [("INT8", "int8"), ("torch.bfloat16", "bf16"), ("powersgd:4", "powersgd:4"), ("e3m4", "e3m4_ieee")],
)
def test_that_a_gradient_format_is_kept_under_its_name(name: str, kept: str) -> None:
    chosen = config.load("gpt-quick", ["parallel.strategy=ddp", f"parallel.gradient_format={name}"])
    assert chosen.parallel.gradient_format == kept


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["parallel.gradient_format=e3m9"], "e3m9 has 13 bits; gradients are sent as auto, fp32, fp16, bf16"),
        (["parallel.gradient_format=mxfp4"], "choose the format of its elements, e2m1"),
        (["parallel.gradient_format=powersgd"], "write powersgd:R"),
        (["parallel.gradient_format=nonsense"], "is no number format"),
        (["parallel.gradient_format=e8m0"], "does not hold numbers of both signs"),
        (["parallel.error_feedback=true"], "error_feedback belongs to formats of 8 bits or fewer, not to auto"),
        (["precision=bf16-pure", "parallel.gradient_format=powersgd:2"], "powersgd needs FP32 gradients"),
        (["parallel.strategy=fsdp", "train.compile=true"], "train.compile does not go with fsdp here"),
        (["pruning.method=wanda"], "pruning.method = wanda reads the inputs of layers, of which a rank has a part"),
        (["parallel.strategy=fsdp", "pruning.method=magnitude"], "pruning compares all weights of a layer"),
        (["parallel.strategy=fsdp", "adapter.kind=lora"], "adapters stand beside packed weights"),
        (["precision_schedule=plateau:5=bf16-amp"], "plateau:5 follows the loss, of which each rank sees"),
        (["task=gan", "model.name=auto"], "task gan cannot be shared by ranks"),
        (["parallel.strategy=fsdp", "precision_options.keep_fp32=head"], "precision_options have not been tried with"),
        (["parallel.strategy=fsdp", "train.ema_decay=0.9"], "train.ema_decay averages whole weights"),
        (["parallel.ranks=0"], "parallel.ranks: 0 is too small"),
    ],
)
def test_that_what_does_not_work_is_refused_in_a_sentence(settings: list[str], sentence: str) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.load("gpt-quick", ["parallel.strategy=ddp", *settings])
    assert sentence in str(caught.value)


def test_that_without_a_strategy_nothing_is_refused() -> None:
    chosen = config.load("gpt-quick", ["train.compile=true", "parallel.error_feedback=true"])
    assert chosen.parallel.strategy == "none"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_that_every_precision_trains_on_replicas(precision: str) -> None:
    chosen = config.load("gpt-quick", ["parallel.strategy=ddp", f"precision={precision}"])
    assert chosen.precision == precision


@pytest.mark.parametrize("precision", PRECISIONS)
def test_that_every_precision_trains_on_shards_or_is_refused_by_name(precision: str) -> None:
    settings = ["parallel.strategy=fsdp", f"precision={precision}"]
    if precision in SHARDED:
        assert config.load("gpt-quick", settings).parallel.strategy == "fsdp"
        return
    with pytest.raises(config.ConfigError, match=f"precision {precision} does not work with strategy fsdp: its "):
        config.load("gpt-quick", settings)
