"""Writes hpack.txt: header blocks of Python's `hpack`, as another implementation encodes them.

Each case is one connection: `table N` sets SETTINGS_HEADER_TABLE_SIZE, `block HEX` is a header
block, and the lines `name: value` after it are its fields. Run: python3 make_hpack.py > hpack.txt
"""

import random

from hpack import Encoder

NAMES = ["accept", "accept-language", "cookie", "user-agent", "x-request-id", "cache-control",
         "etag", "x-very-long-name-of-a-field-that-nobody-else-uses"]
PATHS = ["/", "/index.html", "/a/b/c?d=e", "/search?q=%20", "/style.css"]


def value(rng):
    kind = rng.randrange(4)
    if kind == 0:
        return "".join(rng.choice("abcdef0123456789") for _ in range(rng.randrange(1, 40)))
    if kind == 1:
        return "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"[: rng.randrange(1, 48)].strip()
    if kind == 2:
        return "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(1, 60)))
    return rng.choice(["no-cache", "gzip, deflate, br", "en-GB", "*/*"])


def main():
    rng = random.Random(7541)
    for case in range(12):
        print(f"case {case}")
        encoder = Encoder()
        for _ in range(6):
            if rng.randrange(3) == 0:
                size = rng.choice([0, 64, 256, 1024, 2048, 4096])
                encoder.header_table_size = size
                print(f"table {size}")
            fields = [(":method", rng.choice(["GET", "POST", "HEAD"])), (":scheme", "https"),
                      (":path", rng.choice(PATHS)), (":authority", "www.example")]
            fields += [(rng.choice(NAMES), value(rng)) for _ in range(rng.randrange(8))]
            block = encoder.encode(fields, huffman=rng.randrange(4) != 0)
            print(f"block {block.hex()}")
            for name, text in fields:
                print(f"{name}: {text}")


main()
