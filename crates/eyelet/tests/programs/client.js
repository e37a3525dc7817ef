// A TLS client: echo PORT NAME CA, or http, or http2. Says `ok VERSION` when everything came back.
"use strict";
const fs = require("fs");
const http2 = require("http2");
const https = require("https");
const tls = require("tls");
const [mode, port, name, ca] = process.argv.slice(2);
const options = { host: "127.0.0.1", port: Number(port), servername: name, ca: fs.readFileSync(ca) };

function fail(why) {
  console.error(why);
  process.exit(1);
}

if (mode === "echo") {
  const sent = Buffer.from(Array.from({ length: 300000 }, (_, i) => (i * 7) % 251));
  const pieces = [];
  let length = 0;
  const socket = tls.connect(options, () => socket.write(sent));
  socket.on("data", (piece) => {
    pieces.push(piece);
    length += piece.length;
    if (length === sent.length) socket.end();
  });
  socket.on("end", () => {
    if (!Buffer.concat(pieces).equals(sent)) fail(`other bytes, ${length}`);
    console.log("ok", version);
  });
  let version;
  socket.on("secureConnect", () => (version = socket.getProtocol()));
  socket.on("error", fail);
} else if (mode === "http2") {
  const session = http2.connect(`https://${name}`, {
    createConnection: () => tls.connect({ ...options, ALPNProtocols: ["h2"] }),
  });
  session.on("error", fail);
  let left = 40;
  for (let i = 0; i < 40; i++) {
    const sent = String.fromCharCode(97 + (i % 26)).repeat(i * 5000);
    const head = { ":method": "POST", ":path": `/node/${i}`, "content-length": sent.length };
    const stream = session.request(head);
    let body = "";
    stream.setEncoding("latin1");
    stream.on("error", fail);
    stream.on("data", (piece) => (body += piece));
    stream.on("end", () => {
      if (!body.startsWith(`POST /node/${i} `) || !body.endsWith(`\r\n\r\n${sent}`)) {
        fail(`${i}: ${body.length} bytes`);
      }
      if (--left === 0) session.close(() => console.log("ok TLS, forty by HTTP/2"));
    });
    stream.end(sent);
  }
} else {
  const agent = new https.Agent({ keepAlive: true, maxSockets: 1 });
  let version;
  const ask = (i) => {
    if (i === 3) {
      agent.destroy();
      console.log("ok", version);
      return;
    }
    https
      .get({ ...options, agent, headers: { host: name }, path: `/node/${i}` }, (response) => {
        version = response.socket.getProtocol();
        let body = "";
        response.on("data", (piece) => (body += piece));
        response.on("end", () => (body.includes(`GET /node/${i} `) ? ask(i + 1) : fail(body)));
      })
      .on("error", fail);
  };
  ask(0);
}
