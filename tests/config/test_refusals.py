"""Settings that do not go together: all of them in one answer, before torch is loaded and a file is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from precgui.config import ConfigError, load
from precgui.config.refusals import IN_A_GRAPH, build_compatible, refusals, require_startable
from precgui.sweeps.errors import SweepError
from precgui.sweeps.spec import make_spec

LORA = ["adapter.kind=lora", "adapter.targets=blocks"]
HOPPER_KEY = "precision_options.fp8_sums"
HOPPER = ("precision=fp8", f"{HOPPER_KEY}=hopper")
GRAPH = ["precision=bf16-amp", "train.cuda_graph=true"]


def test_that_all_refusals_come_at_once_before_torch_and_before_a_file(tmp_path: Path) -> None:
    run = tmp_path / "run.h5"
    settings = [
        "precision=fp8", "precision_options.fp8_amax=delayed", "precision_options.fp8_scaling=rowwise",
        "pruning.method=magnitude", "pruning.end=30", "train.max_steps=20", "train.save_to=missing/weights.safetensors",
    ]  # fmt: skip
    code = (
        "import sys; from precgui.cli.main import main\n"
        "code = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    arguments = ["run", "digits-quick", "-o", str(run), *(word for each in settings for word in ("--set", each))]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr
    assert not run.exists()
    for sentence in (
        "precision_options.fp8_amax = delayed goes with fp8_scaling = tensorwise only",
        "pruning.end is step 30, but the run has 20 steps",
        "missing is not a folder that can be written",
    ):
        assert sentence in done.stderr


@pytest.mark.parametrize(
    ("settings", "key", "sentence"),
    [
        ([*LORA, "precision=int8-qat"], "precision", "adapter.kind = lora goes with fp32, tf32"),
        ([*LORA, "train.compile=true"], "train.compile", "the unpacking of weights is not compiled"),
        (["pruning.method=wanda", "train.compile=true"], "pruning.method", "which a compiled model does not show"),
        (["precision=int8-qat", "qat.measure=false", "qat.save_to=a.pt"], "qat.save_to", "set it true"),
        (["pruning.method=2:4", "pruning.start=9", "train.max_steps=5"], "pruning.start", "but the run has 5 steps"),
        ([*GRAPH, "precision=fp16-amp"], "train.cuda_graph", "bf16-sr, not with fp16-amp; set"),
        ([*GRAPH, "scaling.mode=dynamic"], "train.cuda_graph", "scaling.mode = dynamic: the host decides on each step"),
        ([*GRAPH, "train.compile=true"], "train.cuda_graph", "does not go with train.compile"),
        ([*GRAPH, "train.checkpointing=true"], "train.cuda_graph", "does not go with train.checkpointing"),
        ([*GRAPH, "train.offload_activations=true"], "train.cuda_graph", "go with train.offload_activations"),
        ([*GRAPH, "precision_schedule=step:9=fp32"], "train.cuda_graph", "would stay in the first precision"),
        ([*GRAPH, "parallel.strategy=ddp"], "train.cuda_graph", "does not go with parallel.strategy = ddp"),
        ([*GRAPH, "pruning.method=wanda"], "train.cuda_graph", "which reads the inputs of layers"),
        (["power.limit_w=200", "device=cpu"], "power.limit_w", "limit of an NVIDIA GPU, but device is cpu"),
        ([*HOPPER, "precision_options.rounding=stochastic"], HOPPER_KEY, "goes with rounding = nearest_even"),
        ([*HOPPER, "precision_options.accumulator=fp16"], HOPPER_KEY, "and no accumulator only"),
        ([*GRAPH, "device=cpu"], "train.cuda_graph", "needs an NVIDIA GPU, but device is cpu"),
    ],
)
def test_that_each_refusal_names_its_setting(settings: list[str], key: str, sentence: str) -> None:
    found = refusals(load("gpt-quick", settings))
    assert sentence in found[key]


@pytest.mark.parametrize("recipe", ["detection-quick", "cartpole-quick", "gan-quick"])
def test_that_a_task_whose_steps_differ_is_no_cuda_graph(recipe: str) -> None:
    found = refusals(load(recipe, [*GRAPH, "precision=fp32"]))
    assert "train.cuda_graph does not go with task" in found["train.cuda_graph"]


def test_that_a_cuda_graph_goes_with_the_precisions_that_it_names() -> None:
    for precision in IN_A_GRAPH:
        assert refusals(load("digits-quick", [*GRAPH, f"precision={precision}", "device=auto"])) == {}


def test_that_the_form_and_a_sweep_refuse_them_too() -> None:
    chosen = load("gpt-quick", LORA)
    with pytest.raises(ConfigError, match=r"precision: adapter.kind = lora goes with"):
        build_compatible({**chosen.model_dump(), "precision": "fp8"})
    with pytest.raises(SweepError, match=r"the arm fp8 cannot be run: adapter.kind = lora goes with"):
        make_spec(chosen, ["fp32", "fp8"], 2)


def test_that_places_are_looked_at_where_the_run_starts(tmp_path: Path) -> None:
    taken = tmp_path / "taken.safetensors"
    taken.write_bytes(b"")
    chosen = load("gpt-quick", [*LORA, f"adapter.save_to={taken}", f"base.weights={tmp_path / 'none'}"])
    assert refusals(chosen) == {}
    with pytest.raises(ConfigError, match=r"already exists.*there is no .*none; name a file or folder that exists"):
        require_startable(chosen)


def test_that_a_config_without_faults_can_start() -> None:
    require_startable(load("digits-quick"))
