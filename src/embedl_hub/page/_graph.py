"""The models of a run as graphs: which there are, and what its profile says of their nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from embedl_graph import (
    SUFFIXES,
    GraphError,
    Layer,
    ModelGraph,
    Shown,
    graph_data,
    layer_colorings,
    layer_numbers,
    read_graph,
    shown,
)
from embedl_hub.core.document import document_of
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.page._scope import NotHereError, Scope
from embedl_hub.tracking import Lineage, LoggedArtifact, Run

Read = Callable[[LoggedArtifact], ModelGraph]


@dataclass(frozen=True)
class Model:
    """A model that a run read or wrote, or that what it read was made from."""

    run: Run
    artifact: LoggedArtifact
    title: str

    @property
    def reference(self) -> str:
        """What an address calls it."""
        return f"{self.run.id}/{self.artifact.name}"


@dataclass(frozen=True)
class RunGraph:
    """The graph that the page of a run shows, drawn when it is asked for."""

    scope: Scope
    run: Run
    models: tuple[Model, ...]

    @property
    def data(self) -> dict[str, object] | None:
        """What the script draws; None where no model of the run can be read here."""
        try:
            return graph_data(drawn(self.run, self.models[0], read_artifact))
        except ConfigError:
            return None


def models_of(run: Run, lineage: Lineage) -> tuple[Model, ...]:
    """Return the models of a run: what the user gave first, as layers lead to its nodes, then what was made of it."""
    found = [
        Model(before, before.artifacts["input"], f"{before.artifacts['input'].title}, before {before.type.lower()}")
        for before in lineage.made_from
        if "input" in before.artifacts and _is_model(before.artifacts["input"])
    ]
    for name in ("input", "path", *sorted(run.artifacts)):
        artifact = run.artifacts.get(name)
        if (
            artifact is not None
            and _is_model(artifact)
            and artifact.sha256 not in {one.artifact.sha256 for one in found}
        ):
            found.append(Model(run, artifact, artifact.title))
    return tuple(found)


def _is_model(artifact: LoggedArtifact) -> bool:
    # A folder is a model with its weights beside it; what else it may be is found out when it is read.
    is_file = PurePath(artifact.file_name).suffix in SUFFIXES
    return is_file or (artifact.is_folder and artifact.name in {"input", "path"})


def find_model(scope: Scope, reference: str, known: Sequence[Model]) -> Model:
    """Return the model that an address means: one of the run's own, or any run's."""
    for one in known:
        if one.reference == reference:
            return one
    run_id, _, name = reference.partition("/")
    run = scope.run(run_id)
    if not name:
        return next(iter(models_of(run, scope.store.lineage(run.id))), None) or _missing(reference)
    artifact = run.artifacts.get(name)
    return Model(run, artifact, artifact.title) if artifact is not None else _missing(reference)


def _missing(reference: str) -> Model:
    raise NotHereError(f"There is no model {reference!r} here.")


def read_artifact(artifact: LoggedArtifact) -> ModelGraph:
    """Return the graph of a model."""
    try:
        return read_graph(artifact.local())
    except (GraphError, TrackingError) as error:
        raise ConfigError(f"The graph of {artifact.title!r} cannot be shown: {error}") from error


def drawn(run: Run, model: Model, read: Read) -> Shown:
    """Return a model with what the run's profile says of its nodes."""
    graph = read(model.artifact)
    if run.type != "PROFILE":
        return shown(graph)
    document, _ = document_of(run)
    layers = [
        Layer(number, row.name, row.time_ms, row.compute_unit, row.source_nodes)
        for number, row in enumerate(document.rows, 1)
    ]
    return shown(graph, tuple(layer_colorings(graph, layers)), layer_numbers(graph, layers))
