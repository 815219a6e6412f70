"""Every target for a short while, with the same inputs each time and no verdict that depends on the machine's speed."""

from __future__ import annotations

import pytest

from tests.fuzz.run import random_run
from tests.fuzz.target import Judge
from tests.fuzz.targets import TARGETS

SEED = 20261121


@pytest.mark.parametrize("name", TARGETS)
def test_what_comes_from_outside_breaks_no_promise(name: str) -> None:
    target = TARGETS[name]
    judge = Judge(target, timed=False, sampled=max(8, target.short // 8))
    random_run(target, judge, SEED, target.short, None)
    assert judge.inputs >= target.short
    assert not judge.findings, "\n".join(map(str, judge.findings.values()))
