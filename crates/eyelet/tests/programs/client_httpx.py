"""A client of HTTP/2 with httpx: http2 PORT NAME CA. Says `ok TLS` when everything came back."""
import asyncio
import socket
import sys

import httpx

resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: resolve("127.0.0.1", *rest, **more)
port, name, ca = sys.argv[2:5]


async def ask(client, i):
    sent = chr(97 + i % 26).encode() * (i * 5000)
    answer = await client.post(f"https://{name}:{port}/httpx/{i}", content=sent)
    assert answer.http_version == "HTTP/2", answer.http_version
    whole = answer.content.startswith(f"POST /httpx/{i} ".encode())
    assert whole and answer.content.endswith(b"\r\n\r\n" + sent), (i, len(answer.content))


async def main():
    async with httpx.AsyncClient(http2=True, verify=ca, timeout=30, trust_env=False) as client:
        await ask(client, 0)
        await asyncio.gather(*(ask(client, i) for i in range(40)))
    print("ok TLS, forty by HTTP/2")


asyncio.run(main())
