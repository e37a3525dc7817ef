// Before: an echo that speaks TLS itself. Arguments: certificate, key. `PORT` says where.
const fs = require('fs');
const tls = require('tls');

const [cert, key] = process.argv.slice(2).map((file) => fs.readFileSync(file));
const server = tls.createServer({ cert, key }, (socket) => {
  socket.on('error', () => {});
  socket.pipe(socket);
});
server.listen(Number(process.env.PORT), '127.0.0.1');
