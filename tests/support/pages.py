"""What stands in our Markdown pages: code blocks, links, headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    for page in ROOT.glob(pattern)
    if ".venv" not in page.parts
)

_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=fence)[ ]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the words behind it, and its text."""

    language: str
    words: tuple[str, ...]
    text: str

    @property
    def file_name(self) -> str | None:
        """The file a reader is to save it in: ```` ```python title="net.py" ````."""
        titles = [word.partition("=")[2].strip('"') for word in self.words if word.startswith("title=")]
        return titles[0] if titles else None

    @property
    def is_run(self) -> bool:
        """Python that is not saved runs; shell only where it says so: ```` ```sh run ````."""
        return self.file_name is None and (self.language == "python" or (self.language == "sh" and "run" in self.words))


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        language, *words = match["info"].split() or [""]
        found.append(Block(language, tuple(words), match["text"]))
    return found


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures, code apart."""
    text = _without_code(page.read_text(encoding="utf-8"))
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)


def anchors(page: Path) -> set[str]:
    """Return what a link may name behind ``#``: headings as GitHub spells them, and named anchors."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    counts: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        counts[slug] = counts.get(slug, -1) + 1
        found.add(slug if counts[slug] == 0 else f"{slug}-{counts[slug]}")
    return found
