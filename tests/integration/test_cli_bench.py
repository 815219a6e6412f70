"""`multi bench`: the numbers it prints are the numbers of the contract, and failure is said in words."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.lab.bench.protocol import BenchError, Report, encode, read
from tests.integration.cli_runner import Files, interrupt, prepare_to_fork, started, wait_for_line
from tests.integration.cli_runner import run_forked as run

KEYS = {
    "bytes",
    "open_ms",
    "confirmed_ms",
    "seconds",
    "mbps",
    "total_seconds",
    "longest_gap_ms",
    "retransmitted_bytes",
    "intervals",
    "connections",
}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@contextmanager
def bench_server(files: Files, **changes: Any) -> Iterator[tuple[Any, int]]:
    with started("bench", "serve", files.server_config(**changes)) as process:
        yield process, int(wait_for_line(process, r"^bench server .* port (\d+) ").group(1))


@pytest.mark.parametrize("reverse", [False, True], ids=["upload", "download"])
def test_measured_bytes_arrive_checked_and_are_accounted_for(files: Files, reverse: bool) -> None:
    size = 20_000_000
    with bench_server(files) as (_, port):
        config = files.client_config(port, "tcp", "quic", "mptcp")
        done = run("bench", "run", config, "-n", size, "--json", *(["-R"] if reverse else []))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) >= KEYS
    assert result["bytes"] == size
    assert result["damaged"] is False
    assert 0 < result["open_ms"] <= result["confirmed_ms"]
    assert 0 < result["seconds"] <= result["total_seconds"]
    assert result["mbps"] == pytest.approx(size * 8 / result["seconds"] / 1e6, rel=0.01)
    assert result["longest_gap_ms"] <= result["seconds"] * 1000
    assert sum(i["mbps"] for i in result["intervals"]) * 0.1 * 1e6 / 8 == pytest.approx(size, rel=0.001)
    assert [i["t"] for i in result["intervals"]] == [round(n * 0.1, 1) for n in range(len(result["intervals"]))]
    assert {c["transport"] for c in result["connections"]} == {"tcp", "quic", "mptcp"}
    assert sum(c["bytes"] for c in result["connections"]) >= size
    ids = {str(c["id"]) for c in result["connections"]}
    for connection in ids:
        (its,) = (c for c in result["connections"] if str(c["id"]) == connection)
        rates = sum(i["per_connection"].get(connection, 0.0) for i in result["intervals"])
        assert rates * 0.1 * 1e6 / 8 <= its["bytes"] + 1000  # copies may come after all has been read
    assert {c for i in result["intervals"] for c in i["per_connection"]} <= ids
    carried = sum(rate for i in result["intervals"] for rate in i["per_connection"].values()) * 0.1 * 1e6 / 8
    assert size * 0.95 <= carried <= sum(c["bytes"] for c in result["connections"]) * 1.001


def test_a_timed_run_lasts_as_long_as_asked_and_is_readable(files: Files) -> None:
    with bench_server(files) as (_, port):
        config = files.client_config(port, "tcp")
        timed = run("bench", "run", config, "-t", 1, "--json")
        shown = run("bench", "run", config, "-t", 0.3)
    assert 0.8 <= json.loads(timed.stdout)["seconds"] < 3
    assert shown.returncode == 0
    assert "Mbit/s" in shown.stdout
    assert "tcp   over 127.0.0.2" in shown.stdout


def test_a_file_server_is_no_bench_server(files: Files) -> None:
    with files.serving() as (_, port):
        done = run("bench", "run", files.client_config(port, "tcp"), "-t", 1)
    assert done.returncode == 1
    assert done.stderr.startswith("multi: ")
    assert "bench" in done.stderr


async def test_another_version_of_the_protocol_is_named(files: Files) -> None:
    async def other(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        await reader.readline()
        writer.write(b'{"multi_bench": 2, "ready": true}\n')
        await reader.read()
        writer.close()

    server = await multi.start_server(other, files.server_config())
    done = await asyncio.to_thread(run, "bench", "run", files.client_config(server.port, "tcp"), "-t", 1)
    server.abort()
    await server.wait_closed()
    assert done.returncode == 1
    assert "version 2" in done.stderr
    assert "version 1" in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"intervals": [{}]},
        {"intervals": [{"t": 0, "mbps": 1, "per_connection": []}]},
        {"intervals": [{"t": 0, "mbps": 1, "per_connection": {"0": "much"}}]},
        {"connections": [{}]},
        {"connections": [{"id": 0, "bytes": "all", "number": 0}]},
        {"connections": [{"id": 0, "bytes": 1, "number": []}]},
    ],
)
async def test_a_report_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(encode(replace(Report(bytes=1, seconds=1.0), **wrong)))
    with pytest.raises(BenchError, match="malformed report"):
        await read(reader, Report)


def test_a_killed_server_ends_the_measurement_with_a_message(files: Files) -> None:
    with bench_server(files) as (server, port):
        config = files.client_config(port, "tcp", max_rate_mbps=50, multi_config={"resume_timeout": 5})
        with started("bench", "run", config, "-t", 60, "-R") as client:
            wait_for_line(server, "measuring")
            server.kill()
            _, errors = client.communicate(timeout=30)
    assert client.returncode == 1
    assert "no connection for 5 s; the last attempt: connection refused" in errors


def test_ctrl_c_ends_client_and_server_at_once(files: Files) -> None:
    with bench_server(files) as (server, port):
        with started("bench", "run", files.client_config(port, "tcp", max_rate_mbps=50), "-t", 60) as client:
            wait_for_line(server, "measuring")
            code, errors = interrupt(client)
            assert (code, "interrupted" in errors) == (130, True)
        code, _ = interrupt(server)
        assert code == 130


def test_sigterm_lets_a_measurement_finish_and_refuses_the_next(files: Files) -> None:
    prepare_to_fork()
    with bench_server(files, drain_timeout=20.0) as (server, port):
        config = files.client_config(port, "tcp", max_rate_mbps=50)
        with started("bench", "run", config, "-t", 3) as client:
            wait_for_line(server, "measuring")
            server.send_signal(signal.SIGTERM)
            wait_for_line(server, "^draining: 1 session to end within 20 s$")
            impatient = files.client_config(port, "tcp", name="impatient.json", multi_config={"open_timeout": 1.5})
            refused = run("bench", "run", impatient, "-t", 1)
            assert (refused.returncode, "the server is being stopped" in refused.stderr) == (1, True)
            _, errors = client.communicate(timeout=10)
        assert (client.returncode, errors) == (0, "")
        assert server.wait(10) == 0


@pytest.mark.parametrize(
    "wrong",
    [("-t", "0"), ("-t", "nan"), ("-n", "-5"), ("-n", "many"), ("-n", str(1 << 63)), ("-t", "1", "-n", "5")],
)
def test_impossible_amounts_are_usage_errors(files: Files, wrong: tuple[str, ...]) -> None:
    done = run("bench", "run", files.client_config(1, "tcp"), *wrong)
    assert done.returncode == 2
    assert "usage:" in done.stderr
