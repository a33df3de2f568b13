"""What is shipped: the bundled data, the wheel that carries it, the locked versions, the set-up scripts."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from precgui.paths import resources

ROOT = Path(__file__).parent.parent
DATA = resources() / "data"
LIBRARY_ROW = re.compile(r"^(?:offscreen|x11|wayland) +(lib\S+)", re.MULTILINE)


def test_that_the_bundled_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    theirs = load_digits()
    with np.load(DATA / "digits.npz", allow_pickle=False) as ours:
        assert sorted(ours.files) == ["images", "labels"]
        images, labels = ours["images"], ours["labels"]
    assert images.dtype == labels.dtype == np.uint8
    np.testing.assert_array_equal(images, theirs.images)
    np.testing.assert_array_equal(labels, theirs.target)


def test_that_the_readme_of_the_data_names_the_sum_of_the_file() -> None:
    written = re.search(r"\b[0-9a-f]{64}\b", (DATA / "README.md").read_text(encoding="utf-8"))
    assert written is not None
    assert written.group() == hashlib.sha256((DATA / "digits.npz").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel built from a copy of the checkout, so that no build leftovers appear in it."""
    folder = tmp_path_factory.mktemp("wheel")
    names = ["precgui", "resources", "docs", "packaging", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"]
    for name in names:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", "dist", "."], cwd=folder, check=True, timeout=240)
    return zipfile.ZipFile(next((folder / "dist").glob("precgui-*.whl")))


def test_that_the_wheel_carries_every_module_and_every_resource(wheel: zipfile.ZipFile) -> None:
    modules = {str(path.relative_to(ROOT).as_posix()) for path in (ROOT / "precgui").rglob("*.py")}
    files = [path for path in resources().rglob("*") if path.is_file() and path.suffix != ".mo"]
    bundled = {f"precgui/{path.relative_to(ROOT).as_posix()}" for path in files if path.suffix != ".po"}
    if importlib.util.find_spec("babel"):  # without it the wheel is English
        bundled |= {
            f"precgui/{path.relative_to(ROOT).with_suffix('.mo').as_posix()}" for path in files if path.suffix == ".po"
        }
    pages = {f"precgui/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    metadata = {name for name in wheel.namelist() if ".dist-info/" in name}
    assert set(wheel.namelist()) - metadata == modules | bundled | pages | {"precgui/py.typed"}
    assert wheel.read("precgui/resources/data/digits.npz") == (DATA / "digits.npz").read_bytes()


def test_that_an_installed_precgui_finds_its_resources(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    program = "import precgui.paths as p; print(p.resources()); assert (p.resources() / 'data/digits.npz').is_file()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path.parent, env=environment, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert Path(result.stdout.strip()) == tmp_path / "precgui" / "resources"


def test_that_the_wheel_starts_precgui_by_name(wheel: zipfile.ZipFile) -> None:
    entry_points = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "precgui = precgui.cli.main:main" in wheel.read(entry_points).decode()


def test_that_every_locked_package_has_a_version_and_a_hash() -> None:
    lines = (ROOT / "packaging" / "constraints.txt").read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    requirements = [line for line in lines if not line.startswith("#")]
    assert len(requirements) > 50
    assert [line for line in requirements if "==" not in line or "--hash=sha256:" not in line] == []


def _requirements(project: dict[str, Any], extra: str) -> Iterator[Requirement]:
    """What an extra asks for; one that names other extras of the project asks for theirs."""
    for requirement in map(Requirement, project["optional-dependencies"][extra]):
        if canonicalize_name(requirement.name) == project["name"]:
            for other in requirement.extras:
                yield from _requirements(project, other)
        else:
            yield requirement


def test_that_the_lock_satisfies_the_bounds_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [*map(Requirement, project["dependencies"]), *_requirements(project, "dev")]
    text = (ROOT / "packaging" / "constraints.txt").read_text(encoding="utf-8")
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([\w.+!]+)", text, re.MULTILINE):
        locked.setdefault(canonicalize_name(name), []).append(version)
    for bound in bounds:
        versions = locked.get(canonicalize_name(bound.name), [])
        assert versions, f"{bound.name} is not locked: run make constraints"
        assert all(bound.specifier.contains(version) for version in versions), bound


def _locked_names() -> set[str]:
    text = (ROOT / "packaging" / "constraints.txt").read_text(encoding="utf-8")
    return {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}


def _asked_for(name: str, extras: set[str]) -> Iterator[Requirement]:
    """The packages that an installed package needs here, with those of the extras that are asked of it."""
    for requirement in map(Requirement, metadata.requires(name) or []):
        if any(requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield requirement


def test_that_the_lock_holds_whatever_its_packages_ask_for() -> None:
    """`make` installs the lock without resolving: pip would ask for the newest version of a package with an extra."""
    locked = _locked_names()
    installed = {canonicalize_name(distribution.name) for distribution in metadata.distributions()}
    to_look_at = [(str(name), frozenset[str]()) for name in sorted(locked & installed)]
    seen = set(to_look_at)
    while to_look_at:
        name, extras = to_look_at.pop()
        for requirement in _asked_for(name, set(extras)):
            asked = canonicalize_name(requirement.name), frozenset(requirement.extras)
            assert asked[0] in locked, f"{name} asks for {requirement}, which is not locked: run make constraints"
            if asked not in seen and asked[0] in installed:
                seen.add(asked)
                to_look_at.append(asked)


def test_that_nothing_is_installed_or_asked_for_when_the_libraries_are_there(tmp_path: Path) -> None:
    """With a dynamic linker that knows every library, the script must not reach a package manager."""
    rows = (ROOT / "packaging" / "system-libraries.sh").read_text(encoding="utf-8")
    libraries = LIBRARY_ROW.findall(rows)
    assert len(libraries) > 10
    result = _system_libraries(tmp_path, libraries)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("manager", "sentence"),
    [
        ("dnf", "dnf install xcb-util-wm mesa-libEGL"),
        ("pacman", "pacman -S xcb-util-wm libglvnd"),
    ],
)
def test_that_other_distributions_are_told_the_names(tmp_path: Path, manager: str, sentence: str) -> None:
    rows = (ROOT / "packaging" / "system-libraries.sh").read_text(encoding="utf-8")
    libraries = LIBRARY_ROW.findall(rows)
    there = [name for name in libraries if name not in ("libEGL.so.1", "libxcb-icccm.so.4")]
    result = _system_libraries(tmp_path, there, manager)
    assert result.returncode == 0
    named = result.stderr.split(": ")[1].split()
    assert sorted(named) == sorted(sentence.split())


def _system_libraries(folder: Path, there: list[str], *managers: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a PATH that holds only plain tools, a made-up linker cache and the named managers."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "uname", "awk", "find", "head", "dirname", "id"):
        (tools / name).symlink_to(str(shutil.which(name)))
    cache = "\n".join(f"\t{name} (libc6,x86-64) => /usr/lib/{name}" for name in there)
    scripts = {"ldconfig": f"cat <<'END'\n{cache}\nEND", **dict.fromkeys(managers, "exit 1")}
    for name, body in scripts.items():
        (tools / name).write_text(f"#!{shutil.which('sh')}\n{body}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    fonts = folder / "home" / ".fonts"
    fonts.mkdir(parents=True)
    (fonts / "font.ttf").touch()
    return subprocess.run(
        [str(ROOT / "packaging" / "system-libraries.sh"), "offscreen", "x11", "wayland"],
        env={"PATH": str(tools), "HOME": str(folder / "home")},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def test_that_an_old_python_is_named_in_one_sentence(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\n', encoding="utf-8")
    old.chmod(0o755)
    result = subprocess.run(
        [str(ROOT / "packaging" / "make-environment.sh"), str(tmp_path / "environment")],
        env={**os.environ, "PYTHON": str(old)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stdout == ""
    assert re.fullmatch(r"precgui needs Python 3\.11.* found Python 3\.9\.2; .*\n", result.stderr)


@pytest.mark.parametrize(
    ("left_s", "suite_s", "targets"),
    [
        (3600, 1050, "run test"),  # a machine on which all of CI takes 40 minutes
        (1700, 2700, "run test-machine"),  # the slowest one that was seen
        (900, 2700, "run"),
        (300, 3600, ""),
    ],
)
def test_that_a_new_machine_gets_what_the_time_has_room_for(left_s: int, suite_s: int, targets: str) -> None:
    command = [ROOT / "packaging" / "targets-in-time.sh", str(left_s), str(suite_s)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == targets
