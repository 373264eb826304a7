"""What an operator sees: counts in Prometheus' text format, and one JSON object per line on stderr."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import defaultdict
from datetime import UTC, datetime

_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LOG = logging.getLogger("embedl_hub.server")


class Metrics:
    """What the server has done since it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_BOUNDS_S) + 1))
        self._seconds: dict[str, float] = defaultdict(float)
        self._sums: dict[str, int] = {"records_received_total": 0, "content_bytes_received_total": 0}

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[(method, route, status)] += 1
            self._seconds[route] += seconds
            bucket = next((number for number, bound in enumerate(_BOUNDS_S) if seconds <= bound), len(_BOUNDS_S))
            self._buckets[route][bucket] += 1

    def add(self, name: str, count: int) -> None:
        with self._lock:
            self._sums[name] += count

    def text(self) -> str:
        with self._lock:
            lines = ["# TYPE edgeproof_requests_total counter"]
            for (method, route, status), count in sorted(self._requests.items()):
                lines.append(f'edgeproof_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
            lines.append("# TYPE edgeproof_request_seconds histogram")
            for route, buckets in sorted(self._buckets.items()):
                lines += self._histogram(route, buckets)
            for name, value in self._sums.items():
                lines += [f"# TYPE edgeproof_{name} counter", f"edgeproof_{name} {value}"]
        return "\n".join(lines) + "\n"

    def _histogram(self, route: str, buckets: list[int]) -> list[str]:
        lines, below = [], 0
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), buckets, strict=True):
            below += count
            lines.append(f'edgeproof_request_seconds_bucket{{route="{route}",le="{bound}"}} {below}')
        lines.append(f'edgeproof_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}')
        lines.append(f'edgeproof_request_seconds_count{{route="{route}"}} {below}')
        return lines


class JsonFormatter(logging.Formatter):
    """Writes a log record as JSON, with what was handed to it as ``facts``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def configure_logging(level: int = logging.INFO) -> None:
    """Send everything that the server and its libraries log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    LOG.setLevel(level)
    # Our own line per request says more.
    logging.getLogger("uvicorn.access").disabled = True
