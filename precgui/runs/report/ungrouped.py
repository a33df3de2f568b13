"""The report on run files that belong to no sweep, grouped by their settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from precgui.runs.file.reader import open_run
from precgui.runs.report.content import ReportContent, report_content
from precgui.runs.study.groups import make_study
from precgui.runs.study.ungrouped import ungrouped_figures
from precgui.runs.verdict.targets import DEFAULT_TARGETS, Targets
from precgui.sentences import L_, Sentence

_NOT_PLANNED = L_(
    "These runs were not planned as a study: whoever adds runs until a difference is seen is wrong more often than the "
    "rule says."
)


def ungrouped_report(paths: Sequence[Path], targets: Targets = DEFAULT_TARGETS) -> ReportContent:
    """The content of the report on these run files.

    Raises RunFileError for a file that cannot be read, ValueError when there is none.
    """
    with ExitStack() as stack:
        runs = ungrouped_figures([stack.enter_context(open_run(path)) for path in paths])
    study = make_study(runs, targets=targets)
    study.notes.append(_NOT_PLANNED)
    command = f"precgui compare {shlex.join(path.name for path in paths)}"
    return report_content(
        study, runs, title=Sentence("{count} runs, grouped by their settings", count=len(paths)), command=command
    )
