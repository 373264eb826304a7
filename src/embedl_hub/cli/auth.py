"""``embedl-hub auth``: keep the address of a server and the key to it, for this user alone."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request

import click

from embedl_device.schema import FLAG, TEXT, array, either, fields
from embedl_hub.cli._output import json_option, report
from embedl_hub.credentials import KEY_VARIABLE, URL_VARIABLE, Server, find_server, forget_server, keep_server
from embedl_hub.errors import ConfigError, ConnectError

_LIMIT_S = 10.0
_LONGEST_ANSWER = 10_000_000


_SHAPE = either(
    fields({"url": TEXT, "source": TEXT, "has_key": FLAG}, {"projects": array(TEXT)}),
    fields({"file": TEXT, "url": TEXT}),
    fields({"removed": FLAG}),
)


@click.command()
@click.argument("url", required=False)
@click.option("--check", is_flag=True, help="Ask the server whether it takes the key.")
@click.option("--insecure", is_flag=True, help="Allow plain HTTP to another machine; the key can be read on the way.")
@click.option("--remove", is_flag=True, help="Forget the server and its key.")
@json_option(_SHAPE)
def command(url: str | None, check: bool, insecure: bool, remove: bool, as_json: bool) -> None:
    """Keep the address of a server and the key to it, readable by this user only.

    The key is asked for without showing it, or read from EMBEDL_HUB_API_KEY or the first line of standard input;
    never from the command line, which others can see.
    """
    if remove and (url or check):
        raise click.UsageError("--remove goes alone.")
    if insecure and not url:
        raise click.UsageError("--insecure goes with the URL that it is about.")
    if remove:
        was_there = forget_server()
        report({"removed": was_there}, "Forgotten." if was_there else "There was nothing to forget.", as_json=as_json)
        return
    if url:
        path = keep_server(url, _read_key(), insecure=insecure)
        if not check:
            report({"file": str(path), "url": url}, f"Kept in {path}, for you alone.", as_json=as_json)
            return
    server = find_server()
    if server is None:
        raise ConfigError(f"No server is known. Name one: embedl-hub auth URL, or set {URL_VARIABLE}.")
    facts: dict[str, object] = {"url": server.url, "source": server.source, "has_key": server.key is not None}
    text = f"{server.url} ({'with' if server.key else 'without'} a key, from {server.source})"
    if check:
        projects = ask(server)
        facts["projects"] = projects
        text = f"{server.url} takes the key; projects you can see: {', '.join(projects) or 'none'}."
    report(facts, text, as_json=as_json)


def _read_key() -> str:
    if key := os.environ.get(KEY_VARIABLE):
        return key.strip()
    if sys.stdin.isatty():
        return str(click.prompt("Key", hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()


def ask(server: Server) -> list[str]:
    """Return the projects that the server lets this key see."""
    server.check_way()
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {server.key}"} if server.key else {})
    request = urllib.request.Request(f"{server.url}/api/projects?limit=500", headers=headers)  # noqa: S310 - http(s), checked
    try:
        with _OPENER.open(request, timeout=_LIMIT_S) as answer:
            text = answer.read(_LONGEST_ANSWER)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            raise ConfigError(
                f"{server.url} does not take the key (HTTP {error.code}). Get a new one from its owner, then: "
                f"embedl-hub auth {server.url}"
            ) from error
        raise ConnectError(f"{server.url} answered with HTTP {error.code}; is it an Edgeproof server?") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ConnectError(
            f"{server.url} cannot be reached: {reason}. Is it running, and the address right?"
        ) from error
    try:
        return [str(project["name"]) for project in json.loads(text)["data"]["items"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConnectError(f"{server.url} does not answer like an Edgeproof server.") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows nothing: a redirect would carry the key to whoever it names."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)
