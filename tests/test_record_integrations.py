"""The callbacks inside the real Trainers of transformers and Lightning; skipped where these are not installed."""

from __future__ import annotations

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
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from precgui.integrations.huggingface import PrecguiCallback

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, gradient_accumulation_steps=accumulation,
        num_train_epochs=1, use_cpu=True, report_to=[], logging_steps=1, save_strategy="no", eval_strategy="epoch",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=Regression(), args=arguments, train_dataset=Pairs(), eval_dataset=Pairs(),
        callbacks=[PrecguiCallback(tmp_path / "run.h5", title="theirs", record=ALL)],
    )  # fmt: skip
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.title, run.steps) == ("completed", "theirs", 12 // accumulation)
        np.testing.assert_allclose(run.series("loss")[1], logged, rtol=2e-3, atol=1e-3)  # theirs are rounded
        assert not run.series("skipped")[1].any()
        assert len(run.series("val_loss")[1]) == 1
        assert set(run.tensors()["gradient"].names) >= {"layer.weight", "layer.bias"}
        assert len(run.tensors()["update"]) == run.steps


def lightning_module(lightning: Any) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
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
            self.log("val_loss", nn.functional.mse_loss(self.layer(batch["x"]).squeeze(-1), batch["labels"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Module()


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_that_a_fit_of_lightning_is_recorded(tmp_path: Path, accumulation: int, fails: bool) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from precgui.integrations.lightning import PrecguiCallback

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, accumulate_grad_batches=accumulation, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
        callbacks=[PrecguiCallback(tmp_path / "run.h5", record=ALL)],
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
        assert "layer.weight" in run.tensors()["gradient"].names


def test_that_precgui_itself_needs_neither_library() -> None:
    import precgui.record

    assert precgui.record.__name__ in sys.modules
    assert "precgui.integrations.huggingface" not in vars(precgui.record)
