"""The relay of a testbed, started by its owner with the descriptor of the socket between them."""

from __future__ import annotations

import sys

from multi.lab.testbed.relay import main

main(int(sys.argv[1]))
