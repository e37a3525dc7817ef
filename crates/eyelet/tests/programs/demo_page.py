#!/usr/bin/env python3
"""Drives the demo's page in Chromium by the DevTools protocol over a pipe: NUL-separated JSON.

demo_page.py URL HOME COUNT [SHOTS]

HOME has the profile, and a store that trusts the demo's authority. Parks COUNT connections, presses
each button, and prints what the page showed as JSON. With SHOTS it writes screenshots there.
"""
import base64
import json
import os
import subprocess
import sys
import time

# Seconds for one step: a busy machine needs them.
STEP_MAX = 90
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
        self.rest, self.last, self.session = b"", 0, None

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
        return json.loads(message)

    def attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

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
            file.write(base64.b64decode(data))


def wire_bytes(browser):
    return browser.value("""
        [performance.getEntriesByType("navigation")[0], ...performance.getEntriesByType("resource")]
            .filter((e) => !e.name.endsWith("/events")).reduce((sum, e) => sum + e.transferSize, 0)
    """)


def visit(browser, url, count, shots):
    shown = {}
    browser.resize("wide", "light")
    browser.call("Page.navigate", url=url)
    shown["ja4"] = browser.until("hello-ja4", lambda text: len(text) > 3)
    for part in ["name", "alpn", "versions", "shares", "offers"]:
        shown[part] = browser.text(f"hello-{part}")
    shown["explained"] = browser.text("explained")
    shown["wire_bytes"] = wire_bytes(browser)
    shown["paint_ms"] = browser.value(
        'performance.getEntriesByName("first-contentful-paint")[0]?.startTime')
    browser.until("log", lambda text: "/page.js" in text)
    # By the keyboard alone: from the box before the buttons to the first one.
    browser.value(f"document.getElementById('park-some').dataset.count = '{count}'")
    browser.value("document.getElementById('explained').focus()")
    browser.press("Tab", 9)
    shown["focus"] = browser.value("document.activeElement.id")
    browser.press("Enter", 13, "\r")
    shown["park"] = browser.until("park-text", lambda text: "in nginx" in text)
    shown["parked"] = browser.text("parked")
    shown["each"] = browser.text("each")
    browser.click("splice")
    shown["splice"] = browser.until("splice-text", lambda text: "Watch" not in text)
    browser.until("log", lambda text: "rule origin" in text)
    browser.click("refuse")
    shown["refuse"] = browser.until("splice-text", lambda text: "efused" in text)
    shown["log"] = browser.until("log", lambda text: "nobody.localhost" in text)
    browser.click("lie")
    shown["lie"] = browser.until("lie-text", lambda text: "bank.example" in text)
    browser.until("log", lambda text: "rule lies" in text)
    browser.click("codings")
    shown["codings"] = browser.until("codings-bars", lambda text: "your browser" in text)
    for size in SIZES:
        browser.resize(size, "light")
        shown[f"overflow_{size}"] = browser.value(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if shots:
        time.sleep(1)
        for size in SIZES:
            for scheme in ["light", "dark"]:
                browser.resize(size, scheme)
                browser.value("window.scrollTo(0, 0)")
                time.sleep(0.6)
                browser.shoot(os.path.join(shots, f"demo-{size}-{scheme}.png"), size == "wide")
        browser.shoot(os.path.join(shots, "demo-narrow-whole.png"), True)
    browser.click("release")
    shown["released"] = browser.until("park-text", lambda text: "Nobody" in text)
    return shown


def main():
    url, home, count = sys.argv[1:4]
    shots = sys.argv[4] if len(sys.argv) > 4 else None
    browser = Browser(home)
    try:
        browser.attach()
        print(json.dumps(visit(browser, url, count, shots)))
        browser.session = None
        browser.call("Browser.close")
    finally:
        browser.process.kill()
        browser.process.wait()


main()
