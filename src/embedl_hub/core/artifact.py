"""Bringing artifacts to where they are needed; bytes move only if they are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.errors import TrackingError

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.core.device import Board
    from embedl_hub.paths import RemotePath
    from embedl_hub.tracking import LoggedArtifact, Store


def bring_here(artifact: LoggedArtifact, store: Store | None) -> Path:
    """Return a path on this machine that holds the artifact."""
    places = [artifact.local_path]
    if store is not None:
        if artifact.run_id:
            places.append(store.artifact_path(artifact.run_id, artifact.name, artifact.file_name))
        if not artifact.is_folder:
            places.append(store.blobs.path_of(artifact.sha256))
    for place in places:
        if place is not None and place.exists():
            return place
    looked = ", ".join(str(place) for place in places if place is not None) or "nowhere: it was never here"
    raise TrackingError(
        f"Artifact {artifact.name!r} ({artifact.file_name}) of run {artifact.run_id or 'unknown'} is not on this "
        f"machine; looked at {looked}. If its run folder is elsewhere, copy it into the store and run: "
        "embedl-hub reindex"
    )


def send_to(artifact: LoggedArtifact, store: Store | None, board: Board) -> RemotePath:
    """Return a path on a board that holds the artifact."""
    return board.send(bring_here(artifact, store), artifact.sha256, artifact.file_name)
