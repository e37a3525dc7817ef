"""Requests on one connection through a CONNECT proxy.

Arguments: the proxy's address, the target's, a name, the client's roots, and lists of one field each
for the requests, as NAME=VALUE. Says the status and the body of each response.
"""
import http.client
import ssl
import sys

PROXY, TARGET, NAME, ROOTS, *FIELDS = sys.argv[1:]


class Named(ssl.SSLContext):
    """For a server that is dialled by its address."""

    def wrap_socket(self, sock, **options):
        return super().wrap_socket(sock, **{**options, "server_hostname": NAME})


context = Named(ssl.PROTOCOL_TLS_CLIENT)
context.load_verify_locations(ROOTS)
host, port = PROXY.split(":")
connection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
host, port = TARGET.split(":")
connection.set_tunnel(host, int(port))
for field in FIELDS:
    connection.request("GET", "/", headers=dict([("Host", NAME), field.split("=", 1)]))
    response = connection.getresponse()
    print(response.status, response.read().decode(), flush=True)
