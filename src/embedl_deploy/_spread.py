"""Work in parts, each on whoever is free: here, in threads or processes, or on the hosts of a Ray cluster."""

import importlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from embedl_deploy._extras import need


class Spread(Protocol):
    """Calls a function on every item, somewhere: ``map``, an executor's ``map``, `over_ray`."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]:
        """Return the results, in any order."""
        ...


def over_ray(address: str | None = None, *, cpus: float = 1.0) -> Spread:
    """Spread over the processors of a Ray cluster; one that this process has joined already is used as it is.

    Args:
        address: ``host:port`` of the cluster's head, ``auto`` for the one that this host belongs to, or None for a Ray
            on this machine alone.
        cpus: How many of a host's processors one item takes.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    ray = need("ray")

    def spread(function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterator[Any]:
        if not ray.is_initialized():
            _join(ray, address)
        # Once into the object store, from where each host fetches it once.
        sent = ray.put(function)
        call = ray.remote(num_cpus=cpus)(_call)
        waiting = [call.remote(sent, item) for item in items]
        try:
            while waiting:
                done, waiting = ray.wait(waiting, num_returns=1)
                yield ray.get(done[0])
        finally:
            for job in waiting:
                ray.cancel(job, force=True)

    return spread


def _join(ray: Any, address: str | None) -> None:
    # Nothing is reported to Ray's makers, and its advice about its own future is no warning of ours.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    has_token = "RAY_AUTH_TOKEN" in os.environ or (Path.home() / ".ray" / "auth_token").is_file()
    if address is None and not has_token:
        # Whoever reaches a Ray runs programs in it: this one takes only those who know its token.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if address is None or has_token:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    # Ray read the variables when it was imported.
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    alone = {} if address is not None else {"include_dashboard": False}
    ray.init(address=address or "local", log_to_driver=False, logging_level="error", **alone)


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)
