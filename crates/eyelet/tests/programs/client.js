// A TLS client: echo PORT NAME CA, or http. Says `ok VERSION` when everything came back.
"use strict";
const fs = require("fs");
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
