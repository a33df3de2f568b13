"""The callbacks inside the real Trainers of transformers and Lightning; skipped where these are not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import precgui
from precgui.config import RecordConfig

ALL = RecordConfig(budget=100, weights_every=1)
pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries' own warnings are not ours to judge


class Pairs(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.x = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[place], "labels": self.x[place].sum()}


class Regression(nn.Module):
    """A model in the manner of transformers: it returns its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


@pytest.mark.parametrize("accumulation", [1, 3])
def test_that_the_trainer_of_transformers_is_recorded(tmp_path: Path, accumulation: int) -> None:
    pytest.importorskip("transformers")
    from precgui.integrations.huggingface import PrecguiCallback

    callback = PrecguiCallback(tmp_path / "run.h5", title="theirs", record=ALL)
    trainer = trainer_of_transformers(tmp_path, Regression(), callback, gradient_accumulation_steps=accumulation)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.title, run.steps) == ("completed", "theirs", 12 // accumulation)
        np.testing.assert_allclose(run.series("loss")[1], logged, rtol=2e-3, atol=1e-3)  # theirs are rounded
        assert not run.series("skipped")[1].any()
        assert len(run.series("val_loss")[1]) == 1
        assert set(run.tensors()["gradient"].names) >= {"layer.weight", "layer.bias"}
        assert len(run.tensors()["update"]) == run.steps


class Breaking(Regression):
    """Raises in its seventh pass."""

    passes = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.passes += self.training
        if self.passes == 7:
            raise ZeroDivisionError("on purpose")
        return super().forward(x, labels)


def trainer_of_transformers(
    folder: Path, model: nn.Module, callback: Any, *, use_cpu: bool = True, **options: Any
) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), per_device_train_batch_size=4, num_train_epochs=1, use_cpu=use_cpu,
        report_to=[], logging_steps=1, save_strategy="no", eval_strategy="epoch", disable_tqdm=True, **options,
    )  # fmt: skip
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=Pairs(), eval_dataset=Pairs(), callbacks=[callback],
        compute_metrics=lambda _: {"r2": 0.75},
    )  # fmt: skip


def test_that_a_trainer_of_transformers_that_raises_leaves_a_failed_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from precgui.integrations.huggingface import PrecguiCallback

    model = Breaking()
    with pytest.raises(ZeroDivisionError), PrecguiCallback(tmp_path / "run.h5") as callback:
        trainer_of_transformers(tmp_path, model, callback).train()
    assert not model._forward_hooks
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps, run.message) == ("failed", 6, "ZeroDivisionError at step 7: on purpose")
        assert "on purpose" in run.details


def test_that_a_second_training_of_a_trainer_has_a_file_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from precgui.integrations.huggingface import PrecguiCallback

    r2 = precgui.Metric("r2", "R²", "share of the variance that is explained", unit="")
    model = Breaking()
    trainer = trainer_of_transformers(tmp_path, model, PrecguiCallback(tmp_path / "run.h5", metric=r2))
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    trainer.train()
    with precgui.open_run(tmp_path / "run.h5") as first, precgui.open_run(tmp_path / "run-2.h5") as second:
        assert (first.status, first.steps) == ("failed", 6)
        assert "without close()" in first.message
        assert (second.status, second.steps) == ("completed", 12)
        assert second.series("val_accuracy")[1].tolist() == [0.75]
        assert second.environment["metric"]["title"] == "R²"
        assert second.environment["libraries"]["transformers"]
    assert not model._forward_hooks


SCRIPT = """
import subprocess
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.integrations.test_integrations import Breaking, trainer_of_transformers
from precgui.integrations.huggingface import PrecguiCallback

folder = Path(sys.argv[1])
trainer_of_transformers(folder, Breaking(), PrecguiCallback(folder / "run.h5")).train()
"""


def test_that_an_exception_that_nobody_catches_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    root = str(Path(__file__).parents[1])
    subprocess.run([sys.executable, "-c", SCRIPT, tmp_path, root], capture_output=True, check=False, timeout=240)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps, run.message) == ("failed", 6, "ZeroDivisionError at step 7: on purpose")


def lightning_module(lightning: Any) -> Any:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)
            self.losses: list[float] = []

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss = nn.functional.mse_loss(self.layer(batch["x"]).squeeze(-1), batch["labels"])
            self.losses.append(float(loss.detach()))
            if len(self.losses) == 1000:
                raise ZeroDivisionError("on purpose")
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self.log("r2", 0.5)
            self.log("val_loss", nn.functional.mse_loss(self.layer(batch["x"]).squeeze(-1), batch["labels"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Module()


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_that_a_fit_of_lightning_is_recorded(tmp_path: Path, accumulation: int, fails: bool) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from precgui.integrations.lightning import PrecguiLightningCallback

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, accumulate_grad_batches=accumulation, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
        callbacks=[PrecguiLightningCallback(tmp_path / "run.h5", record=ALL, metric="r2")],
    )  # fmt: skip
    module = lightning_module(lightning)
    module.losses = [0.0] * 994 if fails else []
    data, held_out = (torch.utils.data.DataLoader(Pairs(), batch_size=4) for _ in range(2))
    if fails:
        with pytest.raises(ZeroDivisionError):
            trainer.fit(module, data, held_out)
    else:
        trainer.fit(module, data, held_out)
    losses = np.array(module.losses[994 if fails else 0 :])
    with precgui.open_run(tmp_path / "run.h5") as run:
        steps = (5 if fails else 12) // accumulation
        assert (run.steps, run.status) == (steps, "failed" if fails else "completed")
        wanted = losses[: steps * accumulation].reshape(steps, accumulation).mean(1)
        loss = run.series("loss")[1] * (accumulation if accumulation > 1 else 1)  # Lightning hands over a part of it
        assert np.allclose(loss, wanted, rtol=1e-5) or np.allclose(run.series("loss")[1], wanted, rtol=1e-5)
        assert len(run.series("val_loss")[1]) == (0 if fails else 1)
        assert run.series("val_accuracy")[1].tolist() == ([] if fails else [0.5])
        assert "layer.weight" in run.tensors()["gradient"].names


def test_that_precgui_itself_needs_neither_library() -> None:
    import precgui.record

    assert precgui.record.__name__ in sys.modules
    assert "precgui.integrations.huggingface" not in vars(precgui.record)
