// Requests on one HTTP/2 connection through a CONNECT proxy: PROXY-PORT TARGET NAME CA. Without a
// target the port is the server's. A line of its standard input is a list of [METHOD, path]. It
// asks for all of them at once, and says the list of [status, body]. An error of a stream has the
// status 0. An error of the connection ends it.
"use strict";
const fs = require("fs");
const http = require("http");
const http2 = require("http2");
const net = require("net");
const readline = require("readline");
const tls = require("tls");
const [proxy, target, name, ca] = process.argv.slice(2);

function ask(session, method, path) {
  return new Promise((resolve) => {
    const fields = { ":method": method, ":path": path };
    if (method === "CONNECT") {
      fields[":protocol"] = "websocket";
      fields["sec-websocket-version"] = 13;
    }
    const stream = session.request(fields, { endStream: method !== "CONNECT" });
    let [status, body] = [0, ""];
    stream.on("response", (head) => {
      status = head[":status"];
      if (method === "CONNECT" && status === 200) stream.close();
    });
    stream.on("data", (piece) => (body += piece));
    stream.on("error", (error) => resolve([0, error.message]));
    stream.on("close", () => resolve([status, body]));
  });
}

function serve(socket) {
  const options = { socket, servername: name, ca: fs.readFileSync(ca), ALPNProtocols: ["h2"] };
  const createConnection = () => tls.connect(options);
  const session = http2.connect(`https://${name}`, { createConnection });
  session.on("goaway", (code) => console.log("goaway", code));
  session.on("remoteSettings", () => console.log("open"));
  readline.createInterface({ input: process.stdin }).on("line", async (line) => {
    const asked = JSON.parse(line).map(([method, path]) => ask(session, method, path));
    console.log("answers " + JSON.stringify(await Promise.all(asked)));
  });
}

if (target) {
  // Node would name the proxy in the Host field.
  const headers = { host: target };
  const connect = http.request({ port: proxy, method: "CONNECT", path: target, headers });
  connect.on("connect", (_, socket) => serve(socket));
  connect.end();
} else {
  const socket = net.connect(Number(proxy), "127.0.0.1", () => serve(socket));
}
