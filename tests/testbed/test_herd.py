"""Honest clients that come at once from one address, over 50 ms and 1 % loss, are all served.

Some; `benchmarks.links.herd` measures as many as are promised, and how soon.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.links.herd import LINKS, PROMISE, herd_over
from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Testbed
from multi.lab.testbed.pytest_plugin import started

HERDS = {"sealed TCP": 60, "TLS": 30, "QUIC": 15}


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    with started(LINKS) as running:
        yield running


@pytest.fixture(scope="module")
def certificates(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("herd")
    write_development_certificates(directory, [testbed.server.address()])
    return directory


@pytest.mark.parametrize("kind", HERDS)
async def test_a_small_herd_gets_in(kind: str, testbed: Testbed, certificates: Path) -> None:
    outcome, opened = await herd_over(testbed, kind, str(certificates), HERDS[kind])
    assert outcome == {"served": HERDS[kind]}
    assert opened[-1] < PROMISE, "the last of them; an eighth of the herd that is promised takes no longer than it"
