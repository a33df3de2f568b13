"""The build step that puts `resources/` and the pages of `docs/` inside the package, where `precgui.paths` looks first.

Named in pyproject.toml under [tool.setuptools.cmdclass]. An editable install reads the folder in the checkout.
"""

from __future__ import annotations

from pathlib import Path

from setuptools.command.build_py import build_py

FOLDERS = {"resources": "**/*", "docs": "*.md"}  # which files of each; the pictures of the pages are not needed


class BuildWithResources(build_py):
    """`build_py`, and then the files of each folder under `precgui/` and its name."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._bundled():
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        bundled = [] if self.editable_mode else [str(target) for _, target in self._bundled()]
        return [*super().get_outputs(include_bytecode), *bundled]

    def _bundled(self) -> list[tuple[Path, Path]]:
        inside = Path(self.build_lib, "precgui")
        return [
            (path, inside / path)
            for folder, wanted in FOLDERS.items()
            for path in sorted(Path(folder).glob(wanted))
            if path.is_file()
        ]
