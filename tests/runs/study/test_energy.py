"""The energy of a study: what planted joules, idle power, limits and prices must come to."""

from __future__ import annotations

import pytest

from precgui.runs.report.content import ReportContent, report_content
from precgui.runs.report.energy_table import energy_table
from precgui.runs.report.html import html_report
from precgui.runs.report.writing import markdown_report
from precgui.runs.study.energy import EnergyPrice, PriceError, parse_price, study_energy
from precgui.runs.study.groups import make_study
from tests.runs.study.sample_runs import arm

SEEDS = [0.90, 0.91, 0.89, 0.92, 0.90]
SAMPLES = 6400  # of a run: 100 steps of 64
NO_SENSOR = "no NVIDIA driver on this machine; /sys/class/powercap does not exist"


def used(joules: float, idle_w: float | None = 50.0, time_s: float = 10.0, **more: object) -> dict[str, object]:
    """The figures of a run of 10 s that used so much."""
    net = None if idle_w is None else (joules - idle_w * time_s) / SAMPLES
    return {
        "energy_j": joules, "power_w": joules / time_s, "idle_w": idle_w, "joules_per_sample": joules / SAMPLES,
        "net_joules_per_sample": net, "time_s": time_s, **more,
    }  # fmt: skip


def two_precisions() -> ReportContent:
    """FP32 uses 2500 J at 250 W; BF16 is twice as fast in a step, and uses 1500 J at 150 W."""
    runs = [*arm("fp32", SEEDS, **used(2500.0)), *arm("bf16-amp", SEEDS, **used(1500.0), step_s=0.005)]
    return report_content(make_study(runs), runs, title="", command="", price=EnergyPrice(0.36, "EUR"))


def test_that_idle_power_saving_and_cost_come_to_the_planted_joules() -> None:
    fp32, bf16 = two_precisions().energy.groups
    assert (fp32.run_j, fp32.power_w, fp32.idle_w) == (2500.0, 250.0, 50.0)
    assert fp32.net_joules_per_sample == pytest.approx(2000 / SAMPLES)
    assert bf16.net_joules_per_sample == pytest.approx(1000 / SAMPLES)
    assert bf16.saved == pytest.approx(0.4)
    assert bf16.expected_saved == pytest.approx(0.5)  # half the time at the same power
    assert bf16.guides == ("more than 12 %", "20 to 40 %")
    assert fp32.run_cost == pytest.approx(2500 / 3.6e6 * 0.36)
    assert fp32.why["saved"] == "baseline"
    assert fp32.guides == ()


def test_that_every_form_of_the_report_has_the_table_with_expected_beside_measured() -> None:
    content = two_precisions()
    cells = dict(content.energy.rows)
    assert cells["energy saved, measured (95 % interval), ± 5 % of the sensor"][1].startswith("40.0 % [")
    assert cells["energy saved, expected from the speed-up at equal power"] == ("baseline", "50.0 %")
    assert cells["cost of a run at 0.36 EUR per kWh"] == ("0.00025 EUR", "0.00015 EUR")
    for text in (html_report(content), markdown_report(content)):
        assert "expected by guides" in text


def test_that_every_figure_without_a_sensor_says_why() -> None:
    runs = [*arm("fp32", SEEDS, why_no_energy=NO_SENSOR), *arm("bf16-amp", SEEDS, why_no_energy=NO_SENSOR)]
    made = make_study(runs)
    table = energy_table(made, runs, EnergyPrice(0.3))
    assert not table.is_measured
    for title, cells in table.rows:
        if "speed-up" not in title and "guides" not in title:
            for cell in cells:
                assert cell in ("baseline", f"not measured, because {NO_SENSOR}"), title
    content = report_content(made, runs, title="", command="")
    for text in (html_report(content), markdown_report(content)):
        assert "The energy was not measured, because no NVIDIA driver" in text


def test_that_a_run_without_an_idle_baseline_says_which_setting_makes_one() -> None:
    why = "the run measured no idle baseline; set power.idle_s, such as 10"
    runs = arm("fp32", SEEDS, **used(2500.0, None), why_no_idle=why)
    (only,) = study_energy(make_study(runs), runs)
    assert only.run_j == 2500.0
    assert only.why["net_joules_per_sample"] == why


def test_that_power_limits_are_compared_in_one_precision() -> None:
    """At 200 W a run uses 0.8 of the energy of 300 W and takes 1.25 of its time."""
    arms, baselines = [], {}
    for limit, joules, step_s in ((300.0, 3000.0, 0.010), (200.0, 2400.0, 0.0125)):
        name = f"fp32 power.limit_w={limit:g}"
        baselines[name] = name
        arms += arm(name, SEEDS, precision="fp32", settings={"power.limit_w": limit}, step_s=step_s, **used(joules))
    high, low = study_energy(make_study(arms, baseline_of=baselines), arms)
    assert (high.limit_w, low.limit_w, high.beside_limit) == (300.0, 200.0, None)
    assert low.beside_limit is not None
    assert low.beside_limit.energy == pytest.approx(0.8)
    assert low.beside_limit.time == pytest.approx(1.25)
    rows = dict(energy_table(make_study(arms, baseline_of=baselines), arms).rows)
    assert rows["power limit"] == ("300 W", "200 W")
    assert rows["energy per sample against the largest limit (95 % interval)"] == ("–", "0.800x [0.800, 0.800]")


@pytest.mark.parametrize(
    ("text", "price"),
    [("0.30 EUR", EnergyPrice(0.3, "EUR")), ("0,12", EnergyPrice(0.12)), ("1.5 元", EnergyPrice(1.5, "元"))],
)
def test_that_a_price_is_a_number_with_or_without_a_currency(text: str, price: EnergyPrice) -> None:
    assert parse_price(text) == price


@pytest.mark.parametrize("text", ["", "EUR", "-1", "nan", "1e400", "1 2"])
def test_that_what_is_no_price_is_one_sentence(text: str) -> None:
    with pytest.raises(PriceError, match="no price of a kilowatt-hour; write one such as"):
        parse_price(text)
