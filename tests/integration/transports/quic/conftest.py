"""What the tests of this folder begin with."""

from __future__ import annotations

import pytest

from tests.engines import engine_or_skip
from tests.integration.certificates import Certificates, certificates_in
from tests.integration.transports.quic.ends import ENGINES, Engines


@pytest.fixture(params=ENGINES)
def engines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engines:
    client, server = ENGINES[request.param]
    for engine in (client, server):
        engine_or_skip(engine)
    monkeypatch.setattr(Engines, "client", client)
    monkeypatch.setattr(Engines, "server", server)
    return Engines()


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates_in(tmp_path_factory.getbasetemp() / "certificates")
