"""The steps of a GitHub action and the script of a GitLab job, run as they are written, on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

_ATOM = re.compile(
    r"always\(\)|format\('(?P<format>[^']*)', (?P<argument>[\w.-]+)\)|'(?P<text>[^']*)'|(?P<name>[\w.-]+)"
)


def load_yaml(path: Path) -> Any:
    """Return a file's content."""
    return YAML(typ="safe", pure=True).load(path.read_text())


@dataclass
class Ended:
    """How a job ended."""

    code: int
    log: str
    summary: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    used: dict[str, dict[str, str]] = field(default_factory=dict)  # actions of others: not run, with what they got


class GitHubRunner:
    """Runs composite actions; what they take from others is noted, not run."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder = folder
        self._workspace = folder / "workspace"
        for each in (self._workspace, folder / "temp"):
            each.mkdir(parents=True, exist_ok=True)
        self._path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._variables = variables

    def run(self, action: Path, **inputs: str) -> Ended:
        """Run an action; inputs are written with _ for -."""
        content = load_yaml(action)
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert set(given) <= set(content["inputs"]), "an input that the action does not have"
        values = {name: given.get(name, each.get("default", "")) for name, each in content["inputs"].items()}
        known = {f"inputs.{name}": str(value) for name, value in values.items()}
        known |= {"github.run_id": "7", "github.run_attempt": "1"}
        assert all(step["shell"] == "bash" for step in content["runs"]["steps"] if "run" in step)
        return self.run_steps(content["runs"]["steps"], known, GITHUB_ACTION_PATH=str(action.parent))

    def run_steps(self, steps: Sequence[Mapping[str, Any]], known: Mapping[str, str], **more: str) -> Ended:
        """Run steps, of an action or a job, with what expressions know and further variables."""
        known = {**known, "runner.temp": str(self._folder / "temp")}
        ended, added = Ended(0, ""), ""
        for step in steps:
            condition = step.get("if", "")
            if (ended.code and "always()" not in condition) or (condition and not _value(condition, known)):
                continue
            if "uses" in step:
                given = step.get("with", {})
                ended.used[step["uses"]] = {name: _filled(text, known) for name, text in given.items()}
                continue
            files = {name: self._folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_PATH")}
            for file in files.values():
                file.write_text("")
            variables = {
                **{name: str(file) for name, file in files.items()},
                "GITHUB_STEP_SUMMARY": str(self._folder / "summary.md"),
                **more,
                "RUNNER_TEMP": str(self._folder / "temp"),
                **{name: _filled(text, known) for name, text in step.get("env", {}).items()},
            }
            done = _bash(step["run"], self._workspace, self._variables | variables, added + self._path)
            ended.log += done.stdout
            ended.code = ended.code or done.returncode
            ended.outputs |= dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
            added = "".join(f"{line}{os.pathsep}" for line in files["GITHUB_PATH"].read_text().splitlines()) + added
        summary = self._folder / "summary.md"
        ended.summary = summary.read_text() if summary.exists() else ""
        return ended


def run_gitlab_job(
    path: Path, job: str, folder: Path, variables: Mapping[str, str], without: Sequence[str] = (), **changed: str
) -> Ended:
    """Run a job's before_script and script in one shell, as a GitLab runner does."""
    content = load_yaml(path)
    chain = [content[job]]
    while "extends" in chain[-1]:
        chain.append(content[chain[-1]["extends"]])
    merged: dict[str, Any] = {}
    own: dict[str, str] = {}
    for each in reversed(chain):
        own |= {name: str(value) for name, value in each.get("variables", {}).items()}
        merged |= each
    own |= changed
    project = str(folder)
    own = {name: value.replace("$CI_PROJECT_DIR", project) for name, value in own.items()}
    parts = [part for part in ("before_script", "script") if part not in without]
    script = "\n".join(line for part in parts for line in merged.get(part, []))
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = _bash(script, folder, {**variables, **own, "CI_PROJECT_DIR": project}, search)
    return Ended(done.returncode, done.stdout)


def _bash(script: str, folder: Path, variables: Mapping[str, str], path: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EMBEDL_HUB_", "GITHUB_"))}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], cwd=folder,
        env={**kept, "EMBEDL_HUB_PREDICTION": "off", **variables, "PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False,
    )  # fmt: skip


def _filled(text: object, known: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: str(_value(found[1], known)), str(text))


def _value(expression: str, known: Mapping[str, str]) -> str:
    """Return what an expression of the few forms that our files use says; nothing for what is false."""
    for sign, stops in (("||", True), ("&&", False)):
        if f" {sign} " in expression:
            value = ""
            for part in expression.split(f" {sign} "):
                value = _value(part, known)
                if bool(value) is stops:
                    break
            return value
    for sign in ("==", "!="):
        if f" {sign} " in expression:
            one, two = (_value(part, known) for part in expression.split(f" {sign} "))
            return "true" if (one == two) is (sign == "==") else ""
    found = _ATOM.fullmatch(expression.strip())
    assert found is not None, f"an expression of a form that is not known here: {expression}"
    if found["format"] is not None:
        return found["format"].replace("{0}", known[found["argument"]])
    if found["text"] is not None:
        return found["text"]
    return known[found["name"]] if found["name"] else "true"
