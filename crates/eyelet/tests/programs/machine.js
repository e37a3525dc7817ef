// The servers of a machine that runs the commands of a page. `near` is the application on port
// 3000; `far` are web servers on another host, for whatever name they are asked.
const fs = require('fs');
const http = require('http');
const https = require('https');

// Where names lead, and a server that has none of their certificates.
const FAR = ['10.0.0.7', '10.0.0.9', '20.0.0.10'];
const LIAR = ['20.0.0.66'];

const place = process.argv[2];
let waiting = 0;

function listen(server, port, host) {
  waiting += 1;
  server.listen(port, host, () => {
    waiting -= 1;
    if (waiting === 0) fs.writeFileSync(`${place}.ready`, '');
  });
}

function app(request, response) {
  const body = JSON.stringify({ path: request.url, text: 'All work and no play. '.repeat(200) });
  response.writeHead(200, {
    'content-type': 'application/json',
    'cache-control': 'public, max-age=60',
  });
  response.end(body);
}

function origin(request, response) {
  response.end(`${request.headers.host}\n`);
}

if (place === 'near') {
  listen(http.createServer(app), 3000, '127.0.0.1');
} else {
  for (const [name, addresses] of [['far', FAR], ['liar', LIAR]]) {
    const files = { cert: fs.readFileSync(`${name}.pem`), key: fs.readFileSync(`${name}.key`) };
    for (const address of addresses) listen(https.createServer(files, origin), 443, address);
  }
  listen(http.createServer(origin), 80);
}
