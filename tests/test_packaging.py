"""What is installed is what stands in the folders.

The folders install under other names (server -> recalld.server, by setuptools' package-dir), and setuptools says
nothing about a folder or a file that the mapping forgets. So: the mapping is compared with the folders, sdist and
wheel are built and their contents compared with the files, the wheel is installed elsewhere and run, and mypy checks
the product under the names it is installed by. Nothing here needs a network or HOME.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOT_PRODUCT = {"tests", "bench", "docs", "build", "dist", "data"}
NOT_PRODUCT_EXTRAS = {"test", "bench"}

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
FOLDERS: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]  # recalld.server -> server
#: What is imported by a name of its own, not by that of the folder above.
RENAMED = {"recalld.client": "protocol/client"}


def is_source(path: Path) -> bool:
    """Tell whether a file is meant to ship: what an interpreter, an editor or a desktop leaves behind is not."""
    parts = path.relative_to(ROOT).parts
    return path.is_file() and "__pycache__" not in parts and not parts[-1].startswith(".") and parts[-1][-1] != "~"


def shipped_files() -> set[str]:
    """Every file of the product folders as installed: recalld/server/aof.py, recalld/conf/recalld.conf, ..."""
    tops = {folder.partition("/")[0] for folder in FOLDERS.values()}
    return {
        installed_as(path.relative_to(ROOT).as_posix())
        for top in tops
        for path in (ROOT / top).rglob("*")
        if is_source(path)
    }


def installed_as(file: str) -> str:
    for name, folder in RENAMED.items():
        if file.startswith(folder + "/"):
            return name.replace(".", "/") + file.removeprefix(folder)
    return f"recalld/{file}"


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    """Run a command with an environment of its own; return stdout, or fail with all that it said."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"} | more
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*args: str | Path, cwd: Path) -> None:
    run(sys.executable, "-m", "pip", "--isolated", "--no-cache-dir", *args, cwd=cwd)


# The mapping


def test_mapping_lists_each_folder_once() -> None:
    """packages and package-dir name the same packages, each after its folder: recalld.a.b is a/b."""
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(FOLDERS)
    assert {name: name.removeprefix("recalld.").replace(".", "/") for name in FOLDERS} | RENAMED == FOLDERS


def test_each_folder_with_code_is_mapped() -> None:
    """No folder with Python files, nested ones included, is missing from the mapping, or in it without files."""
    tops = [p for p in ROOT.iterdir() if p.is_dir() and p.name not in NOT_PRODUCT and not p.name.startswith(".")]
    found = {path.parent.relative_to(ROOT).as_posix() for top in tops for path in top.rglob("*.py") if is_source(path)}
    assert found == set(FOLDERS.values())


def test_each_package_has_an_init() -> None:
    """Only recalld itself is a namespace."""
    assert [folder for folder in FOLDERS.values() if not (ROOT / folder / "__init__.py").is_file()] == []


# Building and installing


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads: building in the tree would leave build/ there, and next time ship what is in it."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]):
        shutil.copy(ROOT / name, copy / name)
    for top in {folder.partition("/")[0] for folder in FOLDERS.values()}:
        shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__", ".*", "*~"))
    return copy


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    # The hook that a build frontend calls; setuptools comes with the test extra.
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, out, cwd=source)
    [path] = out.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as frontends build it: from the sdist, so that what the sdist lacks the wheel lacks too."""
    out = tmp_path_factory.mktemp("wheel")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--check-build-dependencies")
    pip("wheel", *offline, "-w", out, sdist, cwd=out)
    [path] = out.iterdir()
    return path


def test_sdist_has_every_file(sdist: Path) -> None:
    """The sdist holds the product folders whole, and what pyproject.toml refers to."""
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS.values()
        for path in (ROOT / folder).rglob("*")
        if is_source(path)
    }
    assert (sources | {"pyproject.toml", "README.md", "LICENSE"}) - names == set()


def test_wheel_has_every_file_and_no_other(wheel: Path) -> None:
    """The wheel holds the product folders under recalld/, the licence, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = {name for name in names if ".dist-info/" in name}
    assert names - info == shipped_files()
    assert "recalld/conf/recalld.conf" in names
    assert [name for name in info if name.endswith("/LICENSE")] != []


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh venv with the wheel in it, and the dependencies of this one within reach: quick, and no downloads."""
    home = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    pip("--python", home / "bin" / "python", "install", "--no-index", "--no-deps", wheel, cwd=home)
    # Only now, or pip would find recalld installed. The .pth files of those folders stay unread, and with them
    # the editable install of this tree.
    [site] = home.glob("lib/python*/site-packages")
    ours = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in ours), encoding="utf-8")
    return home


def test_installed_command_names_its_version(venv: Path, tmp_path: Path) -> None:
    """`recalld --version` runs from a folder that has nothing to do with the source."""
    assert PROJECT["version"] in run(venv / "bin" / "recalld", "--version", cwd=tmp_path)


def test_installed_modules_import(venv: Path, tmp_path: Path) -> None:
    """Each module can be imported on its own name from the installed wheel, and the default config is beside them."""
    files = {name.removesuffix(".py").removesuffix("/__init__") for name in shipped_files() if name.endswith(".py")}
    names = sorted(name.replace("/", ".") for name in files if not name.endswith("/__main__"))
    code = (
        "import importlib, importlib.resources, sys\n"
        "for name in sys.argv[1:]: print(importlib.import_module(name).__file__)\n"
        "print(importlib.resources.files('recalld.conf').joinpath('recalld.conf'))\n"
    )
    # Compiling the loops takes seconds, and is what other tests look at.
    said = run(venv / "bin" / "python", "-I", "-c", code, *names, cwd=tmp_path, NUMBA_DISABLE_JIT="1")
    paths = [Path(line) for line in said.splitlines()]
    assert len(paths) == len(names) + 1
    assert [path for path in paths if not path.is_relative_to(venv)] == []
    assert paths[-1].read_bytes() == (ROOT / "conf" / "recalld.conf").read_bytes()


# Types


def mypy_cache(config: pytest.Config, spare: Path) -> Path:
    """A folder that stays from run to run (numpy's types take mypy seconds), or `spare` in a read-only tree."""
    try:
        return config.cache.mkdir("mypy") if config.cache else spare
    except OSError:
        return spare


def test_mypy_strict_over_installed_names(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """mypy --strict passes over all of the product.

    mypy cannot follow the finder of an editable install, so it gets a folder recalld/ with links to the files.
    """
    for name, folder in FOLDERS.items():
        package = tmp_path.joinpath(*name.split("."))
        package.mkdir(parents=True)
        for path in (ROOT / folder).glob("*.py"):
            (package / path.name).symlink_to(path)
    cache = mypy_cache(pytestconfig, tmp_path / "cache")
    options = ("--strict", "--config-file", ROOT / "pyproject.toml", "--cache-dir", cache, "--no-color-output")
    said = run(sys.executable, "-m", "mypy", *options, "-p", "recalld", cwd=tmp_path)
    checked = re.search(r"no issues found in (\d+) source files?", said)
    assert checked, said
    # A folder that mypy does not see into would pass too, with nothing checked. The one more is recalld itself.
    assert int(checked[1]) == len([name for name in shipped_files() if name.endswith(".py")]) + 1, said


# Dependencies


def distribution(requirement: str) -> str:
    return re.split(r"[\s<>=!~\[;]", requirement)[0]


def imported(folders: Sequence[str]) -> set[str]:
    """The top names of all absolute imports in these folders, as far as they are not the standard library's."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if is_source(path)
    ]
    names: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names - set(sys.stdlib_module_names)


def test_product_imports_only_what_it_declares() -> None:
    """What happens to be in a developer's venv through the test extra is no dependency of the product or its extras."""
    providers = importlib.metadata.packages_distributions()
    extras = [needs for name, needs in PROJECT["optional-dependencies"].items() if name not in NOT_PRODUCT_EXTRAS]
    declared = {distribution(requirement).lower() for requirement in sum(extras, PROJECT["dependencies"])}
    undeclared = {
        name
        for name in imported(sorted(FOLDERS.values()))
        if not declared & {provider.lower().replace("_", "-") for provider in providers.get(name, [name])}
    }
    assert undeclared == set()


def test_dependencies_are_documented() -> None:
    """docs/dependencies.md has one line per dependency of pyproject.toml, in the right table, and no other."""
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    tables = {
        title.strip(): sorted(re.findall(r"^\| (?!name )([A-Za-z][\w-]*) \|", body, flags=re.MULTILINE))
        for title, _, body in (part.partition("\n") for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:])
    }
    wanted = {"At run time": PROJECT["dependencies"], "For tests": PROJECT["optional-dependencies"]["test"]}
    expected = {title: sorted(map(distribution, requirements)) for title, requirements in wanted.items()}
    assert {title: tables.get(title) for title in expected} == expected
