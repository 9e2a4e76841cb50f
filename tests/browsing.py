"""Pages in a headless Chromium, driven through its DevTools protocol."""

import asyncio
import itertools
import json
import os
import subprocess
import time
import urllib.request
from contextlib import contextmanager

import pytest

from cehm_dask.report import browser

try:
    CHROMIUM = browser.find()
except FileNotFoundError:
    CHROMIUM = None
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")


COMPLAINTS = {
    *("Runtime.exceptionThrown", "Runtime.consoleAPICalled"),
    *("Log.entryAdded", "Page.javascriptDialogOpening"),
}


class Tab:
    """A tab of a headless Chromium, driven through its DevTools protocol; what it complains of is kept."""

    def __init__(self, socket):
        self.socket, self.numbers, self.complaints = socket, itertools.count(1), []

    async def call(self, method, **params):
        number = next(self.numbers)
        await self.socket.write_message(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(await asyncio.wait_for(self.socket.read_message(), 60))
            if message.get("method") in COMPLAINTS:
                self.complaints.append(message)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    async def open(self, path, width=1280, scripts=True):
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)
        await self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        url = path if isinstance(path, str) else path.as_uri()
        await self.call("Page.navigate", url=url)
        while await self.tell("document.readyState + location.protocol") != f"complete{url.partition(':')[0]}:":
            await asyncio.sleep(0.05)

    async def tell(self, expression):
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")


@contextmanager
def chromium(profile):
    """A headless Chromium and the port of its DevTools."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    options = ["--headless=new", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0", *sandbox]
    process = subprocess.Popen(
        [CHROMIUM, *options, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL
    )
    try:
        port = profile / "DevToolsActivePort"
        for _ in range(600):
            if port.is_file() and port.read_text().strip():
                break
            time.sleep(0.1)
        yield int(port.read_text().split()[0])
    finally:
        process.terminate()
        process.wait(30)


def drive(port, story):
    """Run a story (an async function of a tab) in a tab of its own."""
    from tornado.websocket import websocket_connect

    async def run():
        request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            target = json.loads(answer.read())
        socket = await websocket_connect(target["webSocketDebuggerUrl"], max_message_size=1 << 28)
        tab = Tab(socket)
        try:
            await story(tab)
        finally:
            await tab.call("Page.close")
            while await asyncio.wait_for(socket.read_message(), 60) is not None:
                pass  # until the other end has closed
            socket.close()
        assert tab.complaints == []

    asyncio.run(run())
