"""The build step that puts `resources/` inside the package, where `precgui.paths.resources` looks first.

Named in pyproject.toml under [tool.setuptools.cmdclass]. An editable install reads the folder in the checkout.
"""

from __future__ import annotations

from pathlib import Path

from setuptools.command.build_py import build_py

SOURCE = Path("resources")


class BuildWithResources(build_py):
    """`build_py`, and then every file of `resources/` under `precgui/resources/`."""

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
        inside = Path(self.build_lib, "precgui", "resources")
        return [(path, inside / path.relative_to(SOURCE)) for path in sorted(SOURCE.rglob("*")) if path.is_file()]
