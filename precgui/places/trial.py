"""A first contact with a place, and its answer in built-in types."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from precgui.errors import SentenceError
from precgui.places.contact import ContactError
from precgui.places.link import PlaceLink
from precgui.places.messages import JobLine, PlaceHello
from precgui.places.placed_job import JobError, PlacedJob
from precgui.places.settings import NamedPlace
from precgui.process.frames import PROTOCOL
from precgui.sanitize import one_line, sanitize_tree
from precgui.sentences import Sentence, message_of

_MOST_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class PlaceAnswer:
    """`hello` is None where no agent answered, and `why` says why."""

    place: NamedPlace
    hello: PlaceHello | None
    why: str = ""

    def document(self) -> dict[str, Any]:
        """As `precgui places list --json` prints it."""
        hello = asdict(self.hello) if self.hello is not None else {"devices": ()}
        result = {
            "name": self.place.name,
            "command": list(self.place.command),
            "devices": list(hello["devices"]),
            "torch": hello.get("torch") or None,
            "version": hello.get("precgui"),
            "protocol": PROTOCOL if hello else None,
            "host": hello.get("host"),
            "system": hello.get("system"),
            "python": hello.get("python"),
            "answered": self.hello is not None,
            "why": self.why,
        }
        return dict(sanitize_tree(result))


def answer_of(place: NamedPlace) -> PlaceAnswer:
    """Ask a place for its hello; some seconds at most, half a minute where it says nothing at all."""
    try:
        link = PlaceLink(place)
    except ContactError as error:
        return PlaceAnswer(place, None, message_of(error))
    link.close()
    return PlaceAnswer(place, link.hello)


def jobs_of(place: NamedPlace) -> tuple[JobLine, ...]:
    """The runs and commands of a place, the newest first. Raises SentenceError."""
    job = PlacedJob(place)
    try:
        job.open()
        return job.jobs()
    finally:
        job.close()


def job_of_run(place: NamedPlace, run_id: str, path: Path, where: str) -> JobLine:
    """The job at a place of the run in a file of this machine. Raises SentenceError."""
    line = next((line for line in jobs_of(place) if line.job == run_id), None)
    if line is None:
        values = {"path": path, "place": place.name}
        if where:
            raise JobError(
                Sentence(
                    "{path} was trained at {where}, and {place} has no run of this name",
                    where=one_line(where, 40),
                    **values,
                )
            )
        raise JobError(Sentence("{path} was trained on this machine, and {place} has no run of this name", **values))
    return line


def visit(place: NamedPlace) -> tuple[PlaceAnswer, tuple[JobLine, ...]]:
    """The hello of a place and its jobs; none where it does not answer."""
    answer = answer_of(place)
    try:
        return answer, jobs_of(place) if answer.hello is not None else ()
    except SentenceError as error:
        return replace(answer, hello=None, why=message_of(error)), ()


def answers_of(places: list[NamedPlace]) -> list[PlaceAnswer]:
    """Of several at a time, in their order."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return list(pool.map(answer_of, places))
