"""`precgui trainer`: the TrainingArguments of a Hugging Face Trainer as a config, and a config as TrainingArguments."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from precgui import config as configs
from precgui.cli.parser import UserError
from precgui.cli.terminal import say
from precgui.words import _, translated


def add_parsers(subparsers: Any) -> None:
    """Add `trainer` to the command line."""
    parser = subparsers.add_parser(
        "trainer",
        help=_("TrainingArguments of a Hugging Face Trainer as a config, and back"),
        description=_(
            "A .json file, as TrainingArguments.to_json_string() gives it, becomes a config in TOML; a config or "
            "recipe becomes such a JSON file, for TrainingArguments(**json.load(file)). A pickle, training_args.bin, "
            "is not read. Model and data are not among the arguments: those of --base stay."
        ),
    )
    parser.add_argument("source", metavar="ARGS.json|CONFIG.toml|RECIPE", help=_("what to turn into the other form"))
    parser.add_argument(
        "--base", default=configs.DEFAULT_RECIPE, metavar="CONFIG.toml|RECIPE",
        help=_("the config that arguments change (default {default})").format(default=configs.DEFAULT_RECIPE),
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=_("write a new file instead of the terminal"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the other form; what it cannot hold goes to stderr. Raises SentenceError."""
    from precgui.config.trainer_arguments import config_text, not_held, read_arguments

    source = Path(args.source)
    if source.suffix == ".bin":
        raise UserError(
            _("{source} is a pickle, which runs code when it is read; write to_json_string() into a .json").format(
                source=source
            )
        )
    if source.suffix == ".json":
        read = read_arguments(source, configs.load(args.base))
        for sentence in read.left_out:
            say(f"precgui: {translated(sentence)}", file=sys.stderr)
        text = configs.to_toml(read.config)
    else:
        config = configs.load(args.source)
        text = config_text(config, Path("arguments.json"))
        for sentence in not_held(config):
            say(f"precgui: {translated(sentence)}", file=sys.stderr)
    if args.output is None:
        say(text, end="")
        return 0
    try:
        with args.output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(_("{output} already exists; choose another name").format(output=args.output)) from None
    except OSError as error:
        raise UserError(
            _("{output} cannot be written: {strerror}; choose another place").format(
                output=args.output, strerror=error.strerror
            )
        ) from None
    return 0
