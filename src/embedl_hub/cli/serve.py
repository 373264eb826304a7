"""``embedl-hub serve``: serve runs to a team, and hand out keys."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path

import click

from embedl_device.schema import TEXT, WHOLE, array, both, fields, maybe
from embedl_hub.cli._output import JSON_WANTED, PATH, emit, json_option, report, size
from embedl_hub.credentials import is_loopback
from embedl_hub.server import ACCESS, ALL_PROJECTS, Key, KeyRing, Settings, Usage, serve

_home = functools.partial(
    click.option, "--home", type=PATH, envvar="EMBEDL_HUB_SERVER_HOME", help="The server's own folder."
)
_MIB = 1 << 20


_KEY = fields(
    {
        "id": TEXT, "name": TEXT, "access": TEXT, "projects": array(TEXT), "made": TEXT, "revoked": maybe(TEXT),
    }
)  # fmt: skip


@click.group(invoke_without_command=True)
@_home()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8410, show_default=True, help="0 for a free one.")
@click.option(
    "--database", envvar="EMBEDL_HUB_DATABASE", help="postgresql://... for the index; a SQLite file if not given."
)
@click.option("--artifacts", help="A bucket for contents, such as s3://bucket/folder; the home if not given.")
@click.option("--durable/--no-durable", default=True, show_default=True, help="Survive power cuts, not only kills.")
@click.option("--rate", type=click.FloatRange(1), default=500.0, show_default=True, help="Requests per second and key.")
@click.option("--burst", type=click.FloatRange(1), default=1000.0, show_default=True, help="Requests at once and key.")
@click.option(
    "--wrong-keys",
    type=click.FloatRange(1),
    default=20.0,
    show_default=True,
    help="Wrong keys that one address may show at once; then one per second.",
)
@click.option(
    "--largest-artifact",
    type=click.IntRange(1),
    default=16384,
    show_default=True,
    help="In MiB; no file may be larger.",
)
@click.option(
    "--key-runs", type=click.IntRange(1), default=1_000_000, show_default=True, help="Runs that a key may have."
)
@click.option(
    "--key-mib", type=click.IntRange(1), default=1 << 20, show_default=True, help="MiB that a key may send in all."
)
@click.option("--threads", type=click.IntRange(1, 256), default=32, show_default=True, help="Requests in work at once.")
@click.option(
    "--query-limit",
    "query_s",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="Seconds that the queries of one request may take.",
)
@click.option(
    "--queries-at-once",
    type=click.IntRange(1),
    help="Reading requests of one key in work at once; the rest wait. The cores but one, at most 4, if not given.",
)
@click.option(
    "--connections",
    type=click.IntRange(10),
    default=2000,
    show_default=True,
    help="Connections that wait for their clients; a new one takes the place of the oldest.",
)
@click.option(
    "--connections-per-address",
    type=click.IntRange(10),
    default=500,
    show_default=True,
    help="As --connections, of one address.",
)
@click.option("--certificate", type=click.Path(exists=True, path_type=Path), help="Serve over TLS with this.")
@click.option("--private-key", type=click.Path(exists=True, path_type=Path), help="The certificate's key.")
@json_option(fields({"address": TEXT, "home": TEXT}))
@click.pass_context
def command(
    ctx: click.Context, /, home: Path | None, largest_artifact: int, key_mib: int, as_json: bool, **options: object
) -> None:
    """Serve runs to a team, and hand out keys.

    The home is the server's own: clients point at the server with EMBEDL_HUB_API_BASE_URL and EMBEDL_HUB_API_KEY and
    keep homes of theirs. Stop it with SIGTERM or Ctrl-C; requests that are being answered are finished first.
    """
    if ctx.invoked_subcommand is not None:
        ctx.meta[JSON_WANTED] = as_json
        return
    if home is None:
        raise click.UsageError("Name the server's own folder: --home FOLDER.")
    if (options["certificate"] is None) != (options["private_key"] is None):
        raise click.UsageError("--certificate and --private-key go together.")
    given = {name: value for name, value in options.items() if value is not None}
    sizes = {"largest_artifact_bytes": largest_artifact * _MIB, "key_bytes": key_mib * _MIB}
    settings = Settings(home.absolute(), **sizes, **given)  # type: ignore[arg-type]  # click checked them
    if not KeyRing(settings.home).all():
        click.echo(f"No keys yet; make one: embedl-hub serve key add NAME --project '*' --home {home}", err=True)
    if settings.certificate is None and not is_loopback(settings.host):
        click.echo(
            f"Warning: {settings.host} is reached from other machines, and keys are sent there in plain text. Give a "
            "--certificate and its --private-key, or listen on 127.0.0.1 behind a proxy that adds TLS.",
            err=True,
        )

    def ready(address: str) -> None:
        if as_json:
            emit({"address": address, "home": str(settings.home)})
        else:
            click.echo(f"Listening on {address}", err=True)

    serve(settings, ready=ready)


@command.group("key")
def key_group() -> None:
    """Make, list and revoke keys."""


@key_group.command("add")
@click.argument("name")
@click.option("--project", "projects", multiple=True, required=True, help=f"What it opens; {ALL_PROJECTS} for all.")
@click.option("--access", type=click.Choice(ACCESS), default="write", show_default=True, help="What it is for.")
@click.option("--most-runs", type=click.IntRange(1), help="Runs that it may have, in place of the server's --key-runs.")
@click.option("--most-mib", type=click.IntRange(1), help="MiB that it may send, in place of the server's --key-mib.")
@_home(required=True)
@json_option(both(_KEY, fields({"key": TEXT})))
def add(
    name: str, projects: tuple[str, ...], access: str, most_runs: int | None, most_mib: int | None, home: Path,
    as_json: bool,
) -> None:  # fmt: skip
    """Make a key and print it, once."""
    most_bytes = None if most_mib is None else most_mib * _MIB
    key, text = KeyRing(home).add(name, projects, access, most_runs=most_runs, most_bytes=most_bytes)
    report({**_facts(key), "key": text}, text, as_json=as_json)
    if not as_json:
        hint = f"This is key {key.id} ({access}, {', '.join(projects)}). It is shown this once and kept nowhere."
        click.echo(hint, err=True)


@key_group.command("list")
@_home(required=True)
@json_option(array(both(_KEY, fields({"runs": WHOLE, "size_bytes": WHOLE}))))
def list_(home: Path, as_json: bool) -> None:
    """List keys, the revoked ones included, with what they have brought."""
    keys, usage = KeyRing(home).all(), Usage(home)
    used = {key.id: usage.of(key.id) for key in keys}
    usage.close()
    lines = []
    for key in keys:
        ended = "" if key.revoked_ms is None else f", revoked {_when(key.revoked_ms)}"
        projects = ", ".join(key.projects)
        brought = f"{used[key.id].runs} runs, {size(used[key.id].size_bytes)}"
        made = f"made {_when(key.created_ms)}{ended}"
        lines.append(f"{key.id}  {key.access:5}  {key.name}  {projects}  {brought}  {made}")
    facts = [{**_facts(key), "runs": used[key.id].runs, "size_bytes": used[key.id].size_bytes} for key in keys]
    report(facts, *lines, as_json=as_json)


@key_group.command("revoke")
@click.argument("key_id")
@_home(required=True)
@json_option(_KEY)
def revoke(key_id: str, home: Path, as_json: bool) -> None:
    """End a key, at once."""
    key = KeyRing(home).revoke(key_id)
    report(_facts(key), f"Key {key.id} ({key.name}) no longer opens anything.", as_json=as_json)


def _facts(key: Key) -> dict[str, object]:
    revoked = None if key.revoked_ms is None else _when(key.revoked_ms)
    facts = {"id": key.id, "name": key.name, "access": key.access, "projects": list(key.projects)}
    return {**facts, "made": _when(key.created_ms), "revoked": revoked}


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
