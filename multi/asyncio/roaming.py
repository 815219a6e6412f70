"""What a client's session does as the networks of its device change: hears it, looks anew, tells the core.

One per session. What is lost for certain is told at once; then, whatever changed, the candidates are found anew and
the path manager decides what to do about them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from contextlib import suppress

from multi.asyncio.budgets import Budgets
from multi.asyncio.driver import SessionDriver
from multi.asyncio.loop_shutdown import ignore
from multi.asyncio.resolution import Found, Resolver
from multi.asyncio.suspend import SleepWatch
from multi.config import Config
from multi.discovery.monitor import Loss, monitor
from multi.discovery.resources import in_thread
from multi.errors import NoUsableConnection, fresh
from multi.events import AddressesAnnounced, ConnectionChanged, Event, SessionDetached
from multi.linux.wifi_power import PowerSaving
from multi.linux.wifi_signal import SignalWatch
from multi.protocol.state import SessionState
from multi.transports.base import ChannelInfo, SpanningChannel, SteeredChannel
from multi.types import Candidate, ConnectionState, Kind, Source, host_of

logger = logging.getLogger("multi.session")

LOOK_APART = 0.050  # seconds between two looks, whoever wants them: a server could keep us busy with its addresses
LOOK_AGAIN = 1.0  # seconds after one that the system did not allow, for want of file descriptors or memory
LOOK_DETACHED = 2.0  # seconds between looks while nothing is left: no system tells when a name leads elsewhere


class Networks:
    """See the module. It lives from the first dial to the end of the session."""

    def __init__(self, driver: SessionDriver, config: Config, start: Callable[[Found, Resolver], None]) -> None:
        """`start` opens the session with what can be dialled first."""
        self._driver = driver
        self._start = start
        self._started: asyncio.Future[NoUsableConnection | None] = driver.loop.create_future()
        """With what has kept the session from being opened."""
        self.resolver = Resolver(config, self.look, driver.warn)
        self.resolver.going = self._going
        self._budgets = Budgets(driver, self.resolver, self.look)
        self._power_savings = config.wifi_config.power_savings
        self._power = PowerSaving() if self._power_savings is not None else None
        self._signals = SignalWatch(self._signal)
        self._sleep = SleepWatch(self._slept)
        self._usable: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._looked_at = float("-inf")
        self._next_look: asyncio.TimerHandle | None = None
        """Of those that come without a change of the networks."""
        self._closed = False
        self._leave = monitor().subscribe(self._heard)
        driver.on_event = self._event
        driver.on_dialled = self._dialled
        driver.on_closed = lambda _: self.close()

    async def started(self) -> None:
        """Look, until there is something to open the session with. Raises NoUsableConnection when there is nothing."""
        await self._budgets.start()
        self.look()
        # Who gives up waiting changes nothing here: a look may be at its end.
        if (error := await asyncio.shield(self._started)) is not None:
            raise fresh(error)

    def look(self) -> None:
        """Find the candidates anew, soon; changes that come meanwhile are not missed."""
        if self._closed:
            return
        if self._task is not None and not self._task.done():  # an eager task is done when we get it
            self._again = True
            return
        self._task = self._driver.loop.create_task(self._look())
        self._driver.settle_after(self._task)

    def close(self) -> None:
        """The session is over: give back what it held. What blocks is done in a thread."""
        if self._closed:
            return
        self._closed = True
        if not self._started.done():
            self._started.set_result(None)
        self._leave()
        self._leave = ignore
        self._budgets.close()
        self._sleep.close()
        self._signals.close()
        self._signals.callback = ignore
        self._look_after(None)
        if self._task is not None:
            self._task.cancel()
        self.resolver.close()
        if self._power is not None or self.resolver.routes is not None:
            with suppress(RuntimeError):  # the loop takes no more work: what must not stay is undone at exit
                self._driver.settle_after(self._driver.loop.run_in_executor(None, self._put_back))

    def _put_back(self) -> None:
        if self.resolver.routes is not None:
            self.resolver.routes.remove()
        if self._power is not None:
            self._power.release_all()

    # --- what happens  ---

    def _heard(self, losses: tuple[Loss, ...]) -> None:
        """The system says that something changed; `losses` are certain."""
        driver = self._driver
        for loss in losses:
            driver.network_changed(loss.interface, False, address=loss.address, reason=loss.reason)
        if losses:
            driver.pump_due()
        self.look()

    def _slept(self, seconds: float) -> None:
        driver = self._driver
        for _, channel in driver.steered_channels():
            channel.slept()
        driver.core.slept(seconds, now=driver.now())
        driver.pump_due()
        self.look()

    def _signal(self, interface: str, fading: bool, dbm: float) -> None:
        driver = self._driver
        for _, channel in driver.steered_channels():
            channel.signal_changed(interface, fading)
        driver.core.signal_changed(interface, fading, dbm, now=driver.now())
        driver.pump_due()

    def _event(self, event: Event) -> None:
        if isinstance(event, ConnectionChanged):
            if event.state is ConnectionState.ACTIVE:
                self._opened(event)
        elif isinstance(event, SessionDetached) or (
            isinstance(event, AddressesAnnounced) and self.resolver.announced(event.addresses)
        ):
            self.look()

    def _opened(self, event: ConnectionChanged) -> None:
        if not self.resolver.opened_to:
            self.resolver.opened_to = host_of(event.facts.remote).partition("%")[0]
        link = self._driver.links.get(event.connection)
        if link is not None and link.candidate is not None:
            self.resolver.came_about(link.candidate.entry)

    def _dialled(self, candidate: Candidate, info: ChannelInfo) -> None:
        self._budgets.look()
        if info.fell_back:
            self.resolver.fell_back(candidate.entry)
            if candidate.more_interfaces:
                self.look()

    # --- looking  ---

    def _look_after(self, seconds: float | None) -> None:
        """Look once more, unless something else makes us look before; None = only then."""
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = self._driver.loop.call_later(seconds, self.look) if seconds is not None else None

    async def _look(self) -> None:
        try:
            while True:
                if (wait := self._looked_at + LOOK_APART - self._driver.now()) > 0:
                    await asyncio.sleep(wait)
                self._again = False
                self._looked_at = self._driver.now()
                unblocked = set(self.resolver.unblocked)
                found = await self.resolver.find(anew=self._started.done())
                if self._closed:
                    return
                self._use(found)
                self.resolver.unblocked -= unblocked
                if self._started.done():
                    await self._save_power(found)
                if not self._again:
                    detached = self._driver.core.state is SessionState.DETACHED
                    self._look_after(LOOK_DETACHED if detached else None)
                    return
        except NoUsableConnection as error:
            if not self._started.done():
                self._started.set_result(error.with_traceback(None))
                return
            about = {"session": self._driver.core.session_id.hex()}
            logger.warning("%s, trying again in %g s", error, LOOK_AGAIN, extra=about)
            self._look_after(LOOK_AGAIN)
        except Exception as error:  # the edge of a task: a bug here is no silent stop of roaming
            self._driver.fail(error)
        finally:
            self._task = None

    def _use(self, found: Found) -> None:
        driver, before = self._driver, self._usable
        driver.rejected = found.rejected
        if not found.candidates and not self._started.done():
            if not found.expecting:
                kind = _UnknownName if found.errors else NoUsableConnection
                raise kind("no candidate is usable on this machine", found.rejected)
            return
        self._usable = frozenset(s.interface for c in found.candidates for s in c.sources if s.interface)
        self._signals.watch(self._wifi(found))
        if not self._started.done():
            self._started.set_result(None)
            self._start(found, self.resolver)
            return
        self._follow(found)
        core, now = driver.core, driver.now()
        paths = core.path_manager(now=now)
        steered = {candidate.transport for candidate, _ in driver.steered_channels()}
        paths.update(
            found.candidates,
            now,
            reason=found.reason,
            expecting=found.expecting,
            closed=lambda candidate: self.resolver.closed(candidate, without=candidate.transport in steered),
            preferences=self.resolver.preferences,
        )
        for name in sorted(self._usable - before):
            core.network_changed(name, True, now=now)
        driver.pump_due()

    def _going(self) -> list[Candidate]:
        paths = self._driver.core.paths
        return [slot.source for slot in paths.slots if slot.source is not None] if paths is not None else []

    def _follow(self, found: Found) -> None:
        """Connections over several networks hear which there are, and everybody else which they use from now on."""
        for link in list(self._driver.links.values()):  # one may be lost meanwhile
            dialled, channel = link.candidate, link.channel
            if dialled is None:
                continue
            blocked = {each.interface for each in dialled.sources if self.resolver.is_blocked(each)}
            if channel.info.fell_back:
                sources = dialled.sources[:1]
            elif isinstance(channel, SteeredChannel) or (isinstance(channel, SpanningChannel) and not blocked):
                sources = _sources_of(dialled, found, blocked)
                channel.use(sources, blocked)
            else:
                continue
            if sources:
                link.candidate = dialled.over(*sources)
                self._driver.core.starts_from(link.id, sources)

    def _wifi(self, found: Found) -> list[str]:
        """The WiFi interfaces the session uses."""
        used = {name for c in found.candidates for name in (c.interface, *c.more_interfaces)}
        return [i.name for i in found.interfaces if i.kind is Kind.WIFI and i.name in used]

    async def _save_power(self, found: Found) -> None:
        if self._power is None or self._power_savings is None:
            return
        if not (wifi := self._wifi(found)):
            self.resolver.warn("wifi_config.power_savings: no WiFi interface is in use")
        for name in wifi:
            reason = await in_thread(self._power.hold, name, self._power_savings)
            if reason:
                self.resolver.warn(f"wifi_config.power_savings of {name}: {reason}")


def _sources_of(dialled: Candidate, found: Found, blocked: Collection[str]) -> tuple[Source, ...]:
    """Where a connection that was dialled for a candidate can start from now.

    It goes on from an address that is merely deprecated, where no other has come for it (RFC 4862 section 5.5.4).
    """
    wanted = dialled.transport, dialled.group, dialled.remote_address
    alike = (c for c in found.candidates if (c.transport, c.group, c.remote_address) == wanted)
    sources = next((candidate.sources for candidate in alike), ())
    renewed = {source.interface for source in sources} | set(blocked)
    deprecated = {
        (interface.name, address.address)
        for interface in found.interfaces
        for address in interface.addresses
        if interface.up and interface.carrier and address.reason == "deprecated"
    }
    old = (s for s in dialled.sources if s.interface not in renewed and (s.interface, s.address) in deprecated)
    return (*sources, *old)


class _UnknownName(NoUsableConnection, socket.gaierror):
    """What is caught as `socket.gaierror` with asyncio."""
