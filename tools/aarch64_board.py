"""A board of another architecture without the board: an aarch64 Debian under QEMU behind sshd, and our steps on it.

    python tools/aarch64_board.py [--root FOLDER] [--keep]

Needs root and Debian (apt-get). Makes the userland in about a minute, compiles, profiles and runs a network on it as
float and as INT8, and checks the answers against this machine's. Its times are the emulator's and mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, EmbedlONNXRuntimeConfig, SSHCommandRunner, SSHConfig
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("qemu-user-static", "binfmt-support", "debootstrap", "openssh-client")
INCLUDED = ("python3", "openssh-server", "bash", "util-linux", "procps")
SITE = "usr/local/lib/python3.11/dist-packages"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
TOLERANCE = 1e-4


def run(*argv: object, **options: Any) -> str:  # noqa: ANN401 - passed on
    """Run a command, or end with what it said."""
    command = [str(word) for word in argv]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, argv))} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def prepare_host() -> None:
    """Install the emulator and tell the kernel about it."""
    if os.geteuid() != 0:
        sys.exit("This needs root: it makes a chroot and tells the kernel about an emulator.")
    if not all(shutil.which(name) for name in ("debootstrap", "qemu-aarch64-static", "update-binfmts")):
        run("apt-get", "install", "-qq", "-y", "--no-install-recommends", *PACKAGES)
    if not (BINFMT / "register").exists():
        run("mount", "-t", "binfmt_misc", "none", BINFMT)
    run("update-binfmts", "--enable", "qemu-aarch64")


def apt_mirror() -> list[str]:
    """Return the mirror this machine's own packages come from; debootstrap's default when it cannot be told."""
    text = run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Suite: bookworm")
    sites = [line for line in text.splitlines() if line.rstrip("/").endswith("/debian")]
    return sites[:1]


def make_userland(root: Path) -> None:
    """Unpack an aarch64 Debian with Python, sshd, numpy and onnxruntime; no package is configured."""
    if (root / "ready").exists():
        return
    run(
        "debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", f"--include={','.join(INCLUDED)}", "bookworm",
        root, *apt_mirror(),
    )  # fmt: skip
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        run("dpkg-deb", "-x", package, root)
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    with (root / "etc/passwd").open("a") as file:
        file.write("sshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n")
    if not (root / "usr/bin/python3").exists():
        (root / "usr/bin/python3").symlink_to("python3.11")
    shutil.copy(shutil.which("qemu-aarch64-static") or "", root / "usr/bin")
    for name in ("run/sshd", "root/.ssh", "tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    cpus = root / "sys/devices/system/cpu"
    cpus.mkdir(parents=True, exist_ok=True)
    for name in ("possible", "present", "online"):
        # The host's own /sys describes another processor, which ONNX Runtime would take at its word.
        (cpus / name).write_text("0-1\n")
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--platform", "manylinux_2_28_aarch64", "--platform", "manylinux_2_27_aarch64",
        "--python-version", "3.11", "--target", root / SITE, "numpy==2.4.6", "onnxruntime==1.31.1",
    )  # fmt: skip
    (root / "ready").touch()


@contextlib.contextmanager
def serving(root: Path, folder: Path) -> Iterator[SSHConfig]:
    """Serve the userland by sshd on a loopback port with throw-away keys."""
    for name in ("host_key", "user_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shutil.copy(folder / "host_key", root / "root/.ssh/host_key")
    (root / "root/.ssh/host_key").chmod(0o600)
    shutil.copy(folder / "user_key.pub", root / "root/.ssh/authorized_keys")
    lines = (
        f"Port {port}", "ListenAddress 127.0.0.1", "HostKey /root/.ssh/host_key", "StrictModes no", "UsePAM no",
        "PasswordAuthentication no", "PermitRootLogin yes", "PidFile none",
    )  # fmt: skip
    (root / "etc/ssh/sshd_config").write_text("\n".join(lines) + "\n")
    algorithm, key, *_ = (folder / "host_key.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {algorithm} {key}\n")
    (folder / "config").write_text("IdentitiesOnly yes\nIdentityAgent none\n")
    mounts = [root / "proc", root / "dev"]
    for target in mounts:
        run("mount", "--bind", f"/{target.name}", target)
    server = subprocess.Popen(
        ["chroot", root, "/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/sshd_config"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(folder / "sshd.log").open("wb"),
    )  # fmt: skip
    try:
        yield SSHConfig(
            "127.0.0.1", username="root", port=port, identity_file=folder / "user_key",
            known_hosts=folder / "known_hosts", config_file=folder / "config", connect_timeout_s=60,
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait(30)
        for target in reversed(mounts):
            run("umount", "--lazy", target)


def wait_for(runner: SSHCommandRunner) -> str:
    """Return what the board says its architecture is, once it answers."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return runner.run(["uname", "-m"], hide=True).stdout.strip()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def check(config: SSHConfig, folder: Path) -> None:
    """Compile, profile and run on the board; hold its answers against this machine's."""
    spec = importlib.util.spec_from_file_location(
        "example", Path(__file__).parents[1] / "examples" / "onnxruntime" / "main.py"
    )
    assert spec is not None  # noqa: S101 - our own file
    assert spec.loader is not None  # noqa: S101
    example = importlib.util.module_from_spec(spec)
    sys.modules["example"] = example
    spec.loader.exec_module(example)
    model = example.make_model(folder / "residual.onnx")
    data = np.random.default_rng(5).normal(size=(4, 3, 64, 64)).astype(np.float32)
    runner = SSHCommandRunner(config)
    settings = EmbedlONNXRuntimeConfig(
        threads=1, iterations=5, min_seconds=0.1, max_seconds=20, layer_runs=1, timeout_s=600
    )
    board = Device("aarch64", runner, provider_type="embedl_onnxruntime", provider_config=settings)
    print(f"the board says it is {wait_for(runner)}")
    with HubContext("aarch64", [board, example.get_this_machine()], home=folder / "home") as ctx:
        for title, calibration in (("float", None), ("INT8", {"image": data})):
            compiler = ONNXRuntimeCompiler(input_shape=(1, 3, 64, 64))
            there = compiler.run(ctx, model, device="aarch64", calibration_data=calibration)
            profile = ONNXRuntimeProfiler().run(ctx, there, device="aarch64")
            answer = ONNXRuntimeInvoker().run(ctx, there, {"image": data}, device="aarch64")
            drift = answer.compare(model)
            form = there.quantization.get("format", {}).get("activations", "float32")
            kinds = sorted({layer.op_type for layer in profile.layers})
            print(f"{title}: activations {form}, layers {', '.join(kinds)}")
            print(f"  {profile.latency.value:.1f} ms under emulation, {profile.verdict}; against float here: {drift}")
            limit = TOLERANCE if calibration is None else 0.2 * float(np.abs(answer.output["scores"]).max())
            if not drift.max_abs_error <= limit or (calibration and form != "int8"):
                sys.exit(f"{title}: the board's answers are off by {drift.max_abs_error}, at most {limit} is right.")
    runner.close()
    print("right on both architectures")


def main() -> None:
    """Make the board, use it, take it away."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="where the userland is or shall be; a temporary folder by default")
    parser.add_argument("--keep", action="store_true", help="leave the userland there for the next time")
    arguments = parser.parse_args()
    started = time.monotonic()
    prepare_host()
    with tempfile.TemporaryDirectory(prefix="edgeproof-aarch64-") as name:
        folder = Path(name)
        root = arguments.root or folder / "root"
        make_userland(root)
        print(f"userland ready after {time.monotonic() - started:.0f} s")
        with serving(root, folder) as config:
            check(config, folder)
        if arguments.root and not arguments.keep:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
