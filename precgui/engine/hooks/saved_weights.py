"""Writes the weights of the model when its run ends, for use outside of precgui."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Self

from torch import Tensor

from precgui import __version__
from precgui.config.sections import BESIDE_THE_RUN
from precgui.engine.adapters.adapt import peft_adapters
from precgui.engine.adapters.peft_folder import WEIGHTS, check_new_folder, write_peft
from precgui.engine.adapters.weights_file import check_new_file, tensors_of, write_weights
from precgui.engine.errors import EngineError
from precgui.engine.hook import LoopHook, TrainingRun
from precgui.engine.snapshot.file import require_codes
from precgui.formats.tensorfile import TensorFileError, metadata_of
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence, together


class SavedWeights(LoopHook):
    """Writes parameters and buffers as a .safetensors file after the last step of a completed or stopped run.

    Of a run with adapters it writes these as a folder of PEFT.

    The names are those of the `state_dict()` of the task's own model, so a plain torch model takes them with
    `strict=True`; a shared tensor stands there under each of its names. State that a precision adds is left out.
    """

    def __init__(self, run: TrainingRun, path: Path) -> None:
        self._run, self._path = run, path

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        train = run.config.train
        if train.save_to in ("", BESIDE_THE_RUN):
            return None
        if run.config.adapter.kind != "none":
            return cls._of_adapters(run)
        if run.resumed is None or not _is_of(run.journal.run_id, Path(train.save_to).expanduser()):
            check_new_file(train.save_to, "train.save_to")
        hook = cls(run, Path(train.save_to).expanduser().absolute())
        try:
            require_codes(hook._tensors())
        except TypeError as error:
            raise EngineError(
                Sentence(
                    "train.save_to: {error}, which a .safetensors file does not hold; leave it empty", error=str(error)
                )
            ) from None
        return hook

    @classmethod
    def _of_adapters(cls, run: TrainingRun) -> Self:
        folder, key = run.config.train.save_to, "train.save_to"
        peft_adapters(run.parts.model)  # whether there is a place for all of it
        place = Path(folder).expanduser().absolute()
        is_ours = run.resumed is not None and _is_of(run.journal.run_id, place / WEIGHTS)
        return cls(run, place if is_ours else check_new_folder(folder, key))

    def end_steps(self) -> None:
        if self._run.step:
            self._run.journal.note(self._run.step, self._save())

    def _save(self) -> str:
        """Write the file and record its path. Returns the sentence that says so, or why there is none."""
        run = self._run
        try:
            with self._weights():
                self._write()
        except OSError as error:
            return Sentence(
                "train.save_to: {file} could not be written: {error}",
                file=self._path,
                error=error.strerror or str(error),
            )
        run.journal.facts({"saved_weights": {"file": str(self._path), "step": run.step, "of": self._kind}})
        others = sorted({*run.parts.state_names} - self._tensors().keys()) if self._path.is_file() else []
        text = Sentence("the weights were written to {file} ({kind})", file=self._path, kind=self._kind)
        if not others:
            return text
        left_out = Sentence("left out, since they are no tensors: {names}", names=some_names(others, 5))
        return together(text, left_out, between="; ")

    def _write(self) -> None:
        config = self._run.config
        if config.adapter.kind == "none":
            write_weights(self._tensors(), self._path, self._metadata())
        else:
            write_peft(self._path, peft_adapters(self._run.parts.model), config.adapter.dropout, self._metadata())

    @property
    def _kind(self) -> str:
        return L_("moving average") if self._run.config.train.save_average else L_("last step")

    def _weights(self) -> contextlib.AbstractContextManager[None]:
        average = self._run.parts.average
        return average.applied() if average and self._run.config.train.save_average else contextlib.nullcontext()

    def _tensors(self) -> dict[str, Tensor]:
        parts = self._run.parts
        return {name: value for name, value in tensors_of(parts.model).items() if name in parts.state_names}

    def _metadata(self) -> dict[str, str]:
        """Facts for whoever gets the file: the config without what it wrote and where."""
        run = self._run
        config = run.config.model_dump_json(exclude={"record": True, "train": {"save_to"}, "qat": {"save_to"}})
        return {
            "precgui_version": __version__, "run_id": run.journal.run_id,
            "precision": run.parts.precision.config.precision, "config": config,
            "step": str(run.step), "total_steps": str(run.total_steps), "weights": self._kind,
        }  # fmt: skip


def _is_of(run_id: str, file: Path) -> bool:
    """Whether a file was written when this run was stopped, which now goes on."""
    try:
        return bool(run_id) and metadata_of(file).get("run_id") == run_id
    except TensorFileError:
        return False
