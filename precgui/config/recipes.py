"""Complete configs by name, to start from."""

from __future__ import annotations

from precgui.config.adapters import AdapterConfig, BaseConfig
from precgui.config.learning import DataConfig, ModelConfig, QatConfig
from precgui.config.parallel import ParallelConfig
from precgui.config.sections import OptimizerConfig, ScalingConfig, TrainConfig
from precgui.config.sparsity import PruningConfig
from precgui.config.tree import RunConfig
from precgui.sentences import L_

_QUICK = RunConfig()
_GPT_QUICK = RunConfig(
    task="text",
    data=DataConfig(batch_size=16),
    train=TrainConfig(epochs=4, clip_norm=1.0),
    optimizer=OptimizerConfig(name="adamw", lr=2e-3, weight_decay=0.1),
)
RECIPES: dict[str, tuple[str, RunConfig]] = {
    "digits-quick": (L_("Bundled digits, small CNN."), _QUICK),
    "digits-adamw": (
        L_("The same with AdamW, to see how an adaptive optimiser takes the format."),
        RunConfig(optimizer=OptimizerConfig(name="adamw", lr=2e-3, weight_decay=0.01)),
    ),
    "digits-scale-demo": (
        L_("FP16 with a loss scale that starts far too high: watch it back off and grow again."),
        RunConfig(
            precision="fp16-amp",
            scaling=ScalingConfig(mode="dynamic", initial_scale=2.0**30, growth_interval=50),
        ),
    ),
    "digits-long": (
        L_("Medium CNN, long enough to watch, zoom and compare."),
        RunConfig(model=ModelConfig(size="medium"), train=TrainConfig(epochs=100)),
    ),
    "gpt-quick": (
        L_("Small GPT on the source of Python's own library."),
        _GPT_QUICK,
    ),
    "gpt-qlora": (
        L_("LoRA on a small GPT in NF4: trained on Python's library first, then adapted to its language reference."),
        RunConfig(
            task="text",
            data=DataConfig(batch_size=16, corpus="manual"),
            train=TrainConfig(epochs=3, clip_norm=1.0),
            optimizer=OptimizerConfig(name="adamw", lr=3e-3),
            adapter=AdapterConfig(kind="lora", merge_at_end=True),
            base=BaseConfig(double_quant=True),
        ),
    ),
    "gpt-two-ranks": (
        L_("Small GPT on two processes that send their gradients as INT8 in blocks."),
        _GPT_QUICK.model_copy(update={"parallel": ParallelConfig(strategy="ddp", ranks=2, gradient_format="int8")}),
    ),
    "lstm-quick": (
        L_("Small LSTM on the same text."),
        RunConfig(
            task="text",
            model=ModelConfig(name="lstm"),
            data=DataConfig(batch_size=16),
            train=TrainConfig(epochs=4, clip_norm=1.0),
            optimizer=OptimizerConfig(name="adamw", lr=4e-3),
        ),
    ),
    "segmentation-quick": (
        L_("U-Net on scenes of digits."),
        RunConfig(
            task="segmentation",
            data=DataConfig(batch_size=16),
            train=TrainConfig(epochs=8),
            optimizer=OptimizerConfig(name="adamw", lr=3e-3),
        ),
    ),
    "detection-quick": (
        L_("FCOS of torchvision on scenes of digits."),
        RunConfig(
            task="detection",
            data=DataConfig(batch_size=16),
            train=TrainConfig(epochs=6, clip_norm=10.0),
            optimizer=OptimizerConfig(name="adamw", lr=1e-3),
        ),
    ),
    "speech-quick": (
        L_("Ten words of synthetic voices: a spectrogram that stays in FP32, and convolutions."),
        RunConfig(
            task="speech",
            train=TrainConfig(epochs=8),
            optimizer=OptimizerConfig(name="adamw", lr=2e-3),
        ),
    ),
    "recommender-quick": (
        L_("What users like: tables of embeddings, of which a step touches a few rows."),
        RunConfig(
            task="recommender",
            data=DataConfig(batch_size=512),
            train=TrainConfig(epochs=6),
            optimizer=OptimizerConfig(name="adamw", lr=1e-2, weight_decay=1.0),
        ),
    ),
    "regression-precise": (
        L_("Ill-conditioned least squares: how far the loss falls is a matter of the precision."),
        RunConfig(
            task="regression",
            train=TrainConfig(epochs=30),
            optimizer=OptimizerConfig(lr=0.1, momentum=0.95),
        ),
    ),
    "gan-quick": (
        L_("A GAN on the bundled digits."),
        RunConfig(
            task="gan",
            train=TrainConfig(epochs=100),
            optimizer=OptimizerConfig(name="adamw", lr=1e-4, schedule="constant"),
        ),
    ),
    "cartpole-quick": (
        L_("Reinforcement learning on a cart with a pole."),
        RunConfig(
            task="cartpole",
            data=DataConfig(batch_size=16),
            train=TrainConfig(epochs=8),
            optimizer=OptimizerConfig(name="adamw", lr=3e-3, schedule="constant"),
        ),
    ),
    "digits-int8": (
        L_("The digits with quantisation-aware training in 8 bits, converted to integers and measured."),
        RunConfig(
            precision="int8-qat",
            train=TrainConfig(epochs=10),
            qat=QatConfig(start_epoch=3, observers_off_after_epoch=7, freeze_bn_after_epoch=8, save_to="auto"),
        ),
    ),
    "digits-pruned": (
        L_("The digits with a perceptron of which four fifths of the weights are set to zero."),
        RunConfig(model=ModelConfig(name="mlp"), pruning=PruningConfig(method="magnitude", share=0.8)),
    ),
    "fashion-mnist-cnn": (
        L_("Fashion-MNIST with the small CNN; downloads 31 MB once."),
        RunConfig(task="fashion-mnist", data=DataConfig(batch_size=128), train=TrainConfig(epochs=5)),
    ),
    "fashion-mnist-resnet": (
        L_("Fashion-MNIST with ResNet-20; downloads 31 MB once; wants a GPU or patience."),
        RunConfig(
            task="fashion-mnist",
            model=ModelConfig(name="resnet", size="medium"),
            data=DataConfig(batch_size=128, epoch_steps=150),
            train=TrainConfig(epochs=10),
            optimizer=OptimizerConfig(lr=0.1, weight_decay=5e-4),
        ),
    ),
    "cifar10-resnet18": (
        L_("CIFAR-10 with ResNet-18; downloads 170 MB once; for a GPU."),
        RunConfig(
            task="cifar10",
            model=ModelConfig(name="resnet18"),
            data=DataConfig(batch_size=128),
            train=TrainConfig(epochs=15, channels_last=True),
            optimizer=OptimizerConfig(lr=0.1, weight_decay=5e-4),
        ),
    ),
}
DEFAULT_RECIPE = "digits-quick"
