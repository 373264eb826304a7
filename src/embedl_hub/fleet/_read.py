"""Sweeps written down in TOML: ``[sweep]``, ``[models.NAME]``, ``[options.NAME]``, ``[devices]``; see the how-to guide.

Paths are relative to the file. Instead of a path, ``[models.NAME]`` may hold ``files = "models/*.onnx"``: one model for
each file, called by the file's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.fleet._model import DEFAULT_STEPS, DeviceSelection, StepKind, Sweep, SweepModel, SweepOption
from embedl_hub.toml import read_toml

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
_STEP_KEYS: dict[str, object] = dict.fromkeys(map(str, StepKind), Mapping)
_MODEL_KEYS = {"path": str, "files": str, "data": Mapping, **_STEP_KEYS}
_OPTION_KEYS = {"toolchain": str, "source": str, **_STEP_KEYS}
_DEVICE_KEYS = {"names": list, "where": str, "pools": list}
_KIND_NAMES = {str: "text", list: "list", bool: "true or false", int: "whole number", Mapping: "table"}


def read_sweep(path: str | os.PathLike[str]) -> Sweep:
    """Return the sweep of a file, or say everything that is wrong with it at once."""
    file = Path(path)
    try:
        document = read_toml(file)
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
        models = [model for name, table in self._tables(document, "models") for model in self._models(name, table)]
        options = []
        for name, table in self._tables(document, "options"):
            self._known(f"[options.{name}]", table, _OPTION_KEYS)
            options.append(SweepOption(name, self._step_values(table), table.get("toolchain"), table.get("source")))
        if "toolchain" not in settings and not (options and all(option.toolchain for option in options)):
            self._problems.append("[sweep] needs 'toolchain', for example toolchain = 'onnxruntime'")
        devices = self._table(document, "devices")
        self._known("[devices]", devices, _DEVICE_KEYS)
        lists = {key: tuple(map(str, devices[key])) for key in ("names", "pools") if isinstance(devices.get(key), list)}
        steps = self._steps(settings.get("steps"))
        if self._problems:
            raise ConfigError(f"{self._file} cannot be run:\n" + "\n".join(f"- {text}" for text in self._problems))
        further = {key: value for key, value in settings.items() if key not in {"name", "toolchain", "steps"}}
        toolchain = str(settings["toolchain"] if "toolchain" in settings else options[0].toolchain)
        return Sweep(
            settings.get("name", self._file.stem), toolchain, tuple(models),
            # A model alone is worth a sweep: every step with its defaults.
            tuple(options) or (SweepOption("default"),), DeviceSelection(where=devices.get("where"), **lists),
            steps, **further,
        )  # fmt: skip

    def _models(self, name: str, table: Mapping[str, Any]) -> list[SweepModel]:
        where = f"[models.{name}]"
        self._known(where, table, _MODEL_KEYS)
        if ("path" in table) == ("files" in table):
            self._problems.append(f"{where} needs either a path, or files = 'folder/*.onnx'")
            return []
        folder, values = self._file.parent, self._step_values(table)
        given = self._table(table, "data")
        data = {key: folder / value for key, value in given.items() if isinstance(value, str)}
        if wrong := set(given) - set(data):
            self._problems.append(f"{where} data: {quoted_list(wrong)} must be paths")
        if "path" in table:
            return [SweepModel(name, folder / str(table["path"]), data, values)]
        try:
            files = sorted(folder.glob(str(table["files"])))
        except (IndexError, NotImplementedError, ValueError) as error:
            self._problems.append(f"{where} files: {table['files']!r:.200} is no pattern of names: {error}")
            return []
        if not files:
            self._problems.append(f"{where} files: nothing matches {table['files']!r} in {folder}")
        return [SweepModel(path.stem, path, data, values) for path in files]

    def _step_values(self, table: Mapping[str, Any]) -> dict[StepKind, dict[str, object]]:
        return {
            StepKind(kind): {key: self._value(value) for key, value in values.items()}
            for kind, values in table.items()
            if kind in list(StepKind) and isinstance(values, Mapping)
        }

    def _steps(self, given: object) -> tuple[StepKind, ...]:
        if given is None:
            return DEFAULT_STEPS
        names = given if isinstance(given, list) else []
        if unknown := set(map(str, names)) - set(map(str, StepKind)):
            self._problems.append(f"[sweep] steps: {quoted_list(unknown)} is no step; known: {quoted_list(StepKind)}")
            return ()
        # In the order in which a cell goes through them, whatever order they are written in.
        return tuple(kind for kind in StepKind if kind in names)

    def _value(self, value: Any) -> Any:  # noqa: ANN401 - any TOML value
        return tuple(self._value(each) for each in value) if isinstance(value, list) else value

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
            self._problems.append(f"{where} has {quoted_list(unknown)}; known: {quoted_list(keys)}")
        for key, kind in keys.items():
            # True is a number in Python, and in nobody's file.
            if key in table and (
                not isinstance(table[key], kind) or (isinstance(table[key], bool) and kind is not bool)
            ):
                kind_name = _KIND_NAMES.get(kind, "number")
                self._problems.append(f"{where}: {key} is {table[key]!r:.60}, which is no {kind_name}")
