"""Log runs without end into the home given first, and say on stdout what has been acknowledged.

One JSON line per acknowledged fact, written after the call that logged it returned. Imports nothing but the
tracking package, so that it starts fast; the second argument seeds the choice of what is logged, and a third one,
``durable``, has every run wait for the disk.
"""

import json
import os
import random
import sys
from pathlib import Path

from embedl_hub.tracking import ActiveRun, Client, Redactor, Store


def say(*fact: object) -> None:
    os.write(1, json.dumps(fact).encode() + b"\n")


def log_one(run: ActiveRun, number: int, choice: random.Random) -> None:
    name = f"{number:04d}"
    kind = choice.choice(["param", "param", "metric", "metric", "metric", "tag", "artifact"])
    if kind == "param":
        value = {"number": number, "text": "ü" * choice.randrange(200)}
        run.log_param(name, value)
        say(run.id, kind, name, value)
    elif kind == "metric":
        run.log_metric("series", number / 3, step=number)
        say(run.id, kind, "series", [number / 3, number])
    elif kind == "tag":
        run.log_tag(name, "x" * number)
        say(run.id, kind, name, "x" * number)
    else:
        text = f"{run.id} {number // 2} " * choice.randrange(1, 2000)
        (run.artifact_dir / name).write_text(text)
        artifact = run.log_artifact(run.artifact_dir / name)
        say(run.id, kind, name, artifact.sha256)


def main() -> None:
    choice = random.Random(int(sys.argv[2]))  # noqa: S311 - a choice of test data
    say("", "ready", "", None)
    with Store(Path(sys.argv[1]), durable="durable" in sys.argv[3:]) as store:
        client = Client("crash", store, Redactor({}))
        while True:
            with client.start_run(name="victim") as run:
                say(run.id, "start", "", None)
                # Long, so that a kill hits a run in the middle where a slow disk makes starts and ends slow too.
                for number in range(choice.randrange(20, 240)):
                    log_one(run, number, choice)
            say(run.id, "end", "", None)


if __name__ == "__main__":
    main()
