#!/usr/bin/env python3
"""Drives the demo's page in Chromium.

demo_page.py URL HOME COUNT [SHOTS]

HOME has the profile, and a store that trusts the demo's authority. Parks COUNT connections, presses
each button, and prints what the page showed as JSON. With SHOTS it writes screenshots there.
"""
import os
import sys
import time

sys.dont_write_bytecode = True
from browser import SIZES, drive  # noqa: E402


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
    shown["paint_ms"] = browser.value("""new Promise((resolve) =>
        new PerformanceObserver((list) => list.getEntriesByName("first-contentful-paint")
            .forEach((paint) => resolve(Math.round(paint.startTime))))
            .observe({ type: "paint", buffered: true }))
    """)
    shown["style"] = browser.value("getComputedStyle(document.querySelector('section')).borderRadius")
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
                whole = (size, scheme) == ("wide", "light")
                browser.shoot(os.path.join(shots, f"demo-{size}-{scheme}.png"), whole)
    browser.click("release")
    shown["released"] = browser.until("park-text", lambda text: "Nobody" in text)
    return shown


def main():
    url, home, count = sys.argv[1:4]
    shots = sys.argv[4] if len(sys.argv) > 4 else None
    drive(home, lambda browser: visit(browser, url, count, shots))


if __name__ == "__main__":
    main()
