"""An S3 on this machine's loopback, which everything under test finds through the environment."""

from contextlib import contextmanager

import pytest

BUCKET = "bucket"
KEY = "AKIA-not-a-real-key"
SECRET = "wJalrXUtnFEMI-not-a-real-secret"


@contextmanager
def pretended_s3():
    """A client of it; the bucket is there. One a process: s3fs remembers the first that it meets."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("s3fs")
    moto_server = pytest.importorskip("moto.server")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        try:
            yield client
        finally:
            server.stop()
