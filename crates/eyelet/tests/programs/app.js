// An application for the tests of `eyelet run`. The first argument says where it listens.
const fs = require('fs');
const http = require('http');
const net = require('net');

const [mode, file] = process.argv.slice(2);
const answers = {
  '/crash': () => process.exit(3),
  '/quit': () => process.exit(0),
};

function answer(request, response) {
  if (answers[request.url]) return answers[request.url]();
  const version = mode === 'version' ? fs.readFileSync(file, 'utf8') : '';
  response.end(`pid ${process.pid} ${request.headers['x-forwarded-for']} ${version}`);
}

function listen(options, then) {
  const server = http.createServer(answer);
  server.on('upgrade', (request, socket) => {
    socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n'
      + 'Upgrade: echo\r\n\r\n');
    socket.pipe(socket);
  });
  server.listen(options, then);
  return server;
}

const PORT = Number(process.env.PORT);
const local = (port) => ({ port, host: '127.0.0.1' });
const modes = {
  port: () => listen(local(PORT)),
  all: () => listen(PORT),
  random: () => listen(local(0)),
  six: () => listen({ port: PORT, host: '::1' }),
  two: () => { listen(local(0)); listen(local(0)); },
  debugger: () => { listen(local(0)); setTimeout(() => listen(local(PORT)), 200); },
  unix: () => listen(file),
  // The first socket controls the program, and is its owner's alone.
  control: () => {
    const control = `${file}.control`;
    listen(control, () => fs.chmodSync(control, 0o600));
    listen(file);
  },
  nowhere: () => setInterval(() => {}, 1000),
  // After the first life it listens once the file is there.
  gate: () => gate(local(PORT)),
  moving: () => gate(local(0)),
  version: () => listen(local(PORT)),
};

function gate(options) {
  const first = `${file}.first`;
  if (!fs.existsSync(first)) {
    fs.writeFileSync(first, '');
    return listen(options);
  }
  const wait = setInterval(() => {
    if (!fs.existsSync(file)) return;
    clearInterval(wait);
    listen(options);
  }, 10);
}

console.log(`app: started with ${net.isIP('::1') ? mode : ''}`);
for (const signal of ['SIGHUP', 'SIGQUIT', 'SIGUSR2']) {
  process.on(signal, () => console.log(`app: ${signal}`));
}
process.on('SIGINT', () => { console.log('app: SIGINT'); process.exit(7); });
modes[mode]();
