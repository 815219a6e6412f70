"""`multi ls`: the files that a file service offers."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from multi.asyncio.interruption import run_interruptible
from multi.cli.parser import CLIENT, Parser
from multi.config import ConfigLike, load_config
from multi.errors import printable
from multi.lab.files.client import list_files

logger = logging.getLogger("multi.cli")

CUT_OFF = "there are more files than one listing holds; name a directory to see all of it"


def add_arguments(parser: Parser) -> None:
    parser.runs(run_ls, CLIENT)
    directory = "only those in this directory (default: all)"
    parser.add_argument("name", metavar="DIR", nargs="?", default="", help=directory)
    parser.add_argument("--json", dest="as_json", action="store_true", help="print them as JSON")


def run_ls(config: ConfigLike, name: str, *, as_json: bool) -> int:
    """Print a line for each file: bytes, when it was changed (local time), and the name that `multi get` takes.

    As JSON: `files` with `name`, `size` and `modified` (ISO 8601, UTC), and whether they are `complete`. Returns 0;
    raises what keeps the files from being listed.
    """
    files, complete = run_interruptible(list_files(load_config(config), name.rstrip("/")))
    if as_json:
        described = [
            {"name": file.name, "size": file.size, "modified": datetime.fromtimestamp(file.modified, UTC).isoformat()}
            for file in files
        ]
        print(json.dumps({"files": described, "complete": complete}, indent=2))
        return 0
    width = max((len(str(file.size)) for file in files), default=0)
    for file in files:
        modified = datetime.fromtimestamp(file.modified).strftime("%Y-%m-%d %H:%M")
        print(f"{file.size:>{width}}  {modified}  {printable(file.name)}")
    if not complete:
        logger.warning(CUT_OFF)
    return 0
