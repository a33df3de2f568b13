"""Every task learns something small, from data that are what they say they are."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from precgui import config
from precgui.engine import tasks
from precgui.engine.errors import EngineError
from precgui.engine.models import GanNetworks
from precgui.engine.tasks import cartpole, regression, segmentation, text
from precgui.engine.tasks.base import ratio
from precgui.engine.tasks.gan import Gan
from precgui.events import Evaluated, Event, Metric, RunEnded, RunStarted, StepDone
from precgui.runs.metric import metric_of
from tests.engine.conftest import Record

QUIET = ("record.tensors=false",)


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of scenes to segment, and of texts to validate."""
    monkeypatch.setattr(segmentation, "_SCENES", (24, 8))
    monkeypatch.setattr(text, "_VALIDATION_WINDOWS", 8)


def losses(events: Sequence[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, StepDone)]


def evaluations(events: Sequence[Event]) -> list[Evaluated]:
    return [event for event in events if isinstance(event, Evaluated)]


def load(*settings: str) -> config.RunConfig:
    return config.load("digits-quick", ["device=cpu", *settings])


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    """A text that is easy to learn."""
    file = tmp_path / "prose.txt"
    file.write_text("the quick brown fox jumps over the lazy dog. " * 400)
    return file


# Language


@pytest.mark.parametrize(("model", "lr"), [("gpt", 3e-3), ("lstm", 1e-2)])
def test_that_language_models_learn_a_text(record: Record, prose: Path, model: str, lr: float) -> None:
    events = record(
        *QUIET, "task=text", f"model.name={model}", f"data.path={prose}", "data.batch_size=8", "train.max_steps=60",
        "data.sequence_length=64", "data.epoch_steps=60", "optimizer.name=adamw", f"optimizer.lr={lr}",
    )  # fmt: skip
    assert losses(events)[0] == pytest.approx(math.log(256), rel=0.1), "at first all bytes are equally likely"
    last = evaluations(events)[-1]
    assert last.loss < 1.2
    assert last.accuracy == pytest.approx(last.loss / math.log(2)), "bits per byte"


def test_that_the_text_of_python_is_read_the_same_each_time_and_recorded() -> None:
    first, second = (text.corpus("") for _ in range(2))
    assert first == second
    content, facts = first
    assert facts["sha256"] == hashlib.sha256(content).hexdigest()
    assert facts["bytes"] > 1_000_000
    assert b"def " in content


def test_that_targets_are_the_bytes_that_follow(prose: Path) -> None:
    task = text.Text(load("task=text", f"data.path={prose}", "data.batch_size=3"))
    inputs, targets = next(iter(task.train_batches()))
    assert inputs.shape == targets.shape == (3, 128)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert bytes(inputs[0].tolist()) in prose.read_bytes()


def test_that_text_for_training_and_for_validation_is_apart(tmp_path: Path) -> None:
    file = tmp_path / "numbers.bin"
    file.write_bytes(bytes(90) * 10 + bytes([7]) * 100 + bytes([7]))
    task = text.Text(load("task=text", f"data.path={file}", "data.sequence_length=16"))
    assert not any((inputs == 7).any() for inputs, _ in task.train_batches())
    assert all((inputs == 7).all() for inputs, _ in task.validation_batches())


def test_that_a_folder_is_read_in_the_order_of_its_names_without_hidden_files(tmp_path: Path) -> None:
    for name, content in (("b.txt", "second"), ("a.txt", "first"), (".git", "never")):
        (tmp_path / name).write_text(content)
    assert text.corpus(str(tmp_path))[0] == b"first\nsecond"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, r"holds no files; set data\.path"), ("too short", r"has 9 bytes, too few for data\.sequence_length = 128")],
)
def test_that_a_text_that_cannot_be_used_is_named(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_text(content)
    with pytest.raises(EngineError, match=sentence):
        text.Text(load("task=text", f"data.path={tmp_path}"))


def test_that_the_gpt_does_not_see_the_future() -> None:
    model = text.Text(load("task=text")).model().eval()
    tokens = torch.randint(256, (1, 20), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 12:] = 0
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12:], after[:, 12:])


# Segmentation


def test_that_a_unet_learns_to_segment(record: Record) -> None:
    events = record(
        *QUIET, "task=segmentation", "data.batch_size=16", "data.epoch_steps=64", "train.epochs=1",
        "optimizer.name=adamw", "optimizer.lr=3e-3", "optimizer.schedule=constant",
    )  # fmt: skip
    assert losses(events)[0] > 2
    assert evaluations(events)[-1].loss < 1.2


def test_that_a_scene_shows_the_digits_that_its_classes_name() -> None:
    images, labels = torch.ones(10, 1, 8, 8), torch.arange(10)
    scene, classes = segmentation.scenes(images, labels, 5, seed=0)
    assert scene.shape == (5, 1, 32, 32)
    assert torch.equal(scene[:, 0] == 1.0, classes > 0), "ink and nothing else has a class"
    assert int(classes.max()) <= 10
    assert int((classes[0] > 0).sum()) >= 16 * 16


def test_that_the_iou_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import jaccard_score

    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 11, 8, 8, generator=draw)
    targets = torch.randint(11, (3, 8, 8), generator=draw)
    task = segmentation.Segmentation(load("task=segmentation"))
    parts = [task.score(outputs[:1], targets[:1]), task.score(outputs[1:], targets[1:])]
    expected = jaccard_score(targets.flatten().numpy(), outputs.argmax(1).flatten().numpy(), average="macro")
    assert ratio(parts) == pytest.approx(expected)


# Regression


def test_that_the_precision_of_a_regression_is_plain_to_see(record: Record) -> None:
    def final(precision: str) -> float:
        return evaluations(
            record(
                *QUIET, "task=regression", "train.epochs=16", "optimizer.lr=0.1", "optimizer.momentum=0.95",
                f"precision={precision}",
            )
        )[-1].loss  # fmt: skip

    fp64, fp32, bf16, fp8 = (final(name) for name in ("fp64", "fp32", "bf16-pure", "fp8"))
    assert fp64 < 4e-5
    assert fp32 == pytest.approx(fp64, rel=1e-2)
    assert bf16 > 8 * fp32
    assert fp8 > bf16


def test_that_the_inputs_have_the_condition_they_claim() -> None:
    inputs = regression.problem(200_000, torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(inputs)
    assert float(values[0] / values[-1]) == pytest.approx(regression.CONDITION, rel=0.02)


def test_that_r2_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import r2_score

    targets = torch.randn(500, 16, generator=torch.Generator().manual_seed(1))
    targets = (targets - targets.mean(0)) / targets.std(0, correction=0)
    outputs = targets + 0.3 * torch.randn(500, 16, generator=torch.Generator().manual_seed(2))
    task = regression.Regression(load("task=regression"))
    assert ratio([task.score(outputs, targets)]) == pytest.approx(r2_score(targets, outputs), abs=1e-4)


# GanNetworks


def test_that_each_adversary_learns_from_its_own_loss_only() -> None:
    torch.manual_seed(0)
    model = GanNetworks("small")
    judged = model((torch.randn(8, 32), torch.rand(8, 1, 8, 8)))
    nn.functional.softplus(-judged.generated_live).mean().backward(retain_graph=True)
    assert all(p.grad is None for p in model.discriminator.parameters())
    assert all(p.grad is not None for p in model.generator.parameters())
    model.zero_grad(set_to_none=True)
    (nn.functional.softplus(-judged.real).mean() + nn.functional.softplus(judged.generated).mean()).backward()
    assert all(p.grad is None for p in model.generator.parameters())
    assert all(p.grad is not None for p in model.discriminator.parameters())


def test_that_the_generator_learns_to_draw(record: Record) -> None:
    events = record(
        *QUIET, "task=gan", "train.epochs=40", "optimizer.name=adamw", "optimizer.lr=1e-4",
        "optimizer.schedule=constant",
    )  # fmt: skip
    covered = [event.accuracy for event in evaluations(events)]
    assert covered[0] < 0.02
    assert max(covered) > 0.08
    assert all(math.isfinite(loss) for loss in losses(events))


def test_that_real_digits_cover_themselves_and_noise_covers_nothing() -> None:
    task = Gan(load("task=gan"))
    (_, real), _ = next(iter(task.validation_batches()))
    judged = GanNetworks("small")((torch.randn(len(real), 32), real))
    assert ratio([task.score(judged._replace(images=real), real)]) == 1.0
    assert ratio([task.score(judged._replace(images=torch.rand_like(real)), real)]) == 0.0


# Reinforcement learning


def test_that_the_pole_learns_to_stand(record: Record) -> None:
    events = record(
        *QUIET, "task=cartpole", "data.batch_size=16", "train.epochs=1", "optimizer.name=adamw", "optimizer.lr=5e-3",
        "optimizer.schedule=constant",
    )  # fmt: skip
    assert evaluations(events)[-1].accuracy > 80, "a pole that is pushed at random falls after 20 steps"


def test_that_the_cart_moves_as_its_equations_say() -> None:
    poles = cartpole.CartPoles(1, torch.Generator().manual_seed(0))
    poles.state = torch.tensor([[0.1, -0.2, 0.05, 0.3]], dtype=torch.float64)
    assert bool(poles.step(torch.tensor([1])))
    # One step of Gymnasium 1.0's CartPole-v1 (Euler) from the same state with action 1.
    expected = [0.096, -0.005671774910, 0.056, 0.023618786530]
    assert poles.state[0, [0, 2]].tolist() == pytest.approx([expected[0], expected[2]], abs=1e-12)
    assert poles.state[0, [1, 3]].tolist() == pytest.approx(_by_hand(), abs=1e-12)


def _by_hand() -> list[float]:
    """Barto, Sutton and Anderson 1983, appendix, for the state of the test: speed and angular speed after 0.02 s."""
    angle, turning, mass, length = 0.05, 0.3, 0.1, 0.5
    sine, cosine, total = math.sin(angle), math.cos(angle), 1.1
    thrust = (10 + mass * length * turning**2 * sine) / total
    turn = (9.8 * sine - cosine * thrust) / (length * (4 / 3 - mass * cosine**2 / total))
    push = thrust - mass * length * turn * cosine / total
    return [-0.2 + 0.02 * push, 0.3 + 0.02 * turn]


# All


@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize("name", ["digits", "text", "segmentation", "regression", "gan", "cartpole"])
def test_that_a_task_describes_itself_and_runs_alike_twice(record: Record, name: str) -> None:
    settings = (
        *QUIET,
        f"task={name}",
        "data.batch_size=8",
        "data.epoch_steps=3",
        "train.epochs=1",
        "optimizer.lr=1e-3",
    )
    first, second = record(*settings), record(*settings)
    assert losses(first) == losses(second)
    assert evaluations(first)[0].loss == evaluations(second)[0].loss
    started = first[0]
    assert isinstance(started, RunStarted)
    assert started.steps_per_epoch == 3
    assert metric_of(started.engine) == Metric(**started.engine["metric"])
    assert started.engine["data"]
    assert isinstance(first[-1], RunEnded)


@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize("name", ["gan", "cartpole", "segmentation", "regression", "text"])
@pytest.mark.parametrize("precision", ["bf16-amp", "fp16-pure", "mxfp8", "int4-qat"])
def test_that_a_task_goes_with_any_precision(record: Record, name: str, precision: str) -> None:
    events = record(
        *QUIET, f"task={name}", "data.batch_size=4", "data.epoch_steps=2", "train.epochs=1", "optimizer.lr=1e-3",
        f"precision={precision}",
    )  # fmt: skip
    assert all(math.isfinite(loss) for loss in losses(events))
    assert len(evaluations(events)) == 1


def test_that_a_model_of_another_task_is_refused_with_a_cure() -> None:
    with pytest.raises(config.ConfigError, match="'cnn' does not go with the task text; choose auto, gpt, lstm"):
        load("task=text", "model.name=cnn")
    with pytest.raises(config.ConfigError, match="'gpt' does not go with the task digits"):
        load("model.name=gpt")


def test_that_the_window_and_the_engine_know_the_same_tasks() -> None:
    assert config.TASKS.keys() == tasks.TASKS.keys()
