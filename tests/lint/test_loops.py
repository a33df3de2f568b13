"""Loops with a mistake in the order of their calls, and loops without it."""

from __future__ import annotations

from itertools import combinations

import pytest

from precgui.lint import check
from tests.lint import averages, fp16_range, kept, loops, positions, refused, trained, trainer_steps, trainers, values
from tests.lint.loops import ACCUMULATED, LOOP, TWO

PLACES = (averages, loops, values, trainers, trainer_steps, kept, fp16_range, positions, refused, trained)
WRONG = [(rule, text) for each in PLACES for rule, texts in each.FAULTS.items() for text in texts]
RIGHT = [(rule, text) for each in PLACES for rule, texts in each.SOUND.items() for text in texts]


@pytest.mark.parametrize(("rule", "text"), WRONG)
def test_that_a_mistake_is_found_and_nothing_beside_it(rule: str, text: str) -> None:
    assert {each.rule for each in check(text)} == {rule}


@pytest.mark.parametrize(("rule", "text"), RIGHT)
def test_that_a_sound_loop_is_left_alone(rule: str, text: str) -> None:
    assert rule not in {each.rule for each in check(text)}


def test_that_the_line_and_the_sentence_name_the_call() -> None:
    early = TWO.replace("scaler.step(opt_g)\n", "scaler.step(opt_g)\n    scaler.update()\n")
    [found] = check(early)
    assert (found.line, found.severity) == (11, "error") and "line 10" in found.title
    [found] = check(LOOP.replace("scaler.step(optimizer)", "scaler.step(optimizer)\n    scaler.unscale_(optimizer)"))
    assert found.line == 11 and "after scaler.step(optimizer) in line 10" in found.title
    [found] = check(ACCUMULATED.replace(" / accumulate", ""))
    assert found.severity == "warning" and found.line == 7  # clipping sees gradients that are too large


def test_that_a_branch_behind_relu_is_an_info_since_relu_leaves_nan_out() -> None:
    text = values.trained("torch.where(x > 0, torch.log(x), 0.0)")
    [found] = check(text)
    assert (found.line, found.severity) == (8, "warning") and "log" in found.title
    for behind in (text.replace("nn.Linear(16, 9)", "nn.ReLU()"), text.replace("f(net(x))", "f(F.relu(net(x)))")):
        [found] = check(behind)
        assert found.severity == "info" and "ReLU" in found.title


def test_that_a_backward_pass_without_scaling_is_named_where_it_is() -> None:
    [found] = check(LOOP.replace("scaler.scale(loss)", "loss"))
    assert found.rule == "scaler-not-used" and found.line == 9


PARTS = {
    "clear": "self.optimizer.zero_grad()",
    "pass_back": "self.scaler.scale(loss).backward()",
    "unscale": "self.scaler.unscale_(self.optimizer)",
    "clip": "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)",
    "apply": "self.scaler.step(self.optimizer)",
    "adapt": "self.scaler.update()",
}
MADE = """import torch
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")
"""
TRAINED = """def main(model, loader):
    trainer = Trainer(model.cuda())
    for x, y in loader:
        trainer.step(x.cuda(), y.cuda())
"""


def trainer_with(methods: tuple[str, ...]) -> str:
    """A sound step of a trainer that calls methods of its own for some of its parts."""
    own = [f"    def {name}(self, loss=None):\n        {PARTS[name]}\n" for name in methods]
    lines = {name: f"self.{name}(loss)" if name in methods else line for name, line in PARTS.items()}
    loss = "with torch.autocast('cuda', torch.float16):\n            loss = self.model(x, y)"
    step = [lines["clear"], loss, *(line for name, line in lines.items() if name != "clear")]
    return "".join([MADE, *own, "    def step(self, x, y):\n", *(f"        {line}\n" for line in step), TRAINED])


@pytest.mark.parametrize("count", range(len(PARTS) + 1))
def test_that_a_sound_step_may_have_any_of_its_parts_in_methods(count: int) -> None:
    wrong = {methods: check(trainer_with(methods)) for methods in combinations(PARTS, count)}
    assert not {methods: found for methods, found in wrong.items() if found}
