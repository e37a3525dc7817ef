#!/usr/bin/env python3
"""Chromium by the DevTools protocol over a pipe: NUL-separated JSON. Other programs import this."""
import base64
import collections
import json
import os
import struct
import subprocess
import time
import zlib

# Seconds for one step: a busy machine needs them.
STEP_MAX = 90
COLOURS_MAX = 64
SIZES = {"wide": (1440, 1000), "narrow": (360, 740)}


class Browser:
    def __init__(self, home):
        orders, self.out = os.pipe()
        self.answers, replies = os.pipe()

        def wire():
            # The pipes may have these numbers already.
            far_orders, far_replies = os.dup(orders), os.dup(replies)
            os.dup2(far_orders, 3)
            os.dup2(far_replies, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={home}/profile", "about:blank"],
            env={**os.environ, "HOME": home}, preexec_fn=wire, close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(orders)
        os.close(replies)
        self.rest, self.last, self.session, self.errors = b"", 0, None, []

    def call(self, method, **params):
        self.last += 1
        order = {"id": self.last, "method": method, "params": params}
        if self.session:
            order["sessionId"] = self.session
        os.write(self.out, json.dumps(order).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def receive(self):
        while b"\0" not in self.rest:
            more = os.read(self.answers, 1 << 16)
            if not more:
                raise RuntimeError("Chromium has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(message)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, method, params):
        """Keeps what a person would see as an error in the console."""
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("text", ""))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))

    def attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log"]:
            self.call(f"{domain}.enable")

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def text(self, name):
        return self.value(f"document.getElementById('{name}')?.textContent")

    def until(self, name, wanted):
        """Waits for an element's text."""
        end = time.monotonic() + STEP_MAX
        while time.monotonic() < end:
            text = self.text(name) or ""
            if wanted(text):
                return text
            time.sleep(0.1)
        raise RuntimeError(f"#{name} shows {self.text(name)!r}")

    def click(self, name):
        self.value(f"document.getElementById('{name}').click()")

    def press(self, key, code, text=""):
        for kind in ["keyDown", "keyUp"]:
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "")

    def resize(self, size, scheme):
        width, height = SIZES[size]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def shoot(self, path, whole=False):
        clip = {}
        if whole:
            height = self.value("document.documentElement.scrollHeight")
            width = self.value("document.documentElement.clientWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
                    "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        with open(path, "wb") as file:
            file.write(with_palette(base64.b64decode(data)))


def with_palette(png):
    """The same PNG with at most COLOURS_MAX colours: a third of the bytes (RFC 2083)."""
    at, packed = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    size = {2: 3, 6: 4}[colour]
    rows = unfiltered(zlib.decompress(packed), width * size, size)
    pixels = [[row[x:x + 3] for x in range(0, len(row), size)] for row in rows]
    count = collections.Counter(pixel for row in pixels for pixel in row)
    palette = [pixel for pixel, _ in count.most_common(COLOURS_MAX)]

    def nearest(pixel):
        return min(range(len(palette)),
                   key=lambda n: sum((a - b) ** 2 for a, b in zip(palette[n], pixel)))

    index = {pixel: nearest(pixel) for pixel in count}
    raw = b"".join(b"\0" + bytes(index[pixel] for pixel in row) for row in pixels)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(
            ">I", zlib.crc32(kind + body))

    return (png[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
            + chunk(b"PLTE", b"".join(palette)) + chunk(b"IDAT", zlib.compress(raw, 9))
            + chunk(b"IEND", b""))


def unfiltered(data, stride, size):
    """The rows of an image, each as its bytes (RFC 2083 section 6)."""
    above, rows = bytes(stride), []
    for at in range(0, len(data), stride + 1):
        kind, row = data[at], bytearray(data[at + 1:at + 1 + stride])
        for x in range(stride if kind else 0):
            left = row[x - size] if x >= size else 0
            corner = above[x - size] if x >= size else 0
            if kind == 4:
                guess = left + above[x] - corner
                add = min((left, above[x], corner), key=lambda value: abs(guess - value))
            else:
                add = [0, left, above[x], (left + above[x]) // 2][kind]
            row[x] = (row[x] + add) & 0xFF
        above = bytes(row)
        rows.append(above)
    return rows


def drive(home, visit):
    """Prints what a visit shows, and ends Chromium."""
    browser = Browser(home)
    try:
        browser.attach()
        print(json.dumps(visit(browser)))
        browser.session = None
        browser.call("Browser.close")
    finally:
        browser.process.kill()
        browser.process.wait()
