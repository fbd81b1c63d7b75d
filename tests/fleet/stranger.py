"""Another user of the machine, who tries whatever opens a fleet; run by `strangers.py`.

Each line of the input is a JSON object of what to try, each line of the output the list of what was
got: how, of what, and its beginning. It needs distributed, and nothing of this project.
"""

import asyncio
import http.client
import json
import os
import pickle
import socket
import ssl
import sys
import tempfile
import threading
from contextlib import suppress

from distributed import Client, Security
from distributed.comm import connect
from distributed.core import rpc

SECONDS = 4.0
HTTP_PATHS = ("/", "/status", "/health", "/metrics", "/json/identity.json")
OF_PROCESSES = ("environ", "mem", "maps", "smaps", "pagemap", "auxv", "io", "syscall", "stack")
FOLDERS_OF_PROCESSES = ("fd", "fdinfo", "map_files", "cwd/", "root/")


def unverified(certificate=None):
    """Return a context of TLS that takes any server, with a certificate of one's own or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def own_certificate():
    """Write a certificate and its key to one file."""
    own = Security.temporary()
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(own.tls_client_cert + own.tls_client_key)
    return file.name


class OwnSecurity(Security):
    """Credentials of a client that are arguments of its connections."""

    def __init__(self, arguments):
        super().__init__()
        self._arguments = arguments

    def get_connection_args(self, role):
        """Return them for any role."""
        return super().get_connection_args(role) | self._arguments


class Stranger:
    """Tries what it is told."""

    def __init__(self):
        certificate = own_certificate()
        self.contexts = {"TLS": unverified(), "TLS, own certificate": unverified(certificate)}
        os.unlink(certificate)
        self.ways = {"plain": ("tcp", {})}
        for name, context in self.contexts.items():
            self.ways[name] = ("tls", {"ssl_context": context, "require_encryption": True})
        self.got = []

    def note(self, way, what, answer):
        """Keep what was got."""
        self.got.append([way, str(what), repr(answer)[:200]])

    async def messages(self, way, host, port):
        """Ask who is there, and run code there, as processes of Dask do."""
        protocol, arguments = self.ways[way]
        address = f"{protocol}://{host}:{port}"
        try:
            comm = await connect(address, timeout=SECONDS, **arguments)
        except Exception:
            return
        self.note(f"{way} connection", port, comm.peer_address)
        comm.abort()
        for method, options in {
            "identity": {},
            "run": {"function": pickle.dumps(os.getuid)},
            "run_function": {"function": pickle.dumps(os.getuid)},
        }.items():
            server = rpc(address, timeout=SECONDS, connection_args=arguments)
            try:
                answer = await asyncio.wait_for(getattr(server, method)(**options), SECONDS)
                if answer is not None:  # what has another name there
                    self.note(f"{way} {method}", port, answer)
            except Exception:
                continue
            finally:
                await server.close_rpc()

    async def try_ports(self, ports):
        """Try all ports in all ways."""
        attempts = [asyncio.create_task(self.messages(w, *p)) for p in ports for w in self.ways]
        if attempts:  # servers of other kinds may answer without an end
            await asyncio.wait(attempts, timeout=3 * SECONDS)

    def read_bytes(self, host, port):
        """Look whether a port says anything, to bytes that mean nothing; alerts of TLS do not."""
        for sent in (b"", b"\x00" * 64):
            try:
                with socket.create_connection((host, port), timeout=0.3) as plain:
                    plain.sendall(sent)
                    answer = plain.recv(64)
            except OSError:
                continue
            if answer[:1] not in (b"", b"\x15"):
                self.note("bytes", port, answer)

    def ask_by_http(self, host, port):
        """Send requests, with TLS and without."""
        for context in (None, *self.contexts.values()):
            for path in HTTP_PATHS:
                link = (
                    http.client.HTTPConnection(host, port, timeout=SECONDS)
                    if context is None
                    else http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
                )
                try:
                    link.request("GET", path)
                    answer = link.getresponse()
                    if answer.status != http.client.FORBIDDEN:
                        self.note(f"HTTP {answer.status} {path}", port, answer.read(200))
                except (OSError, http.client.HTTPException):
                    pass
                finally:
                    link.close()

    def run_by_client(self, way, address):
        """Submit a task by a client of Dask, which has no end where it cannot connect."""
        security = OwnSecurity(self.ways[way][1])

        def submit():
            try:
                client = Client(address, timeout=SECONDS, security=security, set_as_default=False)
                self.note(f"{way} client", address, client.submit(os.getuid).result(SECONDS))
                client.close()
            except Exception:
                return

        thread = threading.Thread(target=submit, daemon=True)
        thread.start()
        return thread

    def connect_to_sockets(self, paths):
        """Connect to sockets that have a name; abstract ones begin with a zero byte."""
        for path in paths:
            with socket.socket(socket.AF_UNIX) as plain:
                plain.settimeout(1)
                try:
                    plain.connect(path.replace("@", "\0", 1) if path[:1] == "@" else path)
                    self.note("socket", path, "connected")
                except OSError:
                    continue

    def open_files(self, paths):
        """Read, write and list files and folders."""
        for path in paths:
            for way, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY)):
                try:
                    descriptor = os.open(path, flags | os.O_NONBLOCK)
                    os.close(descriptor)
                    self.note(way, path, "opened")
                except OSError:
                    continue
            with suppress(OSError):
                self.note("list", path, os.listdir(path))
            with suppress(OSError):
                os.close(os.open(os.path.join(path, "new"), os.O_CREAT | os.O_WRONLY))
                self.note("create", path, "made a file")

    def open_processes(self, pids):
        """Read what the kernel shows of processes, and open what they have open."""
        for pid in pids:
            for name in (*OF_PROCESSES, *FOLDERS_OF_PROCESSES):
                path = f"/proc/{pid}/{name}"
                try:
                    answer = os.listdir(path) if name in FOLDERS_OF_PROCESSES else first(path)
                    if answer:
                        self.note("process", path, answer)
                except OSError:
                    continue
            self.open_files(f"/proc/{pid}/fd/{number}" for number in range(64))

    def read_command_lines(self, pids):
        """Return the command lines, which everybody may read."""
        lines = []
        for pid in pids:
            with suppress(OSError):  # it has ended
                lines.append(first(f"/proc/{pid}/cmdline").decode(errors="replace"))
        return lines

    def try_all(self, ports=(), clients=(), sockets=(), paths=(), pids=()):
        """Try what is given."""
        self.got = []
        threads = [self.run_by_client(way, address) for way, address in clients]
        for target in (self.read_bytes, self.ask_by_http):
            threads += [threading.Thread(target=target, args=p, daemon=True) for p in ports]
        for thread in threads[len(clients) :]:
            thread.start()
        asyncio.run(self.try_ports(ports))
        self.connect_to_sockets(sockets)
        self.open_files(paths)
        self.open_processes(pids)
        for thread in threads:
            thread.join(3 * SECONDS)
        return {"got": self.got, "lines": self.read_command_lines(pids), "user": os.getuid()}


def first(path):
    """Return the beginning of a file."""
    with open(path, "rb", buffering=0) as file:
        return file.read(2000)


def main():
    """Answer each line of the input."""
    stranger = Stranger()
    for line in sys.stdin:
        print(json.dumps(stranger.try_all(**json.loads(line))), flush=True)
    os._exit(0)  # clients that could not connect would be waited for


if __name__ == "__main__":
    main()
