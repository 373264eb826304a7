"""ONNX Runtime sessions: the only file that knows the runtime."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device import board
from embedl_device.arrays import Arrays, Tensor
from embedl_device.errors import BoardError, first_words
from embedl_kernels import REQUIRES, family_of, get_family, kernels_here, mismatch

PROGRAM = "embedl-onnxruntime"
CPU = "CPUExecutionProvider"
LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_DTYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(int8)": "int8",
    "tensor(uint8)": "uint8", "tensor(int16)": "int16", "tensor(uint16)": "uint16", "tensor(int32)": "int32",
    "tensor(uint32)": "uint32", "tensor(int64)": "int64", "tensor(uint64)": "uint64", "tensor(bool)": "bool",
}  # fmt: skip


class Settings(NamedTuple):
    """How the runtime is to run a model."""

    providers: Tuple[str, ...] = (CPU,)  # execution providers in order of preference
    threads: Optional[int] = None  # threads within one operator; None leaves it to the runtime
    level: str = "all"  # graph optimization: disable, basic, extended or all
    allow_fallback: bool = False  # go on when a provider that was asked for cannot be used at all
    allow_saturation: bool = False  # go on when the file needs exact kernels and those of this processor saturate


def runtime() -> Any:
    """Return the onnxruntime module, or say how to get it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise BoardError(
            "ONNX Runtime is not installed for this Python ({}). Install it with: "
            "python3 -m pip install onnxruntime".format(error)
        ) from error
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


@lru_cache(maxsize=None)
def _kernels() -> Dict[str, Any]:
    facts = board.describe()
    try:
        return kernels_here(_open, facts["architecture"], facts["cpu_features"])
    except Exception as error:  # whatever the runtime says: a board without an answer is not a broken board
        by_features = family_of(facts["architecture"], facts["cpu_features"])
        name = None if by_features is None else by_features.name
        nothing: Dict[str, Any] = {"family": None, "by_features": name, "u8s8": None, "probe": None}
        return dict(nothing, problem="the kernels could not be asked: {}".format(first_words(error)))


def kernels() -> Dict[str, Any]:
    """Return what the CPU kernels compute here, for an answer: their family, and how that is known."""
    return dict(_kernels())


def _open(model: bytes) -> Any:
    ort = runtime()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=[CPU])


class Model:
    """A loaded model; ``warnings`` say what is wrong with its answers here."""

    def __init__(
        self,
        path: Path,
        settings: Settings,
        *,
        profile_prefix: Optional[str] = None,
        optimized_path: Optional[Path] = None,
        is_alone: bool = True,
        keeps_weights: bool = False,
    ) -> None:
        ort = runtime()
        if not path.is_file():
            raise BoardError("There is no model {}.".format(path))
        _check_providers(settings.providers, ort.get_available_providers())
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[settings.level])
        if settings.threads is not None:
            options.intra_op_num_threads = settings.threads
        # Older versions take unknown entries in silence.
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if not is_alone:
            # Threads of a session go on spinning for a while after a run, on cores that another session now needs.
            options.add_session_config_entry("session.force_spinning_stop", "1")
        if keeps_weights:
            # Weights that kernels have packed for themselves are no longer inputs in a profile.
            options.add_session_config_entry("session.disable_prepacking", "1")
        if profile_prefix is not None:
            options.enable_profiling = True
            options.profile_file_prefix = profile_prefix
        if optimized_path is not None:
            options.optimized_model_filepath = str(optimized_path)
        try:
            self._session = ort.InferenceSession(str(path), options, providers=list(settings.providers))
        except Exception as error:  # the runtime raises a class of its own per cause, and RuntimeError
            raise BoardError(
                "ONNX Runtime {} cannot load {}: {}".format(ort.__version__, path, first_words(error))
            ) from error
        self._check_fallback(settings)
        self.warnings: List[str] = self._check_kernels(settings)

    @property
    def inputs(self) -> List[Tensor]:
        """The model's inputs."""
        return [_tensor(value) for value in self._session.get_inputs()]

    @property
    def outputs(self) -> List[Tensor]:
        """The model's outputs."""
        return [_tensor(value) for value in self._session.get_outputs()]

    @property
    def providers(self) -> List[str]:
        """The execution providers in use."""
        return list(self._session.get_providers())

    def run(self, feed: Arrays) -> Arrays:
        """Run the model once."""
        try:
            values = self._session.run(None, feed)
        except Exception as error:  # the runtime raises a class of its own per cause, and RuntimeError
            raise BoardError("ONNX Runtime failed while running the model: {}".format(first_words(error))) from error
        return dict(zip((tensor.name for tensor in self.outputs), values))

    def runner(self, feed: Arrays) -> Any:
        """Return a function that runs the model and nothing else, for timing."""
        session = self._session
        return lambda: session.run(None, feed)

    def placement(self) -> Optional[Dict[str, List[Dict[str, str]]]]:
        """Return the model's own nodes by execution provider, as the runtime assigned them; None if it cannot tell."""
        ask = getattr(self._session, "get_provider_graph_assignment_info", None)
        if ask is None:
            return None
        found: Dict[str, List[Dict[str, str]]] = {}
        for part in ask():
            nodes = [{"name": node.name, "op_type": node.op_type} for node in part.get_nodes()]
            found.setdefault(part.ep_name, []).extend(nodes)
        return found

    def end_profiling(self) -> Path:
        """Close the profile file and return its path."""
        return Path(self._session.end_profiling())

    def _check_fallback(self, settings: Settings) -> None:
        missing = [name for name in settings.providers if name not in self.providers]
        if missing and not settings.allow_fallback:
            raise BoardError(
                "ONNX Runtime could not use {}; it would run on {}. Check its libraries and driver, or allow the "
                "fallback with --allow-fallback.".format(", ".join(missing), ", ".join(self.providers))
            )

    def _check_kernels(self, settings: Settings) -> List[str]:
        """Refuse a file that needs exact kernels where those of the CPU saturate, or return the sentence."""
        requires = self._session.get_modelmeta().custom_metadata_map.get(REQUIRES, "")
        name = kernels()["family"] if requires else None
        said = mismatch(requires, None if name is None else get_family(name))
        placement = self.placement() if said else None
        if not said or (placement is not None and not placement.get(CPU)):
            return []
        sentence = said[0].upper() + said[1:] + "."
        # With another provider only some of its nodes are the CPU's, and perhaps none of those with integers.
        if not settings.allow_saturation and set(self.providers) == {CPU}:
            raise BoardError(
                "{} Or let it answer wrongly: --allow-saturation (a hub's device: --set allow_saturation=true).".format(
                    sentence
                )
            )
        return [sentence]


def _tensor(value: Any) -> Tensor:
    if value.type.startswith(("seq(", "optional(")):
        return Tensor(value.name, value.type, ())
    dtype = _DTYPES.get(value.type) or value.type.replace("tensor(", "").rstrip(")")
    return Tensor(value.name, dtype, tuple(value.shape))


def _check_providers(wanted: Sequence[str], available: Sequence[str]) -> None:
    unknown = [name for name in wanted if name not in available]
    if unknown:
        raise BoardError("This ONNX Runtime has no {}; it has: {}.".format(", ".join(unknown), ", ".join(available)))
