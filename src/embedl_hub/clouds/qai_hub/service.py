"""The vendor's service: uploads that may be repeated, jobs that never are, every failure in words with the job's id."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.clouds.qai_hub.config import QAIHubConfig
from embedl_hub.core.device import CheckResult, DeviceSpec
from embedl_hub.errors import DeviceError, HubError, NoProviderError
from embedl_hub.machine.steps import vendor_package

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.context import HubContext
    from embedl_hub.errors import ComponentError

_ATTEMPTS = 3
_PAUSE_S = 1.0
_CONFIGURE = "qai-hub configure --api_token <token>"


def vendor_client() -> Any:  # noqa: ANN401 - the vendor's module
    """Return the vendor's package, or the line that installs it."""
    return vendor_package("qai_hub", "Qualcomm AI Hub", extra="qai-hub")


class Service:
    """The cloud for one step: the vendor's client, the device there, and the step's error class."""

    def __init__(
        self, ctx: HubContext, device: str | None, component: type[object], error_class: type[ComponentError]
    ) -> None:
        self._ctx = ctx
        self._error = error_class
        found = ctx.find_device(device or "")
        self.config = found.get_provider_config(QAIHubConfig, component) or QAIHubConfig()
        self._vendor = vendor_client()
        with self.translated("could not be reached"):
            self._client = self._vendor.Client(profile=self.config.client_profile)
            self.device = self._vendor.Device(
                name=found.spec.device_name or found.name,
                os=found.spec.os or "",
                attributes=list(self.config.attributes),
            )
        ctx.client.log_param("qai_hub_device", self.device.name)

    @contextlib.contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Turn whatever the vendor's client raises into the step's error."""
        try:
            # It prints where it put things; what a command prints on stdout is for programs.
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except HubError:
            raise
        except Exception as error:  # the vendor's client raises many kinds, its HTTP and S3 libraries more
            hint = f" Set it up with: {_CONFIGURE}" if _is_not_set_up(str(error)) else ""
            raise self._error(f"Qualcomm AI Hub: {what}: {' '.join(str(error).split())}.{hint}") from error

    def upload_model(self, path: Path) -> Any:  # noqa: ANN401 - the vendor's object
        """Upload a model file; a broken transfer is repeated."""
        return self._transfer(
            f"the model {path.name} could not be uploaded", lambda: self._client.upload_model(str(path))
        )

    def upload_data(self, entries: Mapping[str, list[np.ndarray]]) -> Any:  # noqa: ANN401 - the vendor's object
        """Upload arrays; a broken transfer is repeated."""
        return self._transfer("the data could not be uploaded", lambda: self._client.upload_dataset(dict(entries)))

    def compile(self, model: Any, input_specs: object, options: str, target: Path) -> Path:  # noqa: ANN401 - the vendor's object
        """Run a compile job and return where its model is now, ``target`` or beside it."""
        job = self._job(
            "compile",
            lambda: self._client.submit_compile_job(
                model, self.device, input_specs=input_specs, options=options, retry=False
            ),
        )
        fetched = self._transfer(
            "the compiled model could not be downloaded", lambda: job.download_target_model(str(target))
        )
        if fetched is None:
            raise self._empty(job, "target model")
        return Path(fetched)

    def quantize(self, model: Any, data: Any, options: str) -> Any:  # noqa: ANN401 - the vendor's objects
        """Run a quantize job and return its model: 8-bit weights and activations."""
        kind = self._vendor.QuantizeDtype.INT8
        job = self._job(
            "quantize",
            lambda: self._client.submit_quantize_job(
                model, data, weights_dtype=kind, activations_dtype=kind, options=options
            ),
        )
        quantized = job.get_target_model()
        if quantized is None:
            raise self._empty(job, "target model")
        return quantized

    def profile(self, model: Any, data: Any) -> tuple[Any, dict[str, object]]:  # noqa: ANN401 - the vendor's objects
        """Run a profile job by whichever call this client has; return it and the vendor's profile."""
        job = self._job("profile", self._profiling(model, data))
        profile = self._transfer("the profile could not be downloaded", job.download_profile)
        if not profile or not profile.get("execution_summary"):
            raise self._empty(job, "profile")
        self._log_versions(job)
        return job, profile

    def infer(self, model: Any, data: Any) -> Mapping[str, object]:  # noqa: ANN401 - the vendor's objects
        """Run an inference job and return the outputs, batches apart."""
        submit = self._client.submit_inference_job
        options = self.config.inference_options
        new = {"profile": False} if "profile" in inspect.signature(submit).parameters else {}
        job = self._job("inference", lambda: submit(model, self.device, data, options=options, retry=False, **new))
        answer: Mapping[str, object] = self._transfer("the outputs could not be downloaded", job.download_output_data)
        if not answer:
            raise self._empty(job, "output data")
        self._log_versions(job)
        return answer

    def _log_versions(self, job: Any) -> None:  # noqa: ANN401 - the vendor's object
        """Record which versions ran a job that has finished: the service's, and its tools' where it names them."""
        client = self._ctx.client
        client.log_param("qai_hub_version", job.hub_version or None)
        rest = importlib.import_module("qai_hub.public_rest_api")
        with self.translated(f"the versions of job {job.job_id} are not known"):
            result = rest.get_job_results(self._client.config, job.job_id).inference_job_result
        versions = {tool.name: tool.version for tool in result.detail.tool_versions}
        client.log_param("$tool_versions", versions)
        # The runtime itself goes before what it runs on: ONNX Runtime before QNN.
        order = ("onnx", "tflite", "tensorflow", "litert", "qairt", "qnn")
        named = [(rank, versions[name]) for name in versions for rank, word in enumerate(order) if word in name.lower()]
        client.log_param("runtime_version", min(named)[1] if named else job.hub_version or None)

    def _profiling(self, model: Any, data: Any) -> Callable[[], Any]:  # noqa: ANN401 - the vendor's objects
        submit = self._client.submit_inference_job
        options = self.config.profile_options
        if "profile" in inspect.signature(submit).parameters:
            return lambda: submit(model, self.device, inputs=data, options=options, retry=False, profile=True)
        if data is not None:
            raise self._error("This version of qai-hub profiles on random data only; upgrade it or drop input_data.")
        return lambda: self._client.submit_profile_job(model, self.device, options=options, retry=False)

    def _empty(self, job: Any, what: str) -> ComponentError:  # noqa: ANN401 - the vendor's object
        """Return the error for a job that succeeded and has nothing to show."""
        return self._error(f"Qualcomm AI Hub: job {job.job_id} succeeded but has no {what}. See {job.url}")

    def _transfer(self, what: str, move: Callable[[], Any]) -> Any:  # noqa: ANN401 - the vendor's object
        with self.translated(what):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return move()
                except (OSError, self._vendor.InternalError):
                    # What the user did wrong comes as another class and is not repeated.
                    if attempt == _ATTEMPTS:
                        raise
                    time.sleep(_PAUSE_S * attempt)
        return None

    def _job(self, kind: str, submit: Callable[[], Any]) -> Any:  # noqa: ANN401 - the vendor's object
        """Submit once, wait, and return the job if it succeeded."""
        with self.translated(f"the {kind} job was not accepted"):
            job = submit()
        client = self._ctx.client
        client.log_param("$qai_hub_job_id", job.job_id)
        client.log_param(f"qai_hub_{kind}_job_id", job.job_id)
        client.log_param(f"qai_hub_{kind}_job_url", job.url)
        states: list[dict[str, object]] = []
        started = time.monotonic()
        while True:
            with self.translated(f"the state of {kind} job {job.job_id} is not known"):
                status = job.get_status()
            after_s = time.monotonic() - started
            if not states or states[-1]["state"] != status.code:
                states.append({"state": status.code, "after_s": round(after_s, 3)})
                client.log_param(f"qai_hub_{kind}_job_states", states)
            if status.success:
                return job
            if status.failure:
                reason = status.message or "no reason given"
                raise self._error(f"Qualcomm AI Hub: {kind} job {job.job_id} failed: {reason}. See {job.url}")
            if after_s > self.config.timeout_s:
                raise self._error(
                    f"Qualcomm AI Hub: {kind} job {job.job_id} is still {status.code} after {after_s:.0f} s; "
                    f"it goes on without us, see {job.url}. Raise timeout_s in QAIHubConfig to wait longer."
                )
            time.sleep(self.config.poll_s)


def offered_devices() -> list[DeviceSpec]:
    """Return the devices that jobs can be sent to."""
    try:
        devices = vendor_client().get_devices()
    except NoProviderError:
        raise
    except Exception as error:  # the vendor's client raises many kinds, its HTTP library more
        words = " ".join(str(error).split())
        if _is_not_set_up(words):
            raise DeviceError(f"Qualcomm AI Hub is not set up on this machine. Set it up with: {_CONFIGURE}") from error
        raise DeviceError(f"Qualcomm AI Hub did not list its devices: {words[:300]}") from error
    return [
        DeviceSpec(device_name=str(device.name), os=str(device.os), versions=_attributes(device.attributes))
        for device in devices
    ]


def doctor() -> list[CheckResult]:
    """Tell whether the vendor's client is here and set up; nothing is asked over the network."""
    title = "qai_hub client"
    try:
        vendor = vendor_client()
    except NoProviderError as error:
        return [CheckResult(title, is_ok=None, message="not installed", advice=str(error).rpartition("with: ")[2])]
    version = importlib.metadata.version("qai-hub")
    try:
        # Read on first use, not when it is made.
        _ = vendor.Client().config
    except Exception as error:  # noqa: BLE001 - as above
        words = " ".join(str(error).split())
        # The vendor's own words go on with a drawn box that holds the advice.
        says = f"{version}, not set up" if _is_not_set_up(words) else f"{version}, not set up: {words[:120]}"
        return [CheckResult(title, is_ok=None, message=says, advice=_CONFIGURE)]
    return [CheckResult(title, is_ok=True, message=version)]


def _is_not_set_up(words: str) -> bool:
    return "configuration file" in words or "client.ini" in words


def _attributes(attributes: object) -> dict[str, str]:
    """Return a device's attributes, which come as words like ``chipset:qualcomm-snapdragon-8gen2``."""
    words = [attributes] if isinstance(attributes, str) else attributes
    pairs = [str(word).partition(":") for word in words] if isinstance(words, list | tuple) else []
    found: dict[str, str] = {}
    for key, _, value in pairs:
        found[key] = f"{found[key]} {value}" if key in found else value
    return found
