"""A bucket that speaks the real S3 protocol: moto's server on loopback."""

import contextlib
from collections.abc import Iterator

from moto.server import ThreadedMotoServer

from support.hub_server import free_port

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextlib.contextmanager
def bucket_of_its_own() -> Iterator[dict[str, str]]:
    """Make an empty bucket ``models`` and yield the environment that leads there."""
    import boto3

    port = free_port()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    environment = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        region_name=KEYS["AWS_DEFAULT_REGION"],
    )
    client.create_bucket(Bucket="models")
    client.close()
    try:
        yield environment
    finally:
        server.stop()
