"""What the README shows works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_client_and_server_of_the_readme_run() -> None:
    found = re.search(r"## Client and server in 15 lines\n+```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    code = found.group(1)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'HELLO OVER TWO CONNECTIONS\\n'\n"
