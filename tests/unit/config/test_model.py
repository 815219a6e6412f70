"""What a configuration means, and which values are refused with which words."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import traceback
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, TypeAdapter
from pydantic.fields import FieldInfo

from multi.config import Config, json_schema, load_config, model
from multi.errors import ConfigError
from multi.schedulers import create_scheduler, register_scheduler, scheduler_names
from multi.schedulers.base import Scheduler
from multi.transports import TransportSection, base, transport_names
from multi.transports.mptcp.settings import MptcpSettings
from multi.transports.quic.settings import QuicSettings
from multi.transports.settings import Range, Section
from multi.transports.tcp.settings import TcpSettings
from multi.types import Role

CLIENT: dict[str, Any] = {"connection_priority": [["tcp", "ipv4", "eth0"]], "remote_host": "server.example"}
SERVER: dict[str, Any] = {"listen": {}}
HUGE = 10**30  # `test_config_loading` has longer ones; pytest cannot print those
NAMES = ", ".join(f'"{name}"' for name in transport_names() if base.transport_type(name).shipped)
CERTIFICATE = {"cert": "server.pem", "key": "server.key"}


def client(**sections: object) -> Config:
    return load_config({**CLIENT, **sections})


def entry(**fields: object) -> Config:
    return client(connection_priority=[{"transport": "tcp", "ip": "any", "interface": "eth0", **fields}])


def refused(config: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(config)
    return caught.value


def refused_client(**sections: object) -> ConfigError:
    return refused({**CLIENT, **sections})


def refused_entry(**fields: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        entry(**fields)
    return caught.value


# Entries


def test_a_triple_and_an_object_mean_the_same() -> None:
    triple = client(connection_priority=[["mptcp", "ipv6", ["eth", "wifi"]]])
    as_object = client(connection_priority=[{"transport": "mptcp", "ip": "ipv6", "interface": ["eth", "wifi"]}])
    assert triple.connection_priority == as_object.connection_priority


def test_an_entry_has_the_documented_defaults() -> None:
    only = client().connection_priority[0]
    assert (only.transport, only.ip, only.interface) == ("tcp", "ipv4", ("eth0",))
    assert (only.role, only.weight, only.cost, only.max_rate) == (Role.ACTIVE, 1.0, 0.0, 0.0)
    assert (only.group, only.remote_host, only.remote_port) == ("", None, None)


def test_rates_are_given_in_megabit_and_used_in_bytes_per_second() -> None:
    assert entry(max_rate_mbps=8).connection_priority[0].max_rate == 1_000_000


def test_roles_become_roles() -> None:
    assert entry(role="backup").connection_priority[0].role is Role.BACKUP
    assert entry(role="primary").connection_priority[0].role is Role.ACTIVE


def test_an_entry_may_have_its_own_remote() -> None:
    config = load_config(
        {
            "connection_priority": [
                ["tcp", "ipv4", "eth0"],
                {
                    "transport": "tcp",
                    "ip": "any",
                    "interface": "eth0",
                    "remote_host": "::1",
                    "remote_port": 443,
                },
            ],
            "remote_host": "server.example",
        }
    )
    first, second = config.connection_priority
    assert config.remote_of(first) == ("server.example", 7788)
    assert config.remote_of(second) == ("::1", 443)


def test_the_top_level_remote_is_not_needed_when_every_entry_has_its_own() -> None:
    own = {"transport": "tcp", "ip": "any", "interface": "eth0", "remote_host": "::1"}
    load_config({"connection_priority": [own]})
    error = refused({"connection_priority": [own, ["tcp", "any", "eth0"]]})
    assert error.key_path == "remote_host"


@pytest.mark.parametrize("interface", ["eth", "any", "wlan0", "etha", "wifi0", "lo", "127.0.0.1", "fe80::1%eth0"])
def test_kinds_names_and_addresses_are_interfaces(interface: str) -> None:
    config = client(connection_priority=[["tcp", "any", interface]])
    assert config.connection_priority[0].interface == (interface,)


@pytest.mark.parametrize(
    "interface",
    [
        "",
        [],
        "10.0.0.300",
        "10.0.0.1/24",
        "eth0:1",
        "0.0.0.0",
        "::",
        "a\nb",
        5,
        None,
        [["eth"]],
    ],
)
def test_what_cannot_be_an_interface_is_refused(interface: object) -> None:
    error = refused_client(connection_priority=[["tcp", "any", interface]])
    assert error.key_path.startswith("connection_priority[0][2]")
    assert "allowed: " in str(error)


@pytest.mark.parametrize("misspelt", ["celular", "wfi", "cellullar", "Wifi"])
def test_a_misspelt_kind_is_refused_unless_it_is_listed_as_an_interface(misspelt: str) -> None:
    priority = [["tcp", "any", misspelt]]
    error = refused_client(connection_priority=priority)
    assert error.key_path == "connection_priority[0][2]"
    assert "did you mean" in str(error)
    client(connection_priority=priority, interfaces={"eth": [misspelt]})


def test_an_unknown_transport_is_refused_with_a_suggestion() -> None:
    error = refused_client(connection_priority=[["tpc", "ipv4", "eth0"]])
    assert error.key_path == "connection_priority[0][0]"
    assert f'found "tpc"; allowed: {NAMES}' in str(error)
    assert 'did you mean "tcp"?' in str(error)


@pytest.mark.parametrize("found", [5, None, True, "", ["tcp"]])
def test_something_else_than_the_name_of_a_transport_is_told_which_names_there_are(found: object) -> None:
    assert f"allowed: {NAMES}" in str(refused_client(connection_priority=[[found, "ipv4", "eth0"]]))
    assert f"allowed: {NAMES}" in str(refused({"listen": {"transports": [found]}}))


class PigeonSettings(TransportSection):
    """Birds."""

    altitude: Annotated[int, Range(1, 6000)] = 100
    """Metres above the ground. Default 100: above the trees."""
    loft: str = Field(default="", max_length=8)
    """Where they return to. Default empty: here."""


@pytest.fixture
def pigeon(monkeypatch: pytest.MonkeyPatch) -> str:
    """A transport registered by an application; it is forgotten after the test."""
    monkeypatch.setattr(base, "_types", dict(base._types))

    @base.register_transport("pigeon", settings=PigeonSettings)
    def factory() -> base.Transport:
        raise NotImplementedError

    return "pigeon"


NULLABLE = [
    pytest.param(field, id=f"{section.__name__}.{key}")
    for section in vars(model).values()
    if isinstance(section, type) and issubclass(section, Section)
    for key, field in section.model_fields.items()
    if field.default is None
]


@pytest.mark.parametrize("field", NULLABLE)
def test_null_may_be_said_where_it_is_what_not_given_means(field: FieldInfo) -> None:
    adapter: TypeAdapter[object] = TypeAdapter(field.rebuild_annotation())
    assert adapter.validate_python(None) is None


def test_a_registered_transport_is_accepted(pigeon: str) -> None:
    assert client(connection_priority=[[pigeon, "any", "any"]]).connection_priority[0].transport == pigeon
    load_config({"listen": {"transports": ["tcp", pigeon]}})
    assert 'did you mean "pigeon"?' in str(refused_client(connection_priority=[["pidgeon", "any", "any"]]))


def test_a_registered_transport_has_its_own_section(pigeon: str) -> None:
    config = client(pigeon_config={"altitude": 300, "idle_timeout": 5})
    assert config.section_of(pigeon) == PigeonSettings(altitude=300, idle_timeout=5)
    assert config.transport_settings().section(pigeon, PigeonSettings).altitude == 300
    assert client().section_of(pigeon).idle_timeout == 60.0
    dumped = config.model_dump(mode="json", exclude_unset=True)
    assert dumped["pigeon_config"] == {"altitude": 300, "idle_timeout": 5}
    assert load_config(dumped) == config
    section = json_schema()["$defs"]["PigeonSettings"]["properties"]
    assert (section["altitude"]["minimum"], section["altitude"]["maximum"]) == (1, 6000)
    assert json_schema()["properties"]["pigeon_config"]["$ref"] == "#/$defs/PigeonSettings"


def test_a_configuration_with_a_section_of_a_registered_transport_can_be_pickled(pigeon: str) -> None:
    config = client(pigeon_config={"altitude": 300}).located_in(Path("/conf"))
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert copy.section_of(pigeon) == PigeonSettings(altitude=300)
    assert (copy.resolve(""), copy.model_fields_set) == (Path("/conf"), config.model_fields_set)
    assert isinstance(copy, Config)


@pytest.mark.parametrize(
    ("section", "key_path", "allowed"),
    [
        ({"altitude": 0}, "pigeon_config.altitude", "a whole number from 1 to 6000"),
        ({"altitud": 1}, "pigeon_config.altitud", 'did you mean "altitude"?'),
        ({"loft": "far too long"}, "pigeon_config.loft", "text of at most 8 characters"),
        ([], "pigeon_config", "an object with the keys idle_timeout, altitude, loft"),
    ],
)
def test_the_section_of_a_registered_transport_is_checked_like_the_others(
    pigeon: str, section: object, key_path: str, allowed: str
) -> None:
    error = refused_client(pigeon_config=section)
    assert error.key_path == key_path
    assert allowed in str(error)


def test_a_configuration_loaded_before_a_transport_was_registered_has_its_defaults(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    earlier = client()
    pigeon = request.getfixturevalue("pigeon")
    assert earlier.section_of(pigeon) == PigeonSettings()
    assert earlier.located_in(Path("/conf")).transport_settings().section(pigeon, PigeonSettings) == PigeonSettings()


@pytest.mark.parametrize("name", ["", "Pigeon", "_pigeon", "a-b", "p" * 33, "tcp", "quic"])
def test_a_name_that_no_transport_may_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):

        @base.register_transport(name)
        def factory() -> base.Transport:
            raise NotImplementedError


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": -1.5}, "weight"),
        ({"weight": HUGE}, "weight"),
        ({"weight": True}, "weight"),
        ({"cost": -1}, "cost"),
        ({"cost": math.inf}, "cost"),
        ({"max_rate_mbps": -1}, "max_rate_mbps"),
        ({"max_rate_mbps": math.nan}, "max_rate_mbps"),
        ({"max_rate_mbps": 1e-9}, "max_rate_mbps"),
        ({"max_rate_mbps": 1e300}, "max_rate_mbps"),
        ({"max_rate_mbps": "10"}, "max_rate_mbps"),
        ({"role": "bakcup"}, "role"),
        ({"role": 1}, "role"),
        ({"budget": 5}, "budget"),
        ({"budget": {"per": "month"}}, "budget.mb"),
        ({"budget": {"mb": 0}}, "budget.mb"),
        ({"budget": {"mb": 5, "reset_day": 32}}, "budget.reset_day"),
        ({"budget": {"mb": 5, "then": "bakup"}}, "budget.then"),
        ({"budget": {"mb": 5, "then": {}}}, "budget.then"),
        ({"budget": {"mb": 5, "then": {"max_rate": 1}}}, "budget.then.max_rate"),
        ({"budget": {"mb": 5, "then": {"max_rate_mbps": 0}}}, "budget.then.max_rate_mbps"),
        ({"role": None}, "role"),
        ({"group": 1}, "group"),
        ({"group": "a\0"}, "group"),
        ({"remote_port": 0}, "remote_port"),
        ({"remote_host": ""}, "remote_host"),
        ({"ip": "ipv5"}, "ip"),
        ({"interfaces": ["eth0"]}, "interfaces"),
    ],
)
def test_a_wrong_field_of_an_entry_is_named(fields: dict[str, object], key: str) -> None:
    error = refused_entry(**fields)
    assert error.key_path == f"connection_priority[0].{key}"
    assert "allowed: " in str(error)


def test_a_wrong_end_of_a_budget_is_told_all_that_may_stand_there_beside_other_mistakes() -> None:
    error = refused_entry(budget={"mb": -5, "then": "bakup"})
    places = [line.partition(": ")[0] for line in str(error).splitlines()]
    assert places == ["connection_priority[0].budget.mb", "connection_priority[0].budget.then"]
    assert 'allowed: "backup", "never", or an object with role or max_rate_mbps; did you mean "backup"?' in str(error)


@pytest.mark.parametrize("key", ["transport", "ip", "interface"])
def test_an_entry_object_needs_the_fields_of_the_triple(key: str) -> None:
    fields = {"transport": "tcp", "ip": "any", "interface": "any"}
    del fields[key]
    error = refused_client(connection_priority=[fields])
    assert error.key_path == f"connection_priority[0].{key}"
    assert "missing" in str(error)


@pytest.mark.parametrize("wrong", [["tcp", "ipv4"], ["tcp", "ipv4", "eth0", "active"], [], 7, "tcp", None])
def test_what_is_neither_triple_nor_object_is_no_entry(wrong: object) -> None:
    error = refused_client(connection_priority=[["tcp", "ipv4", "eth0"], wrong])
    assert error.key_path == "connection_priority[1]"
    assert str(error).count("\n") == 0


# Client or server


def test_listen_makes_a_server_and_connection_priority_a_client() -> None:
    assert not client().is_server
    assert not client().is_server
    assert load_config(SERVER).is_server


def test_listen_and_connection_priority_together_are_refused() -> None:
    assert refused_client(listen={}).key_path == "listen"


def test_neither_listen_nor_connection_priority_is_refused() -> None:
    assert "neither" in str(refused({"remote_host": "a"}))


def test_an_empty_connection_priority_is_refused() -> None:
    error = refused_client(connection_priority=[])
    assert error.key_path == "connection_priority"
    assert "found an empty list" in str(error)


def test_a_client_needs_a_remote_host() -> None:
    assert refused({"connection_priority": CLIENT["connection_priority"]}).key_path == "remote_host"


def test_a_server_without_certificate_offers_no_quic_by_default() -> None:
    plain, certified = load_config(SERVER), load_config({**SERVER, "ssl_config": CERTIFICATE})
    assert plain.listen is not None
    assert plain.listen.transports == ("tcp", "mptcp")
    assert certified.listen is not None
    assert certified.listen.transports == ("tcp", "mptcp", "quic")


def test_a_server_whose_engine_cannot_ask_for_certificates_must_not_be_told_to() -> None:
    ssl = {"cert": "c.pem", "key": "k.pem", "client_ca": "a.pem"}
    config = {"listen": {}, "ssl_config": ssl, "quic_config": {"engine": "qh3"}}
    assert refused(config).key_path == "quic_config.engine"
    assert load_config({**config, "listen": {"transports": ["tcp"]}}).section_of("quic") == QuicSettings(engine="qh3")


def test_a_transport_listed_twice_counts_once() -> None:
    listen = load_config({"listen": {"transports": ["mptcp", "tcp", "mptcp"]}}).listen
    assert listen is not None
    assert listen.transports == ("mptcp", "tcp")


def test_a_server_asked_for_quic_needs_a_certificate() -> None:
    assert refused({"listen": {"transports": ["quic"]}}).key_path == "ssl_config"


@pytest.mark.parametrize(("present", "missing"), [("cert", "key"), ("key", "cert")])
def test_a_server_needs_certificate_and_key(present: str, missing: str) -> None:
    assert refused({**SERVER, "ssl_config": {present: "x.pem"}}).key_path == f"ssl_config.{missing}"


@pytest.mark.parametrize(
    ("listen", "key_path"),
    [
        ({"port": 70000}, "listen.port"),
        ({"port": -1}, "listen.port"),
        ({"port": "7788"}, "listen.port"),
        ({"host": ""}, "listen.host"),
        ({"host": "a b"}, "listen.host"),
        ({"transports": []}, "listen.transports"),
        ({"transports": ["tcp", "sctp"]}, "listen.transports[1]"),
        ({"transports": "tcp"}, "listen.transports"),
        ({"prot": 1}, "listen.prot"),
        ([], "listen"),
    ],
)
def test_a_wrong_listen_is_named(listen: object, key_path: str) -> None:
    assert refused({"listen": listen}).key_path == key_path


def test_a_server_may_ask_the_system_for_a_port() -> None:
    config = load_config({"listen": {"port": 0}})
    assert config.listen is not None
    assert config.listen.port == 0


# Top level


@pytest.mark.parametrize("port", [0, 70000, -1, "7788", True, 7788.0, None, HUGE])
def test_a_wrong_port_is_refused_with_the_range(port: object) -> None:
    error = refused_client(remote_port=port)
    assert error.key_path == "remote_port"
    assert "allowed: a whole number from 1 to 65535" in str(error)


@pytest.mark.parametrize("host", ["server.example", "localhost", "192.0.2.7", "2001:db8::7", "fe80::1%eth0"])
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert client(remote_host=host).remote_host == host


@pytest.mark.parametrize(
    "host", ["", "http://server", "server:80", "[::1]", "[::1]:80", "1.2.3.400", "a b", "::zz", 5, "a" * 300]
)
def test_what_is_no_host_is_refused(host: object) -> None:
    error = refused_client(remote_host=host)
    assert error.key_path == "remote_host"
    assert "allowed: " in str(error)


def test_a_misspelt_key_is_refused_with_a_suggestion() -> None:
    error = refused_client(remote_prt=1)
    assert error.key_path == "remote_prt"
    assert 'did you mean "remote_port"?' in str(error)


def test_a_misspelt_key_in_a_section_is_refused_with_the_keys_of_that_section() -> None:
    error = refused_client(quic_config={"idle_timout": 5})
    assert error.key_path == "quic_config.idle_timout"
    assert 'did you mean "idle_timeout"?' in str(error)
    assert "max_datagram_size" in str(error)


def test_a_key_that_resembles_nothing_gets_no_suggestion() -> None:
    error = refused_client(zzzzzzzz=1, **{"x" * 100_000: 1})
    assert "did you mean" not in str(error)
    assert len(str(error)) < 2000


def test_all_mistakes_are_reported_one_per_line() -> None:
    error = refused_client(remote_port=0, multi_config={"connect": "sequential", "wait": 3}, protect="sometimes")
    assert error.key_path == "remote_port"
    lines = str(error).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "remote_port",
        "multi_config.connect",
        "multi_config.wait",
        "protect",
    ]
    assert all("allowed: " in line for line in lines)


def test_a_flood_of_mistakes_is_cut_off() -> None:
    error = refused_client(**{f"key{number}": 1 for number in range(1000)})
    assert len(str(error).splitlines()) <= 102
    assert "and 900 more" in str(error)


@pytest.mark.parametrize("section", ["multi_config", "tcp_config", "quic_config", "limits", "interfaces"])
@pytest.mark.parametrize("value", [None, 3, "x", [], True])
def test_a_section_must_be_an_object(section: str, value: object) -> None:
    error = refused_client(**{section: value})
    assert error.key_path == section
    assert "allowed: an object with the keys" in str(error)


def test_an_interface_can_have_one_kind_only() -> None:
    assert refused_client(interfaces={"eth": ["a0"], "wifi": ["a0"]}).key_path == "interfaces.wifi"
    assert refused_client(interfaces={"eth": ["a0", "a0"]}).key_path == "interfaces.eth"


def test_an_unknown_kind_is_refused_with_a_suggestion() -> None:
    error = refused_client(interfaces={"celular": ["wwan0"]})
    assert error.key_path == "interfaces.celular"
    assert 'did you mean "cellular"?' in str(error)


# Session ID


def test_a_random_session_id_comes_from_the_given_entropy() -> None:
    assert client().session_id_bytes(lambda size: b"\x05" * size) == b"\x05" * 16


def test_hexadecimal_digits_are_the_session_id() -> None:
    config = client(session_id="00112233445566778899AABBccddeeff")
    assert config.session_id_bytes(bytes) == bytes.fromhex("00112233445566778899aabbccddeeff")


@pytest.mark.parametrize("text", ["my session", "0011", "g" * 32, "Übung"])
def test_any_other_text_is_hashed_to_the_session_id(text: str) -> None:
    assert client(session_id=text).session_id_bytes(bytes) == hashlib.sha256(text.encode()).digest()[:16]


@pytest.mark.parametrize("value", ["", 5, None, "\ud800", "a\0b", "x" * 1000])
def test_what_is_no_session_id_is_refused(value: object) -> None:
    assert refused_client(session_id=value).key_path in ("session_id", "")


# multi_config


def test_multi_config_has_the_documented_defaults() -> None:
    section = client().multi_config
    assert (section.connect, section.wait, section.open_timeout) == ("stag", "first", 10.0)
    assert (section.mode, section.resume_timeout, section.reinject) == ("aggregate", 60.0, "full")
    assert (section.scheduler.name, section.scheduler.parameters) == ("adaptive", {})


def test_a_scheduler_may_be_a_name_or_an_object_with_parameters() -> None:
    assert client(multi_config={"scheduler": "RR"}).multi_config.scheduler.name == "RR"
    scheduler = client(multi_config={"scheduler": {"name": "top_throughput", "n": 2}}).multi_config.scheduler
    assert (scheduler.name, scheduler.parameters) == ("top_throughput", {"n": 2.0})


@pytest.mark.parametrize("name", scheduler_names(aliases=True))
def test_every_scheduler_is_accepted_and_exists(name: str) -> None:
    assert client(multi_config={"scheduler": name}).multi_config.scheduler.name == name
    assert create_scheduler(name, {})


@pytest.mark.parametrize(("name", "meant"), [("BLETS", "BLEST"), ("rr", "RR"), ("lowest_latncy", "lowest_latency")])
def test_an_unknown_scheduler_is_refused_with_a_suggestion(name: str, meant: str) -> None:
    error = refused_client(multi_config={"scheduler": name})
    assert error.key_path == "multi_config.scheduler"
    assert f'found "{name}"' in str(error)
    assert f'did you mean "{meant}"?' in str(error)
    in_object = refused_client(multi_config={"scheduler": {"name": name}})
    assert in_object.key_path == "multi_config.scheduler.name"


def test_a_registered_scheduler_is_accepted() -> None:
    @register_scheduler("test_config_always_first")
    def factory(steps: float = 1.0) -> Scheduler:
        return create_scheduler("RR", {})

    spec = {"name": "test_config_always_first", "steps": 3}
    assert client(multi_config={"scheduler": spec}).multi_config.scheduler.parameters == {"steps": 3.0}


def test_a_scheduler_class_is_named_without_importing_it() -> None:
    spec = {"name": "no.such.package:Scheduler", "n": 1}
    assert client(multi_config={"scheduler": spec}).multi_config.scheduler.name == "no.such.package:Scheduler"


@pytest.mark.parametrize(
    ("scheduler", "key_path"),
    [
        ({"name": "top_throughput", "m": 2}, "multi_config.scheduler.m"),
        ({"name": "top_throughput", "n": "2"}, "multi_config.scheduler.n"),
        ({"name": "top_throughput", "n": math.nan}, "multi_config.scheduler.n"),
        ({"name": "top_throughput", "n": True}, "multi_config.scheduler.n"),
        ({"name": "top_throughput", "n": -1}, "multi_config.scheduler.n"),
        ({"name": "adaptive", "not a name": 1}, "multi_config.scheduler"),
        ({"name": "adaptive", **{f"p{n}": 1 for n in range(20)}}, "multi_config.scheduler"),
        ({"n": 2}, "multi_config.scheduler.name"),
        ({}, "multi_config.scheduler.name"),
        ("", "multi_config.scheduler"),
        ("a:b:c", "multi_config.scheduler"),
        (5, "multi_config.scheduler"),
        (["RR"], "multi_config.scheduler"),
        (None, "multi_config.scheduler"),
    ],
)
def test_a_wrong_scheduler_is_named(scheduler: object, key_path: str) -> None:
    assert refused_client(multi_config={"scheduler": scheduler}).key_path == key_path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connect", "sequential"),
        ("wait", "none"),
        ("mode", "switching"),
        ("reinject", True),
        ("open_timeout", 0),
        ("open_timeout", "10"),
        ("open_timeout", math.inf),
        ("resume_timeout", -1),
        ("resume_timeout", 1e18),
    ],
)
def test_a_wrong_field_of_multi_config_is_named(key: str, value: object) -> None:
    error = refused_client(multi_config={key: value})
    assert error.key_path == f"multi_config.{key}"
    assert "allowed: " in str(error)


def test_a_server_knows_which_fields_of_multi_config_it_set_itself() -> None:
    config = load_config({**SERVER, "multi_config": {"mode": "switch"}})
    assert config.multi_config.model_fields_set == {"mode"}


# Transports


def test_transport_settings_carry_the_sections() -> None:
    settings = client(
        tcp_config={"nagle": True, "idle_timeout": 10, "congestion": "cubic"},
        mptcp_config={"idle_timeout": 7, "scheduler": "RR"},
        quic_config={"idle_timeout": 5, "congestion": "reno", "max_datagram_size": 1200, "engine": "aioquic"},
    ).transport_settings()
    tcp, mptcp = settings.section("tcp", TcpSettings), settings.section("mptcp", MptcpSettings)
    quic = settings.section("quic", QuicSettings)
    assert (tcp.nagle, tcp.idle_timeout, tcp.congestion) == (True, 10.0, "cubic")
    assert (mptcp.nagle, mptcp.idle_timeout, mptcp.scheduler) == (False, 7.0, "RR")
    assert (quic.idle_timeout, quic.congestion, quic.max_datagram_size) == (5.0, "reno", 1200)
    assert (quic.engine, quic.retry) == ("aioquic", False)
    other = client(quic_config={"engine": "qh3", "retry": True}).transport_settings().section("quic", QuicSettings)
    assert (other.engine, other.retry) == ("qh3", True)
    assert settings.tls is None


def test_every_shipped_transport_has_its_section() -> None:
    for name in transport_names():
        assert type(client().section_of(name)) is base.transport_type(name).settings
        assert f"{name}_config" in type(client()).model_fields


def test_idle_timeouts_can_be_looked_up_by_transport() -> None:
    config = client(tcp_config={"idle_timeout": 0}, quic_config={"idle_timeout": 5})
    assert [config.section_of(name).idle_timeout for name in ("tcp", "quic", "mptcp")] == [0.0, 5.0, 60.0]


@pytest.mark.parametrize(
    ("section", "value", "key_path"),
    [
        ("tcp_config", {"nagle": 0}, "tcp_config.nagle"),
        ("tcp_config", {"nagle": "false"}, "tcp_config.nagle"),
        ("tcp_config", {"idle_timeout": -1}, "tcp_config.idle_timeout"),
        ("tcp_config", {"congestion": "a b"}, "tcp_config.congestion"),
        ("tcp_config", {"scheduler": "RR"}, "tcp_config.scheduler"),
        ("mptcp_config", {"scheduler": 1}, "mptcp_config.scheduler"),
        ("quic_config", {"idle_timeout": 0}, "quic_config.idle_timeout"),
        ("quic_config", {"congestion": "bbr"}, "quic_config.congestion"),
        ("quic_config", {"max_datagram_size": 1000}, "quic_config.max_datagram_size"),
        ("quic_config", {"max_datagram_size": 1400.0}, "quic_config.max_datagram_size"),
        ("quic_config", {"engine": "quiche"}, "quic_config.engine"),
        ("quic_config", {"retry": 1}, "quic_config.retry"),
        ("quic_config", {"engine": "qh3", "congestion": "reno"}, "quic_config.congestion"),
        ("wifi_config", {"power_savings": "off"}, "wifi_config.power_savings"),
        ("auth", {}, "auth.psk_file"),
        ("auth", {"psk_file": ""}, "auth.psk_file"),
        ("auth", {"psk_file": "a\0b"}, "auth.psk_file"),
        ("auth", {"psk_file": "a", "psk_id": "ü" * 33}, "auth.psk_id"),
        ("auth", {"psk_file": "a", "psk_env": "A"}, "auth.psk_env"),
        ("auth", {"psk_env": "1 A"}, "auth.psk_env"),
        ("ssl_config", {"pin": ["sha1/AAAA"]}, "ssl_config.pin[0]"),
        ("ssl_config", {"pin": ["sha256/" + "A" * 42 + "=="]}, "ssl_config.pin[0]"),
        ("ssl_config", {"pin": ["sha256/" + "A" * 42 + "B="]}, "ssl_config.pin[0]"),
        ("ssl_config", {"pin": "sha256/" + "A" * 43 + "="}, "ssl_config.pin"),
        ("limits", {"max_sessions": 0}, "limits.max_sessions"),
        ("limits", {"max_streams": 10**30}, "limits.max_streams"),
        ("limits", {"max_stream_window": 1000}, "limits.max_stream_window"),
        ("limits", {"handshake_timeout": math.nan}, "limits.handshake_timeout"),
        ("protect", "sometimes", "protect"),
        ("manage_routes", 1, "manage_routes"),
    ],
)
def test_a_wrong_field_of_a_section_is_named(section: str, value: object, key_path: str) -> None:
    error = refused_client(**{section: value})
    assert error.key_path == key_path
    assert "allowed: " in str(error)


def test_limits_have_the_documented_defaults() -> None:
    assert client().limits.model_dump() == {
        "max_sessions": 10_000,
        "max_sessions_per_source": 2500,
        "max_unauthenticated": 4096,
        "max_unauthenticated_per_source": 1024,
        "handshake_timeout": 5.0,
        "segment_timeout": 30.0,
        "max_connections_per_session": 8,
        "max_pending_joins": 16,
        "max_detached_sessions": 1000,
        "max_streams": 128,
        "max_stream_window": 16 << 20,
        "max_session_window": 32 << 20,
        "max_send_buffer": 16 << 20,
        "max_memory": 1 << 30,
    }


SECRET = "00112233445566778899aabbccddeeff"


@pytest.mark.parametrize("key", ["psk_env", "psk_file"])
@pytest.mark.parametrize(
    "mistake", [f"alice:{SECRET}", f"alice:{SECRET},bob:{SECRET}", {"alice": SECRET}, [SECRET], f"{SECRET}\n"]
)
def test_a_key_in_the_wrong_place_is_repeated_nowhere(key: str, mistake: object) -> None:
    error = refused_client(auth={key: mistake})
    assert error.key_path == f"auth.{key}"
    assert SECRET[:8] not in "".join(traceback.format_exception(error)) + repr(error)


def test_pins_of_clients_need_certificates_to_verify_them_with() -> None:
    ssl = {"cert": "c.pem", "key": "k.pem", "pin": ["sha256/" + "A" * 43 + "="]}
    with pytest.raises(ConfigError, match=r"ssl_config\.client_ca: missing"):
        Config(listen={}, ssl_config=ssl)
    tls = Config(listen={}, ssl_config={**ssl, "client_ca": "ca.pem"}).transport_settings().tls
    assert tls is not None
    assert tls.pins == tuple(ssl["pin"])


def test_a_pin_makes_up_for_a_missing_verification() -> None:
    pinned = client(ssl_config={"verify": False, "pin": ["sha256/" + "A" * 43 + "="]})
    assert not [warning for warning in pinned.warnings() if "verif" in warning]
    assert [warning for warning in client(ssl_config={"verify": False}).warnings() if "not verified" in warning]


# Certificates


def tls(config: Config) -> base.TlsSettings:
    settings = config.located_in(Path("/conf")).transport_settings().tls
    assert settings is not None
    return settings


def test_a_clients_certificate_without_key_is_trusted() -> None:
    settings = tls(client(ssl_config={"cert": "server.pem"}))
    assert (settings.cert, settings.key, settings.ca) == (None, None, Path("/conf/server.pem"))


def test_a_clients_certificate_with_key_is_its_own() -> None:
    settings = tls(client(ssl_config={"cert": "me.pem", "key": "me.key", "ca": "ca.pem"}))
    assert settings.cert == Path("/conf/me.pem")
    assert settings.key == Path("/conf/me.key")
    assert settings.ca == Path("/conf/ca.pem")


def test_a_ca_wins_over_a_certificate_without_key_and_says_so() -> None:
    config = client(ssl_config={"cert": "server.pem", "ca": "ca.pem"})
    assert (tls(config).cert, tls(config).ca) == (None, Path("/conf/ca.pem"))
    assert any(warning.startswith("ssl_config.cert: not used") for warning in config.warnings())


def test_a_clients_key_without_certificate_is_refused() -> None:
    assert refused_client(ssl_config={"key": "me.key"}).key_path == "ssl_config.cert"


def test_a_servers_certificate_is_its_own() -> None:
    settings = tls(load_config({**SERVER, "ssl_config": {**CERTIFICATE, "client_ca": "ca.pem"}}))
    assert (settings.cert, settings.key) == (Path("/conf/server.pem"), Path("/conf/server.key"))
    assert (settings.ca, settings.client_ca) == (None, Path("/conf/ca.pem"))


def test_certificates_are_verified_unless_said_otherwise() -> None:
    assert tls(client(ssl_config={})).verify
    assert not tls(client(ssl_config={"verify": False})).verify
    assert refused_client(ssl_config={"verify": 0}).key_path == "ssl_config.verify"


def test_the_server_name_is_passed_on() -> None:
    assert tls(client(ssl_config={"server_name": "other.example"})).server_name == "other.example"
    assert tls(client(ssl_config={})).server_name == ""


@pytest.mark.parametrize("version", ["TLS_v3", "TLSv1.3"])
def test_tls_1_3_may_be_spelt_as_in_the_paper(version: str) -> None:
    client(ssl_config={"tls": version})


@pytest.mark.parametrize("version", ["TLSv1.2", "TLS_v2", "TLSv1", "SSLv3", "", "tls"])
def test_older_tls_is_refused(version: str) -> None:
    error = refused_client(ssl_config={"tls": version})
    assert error.key_path == "ssl_config.tls"
    assert 'allowed: "TLS_v3", "TLSv1.3"' in str(error)


# Warnings


def test_a_plain_client_gives_no_warning() -> None:
    assert client().warnings() == ()


@pytest.mark.parametrize(
    ("config", "about"),
    [
        ({**SERVER, "remote_host": "a"}, "remote_host"),
        ({**SERVER, "ssl_config": {**CERTIFICATE, "ca": "ca.pem"}}, "ssl_config.ca"),
        ({**CLIENT, "ssl_config": {"client_ca": "ca.pem"}}, "ssl_config.client_ca"),
        ({**CLIENT, "ssl_config": {"verify": False}}, "ssl_config.verify"),
        ({**CLIENT, "limits": {"max_sessions": 5}}, "limits.max_sessions"),
        ({**CLIENT, "quic_config": {"retry": True}}, "quic_config.retry"),
        ({**SERVER, "wifi_config": {}}, "wifi_config"),
        ({**SERVER, "multi_config": {"connect": "par"}}, "multi_config.connect"),
        ({**CLIENT, "connection_priority": [["quic", "any", "any"]]}, "connection_priority[0]"),
    ],
)
def test_what_has_no_effect_or_may_not_work_is_a_warning(config: dict[str, Any], about: str) -> None:
    assert [warning.partition(": ")[0] for warning in load_config(config).warnings()] == [about]


def test_steering_stands_in_the_place_of_the_scheduler() -> None:
    assert client().scheduler == ("adaptive", {})
    assert client(multi_config={"scheduler": {"name": "cost", "seconds": 2}}).scheduler == ("cost", {"seconds": 2})
    assert client(steering="standby").scheduler == ("steering.standby", {})
    asked = {"mode": "latency", "max_rtt_ms": 80, "max_loss": 0.05}
    assert client(steering=asked).scheduler == ("steering.latency", {"max_rtt": 0.08, "max_loss": 0.05})
    error = refused_client(steering="standby", multi_config={"scheduler": "RR"})
    assert error.key_path == "steering"
    for wrong in ("fast", 3, {"mode": "latency", "max_rtt": 1}, {"max_loss": 0.1}, {"mode": "latency", "max_loss": 2}):
        assert refused_client(steering=wrong).key_path.startswith("steering")


# --- where a server is ---


def told(**listen: object) -> tuple[tuple[str, int], ...]:
    config = load_config({"listen": listen})
    assert config.listen is not None
    return config.listen.told(7788)


@pytest.mark.parametrize(
    ("own", "address"),
    [
        ("203.0.113.7", ("203.0.113.7", 7788)),
        ("203.0.113.7:443", ("203.0.113.7", 443)),
        ("2001:db8::7", ("2001:db8::7", 7788)),
        ("[2001:db8::7]:443", ("2001:db8::7", 443)),
        ({"host": "203.0.113.7"}, ("203.0.113.7", 7788)),
        ({"host": "203.0.113.7", "port": 443}, ("203.0.113.7", 443)),
    ],
)
def test_an_address_of_a_server_is_text_or_an_object(own: object, address: tuple[str, int]) -> None:
    assert told(own=own) == told(announce=[own]) == (address,)


def test_further_addresses_have_the_port_of_its_own() -> None:
    own = {"host": "203.0.113.7", "port": 443}
    assert told(own=own, announce=["203.0.113.8", "203.0.113.9:80"]) == (
        ("203.0.113.7", 443),
        ("203.0.113.8", 443),
        ("203.0.113.9", 80),
    )


@pytest.mark.parametrize(
    ("listen", "key_path"),
    [
        ({"own": "0.0.0.0"}, "listen.own"),
        ({"own": "fe80::1"}, "listen.own"),
        ({"own": "server.example"}, "listen.own"),
        ({"own": "203.0.113.7:70000"}, "listen.own"),
        ({"own": 7788}, "listen.own"),
        ({"own": {"port": 7788}}, "listen.own.host"),
        ({"announce": [f"203.0.113.{number}" for number in range(5)]}, "listen.announce"),
        ({"own": "203.0.113.7", "announce": [f"203.0.113.{number}" for number in range(4)]}, "listen.announce"),
        ({"join": "own"}, "listen.own"),
        ({"join": "here"}, "listen.join"),
        ({"route": ""}, "listen.route"),
        ({"route": "abc"}, "listen.route"),
        ({"route": "00" * 8}, "listen.route"),
        ({"route": "0a" * 9}, "listen.route"),
        ({"peers": {"0b": "203.0.113.7"}}, "listen.route"),
        ({"route": "0a", "peers": {"0A": "203.0.113.7"}}, "listen.peers"),
        ({"route": "0a", "peers": {"auto": "203.0.113.7"}}, "listen.peers"),
        ({"route": "0a", "port": 0, "peers": {"0b": "203.0.113.7"}}, "listen.peers"),
    ],
)
def test_a_place_where_nobody_can_be_sent_is_named(listen: dict[str, object], key_path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"listen": listen})
    assert str(caught.value).startswith(f"{key_path}: ")


def test_a_route_leaves_room_for_the_number_of_a_worker() -> None:
    listen = {"route": "0a" * 8}
    load_config({"listen": listen})
    load_config({"listen": {"route": "0a" * 7}, "workers": 2})
    with pytest.raises(ConfigError, match=r"^listen.route: found \"0a0a0a0a0a0a0a0a\" together with \"workers\""):
        load_config({"listen": listen, "workers": 2})


def test_workers_are_a_number_or_one_for_each_core() -> None:
    counts = [load_config({"listen": {}, "workers": value}).worker_count for value in (None, 1, 256)]
    assert counts == [None, 1, 256]
    assert load_config({"listen": {}, "workers": "auto"}).worker_count == len(os.sched_getaffinity(0))
    assert load_config({"listen": {}}).with_workers(3).worker_count == 3
    for wrong in (0, 257, True, "all", 1.0):
        with pytest.raises(ConfigError, match=r"^workers: "):
            load_config({"listen": {}, "workers": wrong})


def test_a_route_is_hexadecimal_or_made_at_random() -> None:
    def route(text: str) -> bytes:
        listen = load_config({"listen": {"route": text}}).listen
        assert listen is not None
        return listen.route_bytes(lambda count: b"r" * count)

    assert route("0A0b") == b"\x0a\x0b"
    assert route("auto") == b"r" * 7, "room for a worker's number"
    peers = load_config({"listen": {"route": "0a", "port": 7788, "peers": {"0B": "203.0.113.7"}}}).listen
    assert peers is not None
    assert peers.peer_addresses() == {b"\x0b": ("203.0.113.7", 7788)}


def test_an_address_that_no_client_elsewhere_goes_to_is_warned_of() -> None:
    told = {"own": "127.0.0.1:7801", "announce": ["::1", "203.0.113.7"], "route": "0a", "peers": {"0b": "127.0.0.2"}}
    warnings = load_config({"listen": told}).warnings()
    assert [warning.partition(": ")[0] for warning in warnings] == ["listen.own", "listen.announce", "listen.peers"]
    assert not load_config({"listen": told | {"host": "127.0.0.1"}}).warnings()
