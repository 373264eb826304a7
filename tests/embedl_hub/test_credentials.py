"""The key to a server: for this user alone, never shown, never sent to another server."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedl_hub import credentials
from embedl_hub.credentials import (
    INSECURE_VARIABLE,
    KEY_VARIABLE,
    URL_VARIABLE,
    Server,
    find_server,
    forget_server,
    keep_server,
)
from embedl_hub.errors import ConfigError
from embedl_hub.tracking import Store, Uplink


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.delenv(INSECURE_VARIABLE, raising=False)
    return tmp_path


def test_a_key_is_kept_for_one_user() -> None:
    """Mode 0600, found again, forgotten on wish."""
    assert find_server() is None
    path = keep_server("https://hub.example.org/", "eh_abc")
    assert path.stat().st_mode & 0o777 == 0o600
    found = find_server()
    assert found == Server("https://hub.example.org", "eh_abc", str(path))
    assert "eh_abc" not in repr(found)
    assert forget_server()
    assert not forget_server()
    assert find_server() is None


def test_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept key is not sent to a server it was not kept for."""
    keep_server("https://hub.example.org", "eh_kept")
    monkeypatch.setenv(URL_VARIABLE, "https://other.example.org")
    assert find_server() == Server("https://other.example.org", None, URL_VARIABLE)
    monkeypatch.setenv(KEY_VARIABLE, "eh_other")
    assert find_server() == Server("https://other.example.org", "eh_other", URL_VARIABLE)
    monkeypatch.delenv(URL_VARIABLE)
    assert find_server() == Server("https://hub.example.org", "eh_other", KEY_VARIABLE)


@pytest.mark.parametrize("key", ["abc", "eh_ a", "eh_\n", "eh_é", "eh_'"])
def test_what_is_no_key_is_refused(key: str) -> None:
    """Without repeating it."""
    with pytest.raises(ConfigError) as caught:
        keep_server("https://hub.example.org", key)
    assert key not in str(caught.value) or key == "abc"
    assert not credentials.credentials_file().exists()


@pytest.mark.parametrize("url", ["hub", "ftp://hub", "https://", "https://me:pw@hub", "https://hub?x=1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match="address"):
        keep_server(url, "eh_abc")


@pytest.mark.parametrize("text", ["url = 3", "rubbish", "url = 'https://h'"])
def test_a_damaged_file_is_said(text: str) -> None:
    """With the way out."""
    path = credentials.credentials_file()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ConfigError, match="embedl-hub auth"):
        find_server()


PLAIN = ("http://hub.example.org", "http://192.168.1.5:8410", "http://[2001:db8::1]", "http://127.0.0.1.example.org")


@pytest.mark.parametrize("url", PLAIN)
def test_a_key_is_not_sent_in_plain_text(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither kept for it, nor found in the environment, nor by whoever makes a server himself; unless it is meant."""
    with pytest.raises(ConfigError, match="plain text"):
        keep_server(url, "eh_abc")
    assert not credentials.credentials_file().exists()
    monkeypatch.setenv(URL_VARIABLE, url)
    monkeypatch.setenv(KEY_VARIABLE, "eh_abc")
    with pytest.raises(ConfigError, match="--insecure"):
        find_server()
    with Store(tmp_path / "home") as store, pytest.raises(ConfigError, match="plain text"):
        Uplink(store, Server(url, "eh_abc"))
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    assert find_server() == Server(url, "eh_abc", URL_VARIABLE, insecure=True)
    monkeypatch.delenv(INSECURE_VARIABLE)
    keep_server(url, "eh_abc", insecure=True)
    assert find_server() == Server(url, "eh_abc", URL_VARIABLE, insecure=True)
    # What was allowed for one server is not for another.
    monkeypatch.setenv(URL_VARIABLE, "http://other.example.org")
    with pytest.raises(ConfigError, match="plain text"):
        find_server()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8410", "http://localhost", "http://[::1]:80", "https://10.0.0.1"])
def test_this_machine_and_tls_need_no_word(url: str) -> None:
    keep_server(url, "eh_abc")
    assert find_server() is not None
