"""`multi connect`: standard input and output, connected to a port at the far end over a session."""

from __future__ import annotations

import argparse

from multi.asyncio.closing import abandon
from multi.asyncio.interruption import run_interruptible
from multi.cli.parser import CLIENT, Parser
from multi.config import Config, ConfigLike, load_config
from multi.errors import ConfigError
from multi.forward.client import finish_session, open_session
from multi.forward.opening import forward
from multi.forward.protocol import Connect, HostPort, parse_address
from multi.forward.relay import Counters
from multi.forward.specs import Treatment, parse_treatment
from multi.forward.stdio import standard_streams


def add_arguments(parser: Parser) -> None:
    parser.runs(run_connect, CLIENT)
    parser.add_argument("target", metavar="HOST:PORT", help="what the server shall connect to")
    parser.add_argument(
        "--priority", metavar="N", type=_priority, default=0, help="its priority: 0 (first, default) to 7 (last)"
    )
    steering = (
        "how to steer this connection: latency, balance, priority, standby, redundant or adaptive (default: as the "
        "configuration says)"
    )
    parser.add_argument("--steering", metavar="MODE", help=steering)


def run_connect(config: ConfigLike, target: str, priority: int, steering: str | None) -> int:
    """Carry standard input to `target` and what comes back to standard output, until both have ended. Returns 0.

    Raises ConfigError, ForwardRefused, NoUsableConnection, SessionRefused, SessionLost, BrokenPipeError.
    """
    loaded = load_config(config)
    try:
        address = parse_address(target)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    asked = [f"priority={priority}", *([f"steering={steering}"] if steering is not None else [])]
    run_interruptible(_connect(loaded, address, parse_treatment(asked, "--steering")))
    return 0


async def _connect(config: Config, target: HostPort, treatment: Treatment) -> None:
    async with standard_streams() as near:
        session = await open_session(config)
        try:
            await forward(near, session, Connect(target), treatment, Counters())
            await finish_session(session)
        except BaseException as error:
            await abandon(session, error)
            raise


def _priority(text: str) -> int:
    if text not in "01234567" or len(text) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a priority, 0 (first) to 7")
    return int(text)
