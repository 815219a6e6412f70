"""Our native engine, as if it were foreign: noq-proto with our hooks, in this process."""

from __future__ import annotations

from pathlib import Path

from multi.multipath.policy import PathPolicy
from multi.transports.base import TlsSettings
from multi.transports.quic.engine import EngineSettings, QuicEngine
from multi.transports.quic.noq_engine import NoqEngine
from multi.transports.quic.settings import QuicSettings

DATAGRAM = 1350


class Native(NoqEngine):
    """With what `ForeignEngine` has besides."""

    def __init__(self, certificates: Path, *, is_client: bool) -> None:
        issuers = (certificates / "ca.pem").read_bytes() if is_client else b""
        own = TlsSettings(cert=certificates / "server-cert.pem", key=certificates / "server-key.pem")
        name, tls = ("localhost", TlsSettings()) if is_client else (None, own)
        settings = EngineSettings(QuicSettings(), tls, issuers, name, PathPolicy())
        super().__init__(self.configure(settings, seed=1), DATAGRAM)

    def as_engine(self) -> QuicEngine:
        return self

    def update_keys(self) -> None:
        self._connection.update_keys()

    def close(self, error_code: int = 0, reason: str = "") -> None:
        super().close(error_code, reason)
