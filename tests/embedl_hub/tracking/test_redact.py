"""Keeping secrets out of the store."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from embedl_hub.errors import ConfigError
from embedl_hub.tracking import Client, Redactor, Store, reindex
from embedl_hub.tracking._redact import REDACTED, is_secret_name, without_known_secrets

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


RANDOM = "q7Zt0LmW4xRb2VnK9sYd3HfJ6pGc8TaE1uQo5iXw"  # what stands for every secret below; the searches look for it
HEX = "9f86d081884c7d659a2feaa0c55ad015"
KEYS = {
    "our server": f"eh_{RANDOM}abc", "AWS": "AKIAQ7ZTLMW4XRBVNKSY", "AWS, for a while": "ASIAQ7ZTLMW4XRBVNKSY",
    "GitHub": f"ghp_{RANDOM[:36]}", "GitHub, fine": f"github_pat_11A_{RANDOM}", "GitLab": f"glpat-{RANDOM[:20]}",
    "Hugging Face": f"hf_{RANDOM[:34]}", "lower case": "hf_abcdefghijklmnopqrstuvwxyzabcdefgh",
    "OpenAI": f"sk-{RANDOM}", "OpenAI project": f"sk-proj-{RANDOM[:18]}_{RANDOM[18:]}", "hexadecimal": f"sk-{HEX}",
    "Anthropic": f"sk-ant-api03-{RANDOM}", "Slack": "xoxb-123456789012-q7zt0lmw4xrb", "Google": f"AIza{RANDOM[:35]}",
    "NVIDIA": f"nvapi-{RANDOM}{RANDOM}", "web token": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{RANDOM}",
    "private key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{RANDOM}\n-----END OPENSSH PRIVATE KEY-----",
}  # fmt: skip
TEXTS = {
    "option": "--token=%", "option and word": "--token %", "quoted": "['embedl-litert', '--api-key', '%']",
    "S3 address": "https://b.s3.example/k?X-Amz-Date=1&X-Amz-Signature=%&x=1",
    "S3 session": "https://b.s3.example/k?X-Amz-Security-Token=%&x=1", "Azure": "https://a.example/c?sv=1&sig=%&se=2",
    "query": "GET /v1/models?access_token=%#part", "inside another": "/go?to=https%%3A%%2F%%2Fh%%2F%%3Ftoken%%3D%%%26x",
    "Bearer": "Authorization: Bearer %", "bare Bearer": "sent Bearer % to it",
    "headers": "{'Authorization': 'Token %'}",
    "header": "X-Api-Key: %", "cookie": "Cookie: theme=dark; session=%", "address": "https://me:%@host/simple",
    "address, no user": "redis://:%@host:6379/0", "odd password": "https://me:a@b/%@host/simple",
    "JSON": '{"client_secret": "%"}', "JSON in JSON": '{\\"password\\": \\"%\\"}', "code": "connect(password='two %')",
    "escaped": 'password="one \\" %"', "shell": "PGPASSWORD=a&b;% psql", "settings": "db.password: %",
    "like a type": "password=str.%", "like a variable": "password=$%", "like a call": 'password="f(%)"',
    "like a placeholder": "password=<%", "after a harmless name": "num_tokens=5;token=%",
    "connection": "AccountName=a;AccountKey=%==;Endpoint=b",
}  # fmt: skip
ORDINARY = [
    "sk-learn", "sk-learn-MobileNetV2-classifier-v1", "resnet50-int8.onnx", HEX, RANDOM, "ASIAN_FOOD101", "eyJson.a.b",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "123e4567-e89b-12d3-a456-426614174000",
    "TW9iaWxlTmV0VjI=", "hf_model_name", "task-aB1cD2eF3gH4iJ5kL6mN7oP8", "unexpected token: newline",
    "Basic quantization of the model", "bearer authentication failed", "num_tokens=7 max_tokens=100",
    "def f(token: str, password: str = None) -> Key:", "token = get_token()", "login(password=config.password)",
    "--signature=serving_default", "http://host:8080/a@b", "http://[::1]:8080/x@y", "s3://bucket/model.onnx",
    "pad_token=<pad>", "tokenizer=bert-base", "use --token to log in", "give --token FILE", "--token-dim=64",
    "token=None", "password_file=/etc/key", "git@host.example:org/repo", "float32:1x3x224x224", "KeyError: 'token'",
    "tokens: 128", "2026-11-16T07:10:00Z", "C:\\models\\a.onnx", "$TOKEN", "--token=$TOKEN",
]  # fmt: skip


def _hidden(text: str) -> str:
    return text.replace("%%", "\0").replace("%", RANDOM).replace("\0", "%")


def _basic() -> str:
    return "Basic " + base64.b64encode(f"me:{RANDOM}".encode()).decode()


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("around", ["%", "refused: %.", "models/%/x", "['%']", "key=%"])
def test_a_key_is_known_by_its_shape(key: str, around: str) -> None:
    """Wherever it stands, and whatever the value is called."""
    cleaned = without_known_secrets(around.replace("%", key))
    assert REDACTED in cleaned
    assert key[-12:] not in cleaned


@pytest.mark.parametrize("text", [*map(_hidden, TEXTS.values()), _basic()], ids=[*TEXTS, "Basic"])
def test_a_secret_is_known_by_the_name_before_it(text: str) -> None:
    """In a command line, an address, a header, in code and in JSON; what follows it is kept."""
    cleaned = without_known_secrets(text)
    assert REDACTED in cleaned
    assert RANDOM not in cleaned
    assert _basic().split()[1] not in cleaned
    assert without_known_secrets(cleaned) == cleaned


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_texts_are_kept(text: str) -> None:
    """Hashes, file names, sentences about tokens, and the code that a traceback quotes."""
    assert without_known_secrets(text) == text


def test_the_rest_of_an_address_stays() -> None:
    """One can still tell what was asked for."""
    text = without_known_secrets("https://b.example/k?a=1&X-Amz-Signature=0f&b=2#c and --token=x9 --runs=5")
    assert text == f"https://b.example/k?a=1&X-Amz-Signature={REDACTED}&b=2#c and --token={REDACTED} --runs=5"


@pytest.mark.parametrize(
    "piece",
    ["://a:b", "token ", "--token ", "eyJ", "num_tokens=", "token:", "token=f(", "-----BEGIN PRIVATE KEY-----", "?",
     "bearer ", "a.-", "sk-", "&token=", "\\", "-", "x"],
)  # fmt: skip
def test_no_text_makes_the_search_slow(piece: str) -> None:
    """What a board says is searched too: the time grows with the length alone."""

    def seconds(length: int) -> float:
        text = piece * (length // len(piece)) + "=:"
        started = time.perf_counter()
        without_known_secrets(text)
        return time.perf_counter() - started

    assert min(seconds(100_000) for _ in range(2)) < 5.0


def test_words_of_a_command_line_are_hidden_and_remembered() -> None:
    """``--token VALUE`` as two words of a list: there, and in an error that quotes the value alone."""
    redactor = Redactor({})
    assert redactor.value("cli_args", ["--token", "short", "--runs", "5", "--api-key", "-x"]) == [
        "--token", REDACTED, "--runs", "5", "--api-key", "-x",
    ]  # fmt: skip
    redactor.learn({"cli_args": ("--token", "first word", "--password=second"), "extra": "--secret=third-one"})
    assert redactor.text("first word, second, third-one") == ", ".join([REDACTED] * 3)


def _log_every_way(client: Client, text: str, folder: Path) -> None:
    """Put a text into a run by every way there is."""
    name = text.replace("\n", " ")[:190]
    with client.start_run("CUSTOM", name, component=name, provider=name, device=name) as run:
        run.log_param("cli_args", text)
        run.log_param("provider_config", {"cli_args": [text], "deep": {"note": [text]}, text: 1})
        run.log_param(name, 1)
        run.log_metric(name, 1.0)
        run.log_tag("note", text)
        run.log_tag(name, 1)
        run.log_batch({"argv": [text], f"2 {name}": 2}, [(name, 2.0, 1)], {"more": {"text": text}, f"3 {name}": 3})
        if not set(name) & {"/", "\\"}:
            (folder / "file").write_bytes(b"content")
            run.log_artifact(folder / "file", name, name)
        raise RuntimeError(f"it said {text}") from ValueError(text)


@pytest.mark.parametrize("way", [*KEYS, *TEXTS, "Basic"])
def test_no_way_into_a_run_lets_a_secret_in(home: Path, tmp_path: Path, way: str) -> None:
    """Names, params, tags, metrics, files' names, errors, tracebacks, later labels: no byte of the home has it."""
    text = KEYS.get(way) or (_basic() if way == "Basic" else _hidden(TEXTS[way]))
    telling = {"private key": RANDOM, "Basic": text[6:]}.get(way, text[-12:] if way in KEYS else RANDOM).encode()
    with Store(home) as store:
        client = Client("project", store, Redactor({}))
        with contextlib.suppress(RuntimeError):
            _log_every_way(client, text, tmp_path)
        client.close()
        (run,) = store.runs()
        store.label(run.id, "later", text)
    assert telling not in everything_in(home)
    assert REDACTED.encode() in everything_in(home)


def test_a_project_is_not_named_after_a_secret() -> None:
    """It is written with every run, and cannot be replaced: two projects would become one."""
    with pytest.raises(ConfigError, match=r"holds a secret, by its looks: 'lab <redacted>'.*give another"):
        Client(f"lab {KEYS['GitHub']}")
