"""Write the parts of the documentation that are the code's own words, and the lists of what there is.

    .venv/bin/python tools/reference.py                          writes them anew
    .venv/bin/python tools/reference.py --check                  exits with 1 when a page is not what would be written
    .venv/bin/python tools/reference.py --python build/python.md writes every public name with signature and docstring

The page of Python names is not committed: it repeats the sources, and is read from them without importing anything.
The others are short, show what a reader of the repository looks for, and are checked by the tests:

- `cli.md`, `deploy-cli.md`: the options of each command, between `<!-- generated: NAME -->` and `<!-- /generated -->`.
  What stands around them is written by hand and stays; a command without a section gets one.
- `device-programs.md`: the commands and options of the programs on boards.
- `json.md`: what each command prints with `--json`, from the schemas beside the commands.
- `docs/decisions/README.md`, `examples/README.md`: a line for each record and each example.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import itertools
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
REFERENCE = ROOT / "docs" / "reference"
COMMAND = ".venv/bin/python tools/reference.py"

_SECTIONS = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Example|Examples|Note):")
# torch's own methods: what they do is what the class says.
_OF_TORCH = frozenset({"forward", "extra_repr"})
_OPTIONS_OF_ALL = frozenset({"as_json", "verbose", "help"})
_WIDTH = 110
_PYTHON_HEAD = """\
# Python names

What a face lists in its `__all__` is public; files that begin with an underscore are not.
This page is written by `tools/reference.py --python` from the sources and is not committed.
A name that several faces offer is described once, where it belongs.
"""
_PROGRAMS_HEAD = """\
# Device programs

What runs and measures models, on this machine and on boards: Python 3.8 or newer, numpy and the runtime.
The hub calls them, and brings them to a board that lacks them.
By hand: `pip install 'edgeproof-device[onnxruntime]'`, with the extra `litert`, `openvino` or `executorch` for those.
Each command prints one JSON object, messages go to stderr, and another exit code than 0 is a failure.
What `profile` prints is [the profile document](profile-document.md).
This page is written by `tools/reference.py` from the programs themselves.

## Integer kernels

Every answer of `embedl-onnxruntime` has `kernels`: what the CPU's integer kernels compute, asked of the runtime itself.

| key | what it holds |
|---|---|
| `family` | the family that the runtime's answer confirms; null where it could not be asked |
| `by_features` | the family that the processor's features suggest |
| `u8s8` | `exact`, or `saturating`: pairs of products are cut off at 16 bits |
| `probe` | the sum it gave, and how long asking took |
| `problem` | only where it could not be asked: why |

What families there are: [one file, several processors](../how-to/use-onnx-runtime.md#one-file-several-processors).

A file with the metadata `edgeproof.requires` = `u8s8=exact` is refused by `compile`, `profile`, `pair` and
`run-inference` where the family saturates; with `--allow-saturation` it runs, and `warnings` of the answer says what is
wrong. The optimized file keeps the metadata.
"""
_JSON_HEAD = """\
# JSON

Every command of `embedl-hub` takes `--json`, before or after its name, and then prints exactly one JSON document on
standard output; so do those of `embedl-deploy` but `dialect learn`, after the name.
`embedl-hub schema COMMAND` prints its JSON Schema (2020-12), `embedl-hub schema` those of all by their names;
`embedl-deploy schema` does so for deploy:

```sh
embedl-hub schema run list > run-list.schema.json
embedl-hub run list --json | jq -r '.runs[].id'
embedl-deploy schema verify > verify.schema.json
```

- A later version may add fields; it takes none away and changes no type without a word in the changelog. Readers
  ignore what they do not know: the schemas allow it.
- Numbers that are not finite, which JSON does not have, are the texts `nan`, `inf` and `-inf`, as in a
  [run folder](run-folder.md).
- Times whose names end in `_ms` are milliseconds, those of events since 1970.
- An error is one line of JSON on standard error, and the last one there:
  `{"error": {"kind": "ConfigError", "message": "...", "exit_code": 1}}`. Exit codes are the same as without `--json`.
  A command that has an answer and fails because of it (`doctor`, `gate`, `memory`, `sync`, `sweep`; `check`, `verify`
  and `calibration check` of deploy) prints the answer first.
- Warnings and progress go to standard error, as text.
- JSON lines, one document each, come from `device health --every` alone: a device of the list below, then one for each
  change.
- `ui`, `serve` and `fleet node` print their document when they are ready, and go on.

This page is written by `tools/reference.py` from the schemas. A name in `<>` stands for any name, `[]` for each item of
a list; a field with a question mark may be missing. The tests hold what commands print against the schemas.
"""
_DECISIONS_HEAD = """\
# Decisions

Choices with a real alternative that a newcomer would ask about.
Each record has its context, the decision, the alternative that was rejected and what would make us change our minds.
Smaller choices are explained in the docstring beside the code.

To add one: copy a record, take the next number, and keep it under 40 lines.
One that no longer holds gets `Status: replaced by [NNNN](NNNN-name.md)` and stays.
"""
_EXAMPLES_HEAD = """\
# Examples

Each is a folder with a page and a script, and the tests run every one of them.
In a clone in which `./test` or `./run` has set up `.venv`, run one with `.venv/bin/python examples/NAME/main.py`.
"""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """A definition and the module it stands in."""

    module: str
    name: str
    node: Definition | None


@functools.cache
def parsed(module: str) -> ast.Module | None:
    """Return the syntax of one of our modules; None for somebody else's."""
    text = source(module)
    return None if text is None else ast.parse(text)


@functools.cache
def source(module: str) -> str | None:
    """Return the text of one of our modules; None for somebody else's."""
    path = SOURCE.joinpath(*module.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file.read_text(encoding="utf-8") for file in files if file.is_file()), None)


@functools.cache
def stub(module: str) -> ast.Module | None:
    """Return the syntax of a face's stub: it has the names that are found on use (tools/stubs.py)."""
    file = SOURCE.joinpath(*module.split("."), "__init__.pyi")
    return ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None


def find(module: str, name: str) -> Found:
    """Follow a name through faces to where it is defined."""
    trees = [tree for tree in (parsed(module), stub(module)) if tree is not None]
    for node in (each for tree in trees for each in tree.body):
        if isinstance(node, Definition) and name in _names_of(node):
            return Found(module, name, node)
    # Anywhere: a face that loads on first use imports for the type checker alone.
    for imported in (each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)):
        for alias in imported.names:
            if (alias.asname or alias.name) == name:
                return find(imported.module or "", alias.name)
    return Found(module, name, None)


def _stub_names(module: str) -> set[str]:
    """Return what a stub offers: classes, and names imported as themselves."""
    body = tree.body if (tree := stub(module)) is not None else []
    imported = {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
    return imported | {node.name for node in body if isinstance(node, ast.ClassDef)}


def _names_of(node: Definition) -> set[str]:
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign):
        return {node.target.id} if isinstance(node.target, ast.Name) else set()
    return {node.name}


def faces() -> dict[str, list[str]]:
    """Return the public names of each face, in the order of the faces' names."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        if path.name.startswith("_") and path.name != "__init__.py":
            continue
        parts = path.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = parsed(module)
        for node in tree.body if tree is not None else ():
            if isinstance(node, ast.Assign) and "__all__" in _names_of(node):
                # The version is of the release, and would make the page stale with each.
                names = {*ast.literal_eval(node.value), *_stub_names(module)} - {"__version__"}
                found[module] = sorted(names, key=str.lower)
    return dict(sorted(found.items()))


def homes(offered: dict[str, list[str]]) -> dict[tuple[str, str], str]:
    """Return for each definition the face it is described in: the one nearest to it, else the first."""
    chosen: dict[tuple[str, str], str] = {}
    for face, names in offered.items():
        for name in names:
            found = find(face, name)
            key = (found.module, found.name)
            near = f"{found.module}.".startswith(f"{face}.")
            best = chosen.get(key)
            if best is None or (near and (len(face) > len(best) or not f"{found.module}.".startswith(f"{best}."))):
                chosen[key] = face
    return chosen


def python_page() -> str:
    """Return the page of all faces."""
    offered = faces()
    home = homes(offered)
    lines = [_PYTHON_HEAD, "| import from | what is there |", "|---|---|"]
    lines += [f"| [`{face}`](#{slug(face)}) | {_first_sentence(parsed(face))} |" for face in offered]
    for face, names in offered.items():
        tree = parsed(face)
        lines += ["", f"## `{face}`", "", *_prose(ast.get_docstring(tree) if tree is not None else None)]
        elsewhere: dict[str, list[str]] = {}
        for name in names:
            found = find(face, name)
            where = home[found.module, found.name]
            if where != face:
                elsewhere.setdefault(where, []).append(f"`{name}`")
            else:
                lines += ["", *_described(found, name)]
        for where, also in elsewhere.items():
            lines += ["", f"Also here, described under [`{where}`](#{slug(where)}): {', '.join(also)}."]
    return "\n".join(lines) + "\n"


def slug(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _first_sentence(tree: ast.Module | None) -> str:
    text = (ast.get_docstring(tree) if tree is not None else None) or ""
    return _cell(" ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".:").replace("``", "`"))


def _described(found: Found, name: str) -> list[str]:
    node = found.node
    if isinstance(node, ast.ClassDef):
        return _class(found, node, name)
    if isinstance(node, Function):
        return [f"### `{name}`", "", *_fenced(signature(node, name)), "", *_prose(ast.get_docstring(node))]
    if node is None:
        return [f"### `{name}`", "", f"From `{found.module}`."]
    return [f"### `{name}`", "", *_fenced(textwrap.shorten(ast.unparse(node), _WIDTH, placeholder=" ..."))]


def _class(found: Found, node: ast.ClassDef, name: str) -> list[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = f"class {name}({bases})" if bases else f"class {name}"
    fields = [
        ast.unparse(each)
        for each in node.body
        if isinstance(each, (ast.AnnAssign, ast.Assign)) and not any(one.startswith("_") for one in _names_of(each))
    ]
    shown = [textwrap.shorten(field, _WIDTH, placeholder=" ...") for field in fields]
    lines = [f"### `{name}`", "", *_fenced("\n    ".join([f"{head}:" if shown else head, *shown]))]
    lines += ["", *_prose(ast.get_docstring(node))]
    if comments := _field_comments(found.module, node):
        lines += ["", "**Attributes**", "", *(f"- `{field}`: {_escaped(text)}" for field, text in comments.items())]
    inherited = set(_inherited_methods(found, node))
    described = [each for each in _methods(node) if each.name not in inherited | _OF_TORCH]
    if described:
        # A heading, because two lists in a row would be one.
        lines += ["", "**Methods**"]
    for method in described:
        lines += _method(method, name)
    return lines


def _field_comments(module: str, node: ast.ClassDef) -> dict[str, str]:
    """Return what comments beside or above a class's public fields say of them."""
    lines = (source(module) or "").splitlines()
    comments: dict[str, str] = {}
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or ast.unparse(field.target).startswith("_"):
            continue
        beside = (
            lines[field.end_lineno - 1][field.end_col_offset :] if field.end_lineno and field.end_col_offset else ""
        )
        above = list(itertools.takewhile(lambda line: line.lstrip().startswith("#"), lines[field.lineno - 2 :: -1]))
        texts = [beside] if beside.lstrip().startswith("# ") else above[::-1]
        if text := " ".join(line.lstrip(" #") for line in texts).rstrip("."):
            comments[ast.unparse(field.target)] = f"{text[0].upper()}{text[1:]}."
    return comments


def _method(node: Function, owner: str) -> list[str]:
    """Return a method as one line of a list where it fits on one, else like a function."""
    title = owner if node.name == "__init__" else f"{owner}.{node.name}"
    if _has(node, "property"):
        shown = f"{title}: {ast.unparse(node.returns)}" if node.returns is not None else title
    else:
        shown = signature(node, title, bound=not _has(node, "staticmethod"))
    text = _prose(ast.get_docstring(node))
    if "\n" not in shown and len(text) <= 1:
        return ["", f"- `{shown}`{': ' if text else ''}{''.join(text)}"]
    return ["", *_fenced(shown), *([""] if text else []), *text]


def _methods(node: ast.ClassDef) -> list[Function]:
    """Return the public methods, the constructor first; of overloads the one with the body."""
    own = [each for each in node.body if isinstance(each, Function) and not _has(each, "overload")]
    return [each for each in own if each.name == "__init__" or not each.name.startswith("_")]


def _has(node: Function, decorator: str) -> bool:
    return any(ast.unparse(each).split("(")[0].split(".")[-1] == decorator for each in node.decorator_list)


def _inherited_methods(found: Found, node: ast.ClassDef) -> Iterator[str]:
    """Return what a class of ours among the bases describes already."""
    for base in node.bases:
        origin = find(found.module, ast.unparse(base).split("[")[0].rpartition(".")[2])
        if isinstance(origin.node, ast.ClassDef):
            yield from (method.name for method in _methods(origin.node) if method.name != "__init__")
            yield from _inherited_methods(origin, origin.node)


def signature(node: Function, name: str, *, bound: bool = False) -> str:
    """Return a call as it is declared, on one line where it fits."""
    words = _parameters(node.args)
    if bound and words and words[0] in ("self", "cls"):
        words = words[1:]
        if words and words[0] == "/":
            words = words[1:]
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
    line = f"{name}({', '.join(words)}){result}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){result}"])


def _parameters(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    words = [_parameter(each, default) for each, default in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        words.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg is not None:
        words.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        words.append("*")
    words += [_parameter(each, value) for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        words.append(f"**{_parameter(arguments.kwarg, None)}")
    return words


def _parameter(node: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(node.annotation)}" if node.annotation is not None else ""
    if default is None:
        return f"{node.arg}{kind}"
    return f"{node.arg}{kind}{' = ' if kind else '='}{ast.unparse(default)}"


def _fenced(text: str) -> list[str]:
    return ["```text", *text.splitlines(), "```"]


def _prose(text: str | None) -> list[str]:
    """Return a docstring as Markdown: its sections become lists, its indented parts and drawings code."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text or ""):
        body = paragraph.splitlines()
        if not body:
            continue
        if lines:
            lines.append("")
        heading = _SECTIONS.fullmatch(body[0].strip())
        if heading is not None:
            lines += [f"**{heading[1]}**", "", *_items(textwrap.dedent("\n".join(body[1:])).splitlines(), heading[1])]
        elif body[0].startswith("    ") or "├" in paragraph:
            lines += _fenced(textwrap.dedent(paragraph))
        else:
            lines += [_escaped(line) for line in body]
    return lines


def _items(body: Sequence[str], heading: str) -> list[str]:
    if heading.startswith("Example"):
        return _fenced("\n".join(body))
    if heading in ("Returns", "Yields", "Note"):
        return [_escaped(line.strip()) for line in body]
    lines: list[str] = []
    for line in body:
        name, colon, rest = line.partition(": ")
        if colon and not line.startswith(" "):
            lines.append(f"- `{name.strip('`')}`: {_escaped(rest)}")
        else:
            lines.append(f"  {_escaped(line.strip())}")
    return lines


def _escaped(line: str) -> str:
    """Return a line whose signs mean themselves outside code."""
    parts = line.replace("``", "`").split("`")
    return "`".join(part if at % 2 else re.sub(r"([*<\[])", r"\\\1", part) for at, part in enumerate(parts))


def leaves(command: click.Command, words: tuple[str, ...], parent: click.Context | None) -> Iterator[click.Context]:
    """Return a context for each command below one, itself when it has none."""
    ctx = click.Context(command, info_name=words[-1], parent=parent)
    if isinstance(command, click.Group):
        if command.invoke_without_command:
            yield ctx
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            if below is not None:
                yield from leaves(below, (*words, name), ctx)
    else:
        yield ctx


def block(contexts: Sequence[click.Context]) -> str:
    """Return usage, help and options of some commands."""
    lines: list[str] = []
    for ctx in contexts:
        usage = " ".join(word for word in ctx.command.collect_usage_pieces(ctx) if word != "[OPTIONS]")
        lines += ["", f"`{f'{ctx.command_path} {usage}'.strip()}`:"]
        text = inspect.cleandoc(ctx.command.help or "").partition("\n\n")[0]
        lines[-1] += " " + _escaped(" ".join(text.replace("\b", "").split()))
        options = [one for one in ctx.command.params if isinstance(one, click.Option) and not one.hidden]
        options = [one for one in options if one.name not in _OPTIONS_OF_ALL]
        if options:
            lines += ["", "| option | what it does |", "|---|---|"]
            lines += [_option(one, ctx) for one in options]
    return "\n".join(lines[1:])


def _option(option: click.Option, ctx: click.Context) -> str:
    flags, text = option.get_help_record(ctx) or (option.opts[0], "")
    return f"| `{_cell(flags)}` | {_cell(_escaped(' '.join(text.split())))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def with_blocks(page: str, cli: click.Group, program: str, names: Sequence[str]) -> str:
    """Return a page of commands with what is generated in it made anew."""
    root = click.Context(cli, info_name=program)
    for name in names:
        command = cli.get_command(root, name)
        if command is None:
            continue
        words = block(list(leaves(command, (program, name), root)))
        marked = f"<!-- generated: {name} -->\n{words}\n<!-- /generated -->"
        page = _put(page, name, marked)
    stale = [name for name in re.findall(r"<!-- generated: (\S+) -->", page) if name not in names]
    if stale:
        sys.exit(f"{program} has no command {', '.join(stale)} any more; remove the section from docs/reference.")
    return page


def _put(page: str, name: str, marked: str) -> str:
    """Put a block where it was, else at the end of its section, else into a section of its own."""
    pattern = re.compile(rf"<!-- generated: {re.escape(name)} -->.*?<!-- /generated -->", re.DOTALL)
    if pattern.search(page):
        return pattern.sub(lambda _: marked, page, count=1)
    heading = re.search(rf"^## `{re.escape(name)}`$", page, re.MULTILINE)
    if heading is None:
        return f"{page.rstrip()}\n\n## `{name}`\n\n{marked}\n"
    following = re.search(r"^## ", page[heading.end() :], re.MULTILINE)
    end = heading.end() + following.start() if following is not None else len(page)
    return f"{page[:end].rstrip()}\n\n{marked}\n\n{page[end:]}".rstrip() + "\n"


def programs_page(parsers: Sequence[argparse.ArgumentParser]) -> str:
    """Return the page of the programs on boards, from their own parsers."""
    lines = _PROGRAMS_HEAD.splitlines()
    for parser in parsers:
        lines += ["", f"## `{parser.prog}`", "", _sentence(parser.description or "")]
        groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]  # noqa: SLF001 - argparse offers no other way to ask
        for group in groups:
            words = {each.dest: each.help or "" for each in group._choices_actions}  # noqa: SLF001
            for name, below in group.choices.items():
                lines += ["", f"`{parser.prog} {name}`: {_sentence(words.get(name, ''))}"]
                rows = [each for each in below._actions if each.option_strings and each.dest != "help"]  # noqa: SLF001
                if rows:
                    lines += ["", "| option | what it does |", "|---|---|", *(_flag(each, below) for each in rows)]
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    plain = _escaped(" ".join(text.split()))
    return f"{plain[:1].upper()}{plain[1:].removesuffix('.')}."


def _flag(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()  # noqa: SLF001
    flags = formatter._format_action_invocation(action)  # noqa: SLF001
    text = formatter._expand_help(action) if action.help else ""  # noqa: SLF001
    needed = " [required]" if action.required else ""
    return f"| `{_cell(flags)}` | {_cell(_escaped(' '.join(text.split()) + needed).strip())} |"


def json_page(programs: dict[str, tuple[click.Group, Sequence[str]]]) -> str:
    """Return the page of what commands print as JSON; commands that print the same stand together."""
    from embedl_device.json_output import printing, schema_of  # noqa: PLC0415 - only to be described

    together: dict[str, list[str]] = {}
    for program, (cli, names) in programs.items():
        for name, command in printing(cli, click.Context(cli)):
            if name.split()[0] not in names:
                continue
            schema = schema_of(program, name, command)
            shape = {key: value for key, value in schema.items() if key not in {"$schema", "title"}}
            told = name if program == "embedl-hub" else f"{program} {name}"
            together.setdefault("\n".join(_shape_rows(shape)), []).append(told)
    lines = _JSON_HEAD.splitlines()
    for rows, commands in together.items():
        lines += ["", f"## {', '.join(f'`{name}`' for name in commands)}", "", rows]
    return "\n".join(lines) + "\n"


def _shape_rows(shape: dict[str, Any]) -> list[str]:
    """Return a shape as tables, one for each form that the document may have."""
    lines: list[str] = []
    for form in shape.get("anyOf") or [shape]:
        if lines:
            lines += ["", "Or:", ""]
        rows = list(_fields(form, "[]" if form.get("type") == "array" else ""))
        lines += ["| field | type |", "|---|---|", *rows] if rows else [f"{_type_words(form)}."]
    return lines


def _fields(shape: dict[str, Any], path: str) -> Iterator[str]:
    """Yield a row for each field of a shape and of those within it."""
    for inner in shape.get("anyOf", ()):
        yield from _fields(inner, path)
    if "items" in shape:
        yield from _fields(shape["items"], path)
    for name, below in shape.get("properties", {}).items():
        missing = "" if name in shape.get("required", ()) else "?"
        here = f"{path}.{name}".lstrip(".")
        meaning = f": {_cell(below['description'])}" if "description" in below else ""
        yield f"| `{here}`{missing} | {_type_words(below)}{meaning} |"
        yield from _fields(below, f"{here}[]" if _has_items(below) else here)
    more = shape.get("additionalProperties")
    if isinstance(more, dict) and (more.get("properties") or "additionalProperties" in more):
        yield from _fields(more, f"{path}.<name>".lstrip("."))


def _has_items(shape: dict[str, Any]) -> bool:
    return "items" in shape or any("items" in part for part in shape.get("anyOf", ()))


def _type_words(shape: dict[str, Any]) -> str:
    """Return what kind of value a shape is, in a word or two."""
    plain = {
        "string": "text",
        "integer": "whole number",
        "boolean": "true or false",
        "number": "number",
        "null": "null",
    }
    if "enum" in shape:
        return ", ".join(f"`{word}`" for word in shape["enum"])
    if "anyOf" in shape:
        words = [_type_words(part) for part in shape["anyOf"]]
        # A number that may be nan is a number to a reader; the head of the page says how it is written.
        return " or ".join(word for word in words if word != "`nan`, `inf`, `-inf`")
    kinds = shape.get("type", [])
    null = " or null" if isinstance(kinds, list) and "null" in kinds else ""
    kind = next((each for each in [kinds] if isinstance(each, str)), None) or next(iter(kinds), "")
    if kind == "array":
        return f"list of {_type_words(shape['items'])}{null}"
    if kind == "object":
        more = shape.get("additionalProperties")
        if isinstance(more, dict) and "properties" not in shape:
            return f"{_type_words(more)} by name{null}"
        return f"object{null}"
    return plain.get(kind, "any value") + null


def decisions_page() -> str:
    """Return the list of decision records."""
    lines = [*_DECISIONS_HEAD.splitlines(), "", "| | decision | date | status |", "|---|---|---|---|"]
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        text = path.read_text(encoding="utf-8")
        date, status = (re.findall(rf"^{key}: (.+)$", text, re.MULTILINE)[0] for key in ("Date", "Status"))
        title = text.partition("\n")[0].removeprefix("# ")
        lines.append(f"| {path.name[:4]} | [{_cell(title)}]({path.name}) | {date} | {status} |")
    return "\n".join(lines) + "\n"


def examples_page() -> str:
    """Return the list of examples."""
    folders = sorted(path.parent for path in (ROOT / "examples").glob("*/README.md"))
    lines = [*_EXAMPLES_HEAD.splitlines(), "", "| example | what it shows |", "|---|---|"]
    for folder in folders:
        readme = folder / "README.md"
        # A lazy reader gets the first sentence of the page, which says what the example shows.
        text = " ".join(readme.read_text(encoding="utf-8").split("\n\n")[1].split())
        lines.append(f"| [{folder.name}]({folder.name}/README.md) | {_cell(re.split(r'(?<=[.]) ', text)[0])} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Return what each page should be."""
    from embedl_deploy.cli.main import cli as deploy  # noqa: PLC0415 - only to be described
    from embedl_executorch import cli as executorch  # noqa: PLC0415
    from embedl_hub.cli.main import cli as hub  # noqa: PLC0415
    from embedl_hub.cli.main import own_commands  # noqa: PLC0415
    from embedl_litert import cli as litert  # noqa: PLC0415
    from embedl_onnxruntime import cli as onnxruntime  # noqa: PLC0415
    from embedl_openvino import cli as openvino  # noqa: PLC0415

    deploy_commands = deploy.list_commands(click.Context(deploy))
    programs = [each._program().parser for each in (onnxruntime, litert, openvino, executorch)]  # noqa: SLF001
    made = {
        REFERENCE / "device-programs.md": programs_page(programs),
        REFERENCE / "json.md": json_page(
            {"embedl-hub": (hub, [*own_commands(), "demo"]), "embedl-deploy": (deploy, deploy_commands)}
        ),
        ROOT / "docs" / "decisions" / "README.md": decisions_page(),
        ROOT / "examples" / "README.md": examples_page(),
    }
    for page, cli, program, names in (
        # Not what other packages of this environment add.
        ("cli.md", hub, "embedl-hub", sorted(own_commands())),
        ("deploy-cli.md", deploy, "embedl-deploy", deploy_commands),
    ):
        path = REFERENCE / page
        made[path] = with_blocks(path.read_text(encoding="utf-8"), cli, program, names)
    return made


def main() -> None:
    """Write the pages, or say which are not what would be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a page is stale")
    parser.add_argument("--python", type=Path, metavar="FILE", help="write the page of Python names and nothing else")
    arguments = parser.parse_args()
    if arguments.python is not None:
        arguments.python.parent.mkdir(parents=True, exist_ok=True)
        arguments.python.write_text(python_page(), encoding="utf-8")
        print(f"written: {arguments.python}")
        return
    check = arguments.check
    changed = []
    for path, text in pages().items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            changed.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and changed:
        sys.exit(f"Stale: {', '.join(changed)}. Write them anew: {COMMAND}")
    print(f"written: {', '.join(changed)}" if changed else "all pages are what the code says")


if __name__ == "__main__":
    main()
