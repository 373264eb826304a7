"""AWS Device Farm: uploads, runs and artifacts, every failure in words with what was kept."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device import CheckResult
from embedl_hub.errors import NoProviderError
from embedl_hub.machine.steps import vendor_package
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from embedl_hub.clouds.aws.config import AWSConfig
    from embedl_hub.core.context import HubContext

TEST_TYPE = "APPIUM_WEB_PYTHON"
PACKAGE, SPEC = "APPIUM_WEB_PYTHON_TEST_PACKAGE", "APPIUM_WEB_PYTHON_TEST_SPEC"
_WAITING = ("PENDING", "PENDING_CONCURRENCY", "PENDING_DEVICE", "PROCESSING", "SCHEDULING", "PREPARING")
_TRANSFER_S = 600.0
_UPLOAD_S = 600.0


def vendor() -> Any:  # noqa: ANN401 - the vendor's module
    """Return AWS's package, or the line that installs it."""
    return vendor_package("boto3", "AWS Device Farm", extra="aws")


def make_client(config: AWSConfig) -> Any:  # noqa: ANN401 - the vendor's object
    """Return a client of the service; it repeats calls that were throttled, with pauses that grow."""
    boto3 = vendor()
    from botocore.config import Config  # noqa: PLC0415 - the vendor's package on use

    with _translated("cannot be used"):
        session = boto3.Session(profile_name=config.aws_profile)
        return session.client(
            "devicefarm", region_name=config.region, config=Config(retries={"mode": "standard", "max_attempts": 8})
        )


def doctor() -> list[CheckResult]:
    """Tell whether AWS's client is here and finds credentials; nothing is asked over the network."""
    title = "aws client"
    try:
        boto3 = vendor()
    except NoProviderError as error:
        return [CheckResult(title, is_ok=None, message="not installed", advice=str(error).rpartition("with: ")[2])]
    version = importlib.metadata.version("boto3")
    if boto3.Session().get_credentials() is None:
        return [CheckResult(title, is_ok=None, message=f"boto3 {version}, no credentials", advice="aws configure")]
    return [CheckResult(title, is_ok=True, message=f"boto3 {version}")]


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn what AWS's client raises into one sentence."""
    from botocore import exceptions  # noqa: PLC0415 - the vendor's package on use

    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        raise RefusedError(
            f"AWS Device Farm {what}: {error}. Set credentials up with: aws configure; or name a profile: "
            "AWSConfig(aws_profile=...)."
        ) from error
    except exceptions.ClientError as error:
        facts = error.response.get("Error", {})
        code = facts.get("Code", "")
        hint = " It was asked too often; try again in a minute." if "Throttl" in code or "TooMany" in code else ""
        raise RefusedError(f"AWS Device Farm {what}: {code}: {facts.get('Message', error)}.{hint}") from error
    except exceptions.BotoCoreError as error:
        raise RefusedError(f"AWS Device Farm {what}: {error}") from error


class Farm:
    """One Device Farm project for one step."""

    def __init__(self, ctx: HubContext, config: AWSConfig) -> None:
        self._ctx = ctx
        self._config = config
        if not config.project_arn:
            raise RefusedError(
                "AWS Device Farm needs a project: AWSConfig(project_arn='arn:aws:devicefarm:...:project:...'); "
                "make one in its console."
            )
        self._client = make_client(config)

    def call(self, what: str, operation: str, **arguments: object) -> Mapping[str, Any]:
        """Call the service; ``what`` completes the sentence of a failure."""
        with _translated(what):
            answer: Mapping[str, Any] = getattr(self._client, operation)(**arguments)
        return answer

    def upload(self, name: str, kind: str, content: bytes) -> str:
        """Upload a file, wait until the service took it, and return its ARN."""
        made = self.call(
            f"did not take the upload {name}", "create_upload",
            projectArn=self._config.project_arn, name=name, type=kind, contentType="application/octet-stream",
        )["upload"]  # fmt: skip
        _transfer(
            urllib.request.Request(  # noqa: S310 - a link the service just gave us
                made["url"], content, {"Content-Type": "application/octet-stream"}, method="PUT"
            ),
            f"{name} could not be uploaded",
        )
        deadline = time.monotonic() + _UPLOAD_S
        while True:
            state = self.call(f"lost the upload {name}", "get_upload", arn=made["arn"])["upload"]
            if state["status"] == "SUCCEEDED":
                return str(made["arn"])
            if state["status"] == "FAILED" or time.monotonic() > deadline:
                reason = state.get("message") or state.get("metadata") or f"it is still {state['status']}"
                raise RefusedError(f"AWS Device Farm refused the upload {name}: {reason}")
            time.sleep(self._config.poll_s)

    @contextlib.contextmanager
    def pool(self, model_name: str | None) -> Iterator[str]:
        """Yield a device pool: the configured one, or one made from attributes that is removed afterwards."""
        if self._config.device_pool_arn is not None:
            yield self._config.device_pool_arn
            return
        rules = pool_rules(self._config.attributes, model_name)
        made = self.call(
            "did not make a device pool", "create_device_pool",
            projectArn=self._config.project_arn, name="edgeproof", rules=rules, maxDevices=1,
        )["devicePool"]  # fmt: skip
        try:
            yield str(made["arn"])
        finally:
            # A pool that stays behind costs nothing; the step's own ending matters more.
            with contextlib.suppress(RefusedError):
                self.call("did not remove its device pool", "delete_device_pool", arn=made["arn"])

    def run(self, pool_arn: str, package_arn: str, spec_arn: str) -> Mapping[str, Any]:
        """Schedule a run, wait for it, and return it; whatever ends the waiting ends the run too."""
        made = self.call(
            "did not take the run", "schedule_run",
            projectArn=self._config.project_arn, devicePoolArn=pool_arn, name="edgeproof",
            test={"type": TEST_TYPE, "testPackageArn": package_arn, "testSpecArn": spec_arn},
            executionConfiguration={"jobTimeoutMinutes": self._config.job_timeout_minutes},
        )["run"]  # fmt: skip
        self._ctx.client.log_param("$aws_run_arn", made["arn"])
        try:
            return self._wait(str(made["arn"]))
        except BaseException:
            # A phone that goes on costs by the minute, also after Ctrl-C.
            with contextlib.suppress(RefusedError):
                self.call("did not stop the run", "stop_run", arn=made["arn"])
            raise

    def _wait(self, arn: str) -> Mapping[str, Any]:
        client = self._ctx.client
        states: list[dict[str, object]] = []
        started = time.monotonic()
        queued_s: float | None = None
        while True:
            run: Mapping[str, Any] = self.call(f"does not tell the state of run {arn}", "get_run", arn=arn)["run"]
            after_s = time.monotonic() - started
            if not states or states[-1]["state"] != run["status"]:
                states.append({"state": run["status"], "after_s": round(after_s, 3)})
                client.log_param("aws_run_states", states)
            if queued_s is None and run["status"] not in _WAITING:
                queued_s = after_s
                client.log_metric("queue_seconds", queued_s)
            if run["status"] == "COMPLETED":
                client.log_metric("run_seconds", after_s - (queued_s or 0.0))
                return run
            if after_s > self._config.wait_s:
                raise RefusedError(
                    f"AWS Device Farm: run {arn} is still {run['status']} after {after_s:.0f} s and was stopped. Raise "
                    "wait_s in AWSConfig to wait longer."
                )
            time.sleep(self._config.poll_s)

    def artifacts(self, run: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes | None]:
        """Return the phone that took the job, and the archive of what the test spec left behind."""
        jobs = self.call("does not list the run's jobs", "list_jobs", arn=run["arn"])["jobs"]
        device = jobs[0].get("device", {}) if jobs else {}
        found = self.call("does not list the run's artifacts", "list_artifacts", arn=run["arn"], type="FILE")
        for artifact in found["artifacts"]:
            if artifact.get("type") == "CUSTOMER_ARTIFACT":
                request = urllib.request.Request(artifact["url"])  # noqa: S310 - a link the service just gave us
                return device, _transfer(request, "the artifacts could not be downloaded")
        return device, None


def pool_rules(attributes: tuple[str, ...], model_name: str | None) -> list[dict[str, str]]:
    """Return the rules of a device pool; values are JSON, as the service wants them."""
    rules = [rule.split(":", 2) for rule in attributes]
    if model_name is not None and not any(rule[0] in {"MODEL", "ARN"} for rule in rules):
        rules.append(["MODEL", "EQUALS", model_name])
    if not any(rule[0] == "PLATFORM" for rule in rules):
        rules.append(["PLATFORM", "EQUALS", "ANDROID"])
    return [
        {"attribute": attribute, "operator": operator, "value": json.dumps([value] if operator == "IN" else value)}
        for attribute, operator, value in rules
    ]


def _transfer(request: urllib.request.Request, what: str) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=_TRANSFER_S) as answer:  # noqa: S310 - the service's own link
            content: bytes = answer.read()
            return content
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise RefusedError(f"AWS Device Farm: {what}: {error}.") from error
