"""`multi cert`: certificates for development, and what to put into configurations for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from multi.cli.parser import Parser
from multi.lab.cert import ALWAYS_VALID_FOR, LIFETIME, write_development_certificates
from multi.transports.certificates import first_certificate, pin_of


def add_arguments(parser: Parser) -> None:
    parser.runs(run_cert)
    parser.add_argument("directory", metavar="DIR", type=Path, help="where to write them")
    names = "a name or address of the server; may be repeated"
    parser.add_argument("--name", metavar="NAME", dest="names", action="append", default=[], help=names)


def run_cert(directory: Path, names: Sequence[str]) -> int:
    """Write the certificates, then print the files and what to put into the configurations. Returns 0.

    Raises as `write_development_certificates`.
    """
    written = write_development_certificates(directory, names)
    ca, server_cert, server_key, client_cert, client_key = (str(path.resolve()) for path in written)
    valid_for = ", ".join(dict.fromkeys([*ALWAYS_VALID_FOR, *names]))
    print(f"Certificates for development, valid {LIFETIME.days} days; the server's for {valid_for}:")
    for path in written:
        print(f"  {path}")
    pin = pin_of(first_certificate(written[1]))
    print(f"\nPin of the server's certificate, for the `pin` of clients:\n  {pin}")
    server = {"cert": server_cert, "key": server_key}
    for title, ssl_config in (
        ("Server configuration", server),
        ("Client configuration", {"ca": ca}),
        ("Server that asks clients for a certificate", {**server, "client_ca": ca}),
        ("Client of such a server", {"ca": ca, "cert": client_cert, "key": client_key}),
    ):
        print(f'\n{title}:\n  "ssl_config": {json.dumps(ssl_config, ensure_ascii=False)}')
    return 0
