"""Plays every scenario with one foreign implementation, both ways round, and prints a row of the table for each.

`python -m tests.interop.play picoquic|noq|native CERTIFICATES`; exit code 1 if any fails.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from tests.interop.foreign import ForeignEngine
from tests.interop.scenarios import SCENARIOS, Failed, MakeForeign, Scenario, Scene

ROLES = ("client", "server")


def implementation(name: str) -> MakeForeign:
    if name == "noq":
        from tests.interop.noq import Noq

        return Noq
    if name == "native":
        from tests.interop.native import Native

        return Native  # type: ignore[return-value]  # it has what is called of it
    from tests.interop.picoquic import Picoquic

    return Picoquic


def outcome(scenario: Scenario, make: MakeForeign, certificates: Path, we_are: str) -> str:
    """`passed`, or what went wrong."""
    made: list[ForeignEngine] = []

    def kept(folder: Path, *, is_client: bool) -> ForeignEngine:
        made.append(make(folder, is_client=is_client))
        return made[-1]

    try:
        scenario.play(Scene(kept, certificates, we_are=we_are, paths=scenario.paths))
    except Failed as error:
        return f"FAILED: {error}"
    except Exception as error:  # of a foreign library, or of ours: the others are played all the same
        traceback.print_exc()
        return f"FAILED: {error!r}"
    finally:
        for engine in made:
            engine.close()
    return "passed"


def main(name: str, certificates: Path) -> int:
    failed = 0
    print(f"\n| with {name} | multi is the client | multi is the server |\n|---|---|---|")
    for scenario in SCENARIOS:
        found = [outcome(scenario, implementation(name), certificates, role) for role in ROLES]
        failed += sum(one != "passed" for one in found)
        print(f"| {scenario.name} | {' | '.join(found)} |", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
