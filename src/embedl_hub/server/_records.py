"""Records as a request brings them."""

from __future__ import annotations

from typing import Any

from embedl_hub.errors import ConfigError
from embedl_hub.server._refusal import bad_request
from embedl_hub.tracking import check_record

Record = dict[str, Any]

MOST_RECORDS = 5000


def check_records(values: object) -> list[Record]:
    """Return the records of a request, or say what is wrong with them."""
    if not isinstance(values, list) or len(values) > MOST_RECORDS:
        raise bad_request(f"records must be a list of at most {MOST_RECORDS}.")
    last = -1
    for number, record in enumerate(values):
        try:
            check_record(record)
        except ConfigError as error:
            raise bad_request(f"Record {number}: {error}") from error
        if record["seq"] <= last:
            raise bad_request(f"Record {number}: seq {record['seq']} does not come after {last}.")
        last = record["seq"]
    return values


def contents_of(record: Record) -> dict[str, int]:
    """Return the contents that an artifact consists of: hash to size."""
    if "files" in record:
        return {sha256: size for _, sha256, size in record["files"]}
    return {record["sha256"]: record["size_bytes"]}
