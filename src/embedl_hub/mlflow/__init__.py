"""Runs to and from an MLflow server, over its REST API; the package ``mlflow`` is not needed."""

from embedl_hub.mlflow._api import Api, Server
from embedl_hub.mlflow._export import Exported, export_runs
from embedl_hub.mlflow._import import Taken, import_runs

__all__ = ["Api", "Exported", "Server", "Taken", "export_runs", "import_runs"]
