"""Log runs into the home given first, as many as given second, once stdin says so."""

import sys
from pathlib import Path

from embedl_hub.tracking import Client, Redactor, Store


def main() -> None:
    home, count, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    with Store(home) as store:
        client = Client("crowd", store, Redactor({}))
        for number in range(count):
            with client.start_run(name=name) as run:
                run.log_param("number", number)
                run.log_metric("m", number, step=number)
                run.log_tag("worker", name)
        client.close()


if __name__ == "__main__":
    main()
