"""In which facts runs and groups differ: machines first."""

from types import SimpleNamespace
from typing import Any

from precgui.config import RunConfig
from precgui.runs.differences import ComparedFacts, KeptFacts, differing, machine_sentence
from precgui.runs.report.content import group_differences
from precgui.runs.study.groups import make_study
from tests.runs.study.sample_runs import arm


def _facts(name: str, host: str | None, lr: float) -> ComparedFacts:
    return ComparedFacts(name, {"settings": {"lr": lr, "title": name}, "machine": {"host": host}, "libraries": {}})


def _run(status: str) -> Any:
    return SimpleNamespace(config=RunConfig(), environment={}, machine={"host": "one"}, status=status)


def test_that_machines_come_first_and_titles_never() -> None:
    rows = differing([_facts("a", "one", 0.1), _facts("b", "two", 0.2)])
    assert [(row.part, row.fact, row.values) for row in rows] == [
        ("machine", "host", ("one", "two")),
        ("settings", "lr", ("0.1", "0.2")),
    ]
    assert "host: one, two" in machine_sentence(rows)


def test_that_what_was_not_recorded_makes_no_other_machine() -> None:
    rows = differing([_facts("a", "one", 0.1), _facts("b", None, 0.1)])
    assert [row.values for row in rows] == [("one", "not recorded")]
    assert machine_sentence(rows) == ""


def test_that_one_run_differs_from_nothing() -> None:
    assert differing([_facts("a", "one", 0.1)]) == []


def test_that_facts_of_ended_runs_are_read_once_and_those_of_others_each_time() -> None:
    kept, ended, live = KeptFacts(), _run("completed"), _run("running")
    for name in ("first", "second"):
        live.machine = {"host": name}
        facts = kept.of({"a": (ended, name), "b": (live, name)})
        assert [each.name for each in facts] == [name, name]
        assert facts[1].parts["machine"]["host"] == name
        ended.machine = {"host": "not read again"}
    assert facts[0].parts["machine"]["host"] == "one"
    assert kept.of({"b": (live, "b")})[0].name == "b"
    assert kept.of({"a": (ended, "a")})[0].parts["machine"]["host"] == "not read again"


def test_that_groups_tell_their_machines_precisions_and_missing_seeds() -> None:
    runs = [*arm("fp32", [0.9, 0.8]), *arm("bf16-amp", [0.9], host="another", machine={"host": "another"})]
    rows = group_differences(make_study(runs), runs)
    values = {(row.part, row.fact): row.values for row in rows}
    assert values["settings", "precision"] == ("fp32", "bf16-amp")
    assert values["settings", "seed"] == ("1, 2", "1")
    assert values["machine", "host"][1] == "another"
    assert rows[0].part == "machine"
