"""Translations: texts are marked whole, rooms that are done are complete, and what programs read never changes."""

from __future__ import annotations

import ast
import copy
import csv
import importlib.util
import os
import re
import string
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from precgui import words
from precgui.catalogue import compile_catalogue
from precgui.errors import SentenceError
from precgui.paths import resources
from precgui.translations import SortedTranslations, pseudo
from precgui.words import Sentence, counted, filled_chinese, translated
from tests import needs
from tests.marked import IMPORTED, NOW, calls, marked_texts, texts, unmarked

if TYPE_CHECKING:
    from babel.messages.catalog import Message

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "precgui"
WORDS = resources() / "words"
ENGLISH = (  # on purpose; every other module has its texts marked and translated (docs/words.md)
    "engine/export/loop.py",  # a script of the user, which runs without precgui
    "hardware/report.py",  # a report of a bug is read by those who write precgui
)
SOURCES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.name not in ("words.py", "sentences.py", "sentence_keys.py")
)


@pytest.fixture
def chinese() -> Iterator[None]:
    words.use("zh_CN")
    yield
    words.use("en")


def translated_files() -> list[Path]:
    named = {path: path.relative_to(PACKAGE).as_posix() for path in SOURCES}
    return [path for path, name in named.items() if not name.startswith(ENGLISH)]


# The source ------------------------------------------------------------------------------------------------


def faults_of(path: Path) -> list[str]:
    """What is wrong with the marks of a file, one sentence each."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    room, found = path.relative_to(PACKAGE).parts[0], []
    for call in calls(tree):
        place = f"{path.relative_to(PACKAGE)}:{call.node.lineno}"
        if not all(isinstance(text, ast.Constant) and isinstance(text.value, str) for text in texts(call)):
            found.append(f"{place} {call.name}() takes whole literal texts: no f-string, no variable, no joined pieces")
        if call.name in NOW and room not in ("gui", "cli"):
            found.append(f"{place} only the window and the command line translate; mark with L_ or Sentence here")
        if call.in_text:
            found.append(f"{place} {call.name}() inside an f-string is not found by Python 3.11; call it before")
        if call.name in NOW and not call.in_function:
            found.append(f"{place} {call.name}() runs at import, before a language is chosen; mark with L_ here")
    return [*found, *_hidden_marks(tree, path)]


def _hidden_marks(tree: ast.Module, path: Path) -> Iterator[str]:
    """Functions that bind `_` and call it, too."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == "_"]
        called = any(call.name == "_" for call in calls(ast.Module([function], [])))
        if called and any(isinstance(name.ctx, ast.Store) for name in names):
            yield f"{path.relative_to(PACKAGE)}:{function.lineno} {function.name} uses _ as a variable and as a mark"


def test_that_every_marked_text_is_one_literal_that_is_translated_at_the_right_time() -> None:
    marked = [path for path in SOURCES if IMPORTED.search(path.read_text(encoding="utf-8"))]
    assert marked
    assert [fault for path in marked for fault in faults_of(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        '_(f"{x} runs")',
        "f'{_(\"a\")}: {x}'",
        '_("a " + "b")',
        "_(text)",
        '_("a {}".format(x))',
        'Sentence(f"{x}")',
        'n_("a", b, 2)',
    ],
)
def test_that_a_text_in_pieces_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    file = tmp_path / "gui" / "shown.py"
    file.parent.mkdir()
    file.write_text(f"def shown(x, text, b):\n    return {line}\n", encoding="utf-8")
    assert len(faults_of(file)) == 1


def test_that_no_text_is_without_a_mark() -> None:
    keys = {text for path in SOURCES for text in marked_texts(path)}  # a text that a table marks is its key elsewhere
    left = {str(path.relative_to(PACKAGE)): [row for row in unmarked(path) if row[1] not in keys]
            for path in translated_files()}  # fmt: skip
    assert {path: found for path, found in left.items() if found} == {}


# The catalogue ---------------------------------------------------------------------------------------------


def _tool() -> Any:
    """The module of `make words`."""
    path = ROOT / "packaging" / "update_words.py"
    spec = importlib.util.spec_from_file_location("update_words", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["update_words"] = module
    spec.loader.exec_module(module)
    return module


def catalogue() -> list[Message]:
    return [message for message in _tool().read_catalogue(WORDS / "zh_CN.po") if message.id]


def forms(message: Message) -> list[tuple[str, str]]:
    """English and Chinese of a message; Chinese has one form, beside the English plural."""
    if isinstance(message.id, tuple):
        return [(str(message.id[1]), str(text)) for text in message.string]
    return [(str(message.id), str(message.string))]


@needs.babel
def test_that_every_text_is_translated_and_none_is_fuzzy() -> None:
    tool = _tool()
    known = {message.id: message for message in catalogue()}
    files = {f"precgui/{path.relative_to(PACKAGE).as_posix()}" for path in translated_files()}
    wanted = [message for message in tool.template() if message.id and files & {file for file, _ in message.locations}]
    missing = [m.id for m in wanted if m.id not in known or not tool.is_translated(known[m.id])]
    assert missing == [], "run `make words` and translate"
    assert [message.id for message in known.values() if message.fuzzy] == []


@needs.babel
def test_that_a_translation_keeps_placeholders_code_markup_and_keys() -> None:
    wrong = []
    for message in catalogue():
        for english, chinese in forms(message):
            if chinese and kept_parts(english) != kept_parts(chinese):
                wrong.append((english, chinese))
    assert wrong == []


def kept_parts(text: str) -> tuple[set[str], list[str], list[str], bool, bool]:
    """Placeholders, code, markup, whether it has a key (`&`), and whether it asks something more (`...`)."""
    fields = {f"{name}:{spec}" for _, name, spec, _ in string.Formatter().parse(text) if name is not None}
    code, tags = re.findall(r"`[^`]*`", text), re.findall(r"</?\w+[^<>]*>", text)
    return fields, sorted(code), sorted(tags), bool(re.search(r"&\w", text)), text.endswith("...")


@needs.babel
def test_that_one_notion_has_one_chinese_term() -> None:
    with (WORDS / "glossary.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    terms = [(re.compile(rf"\b{row['english']}(s|es)?\b", re.IGNORECASE), row["chinese"].split("|")) for row in rows]
    assert len(terms) > 120
    wrong = []
    for message in catalogue():
        for english, chinese in forms(message):
            prose = NO_PROSE.sub(" ", english).replace("&", "")
            used = [(term, allowed) for term, allowed in terms if chinese and term.search(prose)]
            wrong += [
                (term.pattern, english, chinese) for term, allowed in used if not any(a in chinese for a in allowed)
            ]
    assert wrong == []


NO_PROSE = re.compile(  # placeholders, code, options, keys and calls in a text
    r"\{[^{}]*\}\w*|`[^`]*`|\w+:\w+|--[\w-]+|\w+=\S+|precgui \w+|\w+\.\w[\w.]*(\(\w*\))?|\.?\w+\([^()]*\)"
)


HAN = "[\u4e00-\u9fff]"
FAULTS_OF_CHINESE = {
    "a half-width mark": re.compile(rf"{HAN} ?[,;:!?](?![;=])|{HAN}\((?!&)"),
    "no space between Chinese and Latin": re.compile(rf"{HAN}[A-Za-z0-9]|[A-Za-z0-9]{HAN}"),
    "a space beside a full-width mark": re.compile(r" [，。；：、（）“”]|[，。；：、（）“”] "),
    "two marks": re.compile(r"[，。；：、]{2}"),
    "the reader by another pronoun": re.compile("你"),
}


@needs.babel
def test_that_chinese_is_set_as_chinese() -> None:
    wrong = [
        (fault, chinese)
        for message in catalogue()
        for _english, chinese in forms(message)
        for fault, pattern in FAULTS_OF_CHINESE.items()
        if pattern.search(re.sub(r"`[^`]*`", "code", chinese))
    ]
    assert wrong == []


@needs.babel
def test_that_a_way_through_the_window_names_what_the_window_shows() -> None:
    """In “对比 > 组” both are titles of the catalogue."""
    shown = {re.sub(r"\(&\w\)|\.\.\.", "", chinese) for message in catalogue() for _english, chinese in forms(message)}
    ways = [
        way
        for message in catalogue()
        for _english, chinese in forms(message)
        for way in re.findall("“([^”]* > [^”]*)”", chinese)
    ]
    assert len(ways) > 10
    assert [way for way in ways if not {*way.split(" > ")} <= shown] == []


def a_catalogue(folder: Path, monkeypatch: pytest.MonkeyPatch, shown: str) -> Path:
    """The only catalogue that `words` sees: `word` in Chinese."""
    po = folder / "words" / "zh_CN.po"
    po.parent.mkdir(exist_ok=True)
    monkeypatch.setattr(words, "resources", lambda: folder)
    head = r'msgid ""' + "\n" + r'msgstr "Content-Type: text/plain; charset=utf-8\n"' + "\n\n"
    po.write_text(f'{head}msgid "word"\nmsgstr "{shown}"\n', encoding="utf-8")
    return po


@pytest.fixture
def english_again() -> Iterator[None]:
    yield
    words.use("en")


@needs.babel
def test_that_a_checkout_reads_a_changed_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, english_again: None
) -> None:
    for shown in ("甲", "乙"):
        po = a_catalogue(tmp_path, monkeypatch, shown)
        words.use("zh_CN")
        assert translated("word") == shown
        os.utime(po.with_suffix(".mo"), ns=(0, 0))


@needs.babel
def test_that_every_text_of_the_catalogue_is_found_in_its_compiled_form(chinese: None) -> None:
    for message in catalogue():
        if message.string and message.context:
            assert words.p_(message.context, message.id) == message.string
        elif isinstance(message.id, tuple):
            one, many = message.id
            assert words.n_(one, many, 2) == message.string[0]
        elif message.string:
            assert translated(message.id) == message.string
    assert translated("a text that no catalogue has") == "a text that no catalogue has"
    assert words.n_("{count} of none", "{count} of nones", 2) == "{count} of nones"


@needs.babel
def test_that_a_catalogue_that_changes_while_it_is_compiled_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, english_again: None
) -> None:
    po = a_catalogue(tmp_path, monkeypatch, "甲")
    compiled = compile_catalogue

    def compiled_while_it_changes(path: Path) -> bytes:
        content = compiled(path)
        path.write_text(path.read_text(encoding="utf-8").replace("甲", "乙"), encoding="utf-8")
        os.utime(path, (2000, 2000))
        return content

    os.utime(po, (1000, 1000))
    monkeypatch.setattr(words, "compile_catalogue", compiled_while_it_changes)
    words.use("zh_CN")
    monkeypatch.setattr(words, "compile_catalogue", compiled)
    assert po.with_suffix(".mo").exists()
    words.use("zh_CN")
    assert translated("word") == "乙"


@needs.babel
def test_that_a_catalogue_is_whole_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, po = _tool(), a_catalogue(tmp_path, monkeypatch, "甲")
    before, written, seen = po.read_bytes(), tool.write_po, []

    def written_while_another_reads(file: Any, *args: Any, **options: Any) -> None:
        file.write(b"half")
        seen.append(po.read_bytes())
        written(file, *args, **options)

    monkeypatch.setattr(tool, "write_po", written_while_another_reads)
    tool.write_catalogue(po, tool.read_catalogue(po))
    assert seen == [before]
    assert po.read_bytes() != before
    assert list(po.parent.iterdir()) == [po]


@needs.babel
@pytest.mark.parametrize("damage", ["empty", "short", "cut", "text", "noise"])
def test_that_a_damaged_catalogue_shows_english_and_says_so_once(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, english_again: None
) -> None:
    po = a_catalogue(tmp_path, monkeypatch, "甲")
    whole, mo = compile_catalogue(po), po.with_suffix(".mo")
    po.unlink()  # as in an installed package
    damaged = {"empty": b"", "short": whole[:12], "cut": whole[:-4], "text": b"msgid", "noise": bytes(range(256)) * 9}
    mo.write_bytes(damaged[damage])
    words.use("zh_CN")
    assert translated("word") == "word"
    assert [row.getMessage().partition(":")[0] for row in caplog.records] == [
        f"{mo} cannot be read, so texts are in English"
    ]


@needs.babel
def test_that_a_catalogue_that_was_cut_anywhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compile_catalogue(a_catalogue(tmp_path, monkeypatch, "甲"))
    for size in range(len(whole) - 1):  # the last byte ends the last text
        with pytest.raises(ValueError, match="build it again"):
            SortedTranslations(whole[:size])


@needs.babel
def test_that_a_text_with_damaged_bytes_is_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compile_catalogue(a_catalogue(tmp_path, monkeypatch, "甲"))
    assert SortedTranslations(whole).gettext("word") == "甲"
    assert SortedTranslations(whole.replace("甲".encode(), b"\xff\xff\xff")).gettext("word") == "word"


@needs.babel
@pytest.mark.parametrize("damage", ["mo", "po"])
def test_that_a_checkout_with_one_whole_file_shows_chinese(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, capsys: Any, english_again: None
) -> None:
    po = a_catalogue(tmp_path, monkeypatch, "甲")
    words.use("zh_CN")
    if damage == "mo":
        po.with_suffix(".mo").write_bytes(b"\0")
    else:
        po.write_text("<<<<<<< ours\n", encoding="utf-8")
        os.utime(po.with_suffix(".mo"), ns=(0, 0))
    words.use("zh_CN")
    assert translated("word") == "甲"
    assert not caplog.records and capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("template", "value", "shown"),
    [
        ("第 3 步的 {part} 传播", "前向", "第 3 步的前向传播"),
        ("第 3 步的 {part} 传播", "FP16", "第 3 步的 FP16 传播"),
        ("在{part}中查找", "1200 步", "在 1200 步中查找"),
        ("在{part}中查找", "前半段", "在前半段中查找"),
        ("{part} 的误差", "我的 运行", "我的 运行的误差"),
        ("损失：{part}。", "有限", "损失：有限。"),
        ("{part}参数", "7B ", "7B 参数"),
        ("第 3 步的 {part} 传播", "前向（含损失）", "第 3 步的前向（含损失）传播"),
        ("{part}", "", ""),
    ],
)
def test_that_a_value_in_a_chinese_sentence_has_the_spaces_of_its_script(template: str, value: str, shown: str) -> None:
    assert filled_chinese(template, {"part": value}) == shown


def test_that_a_value_in_a_chinese_sentence_keeps_its_format() -> None:
    values = {"a": 0.25, "b": "x", "c": "误差"}
    assert filled_chinese("{{{a:.0%}}} 的 {b!r}：{c} 为{a}", values) == "{25%} 的 'x'：误差为 0.25"


@needs.babel
def test_that_shown_sentences_stand_paragraph_with_the_gap_of_the_language(chinese: None) -> None:
    assert words.paragraph("", "甲。", "", "乙。") == "甲。乙。"
    words.use("en")
    assert words.paragraph("One.", "", "Two.") == "One. Two."
    assert words.paragraph() == ""


@needs.babel
def test_that_a_finding_in_chinese_sets_words_and_numbers_apart(chinese: None) -> None:
    template = "The {part} pass of step {step}, repeated in FP32, is finite."
    assert "步的前向传播" in translated(Sentence(template, part=Sentence("forward"), step=3))


# The language ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh_CN"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_GB.UTF-8"}, "en"),
        ({"LC_ALL": "zh_CN.UTF-8", "LC_MESSAGES": "C"}, "zh_CN"),
        ({"LANG": "zh_TW.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"PRECGUI_LANGUAGE": "en", "LC_ALL": "zh_CN.UTF-8"}, "en"),
        ({"PRECGUI_LANGUAGE": "zh-CN"}, "zh_CN"),
        ({"PRECGUI_LANGUAGE": "system", "LANG": "zh_SG"}, "zh_CN"),
        ({"PRECGUI_LANGUAGE": "pseudo"}, "pseudo"),
    ],
)
def test_that_the_environment_decides_the_language(environment: dict[str, str], language: str) -> None:
    assert words.language_of_environment(environment) == language


def test_that_a_language_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(SentenceError, match="PRECGUI_LANGUAGE is fr; choose from system, en, zh_CN"):
        words.language_of_environment({"PRECGUI_LANGUAGE": "fr"})


def test_that_a_sentence_is_english_for_programs_and_keeps_its_parts() -> None:
    inner = Sentence("step {step}", step=3)
    outer = counted("{count} run at {where}", "{count} runs at {where}", 2, where=inner)
    assert outer == "2 runs at step 3"
    assert f"{outer}" == str(outer) == "2 runs at step 3"
    for twin in (ForkingPickler.loads(ForkingPickler.dumps(outer)), copy.deepcopy(outer)):
        assert twin == outer
        assert translated(twin) == translated(outer)
    words.use("pseudo")
    assert translated(outer) != outer
    assert "2" in translated(outer)
    words.use("en")


def test_that_names_of_users_are_shown_as_they_were_given(chinese: None) -> None:
    """A module may be called `loss`, a word that the catalogue has."""
    assert translated("loss") != "loss"
    of_user = Sentence("In step {step} the output of {module} is the first that is not finite.", step=3, module="loss")
    of_ours = of_user.with_values(module=Sentence("loss"))
    assert "loss" in translated(of_user)
    assert "loss" not in translated(of_ours)
    assert translated(of_user) != of_user


def test_that_a_place_called_like_a_word_keeps_its_name(chinese: None) -> None:
    """A place may be called `here`, which the catalogue has; a title in the placeholder `name` is a `Sentence`."""
    assert translated("here") != "here"
    template = "no answer from {name} for {seconds:.0f} s"
    assert "here" in translated(Sentence(template, name="here", seconds=9.0))
    assert "here" not in translated(Sentence(template, name=Sentence("here"), seconds=9.0))


def test_that_a_text_in_quotes_is_shown_as_it_was_typed(chinese: None) -> None:
    """`!r` quotes a text of the user, which may be a word that the catalogue has."""
    assert translated("nothing") != "nothing"
    template = "{name!r} is no block format; there are {names}"
    assert "'nothing'" in translated(Sentence(template, name="nothing", names="mxfp8"))


def test_that_the_pseudo_language_is_longer_and_keeps_what_is_filled_in() -> None:
    assert pseudo("Open {file} with `precgui run`").startswith("Ópéñ {file} ẃíth".replace("ẃ", "w"))
    assert len(pseudo("a word")) >= 1.3 * len("a word")
    assert kept_parts(pseudo("<b>{a:.2f}</b> of {b}"))[:3] == kept_parts("<b>{a:.2f}</b> of {b}")[:3]
