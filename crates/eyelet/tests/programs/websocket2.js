// A WebSocket inside of HTTP/2 (RFC 8441): PORT NAME CA. Each line of its standard input becomes a
// text frame. Says `open`, what each frame of the server carries, and `closed` at the stream's end.
"use strict";
const fs = require("fs");
const http2 = require("http2");
const readline = require("readline");
const tls = require("tls");
const [port, name, ca] = process.argv.slice(2);
const options = { host: "127.0.0.1", port: Number(port), servername: name, ca: fs.readFileSync(ca) };

const session = http2.connect(`https://${name}`, {
  createConnection: () => tls.connect({ ...options, ALPNProtocols: ["h2"] }),
});
session.on("error", (error) => console.log("error", error.message));
session.on("goaway", (code) => console.log("goaway", code));
session.on("close", () => {
  console.log("closed");
  process.exit(0);
});
session.on("remoteSettings", (settings) => {
  if (!settings.enableConnectProtocol) throw new Error("no extended CONNECT");
  const stream = session.request(
    { ":method": "CONNECT", ":protocol": "websocket", ":path": "/chat", "sec-websocket-version": 13 },
    { endStream: false },
  );
  stream.on("response", (head) => console.log(head[":status"] === 200 ? "open" : "refused"));
  stream.on("error", (error) => console.log("error", error.message));
  stream.on("end", () => stream.end());
  stream.on("close", () => console.log("closed"));
  // Short frames without a mask, each of which arrives whole.
  stream.on("data", (frame) => console.log(frame.subarray(2).toString("latin1")));
  readline.createInterface({ input: process.stdin }).on("line", (line) => {
    const text = Buffer.from(line, "latin1");
    stream.write(Buffer.concat([Buffer.from([0x81, 0x80 | text.length, 0, 0, 0, 0]), text]));
  });
});
