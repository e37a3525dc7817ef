// Asks by HTTP/1.1 and by HTTP/2 with a traceparent: PORT CA TRACEPARENT. Says both answers.
"use strict";
const fs = require("fs");
const http2 = require("http2");
const https = require("https");

const [port, file, traceparent] = process.argv.slice(2);
const ca = fs.readFileSync(file);
const servername = "app.test";

const headers = { traceparent, tracestate: "vendor=1,other=2", host: "app.test" };
https.get({ host: "127.0.0.1", port, path: "/one", servername, ca, headers }, (answer) => {
  answer.setEncoding("utf8");
  answer.on("data", (text) => process.stdout.write(text));
  answer.on("end", two);
});

function two() {
  const client = http2.connect(`https://127.0.0.1:${port}`, { ca, servername });
  const asked = { ":path": "/two", ":authority": "app.test", traceparent, tracestate: "vendor=3" };
  const stream = client.request(asked);
  stream.setEncoding("utf8");
  stream.on("data", (text) => process.stdout.write(text));
  stream.on("end", () => client.close());
}
