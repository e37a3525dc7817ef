"""What OpenSSL sees in hellos: hellos.py HELLOS CERTIFICATE KEY, a file of hellos, each after its
length in four bytes. One line each: `name NAME`, `none`, `odd` for a name that is not ASCII, `more`
or `refused REASON`. A hello counts as seen when OpenSSL asks for the certificate of its name."""
import ssl
import sys

hellos, certificate, key = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.minimum_version = ssl.TLSVersion.TLSv1
context.set_ciphers("ALL:@SECLEVEL=0")
context.load_cert_chain(certificate, key)
seen = []
context.sni_callback = lambda tls, name, context: seen.append(name)
sys.unraisablehook = lambda odd: seen.append(odd)


def look(raw):
    seen.clear()
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sent, server_side=True)
    received.write(raw)
    why = "more"
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLError as error:
        why = f"refused {error.reason}"
    if not seen:
        return why
    if seen[0] is None:
        return "none"
    # Written so that every name is one line.
    return "name " + ascii(seen[0])[1:-1] if isinstance(seen[0], str) else "odd"


with open(hellos, "rb") as file:
    while length := file.read(4):
        print(look(file.read(int.from_bytes(length, "big"))))
