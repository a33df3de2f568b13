"""Tasks: the model, the data, the loss and the metric; the loop knows nothing else of them."""

from __future__ import annotations

from collections.abc import Callable

from precgui.config import OWN_LOOP, RunConfig, no_start
from precgui.engine.errors import EngineError
from precgui.engine.tasks.base import Batch, Task, ratio
from precgui.engine.tasks.cartpole import CartPole
from precgui.engine.tasks.detection import Detection
from precgui.engine.tasks.download import Tell, fetch
from precgui.engine.tasks.gan import Gan
from precgui.engine.tasks.images import (
    Cifar10,
    Cifar100,
    Digits,
    FashionMnist,
    ImageFolder,
    Mnist,
    Torchvision,
    datasets_folder,
)
from precgui.engine.tasks.own import make_own, place_in_task
from precgui.engine.tasks.recommender import Recommendation
from precgui.engine.tasks.regression import Regression
from precgui.engine.tasks.segmentation import Segmentation
from precgui.engine.tasks.speech import Speech
from precgui.engine.tasks.text import Text
from precgui.events import Metric
from precgui.sentences import L_

__all__ = ["TASKS", "Batch", "Digits", "Metric", "Task", "Tell", "make", "maker", "place_in_task", "ratio"]

DOWNLOADED: dict[str, type[Torchvision]] = {
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
}
TASKS: dict[str, Callable[[RunConfig], Task]] = {
    "digits": Digits,
    "text": Text,
    **DOWNLOADED,
    "image-folder": ImageFolder,
    "segmentation": Segmentation,
    "detection": Detection,
    "speech": Speech,
    "recommender": Recommendation,
    "regression": Regression,
    "gan": Gan,
    "cartpole": CartPole,
}


def make(config: RunConfig, tell: Tell = lambda _: None) -> Task:
    """The task that the config names, which may be code of the user's. Raises EngineError for what is not there.

    `tell` receives the progress of a download; an exception of it ends the download.
    """
    if config.task in DOWNLOADED and config.data.download:
        fetch(DOWNLOADED[config.task].dataset, datasets_folder(config), tell)
    if config.task == OWN_LOOP:
        raise EngineError(no_start(L_("this run"), L_("run its own script again, or choose a task")))
    return maker(config)(config)


def maker(config: RunConfig) -> Callable[[RunConfig], Task]:
    """The class of the task that the config names, or the function that calls the user's code."""
    return TASKS.get(config.task, make_own)
