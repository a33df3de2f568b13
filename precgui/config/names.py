"""The precisions and tasks by name, each with a sentence for the window and the command line."""

from __future__ import annotations

import difflib
import re

from precgui.config.precision_traits import EMULATED as EMULATED
from precgui.config.precision_traits import TRAITS
from precgui.sentences import L_, Sentence, together

PRECISION_GROUPS: dict[str, dict[str, str]] = {}
for _name, _row in TRAITS.items():
    PRECISION_GROUPS.setdefault(_row.group, {})[_name] = _row.sentence
PRECISIONS: dict[str, str] = {name: row.sentence for name, row in TRAITS.items()}
TASKS: dict[str, str] = {
    "digits": L_("1 797 handwritten digits of 8x8 pixels, bundled (UCI)."),
    "text": L_("The next byte of Python's own library, or of your file or folder; needs no download."),
    "mnist": L_("70 000 handwritten digits of 28x28 pixels; downloaded once, 12 MB."),
    "fashion-mnist": L_("70 000 pieces of clothing of 28x28 pixels; downloaded once, 31 MB."),
    "cifar10": L_("60 000 colour images of 32x32 pixels in 10 classes; downloaded once, 170 MB."),
    "cifar100": L_("60 000 colour images of 32x32 pixels in 100 classes; downloaded once, 169 MB."),
    "image-folder": L_("Your images, one folder for each class."),
    "segmentation": L_("Which pixel belongs to which digit, in scenes made from the bundled digits."),
    "detection": L_("Which digits are where, in scenes made from the bundled digits."),
    "speech": L_("Which of ten words was said, in sounds of synthetic voices; made on the spot."),
    "recommender": L_("Which items a user likes, from tables of embeddings; made on the spot, with known tastes."),
    "regression": L_("Ill-conditioned least squares, in which rounding is plain to see; made on the spot."),
    "gan": L_("Two networks against each other: one draws digits, one tells them from real ones."),
    "cartpole": L_("Reinforcement learning: balance a pole on a cart."),
}
OWN_LOOP = "own-loop"  # what a Recorder watched: a training loop that precgui cannot start
DOWNLOADED = ("mnist", "fashion-mnist", "cifar10", "cifar100")
IMAGE_TASKS = ("digits", *DOWNLOADED, "image-folder")
IMAGE_MODELS = ("cnn", "mlp", "resnet", "resnet18", "resnet50", "vit")
MODELS: dict[str, tuple[str, ...]] = {  # the first one is the usual one; images also take any model of torchvision
    "digits": IMAGE_MODELS,
    "text": ("gpt", "lstm"),
    "mnist": IMAGE_MODELS,
    "fashion-mnist": IMAGE_MODELS,
    "cifar10": ("resnet", *(name for name in IMAGE_MODELS if name != "resnet")),
    "cifar100": ("resnet", *(name for name in IMAGE_MODELS if name != "resnet")),
    "image-folder": ("resnet18", *(name for name in IMAGE_MODELS if name != "resnet18")),
    "segmentation": ("unet",),
    "detection": ("fcos",),
    "speech": ("speechnet",),
    "recommender": ("embeddings",),
    "regression": ("linear", "mlp"),
    "gan": ("gan",),
    "cartpole": ("mlp",),
}
_LONGEST_TASK = 1000
_OWN_TASK = re.compile(r"([A-Za-z_][\w.]*|[^\n]+\.py):[A-Za-z_]\w*")
SIZELESS = ("resnet18", "resnet50", "linear")


def check_task(name: str) -> str:
    """The task name as it is kept. Raises ValueError with a sentence when there is none."""
    kept = name.strip()
    if len(kept) > _LONGEST_TASK or not kept.isprintable():
        raise ValueError(
            Sentence(
                "{kept!r} is longer than {longest_task} characters or has some that cannot be seen; rename the "
                "file or the folder of the task",
                kept=_short(kept),
                longest_task=_LONGEST_TASK,
            )
        )
    if kept not in TASKS and kept != OWN_LOOP and not _OWN_TASK.fullmatch(kept):
        raise ValueError(
            Sentence(
                "{kept!r} is not one of {names}, nor your own as module:function or file.py:function",
                kept=_short(kept),
                names=", ".join(TASKS),
            )
        )
    return kept


def no_start(subject: str, cure: str = L_("run its own script again")) -> str:
    """The sentence, without its point, that a run of a recorded loop cannot be started, with what to do."""
    return Sentence(
        "{subject} is of a loop of your own, which precgui cannot start; {cure}", subject=subject, cure=cure
    )


def is_own_task(name: str) -> bool:
    """Whether training this task runs code that the config names: ask before, unless the user typed it."""
    return name not in TASKS and name != OWN_LOOP


def check_model(name: str, task: str) -> str:
    """The model name when the task can train it. Raises ValueError with a sentence when not."""
    fitting = MODELS.get(task, (name,))
    open_ended = IMAGE_MODELS[0] in fitting and name not in {n for names in MODELS.values() for n in names}
    if name != "auto" and name not in fitting and not open_ended:
        raise ValueError(
            Sentence(
                "{name!r} does not go with the task {task}; choose auto, {names}",
                name=_short(name),
                task=task,
                names=", ".join(fitting),
            )
        )
    return name


BELOW_16_BITS = [*PRECISION_GROUPS["8 bits and fewer"], f"{EMULATED}*"]
QUANTISED = [*PRECISION_GROUPS["Quantised"]]


def check_precision(name: str) -> str:
    """The precision name as it is kept. Raises ValueError with a sentence when there is none."""
    kept = name.strip().lower()
    if kept in PRECISIONS:
        return kept
    if not kept.startswith(EMULATED):
        text = Sentence(
            "{name!r} is not one of {names} or {emulated}FORMAT such as {emulated}e4m3fn",
            name=_short(name),
            names=", ".join(PRECISIONS),
            emulated=EMULATED,
        )
        near = _near(kept)
        raise ValueError(
            Sentence("{fault}; did you mean {names}?", fault=text, names=together(*near, between=" or "))
            if near
            else text
        )
    return EMULATED + check_format(kept.removeprefix(EMULATED))


def _near(name: str) -> list[str]:
    """Precisions that may have been meant: alike in spelling, or the format of that name."""
    alike = difflib.get_close_matches(name, PRECISIONS, 2, 0.6) if len(name) <= 40 else []
    try:
        return [*alike, EMULATED + check_format(name)]
    except ValueError:
        return alike


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:37]}..."


def check_number_format(name: str) -> str:
    """Check the format of a single number, such as a sum, which no block format can be. Raises ValueError."""
    from precgui.formats.registry import blocks

    if name in blocks():
        raise ValueError(
            Sentence("{name} is a format of blocks, but a sum is one number; choose fp16, bf16 or eXmY", name=name)
        )
    return check_format(name)


def check_format(name: str) -> str:
    """The name of a number format or block format as the registry writes it. Raises ValueError."""
    from precgui.formats.registry import blocks, get  # loads the tables of formats: not at start-up

    if name in blocks():
        return name
    fmt = get(name)
    if fmt.value(fmt.max_ordinal) <= 0 or fmt.value(fmt.min_ordinal) >= 0:
        raise ValueError(
            Sentence("{name} does not hold numbers of both signs, as weights and gradients need", name=fmt.name)
        )
    return fmt.name
