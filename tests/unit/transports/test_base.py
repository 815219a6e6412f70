"""The registry of transports, and what each is told."""

from __future__ import annotations

import pytest

from multi.asyncio.server import listened_to
from multi.config.model import Listen
from multi.errors import ConfigError
from multi.transports import base
from multi.transports.base import (
    AcceptCallback,
    Channel,
    Listener,
    Transport,
    TransportSettings,
    register_transport,
    transport,
    transport_names,
    transport_type,
)
from multi.transports.settings import TransportSection
from multi.transports.tcp.settings import TcpSettings
from multi.types import Candidate


class Pigeon(Transport):
    """Carries nothing."""

    name = "pigeon"

    async def dial(self, candidate: Candidate, settings: TransportSettings) -> Channel:
        raise NotImplementedError

    async def listen(self, host: str, port: int, settings: TransportSettings, accept: AcceptCallback) -> Listener:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _registered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_types", dict(base._types))


def test_a_transport_is_made_when_it_is_first_used_and_once() -> None:
    made = []

    @register_transport("pigeon", over_udp=True)
    def _pigeon() -> Transport:
        made.append(Pigeon())
        return made[-1]

    assert transport_type("pigeon").over_udp
    assert made == []
    assert transport("pigeon") is transport("pigeon") is made[0]
    assert "pigeon" in transport_names()


def test_what_servers_accept_by_default_needs_no_port_twice() -> None:
    """One that needs a port of its own takes the others' connections as well, or is accepted `by_name_only`."""
    listeners = [transport_type(name).over_udp for name in listened_to(Listen.model_fields["transports"].default)]
    assert sorted(listeners) == [False, True], "one for TCP, one for UDP: see `also_accepts` and `by_name_only`"


def test_a_name_may_be_registered_again_unless_it_is_one_of_ours() -> None:
    register_transport("pigeon")(Pigeon)
    register_transport("pigeon", spans_interfaces=True)(Pigeon)
    assert transport_type("pigeon").spans_interfaces
    with pytest.raises(ConfigError, match="transport name 'tcp' is taken by multi"):
        register_transport("tcp")(Pigeon)


@pytest.mark.parametrize("name", ["", "Pigeon", "carrier pigeon", "9pigeons", "p" * 33])
def test_a_name_that_could_not_be_a_key_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="as a transport's name; allowed"):
        register_transport(name)


def test_an_unknown_transport_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown transport 'pigeon'; known: .*\btcp, mptcp, quic"):
        transport("pigeon")


def test_a_section_has_the_class_it_was_registered_with() -> None:
    given = TcpSettings(nagle=True)
    settings = TransportSettings({"tcp": given, "pigeon": TransportSection()})
    assert settings.section("tcp", TcpSettings) is given
    assert settings.section("mptcp", TcpSettings) == TcpSettings()
    with pytest.raises(TypeError, match="found TransportSection for the transport 'pigeon'; allowed: TcpSettings"):
        settings.section("pigeon", TcpSettings)
