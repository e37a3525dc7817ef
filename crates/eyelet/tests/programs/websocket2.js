// A WebSocket inside of HTTP/2 (RFC 8441): PORT NAME CA [PATH [TARGET]]. With a target the port is
// that of a CONNECT proxy. Each line of its standard input becomes a text frame. Says `open` or
// `refused`, what each frame of the server carries, and `closed` at the stream's end.
"use strict";
const fs = require("fs");
const http = require("http");
const http2 = require("http2");
const readline = require("readline");
const tls = require("tls");
const [port, name, ca, path = "/chat", target] = process.argv.slice(2);
const options = { servername: name, ca: fs.readFileSync(ca), ALPNProtocols: ["h2"] };

function talk(to) {
  const session = http2.connect(`https://${name}`, {
    createConnection: () => tls.connect({ ...options, ...to }),
  });
  session.on("error", (error) => console.log("error", error.message));
  session.on("goaway", (code) => console.log("goaway", code));
  session.on("close", () => {
    console.log("closed");
    process.exit(0);
  });
  session.on("remoteSettings", (settings) => {
    if (!settings.enableConnectProtocol) throw new Error("no extended CONNECT");
    begin(session);
  });
}

function begin(session) {
  const stream = session.request(
    { ":method": "CONNECT", ":protocol": "websocket", ":path": path, "sec-websocket-version": 13 },
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
}

if (target) {
  const headers = { host: target };
  const connect = http.request({ port, method: "CONNECT", path: target, headers });
  connect.on("connect", (_, socket) => talk({ socket }));
  connect.end();
} else {
  talk({ host: "127.0.0.1", port: Number(port) });
}
