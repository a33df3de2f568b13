"""The weights that a run leaves load in plain torch, strictly, and compute what its model computes."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from precgui import config
from precgui.cli.main import main
from precgui.config import ConfigError
from precgui.engine import tasks
from precgui.engine.errors import EngineError
from precgui.engine.hooks import saved_weights
from precgui.engine.journal import Journal
from precgui.engine.loop import Loop
from precgui.engine.train import make_loop
from precgui.events import Event, Facts, Incident, RunEnded, StepDone
from precgui.job import Job
from precgui.runs.file.reader import open_run

FEW = (
    "device=cpu", "threads=1", "record.tensors=false", "train.epochs=1", "train.max_steps=4", "data.batch_size=16",
    "qat.measure=false",
)  # fmt: skip
DTYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64}
TIED = """
import torch
from torch import nn


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.head.weight = self.embedding.weight

    def forward(self, codes):
        return self.head(self.embedding(codes))


class Task:
    def model(self):
        return Words()

    def train_batches(self):
        codes = torch.arange(64) % 20
        return list(zip(codes.split(16), (codes * 3 % 20).split(16)))

    def validation_batches(self):
        return self.train_batches()

    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)


def make_task(config):
    return Task()
"""


def written(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the metadata of a .safetensors file by its published layout, without precgui."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__")
    tensors = {
        name: torch.frombuffer(bytearray(data[start + begin : start + end]), dtype=DTYPES[entry["dtype"]])
        .reshape(entry["shape"])
        for name, entry in header.items()
        for begin, end in [entry["data_offsets"]]
    }  # fmt: skip
    return tensors, metadata


class Trained:
    """A run that has ended, with its events."""

    def __init__(self, *settings: str, stopped: Callable[[list[Event]], bool] = lambda events: False) -> None:
        self.events: list[Event] = []
        chosen = config.load("digits-quick", [*FEW, *settings])
        self.loop: Loop = make_loop(chosen, Journal(self.events.append, run_id="r1"), lambda: stopped(self.events))
        self.loop.train()
        self.config = chosen

    def plain(self, path: Path) -> nn.Module:
        """The task's own model, newly made, with the weights of the file in the file's types."""
        torch.manual_seed(99)
        model = tasks.make(self.config, print).model()
        model.load_state_dict(written(path)[0], strict=True, assign=True)
        return model.eval()

    @property
    def notes(self) -> str:
        return "\n".join(event.message for event in self.events if isinstance(event, Incident))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16-amp", torch.float32), ("bf16-pure", torch.bfloat16)]
)
def test_that_the_weights_compute_in_plain_torch_what_the_run_computes(
    tmp_path: Path, precision: str, dtype: torch.dtype
) -> None:
    path = tmp_path / "weights.safetensors"
    run = Trained(f"precision={precision}", "model.name=resnet", f"train.save_to={path}")
    model, own = run.plain(path), run.loop.model.eval()
    inputs, _ = next(iter(run.loop.task.validation_batches()))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    for context in (torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-amp"), torch.inference_mode()):
        with context:
            assert torch.equal(model(inputs.to(dtype)), own(inputs.to(dtype)))
    assert any(name.endswith("running_var") for name in written(path)[0])
    files = [event.values["saved_weights"] for event in run.events if isinstance(event, Facts)
             and "saved_weights" in event.values]  # fmt: skip
    assert files == [{"file": str(path), "step": 4, "of": "last step"}]
    assert f"the weights were written to {path}" in run.notes


@pytest.mark.parametrize(
    "settings",
    [
        ("precision=int4-qat", "qat.learned_scales=true"), ("precision=mxfp8",), ("precision=fp16-pure",),
        ("precision=bf16-sr", "model.name=vit"), ("precision=fp64",), ("precision=emulated:e5m2",),
        ("precision=bf16-pure", "precision_options.keep_fp32=*norm*", "model.name=vit"),
        ("model.name=resnet", "train.channels_last=true", "train.checkpointing=true"),
        ("precision_schedule=step:2=bf16-amp",),
    ],
)  # fmt: skip
def test_that_every_precision_leaves_the_names_of_the_plain_model(tmp_path: Path, settings: tuple[str, ...]) -> None:
    path = tmp_path / "weights.safetensors"
    run = Trained(*settings, f"train.save_to={path}")
    model, state = run.plain(path), run.loop.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert written(path)[1]["precision"] == run.loop.run.parts.precision.config.precision


def test_that_tied_weights_load_and_stay_tied(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(TIED)
    path = tmp_path / "weights.safetensors"
    run = Trained(f"task={tmp_path / 'words.py'}:make_task", f"train.save_to={path}")
    tensors, _ = written(path)
    assert torch.equal(tensors["head.weight"], tensors["embedding.weight"])
    model = tasks.make(run.config, print).model()
    model.load_state_dict(tensors, strict=True)
    assert model.head.weight is model.embedding.weight
    codes = torch.arange(20)
    assert torch.equal(model(codes), run.loop.model.eval()(codes))


def test_that_pruned_weights_are_written_with_their_zeros(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    settings = ("pruning.method=magnitude", "pruning.share=0.75", "train.max_steps=10", "model.name=mlp")
    run = Trained(*settings, f"train.save_to={path}")
    weights = [value for value in written(path)[0].values() if value.dim() == 2]
    zeros = sum(int((value == 0).sum()) for value in weights)
    assert zeros / sum(value.numel() for value in weights) == pytest.approx(0.75, abs=0.01)
    assert run.plain(path) is not None


def test_that_the_average_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    last, average = tmp_path / "last.safetensors", tmp_path / "average.safetensors"
    Trained("train.ema_decay=0.9", f"train.save_to={last}")
    run = Trained("train.ema_decay=0.9", "train.save_average=true", f"train.save_to={average}")
    kept = run.loop.run.parts.average
    assert kept is not None
    tensors, metadata = written(average)
    names = [name for name, _ in run.loop.run.parts.trained()]
    assert all(torch.equal(tensors[name], value) for name, value in zip(names, kept.values, strict=True))
    assert not torch.equal(tensors[names[0]], written(last)[0][names[0]])
    assert (metadata["weights"], written(last)[1]["weights"]) == ("moving average", "last step")
    with pytest.raises(ConfigError, match=r"no average is kept; set train\.ema_decay"):
        config.load("digits-quick", ["train.save_average=true"])


def test_that_a_run_that_was_stopped_leaves_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    run = Trained(
        f"train.save_to={path}", stopped=lambda events: sum(isinstance(event, StepDone) for event in events) == 2
    )
    ended = run.events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.status == "stopped"
    assert (written(path)[1]["step"], written(path)[1]["total_steps"]) == ("2", "4")
    state = run.loop.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in written(path)[0].items())


def test_that_a_run_stopped_before_its_first_step_leaves_no_weights(tmp_path: Path) -> None:
    Trained(f"train.save_to={tmp_path / 'weights.safetensors'}", stopped=lambda events: True)
    assert not list(tmp_path.iterdir())


def test_that_a_file_that_cannot_be_written_at_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saved_weights, "write_weights", full)
    run = Trained(f"train.save_to={tmp_path / 'weights.safetensors'}")
    assert "weights.safetensors could not be written: No space left on device" in run.notes
    assert not any(isinstance(event, Facts) and "saved_weights" in event.values for event in run.events)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [("nowhere/w.safetensors", "is not a folder that can be written"), ("w.pt", "does not end in .safetensors")],
)
def test_that_a_place_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, sentence: str
) -> None:
    settings = [f"--set={each}" for each in (*FEW, f"train.save_to={tmp_path / place}")]
    assert main(["run", "-o", str(tmp_path / "a.h5"), *settings]) == 2
    told = capsys.readouterr().err
    assert "train.save_to" in told
    assert sentence in " ".join(told.split())
    assert not list(tmp_path.iterdir())


def test_that_nothing_of_others_is_written_to_through_a_link(tmp_path: Path) -> None:
    foreign, path = tmp_path / "foreign", tmp_path / "weights.safetensors"
    foreign.write_text("mine")
    path.symlink_to(foreign)
    with pytest.raises(EngineError, match=r"train\.save_to: .* already exists"):
        Trained(f"train.save_to={path}")
    path.unlink()

    def link(events: list[Event]) -> bool:
        if isinstance(events[-1], StepDone) and not path.is_symlink():
            path.symlink_to(foreign)
        return False

    Trained(f"train.save_to={path}", stopped=link)
    assert foreign.read_text() == "mine"
    assert path.is_file()
    assert not path.is_symlink()


def test_that_types_without_a_code_are_refused_before_the_run(tmp_path: Path) -> None:
    text = TIED.replace(
        "        self.head.weight", "        self.register_buffer('turn', torch.ones(2) * 1j)\n        #"
    )
    (tmp_path / "words.py").write_text(text)
    with pytest.raises(EngineError, match=r"train\.save_to: turn is torch\.complex64"):
        Trained(f"task={tmp_path / 'words.py'}:make_task", f"train.save_to={tmp_path / 'weights.safetensors'}")


def test_that_state_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(
        TIED.replace("    def forward", "    def get_extra_state(self):\n        return 'counts'\n\n    def forward")
    )
    path = tmp_path / "weights.safetensors"
    run = Trained(f"task={tmp_path / 'words.py'}:make_task", f"train.save_to={path}")
    assert "left out, since they are no tensors: _extra_state" in run.notes
    assert set(written(path)[0]) == {"embedding.weight", "head.weight", "head.bias"}


def test_that_auto_is_beside_the_run_and_the_file_knows_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.h5"
    settings = [f"--set={each}" for each in (*FEW, "train.save_to=auto", "precision=bf16-amp")]
    assert main(["run", "-o", str(path), *settings, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["weights"] == str(tmp_path / "a.safetensors")
    _, metadata = written(tmp_path / "a.safetensors")
    with open_run(path) as saved:
        assert metadata["run_id"] == saved.run_id
        made = config.build(json.loads(metadata["config"]))
        assert (made.precision, made.model, made.train.max_steps) == ("bf16-amp", saved.config.model, 4)
    assert (metadata["precision"], metadata["format"]) == ("bf16-amp", "pt")
    assert str(tmp_path) not in metadata["config"]


def test_that_a_job_in_a_thread_of_its_own_is_stopped_with_its_weights(tmp_path: Path) -> None:
    chosen = config.load("digits-quick", [*FEW, "train.save_to=auto", "train.epochs=1000", "train.max_steps=100000"])
    made = threading.Event()
    job = Job(chosen, tmp_path / "a.h5", [lambda event: made.set() if isinstance(event, StepDone) else None])
    threading.Thread(target=lambda: (made.wait(), job.stop()), daemon=True).start()
    assert job.run().status == "stopped"
    assert int(written(tmp_path / "a.safetensors")[1]["step"]) >= 1


def test_that_runs_without_whole_weights_are_refused() -> None:
    settings = ["parallel.strategy=fsdp", "task=text", "model.name=gpt", "train.save_to=auto"]
    with pytest.raises(ConfigError, match="of which an fsdp rank has a part"):
        config.load("digits-quick", settings)


def test_that_safetensors_itself_reads_the_file(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    path = tmp_path / "weights.safetensors"
    run = Trained("precision=bf16-pure", f"train.save_to={path}")
    model = tasks.make(run.config, print).model().to(torch.bfloat16)
    model.load_state_dict(library.load_file(path), strict=True)
    state = run.loop.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
