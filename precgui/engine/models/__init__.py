"""The networks a run can train, built for their data."""

from precgui.engine.models.adversarial import GanNetworks, GanOutput
from precgui.engine.models.detection import Detector
from precgui.engine.models.images import ImageShape, image_model
from precgui.engine.models.recommender import Recommender
from precgui.engine.models.speech import LogSpectrogram, SpeechNet
from precgui.engine.models.transformer import Gpt, Lstm, language_model
from precgui.engine.models.unet import UNet

__all__ = [
    "Detector",
    "GanNetworks",
    "GanOutput",
    "Gpt",
    "ImageShape",
    "LogSpectrogram",
    "Lstm",
    "Recommender",
    "SpeechNet",
    "UNet",
    "image_model",
    "language_model",
]  # fmt: skip
