#!/usr/bin/env python3
"""Drives the admin server's page in Chromium.

admin_page.py URL HOME TOKEN EDGE_PORT OPEN [SHOTS]

HOME has the profile. Waits until the page shows OPEN connections, walks through it by keyboard, and
prints what it showed as JSON. With SHOTS it writes screenshots there.
"""
import os
import socket
import ssl
import sys
import time

sys.dont_write_bytecode = True
from browser import SIZES, drive  # noqa: E402


# Certificates of a large edge: some cannot be used, the others have expired and many names.
CROWDED = """
certificates = Array.from({ length: 50 }, (_, i) => i % 2
  ? { source: "file", from: `/etc/eyelet/site-${i}.pem`, error: "cannot be read: No such file or directory" }
  : { source: "file", from: `/etc/eyelet/site-${i}.pem`, not_before_unix_seconds: 0, not_after_unix_seconds: 1,
      names: Array.from({ length: 100 }, (_, j) => `n${j}.site-${i}.test`) });
certificatesCount = 50000;
showCertificates(2);
show(kept.at(-1));
"""


# What the page calls the time that its documents span.
SPAN = "kept[0].unix_seconds = kept.at(-1).unix_seconds - %d; recently()"


def refused(port):
    """A connection that no rule takes, so that the log has a new line."""
    trust = ssl.create_default_context()
    try:
        with socket.create_connection(("127.0.0.1", port), 30) as plain:
            trust.wrap_socket(plain, server_hostname="nobody.test").close()
    except OSError:
        pass


def tab_to(browser, name):
    """Moves the focus by the keyboard alone."""
    for _ in range(60):
        if browser.value("document.activeElement?.id") == name:
            return True
        browser.press("Tab", 9)
    return False


def visit(browser, url, token, port, count, shots):
    shown = {}
    browser.resize("wide", "light")
    browser.call("Page.navigate", url=url)
    if token:
        end = time.monotonic() + 60
        while browser.value("document.activeElement?.id") != "token" and time.monotonic() < end:
            time.sleep(0.05)
        # The 401 that made the page ask is an error of the console's, and expected.
        browser.errors.clear()
        for said in [token[::-1], token]:
            browser.call("Input.insertText", text=said)
            browser.press("Enter", 13, "\r")
            if said != token:
                browser.until("token-state", lambda text: "does not take" in text)
        browser.errors.clear()
    browser.until("open", lambda text: text == count)
    # A page that is opened again asks for no token: how soon is the first figure there?
    browser.call("Page.reload")
    browser.until("open", lambda text: text == count)
    mark = "performance.getEntriesByName('first-figure')[0].startTime"
    shown["first_figure_ms"] = round(browser.value(mark))
    shown["wire_bytes"] = browser.value("performance.getEntriesByType('navigation')[0].transferSize")
    refused(port)
    browser.until("log", lambda text: "nobody.test" in text)
    for part in ["verdict", "parked", "refused", "failed", "reasons", "rules", "kinds",
                 "handshakes", "edge", "accepted", "compression"]:
        shown[part] = browser.text(part)
    shown["certificates"] = browser.until("certificates", lambda text: "app.test" in text)
    shown["problems"] = browser.until("problems", lambda text: "down" in text)
    shown["charts"] = browser.until("charts", lambda text: "parked" in text)
    # The filters of the log.
    browser.value("document.getElementById('has').focus()")
    browser.call("Input.insertText", text="no such line")
    browser.until("log", lambda text: text == "")
    browser.value("document.getElementById('has').value = ''")
    # By the keyboard: from the log back to the list is a long way, so from the first control on.
    browser.value("document.getElementById('sort').focus()")
    shown["reached"] = tab_to(browser, "of-client")
    browser.press("Tab", 9)
    browser.press("Enter", 13, "\r")
    browser.until("found", lambda text: "connections" in text)
    shown["connections"] = browser.text("connections")
    browser.value("document.querySelector('#connections button').focus()")
    browser.press("Enter", 13, "\r")
    shown["apart"] = browser.until("apart", lambda text: "Connection" in text)
    shown["focus"] = browser.value("document.activeElement.id")
    shown["headers"] = browser.value(
        "[...document.querySelectorAll('table')].every((t) => t.tHead.querySelector('th[scope=col]'))")
    for size in SIZES:
        browser.resize(size, "dark")
        shown[f"overflow_{size}"] = browser.value(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if shots:
        for size, scheme in [("wide", "light"), ("narrow", "dark")]:
            browser.resize(size, scheme)
            browser.value("window.scrollTo(0, 0)")
            time.sleep(6)
            browser.shoot(os.path.join(shots, f"admin-{size}-{scheme}.png"))
    browser.resize("narrow", "light")
    browser.value(CROWDED)
    shown["crowded_overflow"] = browser.value(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth")
    shown["crowded_height"] = browser.value("document.documentElement.scrollHeight")
    shown["crowded_problems"] = browser.value("document.querySelectorAll('#problems li').length")
    shown["crowded_said"] = browser.value("document.getElementById('problems').textContent")
    shown["spans"] = [browser.value(SPAN % span) for span in (30, 60, 90, 3600)]
    shown["fetched"] = browser.value("performance.getEntriesByType('resource').map((one) => one.name)")
    shown["errors"] = browser.errors
    return shown


def main():
    url, home, token, port, count = sys.argv[1:6]
    shots = sys.argv[6] if len(sys.argv) > 6 else None
    drive(home, lambda browser: visit(browser, url, token, int(port), count, shots))


if __name__ == "__main__":
    main()
