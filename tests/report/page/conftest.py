"""A real Chromium, spoken to over a pair of pipes in its own protocol, so that no driver is needed."""

import json
import os
import select
import shutil
import subprocess
import time

import pytest

_PATIENCE = 60.0  # seconds; a machine that is busy is no failure


class Browser:
    """A browser without a window, with one page."""

    def __init__(self, executable, profile):
        to_browser, write = os.pipe()
        read, from_browser = os.pipe()
        # The protocol wants its pipes as file descriptors 3 and 4, whatever they are here.
        command = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        wrapped = ["bash", "-c", command, "bash", str(to_browser), str(from_browser)]
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [*wrapped, executable, *options, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._read, self._write, self._buffer, self._number, self._session = read, write, b"", 0, None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        deadline = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, width=1200, height=900, dark=False):
        """Open a file, and wait until it is loaded."""
        self.resize(width, height)
        self.theme(dark)
        self.events = []
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def resize(self, width, height=900):
        """Make the window so large, with a phone's pixels where it is narrow."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def theme(self, dark):
        """Prefer light or dark colours."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def run(self, script):
        """Return the value of an expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    @property
    def complaints(self):
        """What the console has heard so far: errors, warnings, exceptions, refusals by the page's policy."""
        self.run("new Promise((done) => setTimeout(done, 100))")  # what goes wrong may take a moment to be said
        kinds = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [event for event in self.events if event.get("method") in kinds]

    @property
    def requests(self):
        """Addresses that were asked for, but for the page itself and what it holds."""
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        addresses = [each["request"]["url"] for each in sent if each.get("type") != "Document"]
        return [address for address in addresses if not address.startswith("data:")]

    def close(self):
        """End the browser."""
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(_PATIENCE)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("there is no Chromium here to look at the page with")
    found = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
