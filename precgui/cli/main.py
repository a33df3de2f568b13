"""`precgui`: the window without a sub-command, otherwise one sub-command per question."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from precgui import __version__
from precgui.cli.parser import Parser, UserError
from precgui.cli.terminal import say, with_streams
from precgui.errors import SentenceError
from precgui.words import _, error_text

# Modules with `add_parsers(subparsers)`; each sub-parser sets `run`, a function from the arguments to the exit code.
COMMANDS = {
    "detect": "precgui.cli.detect",
    "bench": "precgui.cli.bench",
    "formats": "precgui.cli.formats",
    "encode": "precgui.cli.formats",
    "decode": "precgui.cli.formats",
    "arithmetic": "precgui.cli.arithmetic",
    "quantise": "precgui.cli.quantise",
    "claims": "precgui.cli.claims",
    "cards": "precgui.cli.cards",
    "run": "precgui.cli.run",
    "trainer": "precgui.cli.trainer",
    "compare": "precgui.cli.compare",
    "plan": "precgui.cli.plan",
    "sweep": "precgui.cli.sweep",
    "cluster": "precgui.cli.cluster",
    "profile": "precgui.cli.profile",
    "export": "precgui.cli.export",
    "whatif": "precgui.cli.whatif",
    "evaluate": "precgui.cli.evaluate",
    "diagnose": "precgui.cli.diagnose",
    "check": "precgui.cli.check",
    "checklist": "precgui.cli.checklist",
    "fp16-or-bf16": "precgui.cli.sixteen_bits",
    "examples": "precgui.cli.examples",
    "replay": "precgui.cli.replay",
    "twin": "precgui.cli.twin",
    "assign": "precgui.cli.assign",
    "model": "precgui.cli.model",
    "quantize": "precgui.cli.quantize",
    "places": "precgui.cli.places",
    "serve": "precgui.cli.serve",
}


_UNWRITTEN = (errno.ENOSPC, errno.EIO, errno.EDQUOT)  # of a stream, which has no file name


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0 well, 1 a run failed, 2 bad input, 130 Ctrl+C."""
    if getattr(sys, "frozen", False):  # a bundle that starts itself as a child process
        import multiprocessing

        multiprocessing.freeze_support()
    with_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and (arguments[0] in COMMANDS or arguments[0] in ("-h", "--help", "--version")):
            code = _command(arguments)
            sys.stdout.flush()
            return code
        return _window(arguments)
    except (SentenceError, MemoryError) as error:
        sentence = error_text(error) or _("the memory is full")
        say(f"precgui: {' '.join(sentence.splitlines())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `precgui formats | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITTEN:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        text = _("precgui: the output cannot be written: {error}; free some space.")
        say(text.format(error=error.strerror), file=sys.stderr)
        return 2


def _command(arguments: list[str]) -> int:
    parser = Parser(
        prog="precgui",
        description=_(
            "See what numeric precision does to your training on your machine. "
            "Without a command it opens the window, with the run files that are named."
        ),
        epilog=_("precgui [RUN.h5 ...] opens the window."),
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"precgui {__version__}",
        help=_("show program's version number and exit"),
    )
    subparsers = parser.add_subparsers(metavar=_("COMMAND"), required=True)
    for module in dict.fromkeys(_modules_for(arguments[0])):
        importlib.import_module(module).add_parsers(subparsers)
    parsed = parser.parse_args(arguments)
    if getattr(parsed, "place", None) is not None and parsed.run_there is not None:
        return int(parsed.run_there(parsed, arguments))
    return int(parsed.run(parsed))


def _modules_for(word: str) -> list[str]:
    """The module of the given command alone, so that it starts fast; all modules for help."""
    return [COMMANDS[word]] if word in COMMANDS else list(COMMANDS.values())


def _not_there(file: Path) -> str:
    """Why neither a file nor a command of this name can be used, and the cure."""
    if file.suffix or len(file.parts) > 1:
        return _("there is no file {file}; give the path of a run file, or see precgui --help").format(file=file)
    import difflib  # seldom needed

    near = difflib.get_close_matches(str(file), COMMANDS, 1)
    text = _("{file} is neither a file nor a command; the commands are {commands}; see precgui --help")
    if near:
        text = _("{file} is neither a file nor a command; perhaps {near} is meant; see precgui --help")
    return text.format(file=file, near=near[0] if near else "", commands=", ".join(COMMANDS))


def _window(arguments: list[str]) -> int:
    parser = Parser(prog="precgui", description=_("Open the window."))
    parser.add_argument("files", nargs="*", type=Path, metavar="RUN.h5", help=_("run files to open"))
    parser.add_argument("--fresh", action="store_true", help=_("ignore the saved settings and window layout"))
    parsed = parser.parse_args(arguments)
    for file in parsed.files:
        if not file.exists():
            raise UserError(_not_there(file))
    from precgui.gui.shell.display import why_no_window

    if why := why_no_window():
        say(why, file=sys.stderr)
        return 2
    gc.disable()  # the window collects by a timer (`startup.GcTimer`)
    from precgui.gui.shell.startup import open_window

    return open_window(parsed.files, fresh=parsed.fresh)


if __name__ == "__main__":
    sys.exit(main())
