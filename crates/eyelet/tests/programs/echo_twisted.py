# After, and before with two arguments (certificate, key): an echo with Twisted.
import os
import sys

from twisted.internet import protocol, reactor, ssl


class Echo(protocol.Protocol):
    def dataReceived(self, data):
        self.transport.write(data)


factory = protocol.Factory.forProtocol(Echo)
port = int(os.environ["PORT"])
if len(sys.argv) == 3:
    certificate, key = sys.argv[1:]
    tls = ssl.DefaultOpenSSLContextFactory(key, certificate)
    reactor.listenSSL(port, factory, tls, interface="127.0.0.1")
else:
    reactor.listenTCP(port, factory, interface="127.0.0.1")
reactor.run()
