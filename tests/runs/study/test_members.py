"""Which runs count: each once, one for each arm and seed, whole; the others are named with the reason."""

import csv
import io
from dataclasses import replace

from precgui.runs.report.content import report_content
from precgui.runs.report.html import html_report
from precgui.runs.report.writing import csv_table, markdown_report
from precgui.runs.study.groups import make_study
from precgui.runs.study.members import member_notes
from precgui.runs.study.result import Study
from precgui.runs.study.run_figures import RunFigures
from tests.runs.study.sample_runs import arm, figures

SEEDS = [0.90, 0.91, 0.89, 0.92, 0.90]
BASE = arm("fp32", SEEDS)


def _left_out(study: Study) -> dict[str, str]:
    return {member.run: member.why for member in study.members if not member.used}


def _copies(run: RunFigures, count: int) -> list[RunFigures]:
    return [replace(run, name=f"copy{number}", run_id="7f") for number in range(count)]


def test_that_copies_of_a_run_count_once_and_are_named() -> None:
    study = make_study([*BASE, *_copies(figures("bf16-amp", 1), 5)])
    group = study.groups[1]
    assert (group.n, group.seeds) == (1, [1])
    assert _left_out(study) == {f"copy{n}": "a copy of copy0, which is the same run" for n in range(1, 5)}
    assert group.verdicts["accuracy_lost"].text == "not measurable: one seed: not a measurement of accuracy"
    (note,) = member_notes(study.members)
    assert note == (
        "4 runs are left out: a copy of copy0, which is the same run (copy1, copy2, copy3, copy4)."
    )  # one sentence for all


def test_that_the_newest_run_of_a_seed_counts_and_no_other() -> None:
    again = [
        replace(
            figures("bf16-amp", 1), name=name, run_id=name, created=f"2026-01-0{day}T00:00:00+00:00", metric_value=v
        )
        for name, day, v in (("first", 1, 0.8), ("last", 3, 0.9), ("second", 2, 0.7))
    ]
    study = make_study([*BASE, *again])
    assert study.groups[1].metrics["metric"].mean == 0.9
    assert set(_left_out(study)) == {"first", "second"}


def test_that_a_damaged_run_is_left_out_by_name_and_the_arm_is_judged_by_the_others() -> None:
    busy = {"pressure": 0.9, "step_s": 0.5}
    runs = [*arm("fp32", SEEDS, **busy), *arm("bf16-amp", SEEDS, **busy), *arm("bf16-pure", SEEDS, **busy)]
    cut = [replace(r, refused="its file is damaged", cpu_s=None, work=replace(r.work, steps=0)) for r in runs[7:8]]
    study = make_study([*runs[:7], *cut, *runs[8:]])
    assert _left_out(study) == {"s03-bf16-amp": "its file is damaged"}
    amp, pure = study.groups[1:]
    assert (amp.n, amp.verdicts["accuracy_lost"].n) == (4, 4)
    for group in (amp, pure):
        assert group.verdicts["speedup"].value == 1.0  # by CPU times, whatever the damaged file lacks
    assert "Times are CPU times" in study.notes[0]


def test_that_a_run_of_other_steps_than_its_arm_is_left_out_by_name() -> None:
    odd = replace(BASE[2], work=replace(BASE[2].work, steps=50))
    study = make_study([*BASE[:2], odd, *BASE[3:], *arm("bf16-amp", SEEDS)])
    assert _left_out(study) == {"s03-fp32": "50 steps, most runs of its arm have 100"}
    assert study.groups[1].metrics["metric"].withheld == ""


def test_that_one_pair_that_cannot_be_compared_is_named() -> None:
    other = arm("bf16-amp", SEEDS)
    other[1] = replace(other[1], work=replace(other[1].work, weights_sha256="beef"))
    assert make_study([*BASE, *other]).groups[1].metrics["metric"].withheld.endswith("(s02-bf16-amp)")


def test_that_a_run_without_cpu_time_decides_the_clock_of_no_other() -> None:
    busy = {"pressure": 0.9, "step_s": 0.5, "cpu_s": 0.01}
    lacking = arm("bf16-amp", SEEDS, **busy)
    lacking[0] = replace(lacking[0], cpu_s=None, step_s=5.0)
    fast = arm("bf16-pure", SEEDS, **{**busy, "cpu_s": 0.004})
    study = make_study([*arm("fp32", SEEDS, **busy), *lacking, *fast])
    assert [round(group.verdicts["speedup"].value or 0, 6) for group in study.groups[1:]] == [1.0, 2.5]
    assert study.groups[1].verdicts["speedup"].n == 4
    assert "The times leave out the pairs of s01-bf16-amp, which recorded none." in study.notes


def test_that_every_form_of_the_report_has_the_members() -> None:
    runs = [*BASE, *_copies(figures("bf16-amp", 1), 2)]
    study = make_study(runs)
    content = report_content(study, runs, title="", command="")
    for text in (html_report(content), markdown_report(content).replace("\\", "")):
        assert "Members" in text
        assert "a copy of copy0, which is the same run" in text
        assert all(line.replace("'", "&#x27;") in text or line in text for line in content.answer_lines)
    rows = list(csv.reader(io.StringIO(csv_table(study))))
    assert len({len(row) for row in rows}) == 1
    assert [row[15:17] for row in rows if row[5] == "member copy1"] == [
        ["left out", "a copy of copy0, which is the same run"]
    ]
    assert "copy1" not in {run.name for run in content.runs}
