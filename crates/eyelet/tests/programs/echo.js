// After: the same echo without TLS. `PORT` says where.
const net = require('net');

const server = net.createServer((socket) => {
  socket.on('error', () => {});
  socket.pipe(socket);
});
server.listen(Number(process.env.PORT), '127.0.0.1');
