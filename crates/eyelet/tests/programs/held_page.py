#!/usr/bin/env python3
"""Decides about held connections on the admin server's page, in Chromium.

held_page.py URL HOME TOKEN

HOME has the profile. Lets a.test pass for an hour and refuses b.test, by the page's buttons, and
prints what the page showed as JSON.
"""
import sys
import time

sys.dont_write_bytecode = True
from browser import drive  # noqa: E402


def click(browser, label):
    """Clicks a button by its label, as a screen reader says it."""
    find = f"document.querySelector('#held button[aria-label^=\"{label}\"]')"
    end = time.monotonic() + 60
    while not browser.value(f"Boolean({find})") and time.monotonic() < end:
        time.sleep(0.05)
    browser.value(f"{find}.click()")


def visit(browser, url, token):
    shown = {}
    browser.resize("wide", "light")
    browser.call("Page.navigate", url=url)
    end = time.monotonic() + 60
    while browser.value("document.activeElement?.id") != "token" and time.monotonic() < end:
        time.sleep(0.05)
    browser.errors.clear()
    browser.call("Input.insertText", text=token)
    browser.press("Enter", 13, "\r")
    browser.until("held", lambda text: "a.test" in text and "b.test" in text)
    shown["held"] = browser.value("document.getElementById('held').textContent")
    # A row that stays keeps its buttons, and the focus.
    browser.value("document.querySelector('#held button[aria-label^=\"refuse: b.test\"]').focus()")
    time.sleep(2.5)
    shown["focus"] = browser.value("document.activeElement.getAttribute('aria-label')")
    assert shown["focus"].startswith("refuse: b.test"), shown
    click(browser, "1 hour: a.test")
    browser.until("held-said", lambda text: "a.test" in text)
    click(browser, "refuse: b.test")
    browser.until("held-said", lambda text: "b.test" in text)
    browser.until("held", lambda text: "Nothing is held" in text)
    shown["errors"] = browser.errors
    return shown


if __name__ == "__main__":
    url, home, token = sys.argv[1:4]
    drive(home, lambda browser: visit(browser, url, token))
