"""The tool that writes the reference keeps what people wrote, and says what it cannot mend."""

from __future__ import annotations

import ast
import importlib.util
import sys
from types import ModuleType

import click
import pytest
from support.pages import ROOT, anchors


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_tool", ROOT / "tools/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@click.group()
def cli() -> None:
    """Two commands."""


@cli.command()
@click.argument("model")
@click.option("--level", default=3, show_default=True, help="How hard [1|2|3].")
@click.option("--secret", hidden=True)
def pack(model: str, level: int, secret: str) -> None:
    """Pack MODEL.

    More about it.
    """


@cli.command()
def sweep() -> None:
    """Sweep."""


def test_a_section_keeps_its_words_and_gets_its_table(reference: ModuleType) -> None:
    """A command without a section gets one; writing twice changes nothing."""
    page = "# Commands\n\n## `pack`\n\nWords of ours.\n\n## Last\n\nMore words.\n"
    made = reference.with_blocks(page, cli, "tool", ["pack", "sweep"])
    before, after = made.split("<!-- generated: pack -->")
    assert "Words of ours." in before
    assert "`tool pack MODEL`: Pack MODEL." in after
    assert "| `--level INTEGER` | How hard \\[1\\|2\\|3]. \\[default: 3] |" in after
    assert "secret" not in made
    assert made.index("## Last") > made.index("<!-- /generated -->")
    assert made.endswith(
        "More words.\n\n## `sweep`\n\n<!-- generated: sweep -->\n`tool sweep`: Sweep.\n<!-- /generated -->\n"
    )
    assert reference.with_blocks(made, cli, "tool", ["pack", "sweep"]) == made


def test_a_command_that_went_is_told(reference: ModuleType) -> None:
    """Its words may be worth moving, so nothing is thrown away."""
    page = "## `old`\n\n<!-- generated: old -->\n<!-- /generated -->\n"
    with pytest.raises(SystemExit, match=r"tool has no command old any more; remove the section"):
        reference.with_blocks(page, cli, "tool", ["sweep"])


def test_signatures_are_as_declared(reference: ModuleType) -> None:
    """Positional, keyword-only and starred parameters, defaults and types; a method is shown as it is called."""
    source = "def f(self, a: int, /, b=1, *rest: str, c: bool = True, **more) -> list[int]: ..."
    (node,) = ast.parse(source).body
    assert (
        reference.signature(node, "X.f", bound=True)
        == "X.f(a: int, /, b=1, *rest: str, c: bool = True, **more) -> list[int]"
    )


def test_a_docstring_becomes_markdown(reference: ModuleType) -> None:
    """Sections are lists, indented parts code, and signs mean themselves."""
    text = "Do *it* with ``x``.\n\nArgs:\n    x: A number,\n        larger than 0.\n\n    f(x)"
    assert reference._prose(text) == [
        r"Do \*it\* with `x`.", "", "**Args**", "", "- `x`: A number,", "  larger than 0.",
        "", "```text", "f(x)", "```",
    ]  # fmt: skip


def test_a_name_of_several_faces_is_described_once() -> None:
    """Where it belongs; the other faces lead there."""
    text = (ROOT / "docs/reference/python.md").read_text()
    assert text.count("### `ConvBNReLUPattern`\n") == 1
    assert "embedl_hubcoredevice" in anchors(ROOT / "docs/reference/python.md")
