"""How to reach a board: checked when it is said."""

from pathlib import Path
from typing import Any

import pytest

from embedl_hub.core.device import SSHConfig
from embedl_hub.errors import ConfigError


def option(config: SSHConfig, name: str) -> str | None:
    """Return the value that ssh is given for one of its settings."""
    found = [word.partition("=")[2] for word in config.options() if word.startswith(f"{name}=")]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"host": ""}, "SSHConfig.host is ''"),
        ({"host": "-oProxyCommand=touch x"}, "SSHConfig.host is '-oProxyCommand=touch x'; it must be a plain name"),
        ({"host": "a b"}, "SSHConfig.host"),
        ({"host": "a\nb"}, "SSHConfig.host"),
        ({"username": "-x"}, "SSHConfig.username is '-x'"),
        ({"username": "a'b"}, "SSHConfig.username"),
        ({"jump_host": "-J"}, "SSHConfig.jump_host"),
        ({"port": 0}, "SSHConfig.port is 0; it must be a number between 1 and 65535"),
        ({"port": 65536}, "SSHConfig.port is 65536"),
        ({"host_key": "no"}, "SSHConfig.host_key is 'no'; known: 'strict', 'accept_new', 'off'"),
        ({"connect_timeout_s": 0}, "SSHConfig.connect_timeout_s is 0; it must be a positive number"),
        ({"command_timeout_s": -1.0}, "SSHConfig.command_timeout_s is -1.0"),
        ({"keep_alive_s": 0}, "SSHConfig.keep_alive_s is 0"),
    ],
)
def test_a_wrong_setting_is_refused(changes: dict[str, Any], says: str) -> None:
    """The message has the field, the value and what would be right."""
    with pytest.raises(ConfigError) as caught:
        SSHConfig(**{"host": "board", **changes})

    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (SSHConfig("board"), "board"),
        (SSHConfig("board", username="pi"), "pi@board"),
        (SSHConfig("::1", username="pi", port=2222), "pi@::1:2222"),
    ],
)
def test_a_place_reads_as_a_user_would_write_it(config: SSHConfig, place: str) -> None:
    """Messages name the board by it."""
    assert config.place == place


def test_host_keys_are_verified_unless_asked_otherwise() -> None:
    """The default is strict; only 'off' gives up checking, and then nothing is remembered either."""
    assert option(SSHConfig("board"), "StrictHostKeyChecking") == "yes"
    assert option(SSHConfig("board", host_key="accept_new"), "StrictHostKeyChecking") == "accept-new"
    off = SSHConfig("board", host_key="off", known_hosts="/known")
    assert option(off, "StrictHostKeyChecking") == "no"
    assert option(off, "UserKnownHostsFile") == "/dev/null"


def test_what_is_not_given_is_left_to_the_users_configuration() -> None:
    """No port, user, key or jump host of ours overrides what the user's ssh configuration says."""
    words = SSHConfig("board").options()

    assert not {"-p", "-l", "-i", "-J", "-F"} & set(words)
    assert option(SSHConfig("board"), "UserKnownHostsFile") is None


def test_what_is_given_reaches_ssh(tmp_path: Path) -> None:
    """Each field has its ssh argument; paths may be paths."""
    key, settings = tmp_path / "key", tmp_path / "config"
    key.touch()
    settings.touch()
    config = SSHConfig("board", username="pi", port=2222, identity_file=key, jump_host="gate:22", config_file=settings)
    words = config.options()

    for flag, value in (("-l", "pi"), ("-p", "2222"), ("-i", str(key)), ("-J", "gate:22"), ("-F", str(settings))):
        assert words[words.index(flag) + 1] == value


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "pi@board"}, r"give the parts: SSHConfig\(host=..., username=..., port=...\)"),
        ({"host": "board:2222"}, "give the parts"),
        ({"host": None}, "SSHConfig.host is None"),
        ({"host": "board", "port": "22"}, "SSHConfig.port is '22'; it must be a number"),
        ({"host": "board", "connect_timeout_s": "3"}, "SSHConfig.connect_timeout_s is '3'"),
        ({"host": "board", "identity_file": "/no/key"}, "SSHConfig.identity_file is '/no/key'; there is no such file"),
        ({"host": "board", "config_file": "/no/config"}, "SSHConfig.config_file is '/no/config'"),
    ],
)
def test_an_easy_slip_is_named(settings: dict[str, Any], words: str) -> None:
    """When the config is made, not when ssh is asked."""
    with pytest.raises(ConfigError, match=words):
        SSHConfig(**settings)


def test_an_ipv6_address_is_a_host() -> None:
    """It has colons of its own."""
    assert SSHConfig("fe80::1%eth0").place == "fe80::1%eth0"


def test_interactive_settings_do_not_reach_a_board() -> None:
    """Passwords are never asked for, and no terminal, forwarding or local command of the user's gets in the way."""
    config = SSHConfig("board", connect_timeout_s=0.2, keep_alive_s=7)

    assert option(config, "BatchMode") == "yes"
    assert option(config, "RequestTTY") == "no"
    assert option(config, "RemoteCommand") == "none"
    assert option(config, "PermitLocalCommand") == "no"
    assert option(config, "ClearAllForwardings") == "yes"
    assert option(config, "ConnectTimeout") == "1"
    assert option(config, "ServerAliveInterval") == "7"
