"""Code in a text: indentation, prompts, prose and fences around it."""

from __future__ import annotations

import pytest

from precgui.lint import ScriptError, check
from precgui.lint.fragment import Fragment

_REGION = "with torch.autocast('cuda', dtype=torch.bfloat16):"
_BACKWARD = f"{_REGION}\n    loss = net(x)\n    loss.backward()\n"


def _found(text: str) -> list[tuple[str, int]]:
    return [(each.rule, each.line) for each in check(text)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"Try this:\n\n```python\n{_BACKWARD}```\nIt doesn't work, why?\n", 6),
        (f"1. First\n\n   ```py\n   {_BACKWARD.replace(chr(10), chr(10) + '   ')}```\n", 6),
        (f"```bash\npip install torch\n```\n~~~\n{_BACKWARD}~~~\n", 7),
        (f"```python\n{_BACKWARD}", 4),
        (f"My loop is as follows:\n\n{_BACKWARD}\nThe loss is NaN after a while.\n", 5),
        (f"%matplotlib inline\n!pip install torch\n{_BACKWARD}", 5),
        (f">>> {_REGION}\n...     loss = net(x)\n...     loss.backward()\n0.5", 3),
        (f"{_REGION}\n        loss = net(x)\n        loss.backward()\n    a = 1", 3),
        (f"x = 1\n        {_REGION}\n            y = 2\n            loss.backward()\n", 4),
        (f"            x = 1\n        {_REGION}\n            y = 2\n            loss.backward()\n", 4),
    ],
    ids=["fences", "list", "other-fences", "open", "prose", "magic", "prompts", "uneven", "first-line", "deeper-first"],
)  # fmt: skip
def test_that_code_with_text_around_it_is_checked_at_its_own_lines(text: str, line: int) -> None:
    assert ("backward-in-autocast", line) in _found(text)


@pytest.mark.parametrize(
    "text", ["print 'epoch', epoch\n", "def f(:\n    pass\n", "Hello there, all of you.\n", "```\n"]
)
def test_that_a_text_without_python_is_refused(text: str) -> None:
    with pytest.raises(ScriptError):
        check(text)


def test_that_changed_code_keeps_the_text_around_it() -> None:
    text = "See:\n\n```python\n    a = 1\n    b = 2\n```\nand so on\n"
    fragment = Fragment.of(text)
    assert fragment.code.splitlines() == ["", "", "", "a = 1", "b = 2", "", ""]
    changed = fragment.with_code(fragment.code.replace("b = 2", "c = 3\nb = 4"))
    assert changed == text.replace("    b = 2", "    c = 3\n    b = 4")
    assert fragment.with_code(fragment.code) == text


def test_that_new_lines_keep_the_prompts_of_a_doctest() -> None:
    fragment = Fragment.of(">>> a = 1\n>>> b = 2\n")
    assert fragment.with_code("a = 1\nc = 3\nb = 2\n") == ">>> a = 1\n>>> c = 3\n>>> b = 2\n"


def test_that_lines_of_a_doctest_have_the_prompt_of_their_depth() -> None:
    fragment = Fragment.of(">>> for x in y:\n...     f(x)\n>>> b = 2\n")
    changed = fragment.with_code("for x in y:\n    f(x)\n    g(x)\nb = 2\n")
    assert changed == ">>> for x in y:\n...     f(x)\n...     g(x)\n>>> b = 2\n"


def test_that_a_last_line_of_prose_without_an_end_stays() -> None:
    fragment = Fragment.of("See this part:\na = 1\nIt does not work")
    assert fragment.with_code(fragment.code.replace("1", "2")) == "See this part:\na = 2\nIt does not work"
