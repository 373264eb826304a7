"""One JSON object per line on stderr. Keys, cookies, bodies and query strings are never among it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

LOG = logging.getLogger("embedl_hub.server")


class JsonFormatter(logging.Formatter):
    """Writes a log record as JSON, with what was handed to it as ``facts``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def configure(level: int = logging.INFO) -> None:
    """Send everything that the server and its libraries log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    LOG.setLevel(level)
    # Our own line per request says more.
    logging.getLogger("uvicorn.access").disabled = True
