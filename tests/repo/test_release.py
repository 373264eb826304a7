"""A release is whole: archives, wheels, bills of materials; each installs into an empty environment and answers."""

from __future__ import annotations

import ast
import contextlib
import email
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from embedl_hub.locked import read_lock

ROOT = Path(__file__).resolve().parents[2]
DISTS = {path.parent.name: tomllib.loads(path.read_text()) for path in sorted(ROOT.glob("dists/*/pyproject.toml"))}
VENDORED = {one["package"] for one in tomllib.loads((ROOT / "requirements/vendored.toml").read_text()).values()}
VERSION = (ROOT / "src/embedl_device/_version.py").read_text().split('"')[-2]
CONSTRAINTS = ROOT / "requirements/constraints.txt"
PINNED = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#"))
# Installed without what they ask for, so they constrain nobody.
ALONE = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements/test-nodeps.txt").read_text(), re.MULTILINE))
# Another Python gets the newest versions in range, and some packages that are for it alone.
IS_TESTED_PYTHON = f"# Python {sys.version_info.major}.{sys.version_info.minor}.\n" in CONSTRAINTS.read_text()
FACES = [line.partition(":")[0] for line in (ROOT / "tests/repo/public_api.txt").read_text().splitlines()]
BASE_LIMIT_MB = 150


@dataclass(frozen=True)
class Release:
    """The files that tools/release.py made."""

    folder: Path

    def wheel(self, name: str) -> Path:
        return self.folder / f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"

    def archive(self, name: str) -> Path:
        return self.folder / f"{name.replace('-', '_')}-{VERSION}.tar.gz"

    def bill(self, name: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads((self.folder / f"{name.replace('-', '_')}-{VERSION}.cdx.json").read_text())
        return made


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Everything, built as a release is built, once for all workers of a test run."""
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "release"
    out.mkdir(exist_ok=True)
    with out.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "SHA256SUMS").exists():
            argv = [sys.executable, str(ROOT / "tools/release.py"), "--out", str(out)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=280)
            assert done.returncode == 0, done.stdout + done.stderr
    return Release(out)


def _metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(packed.read(name))


def test_the_files_are_whole(release: Release) -> None:
    """One session builds them; each file is what SHA256SUMS says, and what a stranger needs is inside."""
    listed = [line.split() for line in (release.folder / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in listed}
    assert set(sums) == {path.name for path in release.folder.iterdir()} - {"SHA256SUMS"}
    assert len(sums) == 3 * len(DISTS)
    for name, digest in sums.items():
        assert hashlib.sha256((release.folder / name).read_bytes()).hexdigest() == digest
    for name, pyproject in DISTS.items():
        _check_wheel(release.wheel(name), name, pyproject)
        _check_archive(release.archive(name), release.wheel(name))
        _check_bill(release.bill(name), name, release.wheel(name))
    _check_every_source_file_is_shipped_once(release)


def _check_wheel(wheel: Path, name: str, pyproject: dict[str, Any]) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {each.partition("/")[0] for each in names if ".dist-info/" not in each}
    assert packages <= {
        "embedl_demo",
        "embedl_hub",
        "embedl_deploy",
        "embedl_device",
        "embedl_executorch",
        "embedl_graph",
        "embedl_kernels",
        "embedl_litert",
        "embedl_onnxruntime",
        "embedl_openvino",
    }
    assert any(each.endswith(".dist-info/licenses/LICENSE") for each in names), name
    # A backend extends embedl_deploy, whose own marker stands for all that is below it.
    is_part = name.startswith("edgeproof-deploy-")
    assert is_part or all(f"{package}/py.typed" in names for package in packages), name
    assert not [each for each in names if re.search(r"(^|/)(tests?|benchmarks|examples|__pycache__)/", each)], name
    told = _metadata(wheel)
    project = pyproject["project"]
    assert (told["Name"], told["Version"], told["License-Expression"]) == (name, VERSION, "Apache-2.0")
    assert (told["Summary"], told["Requires-Python"]) == (project["description"], project["requires-python"])
    assert told["Description-Content-Type"] == "text/markdown"
    assert str(told.get_payload()).startswith(f"# {name}\n")
    assert "Typing :: Typed" in told.get_all("Classifier", [])
    assert set(told.get_all("Provides-Extra", [])) == set(project.get("optional-dependencies", {}))


def _check_archive(archive: Path, wheel: Path) -> None:
    """Everything of the wheel is in the archive; the wheel was built from it."""
    with tarfile.open(archive) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"PKG-INFO", "LICENSE", "README.md", "pyproject.toml"} <= inside
    sources = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {f"src/{name}" for name in sources} <= inside


def _version_here(name: str) -> str:
    return importlib.metadata.version(name).partition("+")[0]


def _check_bill(bill: dict[str, Any], name: str, wheel: Path) -> None:
    """It names the wheel by its hash, and the tested version of everything that it brings."""
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == (name, VERSION)
    assert root["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    installed = [each for each in bill["components"] if each["purl"].startswith("pkg:pypi/")]
    brought = {each["bom-ref"]: each["version"] for each in installed if not _names_of(each, "edgeproof:lock")}
    inside = {each["name"] for each in bill["components"] if each not in installed}
    assert inside == (VENDORED if name == "edgeproof-device" else set())
    assert {"numpy", "torch"} & set(brought)
    tested = PINNED | ALONE
    assert {each: tested[each] if IS_TESTED_PYTHON else _version_here(each) for each in brought} == brought
    for each in bill["components"]:
        if each["name"] == "executorch" and not _names_of(each, "edgeproof:lock"):
            assert "coremltools" in _names_of(each, "edgeproof:unresolved")


def _names_of(component: dict[str, Any], name: str) -> list[str]:
    return [each["value"] for each in component.get("properties", ()) if each["name"] == name]


def test_what_the_product_installs_by_itself_is_in_its_bill(release: Release) -> None:
    """Each file of the locks, by its hash, with the locks it is in; other distributions install nothing."""
    expected: dict[str, tuple[str, str, list[str]]] = {}
    for path in sorted(ROOT.glob("src/embedl_hub/locks/*.lock")):
        for file in read_lock(path).wheels:
            expected.setdefault(file.file_name, (file.version, file.sha256, []))[2].append(path.stem)
    for name in DISTS:
        found = {
            each["bom-ref"]: (
                each["version"],
                each["hashes"][0]["content"],
                sorted(fact["value"] for fact in each["properties"] if fact["name"] == "edgeproof:lock"),
            )
            for each in release.bill(name)["components"]
            if _names_of(each, "edgeproof:lock")
        }
        assert found == (expected if name == "edgeproof-hub" else {})
        needs = {each["ref"]: each.get("dependsOn", []) for each in release.bill(name)["dependencies"]}
        assert set(found) <= set(needs[name])
    assert len(expected) > 100


def _check_every_source_file_is_shipped_once(release: Release) -> None:
    shipped = Counter(
        each
        for name in DISTS
        for each in zipfile.ZipFile(release.wheel(name)).namelist()
        if ".dist-info/" not in each
    )  # fmt: skip
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in ROOT.glob("src/**/*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    assert dict(shipped) == dict.fromkeys(sources, 1)


class Empty:
    """An environment with nothing in it, not even pip."""

    def __init__(self, folder: Path, release: Release) -> None:
        self._folder = folder
        self._release = release
        venv.create(folder, with_pip=False)

    def install(self, *names: str) -> None:
        """Install wheels of the release by name and extras; what they need comes from the index, at tested versions."""
        wanted = [f"{name} @ {self._release.wheel(name.partition('[')[0]).as_uri()}" for name in names]
        argv = [sys.executable, "-m", "pip", "--python", str(self._folder), "install", "--quiet"]
        argv += ["--disable-pip-version-check", "--constraint", str(CONSTRAINTS)]
        done = subprocess.run([*argv, *wanted], capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *words: str, seconds: float = 120) -> str:
        """Run one of its programs far from the repository."""
        argv = [str(self._folder / "bin" / program), *words]
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            cwd=self._folder,
            env={"PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def imports(self, faces: list[str], but: str = "") -> None:
        """Import public packages, all in one process; warnings are errors, but for one that is named."""
        filters = ["-W", "error", *(["-W", f"ignore:{but}"] if but else [])]
        self.run("python", *filters, "-c", "".join(f"import {face}\n" for face in faces))

    def size_mb(self) -> float:
        """Return what is installed, in MB on disk."""
        site = next(self._folder.glob("lib/python*/site-packages"))
        return sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6


@pytest.fixture
def empty(release: Release, tmp_path: Path) -> Empty:
    return Empty(tmp_path / "empty", release)


def _say(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """Print a figure even when the test passes."""
    with capsys.disabled():
        sys.stdout.write(f"{line}\n")


def _faces(*starts: str) -> list[str]:
    return [face for face in FACES if face.startswith(starts)]


@pytest.mark.slow
def test_the_hub_alone(empty: Empty, capsys: pytest.CaptureFixture[str]) -> None:
    """With the kernel families of the device programs: no torch, at most 150 MB, every face and command there."""
    empty.install("edgeproof-hub", "edgeproof-device")
    _say(capsys, f"edgeproof-hub alone: {empty.size_mb():.0f} MB")
    assert empty.size_mb() <= BASE_LIMIT_MB
    empty.imports(_faces("embedl_hub"))
    for program in ("embedl-hub", "ehub"):
        assert "Usage:" in empty.run(program, "--help")
    assert empty.run("embedl-hub", "--version").strip() == f"embedl-hub, version {VERSION}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_device_programs_alone(empty: Empty) -> None:
    """Numpy and nothing else."""
    empty.install("edgeproof-device")
    programs = ("embedl-onnxruntime", "embedl-litert", "embedl-openvino", "embedl-executorch")
    packages = (*(program.replace("-", "_") for program in programs), "embedl_device", "embedl_graph", "embedl_kernels")
    # What makes ExecuTorch programs needs torch; it is no part of what a board runs.
    empty.imports([face for face in _faces(*packages) if not face.startswith("embedl_executorch.compiler.")])
    for program in programs:
        assert "usage:" in empty.run(program, "--help")
        assert empty.run(program, "--version").strip() == f"{program} {VERSION}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_hub_with_onnx_runtime_and_the_page(empty: Empty, capsys: pytest.CaptureFixture[str]) -> None:
    """What the README tells people to install."""
    empty.install("edgeproof-hub[onnxruntime,ui]", "edgeproof-device")
    _say(capsys, f"edgeproof-hub[onnxruntime,ui]: {empty.size_mb():.0f} MB")
    empty.imports([*_faces("embedl_hub", "embedl_onnxruntime"), "onnxruntime", "starlette"])
    assert "Usage:" in empty.run("embedl-hub", "ui", "--help")
    empty.run("embedl-hub", "doctor", "--help")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_deploy_and_its_backends(empty: Empty) -> None:
    """With torch alone, and the backends, found by their entry points; then the command."""
    backends = [name for name in DISTS if name.startswith("edgeproof-deploy-")]
    empty.install("edgeproof-deploy", "edgeproof-device", *backends)
    # torch says this of itself where numpy is not installed, and does without.
    empty.imports(_faces("embedl_deploy"), but="Failed to initialize NumPy")
    found = "import importlib.metadata as m; print(*m.entry_points(group='embedl_deploy.backends').names)"
    assert set(empty.run("python", "-c", found).split()) == {name.rpartition("-")[2] for name in backends}
    empty.install("edgeproof-deploy[onnx]", "edgeproof-device", *backends)
    assert "Usage:" in empty.run("embedl-deploy", "--help")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_with_its_demo(empty: Empty, capsys: pytest.CaptureFixture[str]) -> None:
    """The two lines of the README, from nothing: the same table as ./run."""
    empty.install("edgeproof[demo]", *(name for name in DISTS if name != "edgeproof"))
    _say(capsys, f"edgeproof[demo]: {empty.size_mb():.0f} MB")
    empty.imports(_faces("embedl_demo"))
    said = empty.run("embedl-hub", "demo", "--quick", seconds=600)
    assert said.count("PASS") == 3
    assert "embedl-hub ui --home" in said


def test_one_version_for_all() -> None:
    """Each distribution reads it from the one file, and the changelog has a section for it or for what comes."""
    for name, pyproject in DISTS.items():
        attribute = pyproject["tool"]["setuptools"]["dynamic"]["version"]["attr"]
        file = ROOT / "src" / (attribute.rpartition(".")[0].replace(".", "/") + ".py")
        assert file.resolve() == ROOT / "src/embedl_device/_version.py", name
        assert importlib.metadata.version(name) == VERSION, f"{name}: ./test sets the environment up again"
    written = [
        path for path in ROOT.glob("src/**/*.py") if re.search(r'^__version__ = "', path.read_text(), re.MULTILINE)
    ]
    assert {path.resolve() for path in written} == {ROOT / "src/embedl_device/_version.py"}
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", section) for section in sections[1:])


def test_the_tested_versions_are_those_installed() -> None:
    """requirements/constraints.txt is this environment, and pins whatever requirements/test.txt pins."""
    if IS_TESTED_PYTHON:
        here = {name: _version_here(name) for name in PINNED}
        assert here == PINNED, "run tools/constraints.py, and say in the changelog what moved"
    for line in (ROOT / "requirements/test.txt").read_text().splitlines():
        if found := re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==([^\s;]+)", line):
            assert PINNED[re.sub(r"[-_.]+", "-", found[1]).lower()] == found[2], line


def _mentioned() -> set[tuple[str, str, str]]:
    pages = [
        path
        for pattern in ("src/**/*.py", "docs/**/*.md", "*.md", "examples/**/*", "dists/*/*", "requirements/*.txt")
        for path in ROOT.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return {
        (dist, extra.strip(), path.relative_to(ROOT).as_posix())
        for path in pages
        for dist, extras in re.findall(r"(edgeproof-[a-z-]+)\[([^\]{}]+)\]", path.read_text(errors="replace"))
        for extra in extras.split(",")
    }


def test_every_extra_that_is_named_exists() -> None:
    """Following an error's advice to install must work."""
    named = _mentioned()
    assert ("edgeproof-hub", "postgresql") in {(dist, extra) for dist, extra, _ in named}
    for dist, extra, where in sorted(named):
        assert extra in DISTS[dist]["project"]["optional-dependencies"], f"{where} names {dist}[{extra}]"


def _literals(tree: ast.Module) -> dict[str, Any]:
    """Return a module's constants."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def _extras_in(call: ast.Call, named: dict[str, Any]) -> list[str]:
    """Return the extras that a call is given, as text or by the name of a constant."""
    given = (word.value for word in call.keywords if word.arg in ("extra", "extra_of_program"))
    values = (named.get(ast.unparse(value)) or getattr(value, "value", None) for value in given)
    return [value for value in values if isinstance(value, str)]


def test_extras_that_messages_are_made_of_exist() -> None:
    """Where the extra is a value: of providers, of a runtime, of deploy's table."""
    hub = set(DISTS["edgeproof-hub"]["project"]["optional-dependencies"])
    programs = set(DISTS["edgeproof-device"]["project"]["optional-dependencies"])
    seen = 0
    for path in ROOT.glob("src/embedl_hub/**/*.py"):
        tree = ast.parse(path.read_text())
        named = _literals(tree)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            for value in _extras_in(call, named):
                assert value in hub | programs, f"{path}:{call.lineno}"
                seen += 1
    assert seen >= 10
    from embedl_deploy._extras import _EXTRAS

    assert set(_EXTRAS.values()) <= set(DISTS["edgeproof-deploy"]["project"]["optional-dependencies"])
