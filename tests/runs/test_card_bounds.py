"""The calculator of cards: sums done by hand, what limits, what a card lacks, what is refused, and its command."""

from __future__ import annotations

import json

import pytest

from precgui.cli.main import main
from precgui.planner.network import NETWORKS
from precgui.runs.card_bounds import BITS, Bound, bound, cards_of, time_text, work_of


def on(card: str, work: str, name: str, batch: int = 1) -> Bound:
    (device,) = cards_of([card])
    return bound(work_of(work, batch), device, name)


def test_that_a_square_product_takes_its_operations_over_the_peak() -> None:
    result = on("V100-SXM2", "4096", "fp16")
    assert result.time_s == pytest.approx(2 * 4096**3 / 125e12)
    assert (result.limit, result.memory_bytes) == ("products", 3 * 4096**2 * 2)
    assert time_text(result) == "1.1 ms"


def test_that_a_narrow_product_takes_its_bytes_over_the_bandwidth() -> None:
    result = on("Tesla T4", "8x4096x4096", "int8")
    bytes_ = 8 * 4096 + 4096 * 4096 + 4 * 8 * 4096  # results are INT32
    assert result.time_s == pytest.approx(bytes_ / 320e9)
    assert result.limit == "memory"
    both = on("Tesla T4", "8x4096x4096,4096", "int8")
    assert both.time_s == pytest.approx(bytes_ / 320e9 + 2 * 4096**3 / 130e12)
    assert both.limit == "products"


def test_that_a_step_makes_six_operations_a_parameter_and_token_and_attention() -> None:
    network, work = NETWORKS["llama-7b"], work_of("llama-7b", 2)
    multiplied = network.block_matrices + network.vocabulary * network.width
    tokens = 2 * network.sequence
    attention = 12 * network.layers * network.sequence * network.width * tokens
    assert work.flops == pytest.approx(6 * multiplied * tokens + attention)
    result = on("A100 SXM4 80GB", "llama-7b", "bf16")
    assert result.fits is False
    assert time_text(result).endswith("ms, does not fit")
    assert on("B300", "llama-7b", "bf16").fits is True
    assert on("B200", "llama-7b", "nvfp4").fits is None  # the planner knows no training in it


def test_that_what_a_card_cannot_or_nobody_knows_has_no_time() -> None:
    assert time_text(on("V100-SXM2", "4096", "bf16")) == "emulated"
    assert time_text(on("V100-SXM2", "4096", "e4m3fn")) == "none"
    unknown = on("B100", "4096", "fp32")
    assert (unknown.time_s, time_text(unknown)) == (None, "rate not known")
    assert unknown.why


def test_that_every_card_has_a_cell_for_every_format() -> None:
    work = work_of("1024")
    for device in cards_of([""]):
        for name in BITS:
            assert time_text(bound(work, device, name))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["8x4096"], "'8x4096' is no product; write 4096"),
        (["0"], "is no product"),
        (["4096", "--card", "nope"], "no card of the table is called 'nope'"),
        (["4096", "--format", "q"], "q is no format of the calculator"),
        (["gpt2", "--batch", "0"], "the batch is at least 1"),
    ],
)
def test_that_a_wrong_question_is_one_sentence(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cards", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_that_the_command_prints_a_table_and_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cards", "4096", "--card", "h100", "--format", "bf16,e4m3fn"]) == 0
    assert "not measured: lower bounds" in " ".join(capsys.readouterr().out.split())
    assert main(["cards", "4096", "--card", "h100 sxm5", "--format", "bf16,int4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "data sheet"
    assert [row["support"] for row in document["bounds"]] == ["native", "emulated"]
    assert main(["cards", "--list"]) == 0
    assert "Tesla V100 PCIe" in capsys.readouterr().out
