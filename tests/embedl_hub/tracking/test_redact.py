"""Keeping secrets out of the store."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from embedl_hub.tracking import Client, Redactor, Store, reindex
from embedl_hub.tracking._values import REDACTED, is_secret_name

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.tracking import Value


@pytest.mark.parametrize(
    "name",
    [
        "password", "PASSWORD", "db_password", "passwd", "passphrase", "client_secret", "token", "hf_token",
        "GITHUB_TOKEN", "accessToken", "access_tokens", "api_token_id", "session-token", "backend_token",
        "admin_token", "api_key", "apiKey", "x-api-key", "EMBEDL_HUB_API_KEY", "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID", "private_key", "ssh_key", "credentials", "Authorization", "cookie", "bearer", "pwd",
        "db-pw", "basic_auth", "tokenizer_password", "password_for_tokens",
    ],
)  # fmt: skip
def test_telling_names_are_secret(name: str) -> None:
    """Names under which people keep secrets are recognized, in every spelling."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer", "tokeniser", "Tokenizer", "tokenizer_path", "num_tokens", "max_tokens", "maxTokens",
        "max_token_length", "tokens_per_second", "special_tokens", "token_type_ids", "token_id", "pad_token",
        "eos_token", "cls_token", "use_cls_token", "class_token", "mask_token", "time_to_first_token", "ms_per_token",
        "token_embedding_dim", "key_points", "keypoints", "key", "keyboard", "monkey", "primary_key", "num_passes",
        "bypass", "compass", "author", "authors", "pwm", "power", "sequence", "private_key_path", "password_file",
        "SSH_AUTH_SOCK", "device", "latency",
    ],
)  # fmt: skip
def test_everyday_names_are_not_secret(name: str) -> None:
    """Tokenizers, numbers of tokens, key points and files that merely hold a secret are kept."""
    assert not is_secret_name(name)


def test_values_under_telling_names_are_replaced_at_any_depth() -> None:
    """Text, numbers, lists and dicts under a secret name go; everything else stays as it is."""
    value: Value = {"user": "me", "password": "hunter22", "deep": [{"token": 123456, "keep": 1}], "num_tokens": 7}
    assert Redactor({}).value("config", value) == {
        "user": "me",
        "password": REDACTED,
        "deep": [{"token": REDACTED, "keep": 1}],
        "num_tokens": 7,
    }
    assert Redactor({}).value("credentials", ["a", {"b": "c"}]) == REDACTED


@pytest.mark.parametrize("value", [None, True, False])
def test_whether_there_is_a_secret_is_no_secret(value: bool | None) -> None:
    """A flag or an absent value under a secret name is kept."""
    assert Redactor({}).value("password", value) is value


def test_secrets_of_the_environment_are_found_in_texts() -> None:
    """A variable's value is replaced wherever it is quoted, and only there."""
    redactor = Redactor({"SOME_API_KEY": "sk-12345", "EDITOR": "emacs-29"})
    assert redactor.text("401 for key sk-12345 in emacs-29") == f"401 for key {REDACTED} in emacs-29"


def test_the_working_folder_is_no_secret() -> None:
    """PWD is where the shell stands; a parameter of that name is still a password."""
    assert Redactor({"PWD": "/home/me"}).text("File /home/me/x.py") == "File /home/me/x.py"
    assert Redactor({}).value("pwd", "hunter22") == REDACTED


def test_short_values_do_not_black_out_texts() -> None:
    """A password that is an everyday word is replaced under its name only."""
    assert Redactor({"PASSWORD": "root"}).text("root of the tree") == "root of the tree"


def test_a_longer_secret_wins_over_one_it_contains() -> None:
    """No tail of a secret is left when another secret is its beginning."""
    redactor = Redactor({"A_TOKEN": "abcdef", "B_TOKEN": "abcdef-123456"})
    assert redactor.text("<abcdef-123456>") == f"<{REDACTED}>"


def test_special_characters_in_a_secret_are_plain_text() -> None:
    """A secret is not a pattern."""
    redactor = Redactor({"A_TOKEN": "a.c+(x)|"})
    assert redactor.text("abc a.c+(x)|") == f"abc {REDACTED}"


def test_a_secret_is_found_in_every_spelling() -> None:
    """Quoted by repr, by JSON or in a URL, it is the same secret."""
    value = "p\\a\"ss'\nü/wörd"
    redactor = Redactor({"PASSWORD": value})
    as_json = (json.dumps(value), json.dumps(value, ensure_ascii=False))
    for spelled in (value, repr(value), *as_json, quote(value, safe="")):
        assert "rd" not in redactor.text(f"<{spelled}>")


def test_odd_bytes_in_the_environment_are_no_obstacle() -> None:
    """A variable that is not text can be learned and found."""
    assert Redactor({"PASSWORD": "odd\udcffbyte"}).text("(odd\udcffbyte)") == f"({REDACTED})"


def test_a_password_inside_an_address_is_replaced() -> None:
    """user:password@ goes, ports and paths stay."""
    text = Redactor({}).text("postgres://me:hunter22@db:5432/x and http://host:8080/a@b")
    assert text == f"postgres://me:{REDACTED}@db:5432/x and http://host:8080/a@b"


def test_what_was_learned_later_counts_too() -> None:
    """Options passed to learn, and values it replaced itself, are found in later texts."""
    redactor = Redactor({})
    redactor.learn(
        {"options": {"api_key": "sk-first", "tokens": [1], "passwords": ["pw-listed"]}, "secret": b"sk-bytes"}
    )
    redactor.value("token", "sk-second")
    assert redactor.text("sk-first pw-listed sk-bytes sk-second") == " ".join([REDACTED] * 4)


def everything_in(home: Path) -> bytes:
    """Return every byte under a folder, names included."""
    parts = [str(path).encode() + (path.read_bytes() if path.is_file() else b"") for path in sorted(home.rglob("*"))]
    return b"\n".join(parts)


def log_with_secrets(client: Client, secrets: dict[str, str]) -> None:
    """Log every kind of record with secrets in it, and fail with one in the message."""
    with client.start_run("CUSTOM", f"run {secrets['environment']}", device=f"pi-{secrets['environment']}") as run:
        run.log_param("api_key", secrets["param"])
        run.log_param("options", {"nested": [{"password": secrets["nested"]}], secrets["environment"]: 1})
        run.log_param("argv", ["tool", f"--key={secrets['environment']}"])
        run.log_param("tokenizer", "harmless-marker")
        run.log_tag("auth", secrets["tag"])
        run.log_tag("config", {"token": secrets["nested"]})
        run.log_tag("note", f"with {secrets['environment']}")
        cause = KeyError(secrets["environment"])
        raise RuntimeError(f"refused: {secrets['param']} {secrets['environment']!r}") from cause


def test_no_byte_of_the_store_holds_a_secret(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Params, tags, nested options, names, errors, tracebacks: the whole folder is searched, open, closed, rebuilt."""
    secrets = {kind: f"hunter2-{kind}-\\'x" for kind in ("environment", "param", "nested", "tag")}
    monkeypatch.setenv("EMBEDL_HUB_API_KEY", secrets["environment"])
    found = [everything_in(home)]
    with Store(home) as store:
        client = Client("project", store)
        with contextlib.suppress(RuntimeError):
            log_with_secrets(client, secrets)
        found.append(everything_in(home))
        client.close()
    found.append(everything_in(home))
    reindex(home)
    found.append(everything_in(home))
    assert all(b"hunter2" not in content for content in found)
    assert all(b"harmless-marker" in content for content in found[1:])
    with Store(home) as store:
        (run,) = store.runs()
        assert run.error == f'RuntimeError: refused: {REDACTED} "{REDACTED}"'
        assert f'KeyError: "{REDACTED}"' in str(run.traceback)
        assert store.run(run.id).params["tokenizer"].value == "harmless-marker"


def test_the_search_would_find_a_secret(home: Path) -> None:
    """The check above is not blind: a value under a harmless name is found by it."""
    with Store(home) as store:
        client = Client("project", store, Redactor({}))
        with client.start_run() as run:
            run.log_param("note", "hunter2")
        assert b"hunter2" in everything_in(home)
        client.close()
