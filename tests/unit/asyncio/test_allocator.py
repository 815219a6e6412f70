"""Freed memory is kept within reach: blocks of 100 KiB that come and go cost no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
if sys.argv[1] == "told":
    from multi.asyncio.allocator import keep_freed_memory
    keep_freed_memory()
def come_and_go():
    blocks = [bytearray(100 * 1024) for _ in range(20)]
come_and_go()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    come_and_go()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(told: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, told], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator keeps memory in its own way")
def test_blocks_that_come_and_go_cost_few_page_faults() -> None:
    assert 10 * page_faults("told") < page_faults("not told")
