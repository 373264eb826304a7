"""The facts of the page on backends: names and signatures."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from embedl_deploy.backend import Backend, discover_backends, get_backend, reset_backends, set_backend
from embedl_deploy.pattern import Pattern

set_backend("tensorrt")
assert get_backend().name == "tensorrt"
assert {"tensorrt"} <= {backend.name for backend in discover_backends()}
published = Backend


@dataclass(frozen=True)
class Backend:
    name: str
    conversion_patterns: Sequence[type[Pattern]] = ()
    fusion_patterns: Sequence[type[Pattern]] = ()
    smooth_patterns: Sequence[type[Pattern]] = ()
    quantized_patterns: Sequence[type[Pattern]] = ()


for wanted, field in zip(fields(Backend), fields(published), strict=False):
    assert (wanted.name, wanted.default) == (field.name, field.default)
reset_backends()
