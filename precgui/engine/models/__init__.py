"""The networks a run can train, built for their data."""

from precgui.engine.models.images import ImageShape, image_model
from precgui.engine.models.transformer import Gpt, Lstm

__all__ = ["Gpt", "ImageShape", "Lstm", "image_model"]
