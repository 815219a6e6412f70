"""The control socket of a client's session: what a server's tells and does, for this one session.

It is there from the first dial until the session ends. What keeps it from being there is a warning: a program that
opens a second session with the same path goes on without.
"""

from __future__ import annotations

from weakref import ref

from multi.asyncio.control import CommandError, ControlSockets, ServerAnswers
from multi.asyncio.driver import SessionDriver
from multi.asyncio.session import Session
from multi.asyncio.stats import ServerStats, Tallies
from multi.config import Config
from multi.errors import TransportError
from multi.events import Event


async def open_control(session: Session, driver: SessionDriver, config: Config) -> None:
    """Open the sockets that `control` in a client's configuration asks for."""
    if config.control is None:
        return
    controlled = _ClientSession(session, driver)
    try:
        await controlled.sockets.open(config.control_path, config.control.metrics_port, session.id.hex()[:8])
    except TransportError as error:
        controlled.sockets.close()
        driver.warn(str(error))
    if driver.over:
        controlled.end()
    driver.record.listen(controlled)


class _ClientSession:
    """Looks like a server with one session; its sockets hold it."""

    def __init__(self, session: Session, driver: SessionDriver) -> None:
        self._session = ref(session)  # an application that lets go of it ends it
        self._driver = driver
        self._started = driver.now()
        self.sockets = ControlSockets(ServerAnswers(self))

    @property
    def sessions(self) -> tuple[Session, ...]:
        session = self._session()
        return (session,) if session is not None else ()

    def recent_sessions(self, limit: int) -> list[Session]:
        return list(self.sessions)[:limit]

    def stats(self) -> ServerStats:
        driver, tallies = self._driver, Tallies()
        driver.record.tally(tallies)
        return ServerStats(
            uptime=driver.now() - self._started,
            sessions={driver.core.state.value: 1},
            sessions_opened=1,
            streams=len(driver.core.receiver.streams),
            memory=driver.memory,
            transports=tallies.stats(),
        )

    def start_draining(self, timeout: float | None = None) -> float:
        raise CommandError("only servers are drained")

    def put(self, event: Event) -> None:
        """Nothing to do for an event."""

    def end(self) -> None:
        self.sockets.close()
