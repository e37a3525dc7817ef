// POSTs bodies by HTTP/2: PORT CA BYTES STATUS TIMES. Says `ok TIMES` when each answer came whole,
// each on a connection of its own.
"use strict";
const fs = require("fs");
const http2 = require("http2");
const [port, ca, ...numbers] = process.argv.slice(2);
const [length, status, times] = numbers.map(Number);

function fail(why) {
  console.error(why);
  process.exit(1);
}

function ask(i) {
  if (i === times) {
    console.log("ok", times);
    return;
  }
  const options = { ca: fs.readFileSync(ca), servername: "app.test" };
  const session = http2.connect(`https://127.0.0.1:${port}`, options);
  session.on("error", (error) => fail(`${i}: session: ${error}`));
  const stream = session.request({ ":method": "POST", ":path": `/${i}`, ":authority": "app.test" });
  let answered;
  let body = "";
  stream.on("response", (head) => (answered = head[":status"]));
  stream.on("data", (piece) => (body += piece));
  stream.on("error", (error) => fail(`${i}: stream: ${error}`));
  stream.on("close", () => {
    if (answered !== status || body !== "early") fail(`${i}: ${answered} ${body}`);
    session.close(() => ask(i + 1));
  });
  stream.end(Buffer.alloc(length, "x"));
}
ask(0);
