"""An S3 on loopback that fails now and then, and what lies in it, fetched to compare."""

import http.client
import random
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.pretended_s3 import BUCKET

FAULTS = ("503", "500", "gone before", "gone after", "cut off")
"""An error with nothing done; no answer with nothing done, or with all done; half an answer."""


def short_lease():
    """In the command: a lock that others may take over after two seconds."""
    from cehm_dask.data import locks

    locks.LEASE_SECONDS, locks.RENEWAL_SECONDS = 2, 0.5


def fetched(client, prefix, folder):
    """Copy all objects under a prefix into a folder, but for locks."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/"):
        for entry in page.get("Contents", []):
            path = folder / entry["Key"].removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read())
    return folder


class _Faulty(BaseHTTPRequestHandler):
    """Hands requests on to the server behind, but for some."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _handle(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.next_fault()
        if fault in ("503", "500"):
            self._answer(int(fault), [("Content-Length", "0")], b"")
        elif fault == "gone before":
            self.close_connection = True
        else:
            status, headers, content = self._hand_on(body)
            if fault == "gone after":
                self.close_connection = True
            elif fault == "cut off" and content and self.command != "HEAD":
                self._answer(status, headers, content[: len(content) // 2])
                self.close_connection = True
            else:
                self._answer(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815

    def _hand_on(self, body):
        behind = http.client.HTTPConnection(self.server.behind, timeout=60)
        try:
            behind.request(self.command, self.path, body, dict(self.headers))
            answer = behind.getresponse()
            content = answer.read()
            left_out = {"connection", "transfer-encoding", "content-length", "server"}
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in left_out]
            size = answer.getheader("Content-Length") if self.command == "HEAD" else None
            return answer.status, [*headers, ("Content-Length", size or str(len(content)))], content
        finally:
            behind.close()

    def _answer(self, status, headers, content):
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class FaultyServer(ThreadingHTTPServer):
    """Some share of its requests fail; which ones is drawn from a seed."""

    daemon_threads = True

    def __init__(self, behind, share, seed):
        super().__init__(("127.0.0.1", 0), _Faulty)
        self.behind, self.share, self.rng = urlsplit(behind).netloc, share, random.Random(seed)
        self.alone, self.requests, self.faults = threading.Lock(), 0, 0

    def next_fault(self):
        with self.alone:
            self.requests += 1
            if self.rng.random() >= self.share:
                return None
            self.faults += 1
            return self.rng.choice(FAULTS)

    def handle_error(self, request, client_address):
        """Clients that go away are nothing to speak of."""

    @property
    def environment(self):
        """For commands that are to reach it. Few tries a request, so that faults also get past the library."""
        return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_address[1]}", "AWS_MAX_ATTEMPTS": "2"}


@contextmanager
def faulty(behind, share, seed):
    server = FaultyServer(behind, share, seed)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
