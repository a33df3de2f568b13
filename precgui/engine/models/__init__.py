"""The networks a run can train, built for their data."""

from precgui.engine.models.adversarial import Adversaries, Judged
from precgui.engine.models.detection import Detector
from precgui.engine.models.images import ImageShape, image_model
from precgui.engine.models.transformer import Gpt, Lstm, language_model
from precgui.engine.models.unet import UNet

__all__ = ["Adversaries", "Detector", "Gpt", "ImageShape", "Judged", "Lstm", "UNet", "image_model", "language_model"]
