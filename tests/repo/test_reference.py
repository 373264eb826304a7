"""The tool that writes the reference keeps what people wrote, and says what it cannot mend."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
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


@pytest.mark.slow
def test_the_page_of_names_is_written_on_request(reference: ModuleType, tmp_path: Path) -> None:
    """A name of several faces is described once, where it belongs; names that are found on use are there too."""
    page = tmp_path / "build" / "python.md"
    done = subprocess.run(
        [sys.executable, ROOT / "tools/reference.py", "--python", page],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    for name in ("ConvBNReLUPattern", "TFLiteCompiler", "LocalConfig"):
        assert text.count(f"### `{name}`\n") == 1, name
    assert {reference.slug(face) for face in reference.faces()} <= anchors(page)


def test_every_public_name_has_a_docstring(reference: ModuleType) -> None:
    """Classes and functions of every face, those that are found on use included."""
    lacking = []
    for face, names in reference.faces().items():
        for name in names:
            node = reference.find(face, name).node
            # The stub of a class that is made on use: the sources have its docstring.
            if isinstance(node, reference.Function | ast.ClassDef) and name not in ("LocalConfig", "ProviderType"):
                lacking += [f"{face}.{name}"] if ast.get_docstring(node) is None else []
    assert lacking == []


def test_comments_at_the_fields_of_a_class_describe_them(reference: ModuleType) -> None:
    comments = reference._field_comments("embedl_hub.fleet._model", reference.find("embedl_hub.fleet", "Outcome").node)
    assert comments["is_cached"] == "Whether the result was taken from an earlier run."
    assert comments["is_boards_fault"].startswith("Whether the board")
    assert "step" not in comments
