"""Sweeps written down in TOML.

    [sweep]
    name = "candidates"
    toolchain = "onnxruntime"
    steps = ["compile", "profile", "invoke"]
    timeout_s = 600

    [models.resnet]
    path = "models/resnet.onnx"
    compile = { input_shape = [1, 3, 224, 224] }
    data = { calibration = "data/calibration", test = "data/test.npz", labels = "data/labels.npy" }

    [options.float]

    [options.int8]
    compile = { calibration_data = "$calibration" }

    [devices]
    names = ["kitchen", "here"]

Paths are relative to the file. Instead of a path, ``[models.NAME]`` may hold ``files = "models/*.onnx"``: one model for
each file, called by the file's name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.errors import ConfigError, known
from embedl_hub.fleet._model import DEFAULT_STEPS, DeviceWish, StepKind, Sweep, SweepModel, SweepOption

if TYPE_CHECKING:
    import os

_TABLES = ("sweep", "models", "options", "devices")
_SWEEP_KEYS = {
    "name": str,
    "toolchain": str,
    "steps": list,
    "timeout_s": (int, float),
    "retries": int,
    "retry_failures": bool,
    "rank": bool,
    "reuse_measurements": bool,
    "reference": str,
}
_STEP_KEYS: dict[str, Any] = dict.fromkeys(map(str, StepKind), Mapping)
_MODEL_KEYS = {"path": str, "files": str, "data": Mapping, **_STEP_KEYS}
_DEVICE_KEYS = {"names": list, "where": str, "pools": list}


def read_sweep(path: str | os.PathLike[str]) -> Sweep:
    """Return the sweep of a file, or say everything that is wrong with it at once."""
    file = Path(path)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The sweep in {file} cannot be read: {error}.") from error
    return _Reader(file).sweep(document)


class _Reader:
    """Reads one file and keeps what is wrong with it until the end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._problems: list[str] = []

    def sweep(self, document: Mapping[str, Any]) -> Sweep:
        self._known("the file", document, dict.fromkeys(_TABLES, Mapping))
        settings = self._table(document, "sweep")
        self._known("[sweep]", settings, _SWEEP_KEYS)
        for needed in ("toolchain",):
            if needed not in settings:
                self._problems.append(f"[sweep] needs {needed!r}, for example {needed} = 'onnxruntime'")
        models = [model for name, table in self._tables(document, "models") for model in self._models(name, table)]
        options = [self._option(name, table) for name, table in self._tables(document, "options")]
        wish = self._devices(self._table(document, "devices"))
        steps = self._steps(settings.get("steps"))
        if self._problems:
            raise ConfigError(
                f"{self._file} cannot be carried out:\n" + "\n".join(f"- {text}" for text in self._problems)
            )
        further = {key: value for key, value in settings.items() if key not in {"name", "toolchain", "steps"}}
        return Sweep(
            settings.get("name", self._file.stem), settings["toolchain"], tuple(models),
            # A model alone is worth a sweep: every step with its defaults.
            tuple(options) or (SweepOption("default"),), wish, steps, **further,
        )  # fmt: skip

    def _models(self, name: str, table: Mapping[str, Any]) -> list[SweepModel]:
        where = f"[models.{name}]"
        self._known(where, table, _MODEL_KEYS)
        if ("path" in table) == ("files" in table):
            self._problems.append(f"{where} needs either a path, or files = 'folder/*.onnx'")
            return []
        data = {key: self._path(value) for key, value in table.get("data", {}).items() if isinstance(value, str)}
        if wrong := set(table.get("data", {})) - set(data):
            self._problems.append(f"{where} data: {known(wrong)} must be paths")
        if "path" in table:
            return [SweepModel(name, self._path(str(table["path"])), data, self._step_values(table))]
        found = sorted(self._file.parent.glob(str(table["files"])))
        if not found:
            self._problems.append(f"{where} files: nothing matches {table['files']!r} in {self._file.parent}")
        return [SweepModel(path.stem, path, data, self._step_values(table)) for path in found]

    def _option(self, name: str, table: Mapping[str, Any]) -> SweepOption:
        self._known(f"[options.{name}]", table, _STEP_KEYS)
        return SweepOption(name, self._step_values(table))

    def _step_values(self, table: Mapping[str, Any]) -> dict[StepKind, dict[str, Any]]:
        return {
            StepKind(kind): {key: self._value(value) for key, value in values.items()}
            for kind, values in table.items()
            if kind in list(StepKind) and isinstance(values, Mapping)
        }

    def _devices(self, table: Mapping[str, Any]) -> DeviceWish:
        self._known("[devices]", table, _DEVICE_KEYS)
        lists = {key: tuple(map(str, table[key])) for key in ("names", "pools") if isinstance(table.get(key), list)}
        return DeviceWish(where=table.get("where"), **lists)

    def _steps(self, given: object) -> tuple[StepKind, ...]:
        if given is None:
            return DEFAULT_STEPS
        words = given if isinstance(given, list) else []
        if unknown := {str(word) for word in words} - set(map(str, StepKind)):
            self._problems.append(f"[sweep] steps: {known(unknown)} is no step; known: {known(StepKind)}")
            return ()
        # In the order in which a cell goes through them, whatever order they are written in.
        return tuple(kind for kind in StepKind if kind in words)

    def _value(self, value: Any) -> Any:  # noqa: ANN401 - any TOML value
        return tuple(self._value(each) for each in value) if isinstance(value, list) else value

    def _path(self, text: str) -> Path:
        return self._file.parent / text

    def _tables(self, document: Mapping[str, Any], name: str) -> list[tuple[str, Mapping[str, Any]]]:
        found = self._table(document, name)
        for key, value in found.items():
            if not isinstance(value, Mapping):
                self._problems.append(f"[{name}] {key} must be a table of its own: [{name}.{key}]")
        return [(key, value) for key, value in found.items() if isinstance(value, Mapping)]

    def _table(self, document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        found = document.get(name, {})
        return found if isinstance(found, Mapping) else {}

    def _known(self, where: str, table: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
        if unknown := set(table) - set(keys):
            self._problems.append(f"{where} has {known(unknown)}; known: {known(keys)}")
        for key, kind in keys.items():
            # True is a number in Python, and in nobody's file.
            if key in table and (
                not isinstance(table[key], kind) or (isinstance(table[key], bool) and kind is not bool)
            ):
                self._problems.append(f"{where}: {key} is {table[key]!r:.60}, which is no {_word(kind)}")


def _word(kind: Any) -> str:  # noqa: ANN401 - a type or several
    words = {str: "text", list: "list", bool: "true or false", int: "whole number", Mapping: "table"}
    return words.get(kind, "number")
