"""From configuration entries to candidates on this machine: names, interfaces, routes."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import replace

from multi.config import Config, Entry
from multi.core.facts import Candidate
from multi.net import interfaces_async, routed
from multi.paths.candidates import EntrySpec, candidates

JUST_READ = 0.2  # seconds the interfaces read for one session may serve another one that opens

Rejected = list[tuple[str, str]]


class Resolver:
    """Remembers the configuration; everything else is read anew each time, because networks change."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.warnings: list[str] = []

    async def candidates(self, entries: Sequence[Entry] | None = None) -> tuple[list[Candidate], Rejected]:
        """Return what can be dialled now and, for the rest, (what, why not)."""
        config = self._config
        wanted = config.connection_priority if entries is None else entries
        specs = [self._spec(entry) for entry in wanted]
        remotes = sorted({(spec.remote_host, spec.remote_port) for spec in specs})
        kinds = config.interfaces.model_dump()
        # Opening may rely on what another session has just read; later questions are about changes.
        found = await interfaces_async(
            {kind: names for kind, names in kinds.items() if names}, max_age=JUST_READ if entries is None else 0.0
        )
        resolved = await asyncio.gather(*(self._resolve(host, port) for host, port in remotes))
        addresses: dict[tuple[str, int], Sequence[str]] = {}
        rejected: Rejected = []
        for remote, (literal, error) in zip(remotes, resolved, strict=True):
            addresses[remote] = literal
            if error:
                rejected.append((remote[0], error))
        every_remote = {address for literal in addresses.values() for address in literal}
        elsewhere = {address for address in every_remote if not ipaddress.ip_address(address).is_loopback}
        routes = await asyncio.to_thread(routed, found, elsewhere) if elsewhere else frozenset()
        usable, rejections = candidates(specs, found, addresses, routes)
        rejected += [(f"entry {r.entry} ({r.what})", r.reason) for r in rejections]
        return self._without_subflows(usable), rejected

    def _spec(self, entry: Entry) -> EntrySpec:
        host, port = self._config.remote_of(entry)
        return EntrySpec(
            transport=entry.transport,
            ip=entry.ip,
            interfaces=entry.interfaces,
            role=entry.role,
            weight=entry.weight,
            cost=entry.cost,
            max_rate=entry.max_rate,
            group=entry.group,
            remote_host=host,
            remote_port=port,
        )

    def _without_subflows(self, usable: list[Candidate]) -> list[Candidate]:
        """Give MPTCP entries over several interfaces one connection per interface, and say so."""
        expanded: list[Candidate] = []
        for candidate in usable:
            if not candidate.more_interfaces:
                expanded.append(candidate)
                continue
            names = (candidate.interface, *candidate.more_interfaces)
            self.warnings.append(
                f"MPTCP over {', '.join(names)}: subflows on several interfaces need the host's MPTCP path manager; "
                "one MPTCP connection per interface is opened instead"
            )
            expanded += [
                replace(
                    candidate,
                    interface=name,
                    local_address=candidate.local_address if name == candidate.interface else "",
                    more_interfaces=(),
                    group="",
                )
                for name in names
            ]
        return expanded

    @staticmethod
    async def _resolve(host: str, port: int) -> tuple[list[str], str]:
        """Return (addresses in resolver order, error)."""
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            pass
        else:
            return [host], ""
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return [], f"cannot resolve {host}: {reason}"
        return list(dict.fromkeys(str(info[4][0]) for info in infos)), ""
