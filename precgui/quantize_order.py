"""The request for a measurement of formats on a trained model, checked before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from precgui.config.new_places import place_fault
from precgui.errors import SentenceError
from precgui.formats.checkpoints.target_forms import form_fault
from precgui.formats.weight_formats import weight_format
from precgui.sentences import L_, Sentence

HUGGING_FACE = "hf:"
GGUF_SUFFIX = ".gguf"
DEFAULT_FORMATS = ("int8/row", "e4m3fn/row", "int4/128", "mxfp4", "nvfp4")
ROUNDED = ("weights", "inputs", "k", "v")
METHODS = ("rtn", "gptq", "awq", "smooth")
BUDGETS = ("bytes", "bits", "loss")
TARGETS = ("vllm", "transformers", "torchao", "gguf")
RECIPE_ADDS = ("quarot", "spinquant", "quip", "autoround")  # by llm-compressor alone; not measured here


class QuantizeError(SentenceError):
    """The request cannot be measured; the message is one sentence."""


@dataclass(frozen=True)
class QuantizeOrder:
    """A request for a measurement. `source`: a file or folder of weights, a run file, or hf:DIR.

    task: a recipe, a config, or FILE.py:FUNCTION; empty: the one that the source names. singles: how many layers are
    measured alone, -1 for a number that suits the model. samples: the most that are held out. budget: bytes=N, bits=B
    or loss=X, empty for no plan. target: who reads the `folder` (for GGUF a file) or `recipe` that is written.
    recipe_adds: methods of RECIPE_ADDS that the library of the recipe runs, too.
    converted: a GGUF file of the same model, whose header and other tensors a written one keeps.
    """

    source: str
    task: str = ""
    settings: tuple[str, ...] = ()
    own_code: bool = False
    formats: tuple[str, ...] = DEFAULT_FORMATS
    methods: tuple[str, ...] = ("rtn",)
    rounded: tuple[str, ...] = ROUNDED
    singles: int = -1
    samples: int = 1024
    text: str = ""
    length: int = 512
    batch_size: int = 8
    device: str = "auto"
    budget: str = ""
    target: str = ""
    folder: str = ""
    recipe: str = ""
    converted: str = ""
    recipe_adds: tuple[str, ...] = ()

    @property
    def rounds_inputs(self) -> bool:
        """Whether single layers and plans take rounded inputs; what a file holds are weights."""
        return "inputs" in self.rounded and not self.folder and not self.recipe


def check_order(order: QuantizeOrder) -> None:
    """Raises SentenceError for words that are not known, before anything is loaded."""
    for option, chosen, example in (
        ("--formats", order.formats, DEFAULT_FORMATS), ("--methods", order.methods, METHODS),
        ("--round", order.rounded, ROUNDED),
    ):  # fmt: skip
        if not chosen:
            raise QuantizeError(
                Sentence(
                    "{option} names nothing; name at least one, such as {example}", option=option, example=example[0]
                )
            )
    if order.text and not order.source.startswith(HUGGING_FACE):
        raise QuantizeError(
            Sentence("--text {text} belongs to hf:DIR; other models take their data from --task", text=order.text)
        )
    for name in order.formats:
        weight_format(name)
    for name, known, option in (
        *((each, METHODS, "--methods") for each in order.methods),
        *((each, ROUNDED, "--round") for each in order.rounded),
        *((each, RECIPE_ADDS, "--recipe-adds") for each in order.recipe_adds),
    ):
        if name not in known:
            raise QuantizeError(
                Sentence(
                    "{option}: {name!r} is not known; there are {known}",
                    option=option,
                    name=name,
                    known=", ".join(known),
                )
            )
    _check_plan(order)


def _check_plan(order: QuantizeOrder) -> None:
    if order.budget:
        budget_of(order.budget)
    if order.target and order.target not in TARGETS:
        raise QuantizeError(
            Sentence(
                "--as: {target!r} is not known; there are {targets}", target=order.target, targets=", ".join(TARGETS)
            )
        )
    if order.converted and not (order.target == "gguf" and order.folder):
        raise QuantizeError(
            Sentence("--converted {converted} belongs to --as gguf --write FILE.gguf", converted=order.converted)
        )
    if order.recipe_adds:
        _check_added(order)
    if not order.folder and not order.recipe:
        if order.target and not order.budget:
            raise QuantizeError(
                Sentence("--as {target} alone has no effect; add --budget, --write or --recipe", target=order.target)
            )
        return
    _check_written(order)


def _check_added(order: QuantizeOrder) -> None:
    """That the library of the recipe has what is added."""
    if not order.recipe or order.target not in ("vllm", "transformers"):
        raise QuantizeError(
            Sentence(
                "--recipe-adds {methods} belongs to --as vllm --recipe FILE; llm-compressor alone has them",
                methods=",".join(order.recipe_adds),
            )
        )
    if len(rotations := [name for name in order.recipe_adds if name != "autoround"]) > 1:
        raise QuantizeError(
            Sentence("--recipe-adds: {rotations} are rotations; a recipe takes one", rotations=", ".join(rotations))
        )
    if "autoround" in order.recipe_adds and len(order.formats) > 1:
        raise QuantizeError(L_("AutoRound of llm-compressor takes one format for all layers; name one as --formats"))


def _check_written(order: QuantizeOrder) -> None:
    """That a file or recipe can hold what is asked for, at places that can be written to."""
    if not order.target:
        raise QuantizeError(Sentence("--as says who reads what is written: {targets}", targets=", ".join(TARGETS)))
    if order.folder and order.target == "gguf" and Path(order.folder).suffix != GGUF_SUFFIX:
        raise QuantizeError(
            Sentence(
                "--write {path}: a GGUF file is written, so name one that ends in {suffix}",
                path=order.folder,
                suffix=GGUF_SUFFIX,
            )
        )
    if order.recipe and order.target == "gguf" and order.methods != ("rtn",):
        raise QuantizeError(
            L_("llama-quantize rounds to nearest; use --methods rtn, or --write a file instead of a --recipe")
        )
    if order.converted and not Path(order.converted).expanduser().is_file():
        raise QuantizeError(
            Sentence(
                "--converted: there is no {converted}; name the GGUF file of llama.cpp's converter",
                converted=order.converted,
            )
        )
    if not order.budget and len(order.formats) != 1:
        raise QuantizeError(L_("several formats need a --budget: bytes=N, bits=B or loss=X; or name one format"))
    for name in order.formats:
        if fault := form_fault(order.target, weight_format(name)):
            raise QuantizeError(fault)
    if order.folder and order.folder == order.recipe:
        raise QuantizeError(Sentence("--write and --recipe both name {path}; choose two names", path=order.folder))
    if order.folder and (fault := place_fault(order.folder)):
        raise QuantizeError(fault)
    if order.recipe and (fault := place_fault(order.recipe)):
        raise QuantizeError(fault)


def budget_of(text: str) -> tuple[str, float]:
    """The kind and the number of a budget. Raises QuantizeError."""
    kind, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if kind not in BUDGETS or not 0 <= number < math.inf:
        raise QuantizeError(
            Sentence("--budget {text} is no budget; write bytes=1000000, bits=4.5 or loss=0.01", text=text)
        )
    return kind, number
