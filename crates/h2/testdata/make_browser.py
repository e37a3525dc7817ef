"""Writes browser.txt: the header blocks of 20 requests as Chromium sends them, and of one each by
curl, httpx and Go.

Python's `hpack` inserts what Chromium inserts: all fields but `:path`. Each line is `name HEX`.
Run: python3 make_browser.py > browser.txt
"""

from hpack import Encoder

AGENT = ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
         "Chrome/140.0.0.0 Safari/537.36")
KINDS = {
    "document": ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,"
                 "image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7", "navigate", "u=0, i"),
    "style": ("text/css,*/*;q=0.1", "no-cors", "u=0"),
    "script": ("*/*", "no-cors", "u=1"),
    "image": ("image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8", "no-cors", "u=2, i"),
    "empty": ("*/*", "cors", "u=1, i"),
}


def encode(encoder, fields):
    """A path is not inserted, and the pieces of a cookie are fields of their own."""
    return encoder.encode([(name, value, name == ":path") for name, value in fields])


def main():
    curl = Encoder()
    fields = [(":method", "GET"), (":path", "/"), (":scheme", "https"),
              (":authority", "www.example.com"), ("user-agent", "curl/7.88.1"), ("accept", "*/*")]
    print("curl", encode(curl, fields).hex())
    fields = [(":method", "GET"), (":authority", "www.example.com"), (":scheme", "https"),
              (":path", "/"), ("accept", "*/*"), ("accept-encoding", "gzip, deflate, br, zstd"),
              ("user-agent", "python-httpx/0.28.1")]
    print("httpx", encode(Encoder(), fields).hex())
    fields = [(":authority", "www.example.com"), (":method", "GET"), (":path", "/"),
              (":scheme", "https"), ("accept-encoding", "gzip"),
              ("user-agent", "Go-http-client/2.0")]
    print("go", encode(Encoder(), fields).hex())
    chromium = Encoder()
    order = ["document"] + ["style"] * 3 + ["script"] * 5 + ["image"] * 8 + ["empty"] * 3
    for number, kind in enumerate(order):
        accept, mode, priority = KINDS[kind]
        fields = [(":method", "GET"), (":authority", "www.example.com"), (":scheme", "https"),
                  (":path", "/" if number == 0 else f"/assets/{kind}-{number * 7919:x}.bin")]
        if kind == "document":
            fields += [("cache-control", "max-age=0"), ("upgrade-insecure-requests", "1")]
        fields += [("sec-ch-ua", '"Chromium";v="140", "Not=A?Brand";v="24"'),
                   ("sec-ch-ua-mobile", "?0"), ("sec-ch-ua-platform", '"Linux"'),
                   ("user-agent", AGENT), ("accept", accept),
                   ("sec-fetch-site", "same-origin"), ("sec-fetch-mode", mode),
                   ("sec-fetch-dest", kind)]
        if kind != "document":
            fields.append(("referer", "https://www.example.com/"))
        fields += [("accept-encoding", "gzip, deflate, br, zstd"),
                   ("accept-language", "en-GB,en;q=0.9"),
                   ("cookie", "session=7f3b2c1d9e8a4f6b8c0d2e4f6a8b0c1d"),
                   ("cookie", "theme=dark"), ("cookie", "consent=1"),
                   ("priority", priority)]
        print("chromium", encode(chromium, fields).hex())


main()
