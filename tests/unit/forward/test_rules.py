"""Rules of forwarding: nothing is reached that no rule allows, and nothing that is not public unless it is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multi.errors import ConfigError
from multi.forward.rules import is_ambiguous, parse_rules, rules_of


def objection(rules: str, address: str, port: int = 80, host: str = "", own: bool = False) -> str:
    return parse_rules(rules).everybody.reasons_against(host or address, port, address, own=own)


@pytest.mark.parametrize(
    ("rules", "address", "host"),
    [
        ("*:80", "93.184.216.34", ""),
        ("*:*", "2606:2800:220:1::1", ""),
        ("example.com:80", "93.184.216.34", "Example.com."),
        ("*.example.com:80", "93.184.216.34", "a.b.example.com"),
        ("localhost:80", "127.0.0.1", ""),
        ("localhost:80", "::1", "localhost"),
        ("10.1.0.0/16:80", "10.1.2.3", "db.internal"),
        ("10.1.2.3:79-81", "10.1.2.3", ""),
        ("[fd00::/8]:80", "fd00::5", ""),
        ("[fe80::/10]:80", "fe80::1%eth0", ""),
        ("169.254.169.254:80", "169.254.169.254", ""),
        ("0.0.0.0/0:80", "93.184.216.34", ""),
        ("[64:ff9b::/96]:80", "64:ff9b::5db8:d822", ""),
        ("listen=8000,127.0.0.1:80", "127.0.0.1", ""),
    ],
)
def test_what_a_rule_allows_is_reached(rules: str, address: str, host: str) -> None:
    assert objection(rules, address, host=host) == ""


@pytest.mark.parametrize(
    ("rules", "address", "host", "why"),
    [
        ("listen=8000", "93.184.216.34", "", "no rule"),
        ("*:443", "93.184.216.34", "", "no rule"),
        ("example.com:80", "93.184.216.34", "evil.example.com", "no rule"),
        ("*.example.com:80", "93.184.216.34", "example.com", "no rule"),
        ("*.example.com:80", "93.184.216.34", "badexample.com", "no rule"),
        ("*.example.com:80", "93.184.216.34", "93.184.216.34%.example.com", "no rule"),
        ("10.1.0.0/16:80", "10.2.0.1", "", "private"),
        ("*:*", "127.0.0.1", "localtest.example", "loopback"),
        ("*:*", "10.0.0.1", "rebound.example", "private"),
        ("rebound.example:80", "169.254.169.254", "rebound.example", "metadata"),
        ("0.0.0.0/0:*", "127.0.0.1", "", "loopback"),
        ("[::/0]:*", "::1", "", "loopback"),
        ("0.0.0.0/0:*", "192.168.1.1", "", "private"),
        ("169.254.0.0/16:80", "169.254.169.254", "", "metadata"),
        ("[fc00::/7]:80", "fd00:ec2::254", "", "metadata"),
        ("*:*", "0.0.0.0", "", "unspecified"),
        ("*:*", "::", "", "unspecified"),
        ("*:*", "224.0.0.1", "", "multicast"),
        ("*:*", "ff02::1", "", "multicast"),
        ("*:*", "255.255.255.255", "", "reserved"),
        ("*:*", "100.64.0.1", "", "carriers"),
        ("*:*", "fe80::1", "", "link-local"),
        ("*:*", "::ffff:127.0.0.1", "", "IPv4-mapped"),
        ("localhost:80", "::ffff:127.0.0.1", "", "IPv4-mapped"),
        ("[::ffff:0:0/96]:80", "::ffff:127.0.0.1", "", "127.0.0.1, which is loopback"),
        ("*:*", "::127.0.0.1", "", "reserved"),
        ("*:*", "64:ff9b::7f00:1", "", "NAT64"),
        ("[64:ff9b::/96]:80", "64:ff9b::7f00:1", "", "127.0.0.1, which is loopback"),
        ("[64:ff9b::/96]:80", "64:ff9b::a9fe:a9fe", "", "metadata"),
        ("*:*", "64:ff9b:1::1", "", "NAT64"),
        ("*:*", "2002:7f00:1::1", "", "6to4"),
        ("*:*", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "", "reserved"),
    ],
)
def test_what_no_rule_names_is_not_reached(rules: str, address: str, host: str, why: str) -> None:
    assert why in objection(rules, address, host=host)


def test_this_machines_own_public_address_has_to_be_named() -> None:
    assert "this machine" in objection("*:*", "93.184.216.34", own=True)
    assert "this machine" in objection("93.184.216.0/24:80", "93.184.216.34", own=True)
    assert objection("93.184.216.34:80", "93.184.216.34", own=True) == ""


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "0x7f.1", "127.1", "017700000001", "0x7f000001", "1.2.3"])
def test_other_spellings_of_addresses_are_recognised(host: str) -> None:
    assert is_ambiguous(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%2", "example.com", "1e100.net", "x.0a"])
def test_names_and_addresses_as_one_writes_them_are_no_other_spellings(host: str) -> None:
    assert not is_ambiguous(host)


@pytest.mark.parametrize(
    ("grant", "granted", "not_granted"),
    [
        ("listen=8080", [8080], [0, 80, 8081]),
        ("listen=8000-8010", [8000, 8010], [0, 7999, 8011]),
        ("listen=*", [0, 1024, 65535], [1, 80, 1023]),
        ("listen=80", [80], [0, 81, 8080]),
        ("*:*", [], [0, 80, 8080]),
    ],
)
def test_ports_to_listen_on_need_a_grant_and_privileged_ones_their_own(
    grant: str, granted: list[int], not_granted: list[int]
) -> None:
    permissions = parse_rules(grant).everybody
    assert [port for port in [*granted, *not_granted] if permissions.may_listen(port)] == granted


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("localhost", "No such file"),
        ("localhost:0", "not a port"),
        ("localhost:70000", "not a port"),
        ("localhost:90-80", "empty"),
        (":80", "not HOST:PORTS"),
        ("10.1.2.3/8:80", "host bits"),
        ("::1:80", "brackets"),
        ("[10.0.0.0/8]:80", "brackets"),
        ("0177.0.0.1:80", "0177.0.0.1"),
        ("exa mple:80", "no host name"),
        ("a.*.com:80", "no host name"),
        ("listen=1-2000", "of their own"),
        ("listen=x:1", "not a port"),
    ],
)
def test_a_wrong_rule_is_an_error_that_says_what_is_wrong(rules: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_rules(rules)


def test_a_file_gives_clients_with_a_key_permissions_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    content = {
        "allow": ["*:443"],
        "keys": {"psk:laptop": {"allow": ["localhost:22"], "listen": ["8080"]}, "cert:sensor": {}},
    }
    file.write_text(json.dumps(content))
    rules = parse_rules(str(file))
    assert rules.of([]).could_reach(443)
    assert rules.of(["psk:other"]).could_reach(443)
    laptop = rules.of(["psk:laptop", "cert:x"])
    assert [laptop.could_reach(22), laptop.could_reach(443), laptop.may_listen(8080)] == [True, False, True]
    assert not rules.of(["cert:sensor"]).could_reach(443)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "object"),
        ({"alow": []}, "did you mean 'allow'"),
        ({"allow": "localhost:22"}, "list"),
        ({"allow": [22]}, "list"),
        ({"keys": []}, "object"),
        ({"keys": {"laptop": {}}}, "psk:NAME or cert:NAME"),
        ({"keys": {"psk:x": {"keys": {}}}}, "unknown key"),
    ],
)
def test_a_wrong_file_is_an_error_that_says_where(content: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        rules_of(content, "rules.json")


def test_a_file_that_is_not_json_or_too_long_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rules"
    file.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        parse_rules(str(file))
    file.write_bytes(b" " * (2 << 20))
    with pytest.raises(ConfigError, match="more than"):
        parse_rules(str(file))
