"""`[parallel]`: the formats that gradients are sent in, and what is refused before a start, each in one sentence."""

from __future__ import annotations

import pytest

from precgui import config


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
        (["train.compile=true"], "train.compile has not been tried on several ranks"),
        (["task=gan", "model.name=auto"], "task gan cannot be shared by ranks"),
        (["parallel.strategy=fsdp"], "strategy fsdp does not train to the end yet; choose ddp"),
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
