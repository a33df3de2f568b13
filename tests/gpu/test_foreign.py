"""Examples and the snippets of the documents on the GPU: loops of accelerate, Lightning, Hugging Face and PEFT, too."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("pydantic", reason="what is recorded is configured with pydantic, which is not installed here")

import precgui
from precgui import open_run
from tests.gpu.place import DEVICE, REHEARSED
from tests.integrations.test_integrations import ALL, Pairs, Regression, lightning_module, trainer_of_transformers

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # of other libraries, which are not ours to judge
ROOT = Path(__file__).parents[2]
Tell = Callable[[str], None]
PLACE = torch.device(DEVICE).type


def checked(path: Path, tell: Tell, steps: int, *, device: str = PLACE) -> Any:
    """The run is complete, on the GPU, and every step and gradient was measured."""
    run = open_run(path)
    loss = run.series("loss")[1]
    problems = [each.rule for each in precgui.diagnose(run) if each.severity != "info"]
    tell(f"{path.stem}: {run.status}, {run.device}, loss {loss[0]:.4f} to {loss[-1]:.4f}, problems {problems}")
    assert (run.status, run.message, run.steps) == ("completed", "", steps)
    assert run.device.startswith(device)
    return run


def measured(run: Any, kind: str) -> set[str]:
    """Names of the tensors of a kind; `names` are those of all kinds."""
    history = run.tensors()[kind]
    _, statistics = history.written(np.arange(len(history)))
    return {name for name, row in zip(history.names, np.moveaxis(statistics, 1, 0), strict=True) if row.any()}


@pytest.mark.parametrize(("name", "steps"), [("cnn", 150), ("gpt", 200)])
def test_that_an_example_runs(name: str, steps: int, tmp_path: Path, tell: Tell) -> None:
    words = [str(tmp_path / f"{name}.h5"), *([ROOT / "examples" / "gpt.py"] if name == "gpt" else [])]
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](*words)
    run = checked(tmp_path / f"{name}.h5", tell, steps)
    losses = run.series("loss")[1]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_that_the_plain_loop_of_the_documents_runs(tmp_path: Path, tell: Tell) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(DEVICE)
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler(PLACE)
    recorder = precgui.Recorder(tmp_path / "plain.h5", model, optimizer, scaler)
    for _ in range(40):
        inputs = torch.randn(64, 16, device=DEVICE)
        with torch.autocast(PLACE, torch.float16):
            outputs = model(inputs)
        loss = nn.functional.mse_loss(outputs.float(), inputs.square().sum(1, keepdim=True))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
    recorder.close()
    checked(tmp_path / "plain.h5", tell, 40)


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_that_a_loop_of_accelerate_is_recorded(precision: str, tmp_path: Path, tell: Tell) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed here")
    if REHEARSED and precision == "fp16":
        pytest.skip("FP16 of accelerate needs a GPU")
    accelerator = accelerate.Accelerator(mixed_precision=precision, gradient_accumulation_steps=2, cpu=REHEARSED)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    data = torch.utils.data.DataLoader(Pairs(), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), data)
    recorder = precgui.Recorder(tmp_path / f"accelerate-{precision}.h5", model, optimizer, accelerator.scaler)
    for _ in range(2):
        for batch in data:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(batch["x"]).squeeze(-1).float(), batch["labels"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            recorder.step(loss)
    recorder.close()
    checked(tmp_path / f"accelerate-{precision}.h5", tell, 12)


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"fp16": True}], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_that_the_trainer_of_transformers_is_recorded(
    options: dict[str, bool], accumulation: int, tmp_path: Path, tell: Tell
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed here")
    if REHEARSED and options.get("fp16"):
        pytest.skip("FP16 of the Trainer needs a GPU")
    from precgui.integrations.huggingface import PrecguiCallback

    name = f"trainer-{'-'.join(options) or 'fp32'}-{accumulation}"
    callback = PrecguiCallback(tmp_path / f"{name}.h5", record=ALL)
    trainer = trainer_of_transformers(tmp_path, Regression(), callback, use_cpu=REHEARSED,
                                      gradient_accumulation_steps=accumulation, **options)  # fmt: skip
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    run = checked(tmp_path / f"{name}.h5", tell, 12 // accumulation)
    np.testing.assert_allclose(run.series("loss")[1], logged, rtol=2e-3, atol=1e-3)
    assert set(run.tensors()["gradient"].names) >= {"layer.weight", "layer.bias"}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_that_a_fit_of_lightning_is_recorded(precision: str, tmp_path: Path, tell: Tell) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed here")
    if REHEARSED and precision == "16-mixed":
        pytest.skip("FP16 of Lightning needs a GPU")
    from precgui.integrations.lightning import PrecguiLightningCallback

    name = f"lightning-{precision}"
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu" if REHEARSED else "gpu", devices=1, precision=precision, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
        callbacks=[PrecguiLightningCallback(tmp_path / f"{name}.h5", record=ALL, metric="r2")],
    )  # fmt: skip
    module = lightning_module(lightning)
    data, held_out = (torch.utils.data.DataLoader(Pairs(), batch_size=4) for _ in range(2))
    trainer.fit(module, data, held_out)
    run = checked(tmp_path / f"{name}.h5", tell, 12)
    np.testing.assert_allclose(run.series("loss")[1], module.losses, rtol=1e-5)


def test_that_adapters_of_peft_in_a_trainer_are_recorded(tmp_path: Path, tell: Tell) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed here")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed here")
    from precgui.integrations.huggingface import PrecguiCallback

    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 16}
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size))
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM"))
    tokens = torch.randint(64, (48, 16), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, max_steps=12, use_cpu=REHEARSED, report_to=[],
        logging_steps=1, save_strategy="no", disable_tqdm=True, bf16=not REHEARSED, learning_rate=1e-2,
    )  # fmt: skip
    callback = PrecguiCallback(tmp_path / "peft.h5", record=ALL)
    transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback]).train()
    run = checked(tmp_path / "peft.h5", tell, 12)
    assert measured(run, "gradient") == {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in measured(run, "gradient"))
