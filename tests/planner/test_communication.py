"""Bytes and time of several ranks on paper, against sums worked out by hand and the counts of real runs."""

from __future__ import annotations

import pytest

from precgui.planner.communication import RANKS, Link, Traffic, coded_bytes, forecasts, link_rate

GIGABIT = Link(125e6, 0.0)


def test_that_a_ring_sends_two_shares_of_the_gradients() -> None:
    traffic = Traffic(1000.0)
    assert [traffic.sent_bytes(ranks) for ranks in (1, 2, 4, 8)] == [0, 1000, 1500, 1750]
    assert traffic.ring_s(4, Link(1e3, 0.01)) == pytest.approx(6 * 0.01 + 1.5)


def test_that_trees_win_by_latency_and_rings_by_bytes() -> None:
    small, large = Traffic(8.0), Traffic(1e9)
    link = Link(1e9, 1e-5)
    for traffic, tree_is_faster in ((small, True), (large, False)):
        tree_s = traffic.tree_s(64, link)
        assert tree_s is not None
        assert (tree_s < traffic.ring_s(64, link)) is tree_is_faster
    assert small.tree_s(64, link) == pytest.approx(2 * 6 * 1e-5 + 16e-9)
    assert small.tree_s(1, link) == 0


def test_that_shards_send_half_as_much_again() -> None:
    """Rajbhandari et al. 2020, section 7.2: ZeRO-3 sends 1.5 times the bytes of a replicated training."""
    whole, shards = Traffic(4e6), Traffic(4e6, 3, gathered_bytes=4e6)
    for ranks in RANKS[1:]:
        assert shards.sent_bytes(ranks) == pytest.approx(1.5 * whole.sent_bytes(ranks))
    assert shards.tree_s(8, GIGABIT) is None


def test_that_gloo_sends_the_gradients_of_shards_twice() -> None:
    gloo = Traffic(4e6, 3, gathered_bytes=4e6, scatters_by_all_reduce=True)
    assert gloo.sent_bytes(4) == pytest.approx(4 * 3 / 4 * 4e6)
    assert gloo.ring_s(4, GIGABIT) == pytest.approx(3 * 4 * 3 * GIGABIT.latency_s + 12e6 / GIGABIT.bytes_per_s)


def test_that_codes_take_the_bytes_that_the_hooks_counted() -> None:
    """docs/measurements.md, "Several processes": 466 432 gradients on two ranks."""
    assert coded_bytes(466432, 8, 1024) == pytest.approx(0.473e6, rel=0.02)
    assert coded_bytes(466432, 4, 1024) == pytest.approx(0.237e6, rel=0.02)
    assert coded_bytes(1024, 6, 1024) == 1024 + 4  # six bits do not divide a byte
    assert coded_bytes(8192, 1, 1024) == 1024 + 32


def test_that_only_the_last_piece_waits_where_computing_is_long() -> None:
    traffic = Traffic(125e6, 10)  # a second on the link with two ranks
    rows = {row.ranks: row for row in forecasts(traffic, GIGABIT, 3.0)}
    assert rows[1].step_s == 3.0
    assert rows[1].efficiency == 1.0
    assert rows[2].exposed_s == pytest.approx(0.1)
    assert rows[2].step_s == pytest.approx(3.1)
    short = {row.ranks: row for row in forecasts(traffic, GIGABIT, 0.3)}
    assert short[2].exposed_s == pytest.approx(1.0 - 0.3 * 2 / 3 * 0.9)


def test_that_a_shared_batch_divides_the_computing_and_bounds_the_ranks() -> None:
    rows = list(forecasts(Traffic(1e6), GIGABIT, 1.0, shared_batch_size=20))
    assert [row.ranks for row in rows] == [1, 2, 4, 8, 16]
    for row in rows:
        assert row.step_s == pytest.approx(1 / row.ranks + (row.exposed_s or 0.0))
    assert len(list(forecasts(Traffic(1e6), GIGABIT, 1.0))) == len(RANKS) == 11


def test_that_without_the_time_of_a_step_none_is_given() -> None:
    for row in forecasts(Traffic(1e6), GIGABIT, None):
        assert row.step_s is row.efficiency is row.exposed_s is None
        assert len(row.texts()) == 4


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10Gb/s", 1.25e9), ("450GB/s", 450e9), ("100 Mb/s", 12.5e6), ("1.6Tbit/s", 2e11), ("40Gbps", 5e9), ("8b/s", 1)],
)
def test_that_rates_are_read_in_bits_and_bytes(text: str, rate: float) -> None:
    assert link_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "10", "fast", "0Gb/s", "10Gb", "-1Gb/s", "1e9b/s"])
def test_that_other_rates_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write 10Gb/s for bits or 450GB/s for bytes"):
        link_rate(text)
