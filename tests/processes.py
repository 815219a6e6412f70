"""Processes that tests start, and that shall not outlive them."""

from __future__ import annotations

import shutil

MORTAL = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Before a command: it ends with the thread that has started it, also when a test run is killed (prctl(2)). Nothing
where that is not to be had, as elsewhere than on Linux."""
