"""A causal language model from a folder, by transformers where it is installed, as a task. Never code of the folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.errors import EngineError
from precgui.engine.ptq.layer_matrix import mark_turned
from precgui.engine.tasks.base import Batch, Ratio
from precgui.engine.tasks.text import corpus, manual
from precgui.events import Metric
from precgui.sentences import L_, Sentence, first_line

_MOST_CHARACTERS = 1 << 22
_EVERY = 10  # each tenth window is held out


class LanguageModelTask(Ratio):
    """The next token of a text, in windows of `length` tokens; each tenth window is held out, spread over the text."""

    metric = Metric("perplexity", L_("Perplexity"), L_("exp of the loss"), unit="", higher_is_better=False)

    def __init__(
        self, model: nn.Module, tokens: Tensor, length: int, batch_size: int, facts: Mapping[str, Any]
    ) -> None:
        count = (len(tokens) - 1) // length
        if count < 2:
            raise EngineError(
                Sentence(
                    "the text has {count} tokens, too few for windows of {length}; give a longer one or --length",
                    count=len(tokens),
                    length=length,
                )
            )
        self._model, self._tokens, self._length, self._size = model, tokens, length, batch_size
        held_out = range(_EVERY // 2, count, _EVERY) if count > _EVERY else range(1)
        self._held_out = list(held_out)
        taken = set(self._held_out)
        self._others = [n for n in range(count) if n not in taken]
        self.facts, self.steps_per_epoch = facts, max(len(self._others) // batch_size, 1)

    def model(self) -> nn.Module:
        return self._model

    def train_batches(self) -> Iterable[Batch]:
        return self._batches(self._others)

    def validation_batches(self) -> Iterable[Batch]:
        return self._batches(self._held_out)

    def _batches(self, windows: Sequence[int]) -> Iterable[Batch]:
        for first in range(0, len(windows), self._size):
            places = [n * self._length for n in windows[first : first + self._size]]
            rows = torch.stack([self._tokens[place : place + self._length + 1] for place in places])
            yield rows[:, :-1], rows[:, 1:]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of a token, in nats."""
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
        return torch.stack((loss, loss.new_full((), targets.numel())))


def hugging_face_task(folder: Path, text: str, length: int, batch_size: int) -> LanguageModelTask:
    """The model and its tokens of a text: a file, a folder, or Python's reference where `text` is empty.

    Raises EngineError where transformers is missing, or cannot load the folder without running code of it.
    """
    try:
        import transformers
    except ImportError:
        raise EngineError(
            L_("hf:DIR needs the package transformers, which is not installed: pip install precgui[huggingface]")
        ) from None
    if not (folder / "config.json").is_file():
        raise EngineError(
            Sentence("{folder} is no folder of transformers: there is no config.json in it", folder=folder)
        )
    source: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **source)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.float32, use_safetensors=True, attn_implementation="sdpa", **source
        )
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, TypeError) as error:
        raise EngineError(
            Sentence("{folder} cannot be loaded by transformers: {why}", folder=folder, why=first_line(error, 200))
        ) from None
    model.config.use_cache = False
    _as_linear(model)
    model.register_forward_hook(_logits)
    words, facts = corpus(text) if text else manual()
    decoded = words.decode("utf-8", "replace")[:_MOST_CHARACTERS]
    tokens = torch.tensor(tokenizer(decoded, verbose=False)["input_ids"], dtype=torch.long)
    longest = getattr(model.config, "max_position_embeddings", None) or length
    return LanguageModelTask(model.eval(), tokens, min(length, int(longest)), batch_size, facts)


def _logits(_: nn.Module, __: Any, output: Any) -> Tensor:
    logits: Tensor = output.logits
    return logits


@torch.no_grad()
def _as_linear(model: nn.Module) -> None:
    """Turn layers that keep [inputs, outputs], as those of GPT-2 do, into linear ones of the same function."""
    for name, module in [*model.named_modules()]:
        if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
            weight = module.get_parameter("weight")
            layer = nn.Linear(weight.shape[0], weight.shape[1], device=weight.device)
            mark_turned(layer)
            layer.weight.copy_(weight.T)
            layer.bias.copy_(module.get_parameter("bias"))
            model.set_submodule(name, layer)
