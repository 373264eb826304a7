"""What the pages print runs as it is printed: Python blocks, and shell blocks that say so.

A page is a program: its blocks run in order in an empty folder, neighbors of one language as one program, so that they
share their names. A block with a title is saved under it, as a reader would.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, Block, blocks
from support.sshd import SSHServer

_LIMIT_S = 500
_RUN = [page for page in PAGES if any(block.is_run for block in blocks(page))]
# They train, compile or measure much, and every step of them is tested on its own.
_SLOW = (
    "add-a-pattern.md", "check-calibration-data.md", "compare-and-gate.md", "deploy-a-decoder.md",
    "export-for-a-runtime.md", "find-the-layer-to-leave-in-float.md",
    "from-nothing.md", "measure-cold-starts-and-concurrent-models.md", "measure-sustained-load.md",
    "quantize-a-model.md", "see-what-a-runtime-version-fuses.md",
    "test-models-in-ci.md", "train-a-quantized-model.md", "use-executorch.md", "use-onnx-runtime.md",
)  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.name in _SLOW else []) for page in _RUN],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_blocks_run(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest, new_server: Callable[..., SSHServer]
) -> None:
    """All of a page's blocks, in order."""
    folder, tools = tmp_path / "reader", tmp_path / "tools"
    folder.mkdir()
    tools.mkdir()
    environment = _environment(tmp_path, tools)
    if page.name == "use-tflite.md":
        (tmp_path / "cache" / "converters").symlink_to(request.getfixturevalue("converter"))
    if page.name == "from-nothing.md":
        _put_board_on_the_net(tools, new_server(environment={"PATH": environment["PATH"]}))
    for kind, together in groupby(_steps(blocks(page)), key=lambda block: block.file_name or block.language):
        text = "\n\n".join(block.text for block in together)
        if kind not in ("python", "sh"):
            (folder / kind).write_text(text)
            continue
        (tmp_path / "step").write_text(text)
        argv = [sys.executable, "-W", "error"] if kind == "python" else ["/bin/sh", "-eu"]
        done = subprocess.run(
            [*argv, tmp_path / "step"],
            cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def test_a_page_without_its_blocks_would_be_noticed() -> None:
    """The runner finds what it is to run: a page with both kinds, and none that is only shown."""
    kinds = {(block.language, block.is_run) for page in _RUN for block in blocks(page)}
    assert {("python", True), ("sh", True), ("sh", False), ("toml", False)} <= kinds


def _steps(found: list[Block]) -> list[Block]:
    return [block for block in found if block.is_run or block.file_name is not None]


def _environment(folder: Path, tools: Path) -> dict[str, str]:
    """Return what a reader's shell has: the environment of the clone first, and nothing of whoever runs the tests."""
    (folder / "cache").mkdir()
    beside = Path(sys.executable).parent
    return {
        "PATH": f"{tools}:{beside}:/usr/bin:/bin",
        "HOME": str(folder),
        "EMBEDL_HUB_CACHE": str(folder / "cache"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
    }


def _put_board_on_the_net(tools: Path, server: SSHServer) -> None:
    """Let ``ssh`` of this page find the tutorial's board: an sshd of ours under the name ``pi``."""
    config = server.config()
    settings = tools / "ssh_config"
    settings.write_text(
        "Host pi\n"
        f"  HostName {config.host}\n  Port {config.port}\n  User {config.username}\n"
        f"  IdentityFile {config.identity_file}\n  UserKnownHostsFile {config.known_hosts}\n"
    )
    shim = tools / "ssh"
    shim.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {settings} "$@"\n')
    shim.chmod(0o755)
