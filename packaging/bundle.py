"""The build step that puts `resources/` and the pages of `docs/` inside the package, where `precgui.paths` looks first.

Named in pyproject.toml under [tool.setuptools.cmdclass]. An editable install reads the folder in the checkout.
The catalogues of translations are compiled here; without Babel, which pip installs for a build, English alone is built.
"""

from __future__ import annotations

import logging
import runpy
from pathlib import Path

from setuptools.command.build_py import build_py

WORDS = Path("resources/words")
FOLDERS = {"resources": "**/*", "docs": "*.md"}  # which files of each; the pictures of the pages are not needed
SOURCES = (".po", ".mo")  # of the catalogues: what is bundled is compiled anew


class BuildWithResources(build_py):
    """`build_py`, and then the files of each folder under `precgui/` and its name."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._bundled():
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))
        self._compile_catalogues()

    def _compile_catalogues(self) -> None:
        compiler = runpy.run_path("precgui/catalogue.py")
        for source, target in self._catalogues():
            try:
                content = compiler["compile_catalogue"](source)
            except ImportError:
                logging.warning("%s is left out: install Babel to build the translations", target.name)
                continue
            self.mkpath(str(target.parent))
            compiler["write_whole"](target, content)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        bundled = [] if self.editable_mode else [str(target) for _, target in self._bundled()]
        compiled = [str(target) for _, target in self._catalogues() if target.exists()]
        return [*super().get_outputs(include_bytecode), *bundled, *compiled]

    def _catalogues(self) -> list[tuple[Path, Path]]:
        """Source and target of each catalogue; in an editable install the target lies beside its source."""
        folder = WORDS if self.editable_mode else Path(self.build_lib, "precgui") / WORDS
        return [(source, folder / f"{source.stem}.mo") for source in sorted(WORDS.glob("*.po"))]

    def _bundled(self) -> list[tuple[Path, Path]]:
        inside = Path(self.build_lib, "precgui")
        return [
            (path, inside / path)
            for folder, wanted in FOLDERS.items()
            for path in sorted(Path(folder).glob(wanted))
            if path.is_file() and path.suffix not in SOURCES
        ]
