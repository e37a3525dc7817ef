// contexts.js CERTIFICATE KEY HOW: an https server. `each` is the planted fault: a context with its
// own store of authorities for each connection, instead of one for all.
const fs = require("fs"), tls = require("tls"), https = require("https");
const [certificate, key, how] = process.argv.slice(2);
const own = { cert: fs.readFileSync(certificate), key: fs.readFileSync(key) };
const create = () => tls.createSecureContext({ ...own, ca: tls.rootCertificates.slice(0, 60) });
const one = create();
const SNICallback = (_, done) => done(null, how == "each" ? create() : one);
const server = https.createServer({ ...own, SNICallback }, (_, answer) => answer.end("a page"));
// Idle connections stay, also before a request.
server.headersTimeout = server.requestTimeout = 0;
server.listen(0, "127.0.0.1", function () { console.log("port " + this.address().port + ";"); });
