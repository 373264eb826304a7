"""The bill of materials of a distribution: CycloneDX 1.6 JSON, checked against the standard's own schema.

It names what pip installs with the distribution, what the distribution installs by itself later: each file of its
locks, with its hash and the locks that it is in, and what of others is in the wheel itself.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import tomllib
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from cyclonedx.builder.this import this_component
from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

sys.path.insert(0, str(Path(__file__).resolve().parent))

from closure import closure, ours
from vendored import Vendored, vendored

from embedl_hub.locked import LockedWheel, read_lock

if TYPE_CHECKING:
    import importlib.metadata

    from closure import Installed
    from cyclonedx.model.license import License

_LICENSES = LicenseFactory()
LOCK_PROPERTY = "edgeproof:lock"
# What a distribution asks for beside, in a version that pip finds where it is installed.
UNRESOLVED_PROPERTY = "edgeproof:unresolved"


def bill_of_materials(name: str, wheel: Path) -> str:
    """Return the bill of a wheel: itself with its hash, and all that it and its extras bring."""
    project = tomllib.loads((ours()[name] / "pyproject.toml").read_text())["project"]
    extras = sorted(project.get("optional-dependencies", {}))
    wanted = f"{name}[{','.join(extras)}]" if extras else name
    bom = Bom()
    bom.metadata.tools.components.add(this_component())
    bom.metadata.component = _root(name, wheel, project)
    reached = closure([wanted])
    brought = {each: _component(each, one, one.needs - reached.keys()) for each, one in reached.items()}
    for component in brought.values():
        bom.components.add(component)
    locked = [
        _locked(file, names) for file, names in sorted(locked_files(wheel).items(), key=lambda one: one[0].file_name)
    ]
    inside = [_inside(one) for one in vendored_in(wheel)]
    for component in (*locked, *inside):
        bom.components.add(component)
    bom.register_dependency(bom.metadata.component, [*brought.values(), *locked, *inside])
    for each, one in reached.items():
        bom.register_dependency(brought[each], [brought[need] for need in sorted(one.needs) if need in brought])
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"The bill of materials of {name} is not CycloneDX 1.6: {wrong}")
    return text + "\n"


def locked_files(wheel: Path) -> dict[LockedWheel, list[str]]:
    """Return the files that a distribution installs by itself, and the locks in its wheel that have them."""
    found: dict[LockedWheel, list[str]] = defaultdict(list)
    with zipfile.ZipFile(wheel) as packed, tempfile.TemporaryDirectory(prefix="edgeproof-sbom-") as folder:
        for name in sorted(name for name in packed.namelist() if name.endswith(".lock")):
            lock = Path(folder) / Path(name).name
            lock.write_bytes(packed.read(name))
            for file in read_lock(lock).wheels:
                found[file].append(lock.stem)
    return dict(found)


def vendored_in(wheel: Path) -> list[Vendored]:
    """Return the packages of others of which a wheel has files."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    return [one for one in vendored() if any(file.path.removeprefix("src/") in names for file in one.files)]


def _inside(one: Vendored) -> Component:
    namespace, _, name = one.package.rpartition("/")
    return Component(
        name=one.package, version=one.version, type=ComponentType.LIBRARY, bom_ref=f"{one.package}@{one.version}",
        purl=PackageURL("npm", namespace=namespace or None, name=name, version=one.version),
        licenses=[_LICENSES.make_from_string(one.license)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one.archive_sha256)],
    )  # fmt: skip


def _locked(file: LockedWheel, locks: list[str]) -> Component:
    return Component(
        name=file.name, version=file.version, type=ComponentType.LIBRARY, bom_ref=file.file_name,
        purl=PackageURL("pypi", name=file.name, version=file.version, qualifiers={"file_name": file.file_name}),
        scope=ComponentScope.OPTIONAL, hashes=[HashType(alg=HashAlgorithm.SHA_256, content=file.sha256)],
        properties=[Property(name=LOCK_PROPERTY, value=lock) for lock in locks],
    )  # fmt: skip


def _root(name: str, wheel: Path, project: dict[str, str]) -> Component:
    version = wheel.name.split("-")[1]
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, bom_ref=name,
        purl=PackageURL("pypi", name=name, version=version), description=project["description"],
        licenses=[_LICENSES.make_from_string(project["license"])],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(wheel.read_bytes()).hexdigest())],
    )  # fmt: skip


def _component(name: str, one: Installed, unresolved: frozenset[str]) -> Component:
    version = one.public_version
    return Component(
        name=one.name, version=version, type=ComponentType.LIBRARY, bom_ref=name,
        purl=PackageURL("pypi", name=name, version=version), licenses=_licenses(one.metadata),
        properties=[Property(name=UNRESOLVED_PROPERTY, value=each) for each in sorted(unresolved)],
    )  # fmt: skip


def _licenses(metadata: importlib.metadata.PackageMetadata) -> list[License]:
    """Return what a distribution says its license is: the expression, or its classifiers, or its short words."""
    if expression := _field(metadata, "License-Expression"):
        return [_LICENSES.make_from_string(expression)]
    names = [
        line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or () if line.startswith("License ::")
    ]
    text = _field(metadata, "License")
    if not names and text and "\n" not in text:
        names = [text]
    return [_LICENSES.make_with_name(name) for name in names]


def _field(metadata: importlib.metadata.PackageMetadata, name: str) -> str:
    return metadata[name].strip() if name in metadata else ""
