// An origin by both versions of HTTP, whose WebSockets say their frames back: CERTIFICATE KEY. Says
// its port, and each WebSocket's path.
"use strict";
const crypto = require("crypto");
const fs = require("fs");
const http2 = require("http2");
const [cert, key] = process.argv.slice(2).map((file) => fs.readFileSync(file));
const MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"; // RFC 6455 section 1.3

const options = { cert, key, allowHTTP1: true };
const server = http2.createSecureServer(options, (request, response) => {
  response.end(`${request.method} ${request.url} by ${request.httpVersion}`);
});
server.on("upgrade", (request, socket) => {
  console.log("switched", request.url);
  const asked = request.headers["sec-websocket-key"] + MAGIC;
  const accept = crypto.createHash("sha1").update(asked).digest("base64");
  socket.write(
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
      `Sec-WebSocket-Accept: ${accept}\r\n\r\n`,
  );
  // Short frames with a mask, each of which arrives whole.
  socket.on("data", (frame) => {
    const mask = frame.subarray(2, 6);
    const text = frame.subarray(6).map((byte, nth) => byte ^ mask[nth % 4]);
    socket.write(Buffer.concat([Buffer.from([0x81, text.length]), text]));
  });
  socket.on("error", () => socket.destroy());
});
server.listen(0, "127.0.0.1", () => console.log("port", server.address().port));
