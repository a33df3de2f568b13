"""The report: self-contained, small, safe against what titles hold, the same content in both forms."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from precgui.events import Metric
from precgui.runs.report.content import ReportContent, _detail, report_content
from precgui.runs.report.html import html_report
from precgui.runs.report.writing import markdown_report
from precgui.runs.study.groups import make_study
from precgui.runs.verdict.judge import Verdict
from tests.runs.study.sample_runs import arm

SEEDS = [0.90, 0.91, 0.89, 0.92, 0.90]
EVIL = "<script>alert(1)</script>|`x`"


def _content(arms: int = 2, seeds: int = 5, title: str = "mine") -> ReportContent:
    names = ["fp32", "bf16-amp", *(f"emulated:e{n}m3" for n in range(2, arms))]
    runs = [run for place, name in enumerate(names) for run in arm(name, [0.9 - place / 1e4 * s for s in range(seeds)])]
    return report_content(make_study(runs), runs, title=title, command="precgui sweep x -o DIR")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_that_the_page_is_whole_and_asks_for_nothing_from_elsewhere() -> None:
    page = html_report(_content())
    parser = _Tags()
    parser.feed(page)
    assert {"script", "link", "img", "iframe"} & set(parser.tags) == set()
    assert {name for name, _ in parser.attributes} & {"src", "href", "onload", "onclick"} == set()
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert "url(" not in page
    for heading in ("Groups", "Verdicts", "Pictures", "Claims of guides and papers", "Machine and settings"):
        assert f"<h2>{heading}</h2>" in page


def test_that_a_table_repeats_its_head_in_print_and_keeps_names_and_intervals_on_one_line() -> None:
    page = html_report(_content())
    assert "<thead><tr><th></th><th>fp32</th><th>bf16-amp</th></tr></thead>" in page
    assert '<td class="whole">bf16-amp</td>' in page
    assert "(n\u00a0=\u00a05)" in page
    assert '<td class="whole">not measurable</td><td>the hardware does not tell</td>' in page


def test_that_labels_of_groups_with_equal_figures_do_not_lie_over_one_another() -> None:
    page = html_report(_content(arms=2))
    picture = next(part for part in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if "against CPU time" in part)
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">(?:fp32|bf16-amp)', picture)
    assert len(places) == 2
    assert places[0][0] == places[1][0]  # the same CPU time
    assert abs(float(places[0][1]) - float(places[1][1])) >= 15


def test_that_pictures_are_well_formed() -> None:
    pictures = re.findall(r"<svg.*?</svg>", html_report(_content()), re.DOTALL)
    assert len(pictures) == 5
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        places = [
            float(value) for node in root.iter() for key, value in node.attrib.items() if key in ("x1", "cx", "y1")
        ]
        assert places
        assert all(-1 <= place <= 800 for place in places)


def test_that_a_title_from_a_file_makes_no_markup() -> None:
    content = _content(title=EVIL)
    assert EVIL not in html_report(content)
    assert "&lt;script&gt;" in html_report(content)
    assert markdown_report(content).startswith("# \\<script\\>alert(1)\\</script\\>\\|\\`x\\`")


def test_that_a_report_of_forty_runs_is_small() -> None:
    assert len(html_report(_content(arms=8, seeds=5)).encode()) < 500_000


def test_that_both_forms_begin_with_the_answer() -> None:
    content = _content()
    assert content.answer in html_report(content).replace("&#x27;", "'")
    assert markdown_report(content).split("\n")[2].startswith("**Stay with fp32 here.")


@pytest.mark.parametrize("seeds", [1, 2])
def test_that_few_seeds_still_make_a_report(seeds: int) -> None:
    text = markdown_report(_content(seeds=seeds))
    assert "one seed: not a measurement of accuracy" in text or "undecided: about 3 more seeds" in text
    html_report(_content(seeds=seeds))


def test_that_a_metric_without_a_unit_is_written_as_finely_as_its_target() -> None:
    verdict = Verdict("accuracy_lost", "met", 0.0000123, (-0.00001, 0.00004), 0.00999999, 4)
    metric = Metric("r2", "R²", "", unit="")
    text = _detail(verdict, metric)
    assert text.startswith("-0.000012 [-0.000040, +0.000010]; target at most 0.01 lost; 4 pairs")
    fine = _detail(replace(verdict, margin=1e-6, level=0.9412), metric)
    assert fine.startswith("-0.00001230 [-0.00004000, +0.00001000] (94.12 %); target at most 1e-06 lost")
