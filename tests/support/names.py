"""File names and arguments that something on the way might read as a command, an option or a pattern."""

import os
from pathlib import Path

CANARY = "edgeproof-canary"

NAMES = [
    "plain.bin",
    ".hidden",
    "two words",
    " leading and trailing ",
    "it's",
    'say "hi"',
    "line\nbreak",
    "\n",
    "tab\tand\x07bell\x1b[31m",
    f"$(cd;touch {CANARY})",
    f"`cd;touch {CANARY}`",
    f";cd;touch {CANARY};",
    f"'$(cd;touch {CANARY})'",
    f"\\'$(cd;touch {CANARY})",
    f"\n cd;touch {CANARY}\n",
    f"& cd;touch {CANARY} &",
    "back\\slash",
    "trailing\\",
    "\\n",
    "-rf",
    "--help",
    "-",
    "~",
    "*",
    "[a-z]?",
    "{a,b}",
    "#comment",
    "!history",
    "=cat",
    "%self",
    "$HOME",
    "sha256=0",
    "a.part",
    "[bold]",
    "åäö 漢字 🦔",
    os.fsdecode(b"not \xff\xfe UTF-8"),
    "n" * 250,
]


def assert_nothing_was_run(*folders: Path) -> None:
    """Fail when one of the names above was run as a command, here, at home or in one of the folders."""
    for folder in (Path.cwd(), Path.home(), Path("/"), *folders):
        found = (folder / CANARY).exists()
        (folder / CANARY).unlink(missing_ok=True)
        assert not found, f"a name was run as a command and left {folder / CANARY}"
