"""noq-proto from the registry, in a process of its own that `noq_peer/` is built into."""

from __future__ import annotations

import struct
import subprocess
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from multi.transports.quic.engine import PathClosed, PathOpened, PathStatusChanged
from multi.transports.quic.udp_port import Burst, PeerAddress
from tests.interop.foreign import ForeignEngine

FOLDER = Path(__file__).parent / "noq_peer"
BINARY = FOLDER / "target" / "release" / "noq-peer"
_HEAD = struct.Struct("<cQQQI")
_NEVER = (1 << 64) - 1
_BY_PEER = 1 << 62


@cache
def _der(certificates: Path) -> tuple[str, str]:
    certificate = load_pem_x509_certificate((certificates / "server-cert.pem").read_bytes())
    key = load_pem_private_key((certificates / "server-key.pem").read_bytes(), None)
    made = certificates / "server-cert.der", certificates / "server-key.der"
    made[0].write_bytes(certificate.public_bytes(Encoding.DER))
    made[1].write_bytes(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
    return str(made[0]), str(made[1])


class Noq(ForeignEngine):
    """Talks to the process; each message is answered."""

    def __init__(self, certificates: Path, *, is_client: bool) -> None:
        super().__init__(is_client=is_client)
        words = ["client"] if is_client else ["server", *_der(certificates)]
        self._process = subprocess.Popen([str(BINARY), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._now = 0.0
        self._timer: float | None = None
        self._unsent = 0
        self._to_send: list[Burst] = []
        self._paths = 0

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def connect(self, address: PeerAddress, now: float) -> None:
        self._now = now
        self._say(b"C")

    def receive(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        self._now = now
        self._say(b"D", *self.number_and_port(address), data)

    def handle_timer(self, now: float) -> None:
        self._now = now
        self._say(b"T")

    def next_timer(self) -> float | None:
        return self._timer

    def write(self, stream: int, data: bytes, end: bool = False) -> None:
        self._say(b"W", stream, end, data)

    def unsent(self) -> int:
        return self._unsent

    def bursts(self, now: float) -> list[Burst]:
        self._now = now
        made, self._to_send = self._to_send, []
        return made

    def open_path(self, address: PeerAddress, now: float, backup: bool = False) -> int | None:
        self._now = now
        if not self._say(b"O", self.number_and_port(address)[0], backup):
            return None
        self._paths += 1
        return self._paths

    def abandon_path(self, path: int, code: int, now: float) -> None:
        self._now = now
        assert self._say(b"A", path, code)

    def set_backup(self, path: int, backup: bool) -> None:
        assert self._say(b"B", path, backup)

    def update_keys(self) -> None:
        self._say(b"K")

    def _say(self, kind: bytes, a: int = 0, b: int = 0, data: bytes = b"") -> bool:
        """False: it cannot be done now."""
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        pipe.write(_HEAD.pack(kind, round(self._now * 1e9), a, b, len(data)) + data)
        pipe.flush()
        while True:
            head = answers.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise RuntimeError(f"noq-peer has ended: {self._process.wait()}")
            what, a, b, c, length = _HEAD.unpack(head)
            payload = answers.read(length)
            match what:
                case b"T":
                    self._timer = None if a == _NEVER else a / 1e9
                    self._unsent = b
                    return bool(c)
                case b"d":
                    self._to_send.append(self.burst(payload, a, b))
                case b"c":
                    self.connected()
                case b"s":
                    self.data(a, payload, bool(b))
                case b"o":
                    self.events.append(PathOpened(a, PeerAddress(("", 0))))
                case b"x":
                    self.events.append(PathClosed(a, b & ~_BY_PEER, bool(b & _BY_PEER)))
                case b"b":
                    self.events.append(PathStatusChanged(a, bool(b)))
                case b"l":
                    raise RuntimeError(f"noq has lost the connection: {payload.decode()}")
