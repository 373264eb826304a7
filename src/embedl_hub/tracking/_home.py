"""Where the store is: an explicit folder, EMBEDL_HUB_HOME, the project's .embedl, or the user's data folder."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

ENVIRONMENT_VARIABLE = "EMBEDL_HUB_HOME"
PROJECT_FOLDER = ".embedl"


def find_home(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the store's folder; nothing is created."""
    if explicit is not None:
        return Path(explicit).expanduser().absolute()
    if from_environment := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(from_environment).expanduser().absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / PROJECT_FOLDER).is_dir():
            return folder / PROJECT_FOLDER
    return Path(platformdirs.user_data_dir("edgeproof"))
