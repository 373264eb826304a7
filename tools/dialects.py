"""Put what `embedl-deploy dialect learn` wrote into the packages: the tables, and the graphs on which versions differ.

    .venv/bin/python tools/dialects.py FOLDER

Versions whose table is not in the folder are left as they are; the differences are of the folder's journals alone, so
keep the folder of one runtime together.
"""

import sys
from pathlib import Path

from embedl_deploy.dialect import read_table
from embedl_deploy.rules import Journal
from embedl_deploy.rules._diff import observed_in

SRC = Path(__file__).resolve().parents[1] / "src" / "embedl_deploy"


def main(folder: Path) -> None:
    """Copy the tables, and write the differences of every runtime that has two journals."""
    journals: dict[str, dict[str, Journal]] = {}
    for path in sorted(folder.glob("*.json")):
        table = read_table(path)
        table.save(SRC / "dialect" / "tables" / path.name)
        journals.setdefault(table.runtime, {})[table.version] = Journal.open(path.with_suffix(".jsonl"))
        print(f"{path.name}: {len(table.rules)} rules from {table.graphs} graphs")
    for runtime, known in journals.items():
        if len(known) > 1:
            observed = observed_in(runtime, known)
            observed.save(SRC / "rules" / "observed" / f"{runtime}.json")
            print(f"{runtime}: {len(observed.outcomes)} graphs on which {', '.join(observed.versions)} differ")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
