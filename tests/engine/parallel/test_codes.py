"""Gradients as bytes: errors within half a step of the format, exact sizes, NaN and Inf kept."""

from __future__ import annotations

import pytest
import torch

from precgui.engine.parallel.codes import BlockCodec

# Relative L2 error of normal values with a scale for 1024 of them: of the format, or what rounding to its steps gives.
EXPECTED = {
    "int8": 0.01, "e4m3fn": 0.03, "e5m2": 0.06, "e3m4": 0.02, "e2m3": 0.03, "int4": 0.17, "nf4": 0.12, "e2m1": 0.13,
}  # fmt: skip
BITS = {"int4": 4, "nf4": 4, "e2m1": 4, "int2": 2, "sign1": 1}


def values() -> torch.Tensor:
    return torch.randn(2, 8192, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", EXPECTED)
def test_that_the_error_is_that_of_the_format(name: str) -> None:
    codec = BlockCodec(name, 1024)
    decoded = codec.decode(codec.encode(values()))
    assert 0 < (decoded - values()).norm() / values().norm() < EXPECTED[name]


@pytest.mark.parametrize("name", [*EXPECTED, "int2", "sign1", "e4m3fnuz"])
def test_that_bytes_are_those_of_the_codes_and_one_scale_a_block(name: str) -> None:
    codec = BlockCodec(name, 1024)
    message = codec.encode(values())
    assert message.shape == (2, codec.message_bytes(8192))
    assert message.shape[1] == 8192 * BITS.get(name, 8) // 8 + 8 * 4


@pytest.mark.parametrize("name", [*EXPECTED, "int2", "sign1"])
def test_that_nan_and_inf_spoil_their_block_and_no_other(name: str) -> None:
    codec, gradients = BlockCodec(name, 1024), values()
    gradients[0, 5], gradients[1, 7], gradients[0, 1024:2048] = torch.inf, torch.nan, 0.0
    decoded = codec.decode(codec.encode(gradients))
    assert not decoded[:, :1024].isfinite().any()
    assert decoded[0, 1024:].isfinite().all() and not decoded[0, 1024:2048].any()


@pytest.mark.parametrize("name", ["int8", "e5m2", "int4"])
def test_that_values_near_the_ends_of_fp32_are_held(name: str) -> None:
    codec = BlockCodec(name, 1024)
    for size in (1e-33, 1e37):
        decoded = codec.decode(codec.encode(values() * size))
        assert torch.allclose(decoded / size, codec.decode(codec.encode(values())), atol=0.3)
