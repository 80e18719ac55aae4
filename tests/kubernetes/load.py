"""Requests over HTTP, one after the other or all the time, and what came of them. As a program
(load.py ADDRESS PORT) it is the application that they lead to."""

import http.client
import http.server
import sys
import threading

TIMEOUT = 5  # seconds for one request
USAGE = "x-usage"  # of a request: the tokens that its answer says it used


class Client:
    """A connection that is opened again when it was closed."""

    def __init__(self, address, host, source=None):
        self.address, self.host, self.connection = address, host, None
        self.source = (source, 0) if source else None

    def get(self, headers, path="/"):
        """The status and the headers of one request."""
        return self.send("GET", path, headers)

    def send(self, method, path, headers):
        if self.connection is None:
            self.connection = http.client.HTTPConnection(
                *self.address, timeout=TIMEOUT, source_address=self.source)
        try:
            self.connection.request(method, path, headers={"Host": self.host, **headers})
            reply = self.connection.getresponse()
            reply.read()
            if reply.will_close:
                self.close()
            return reply.status, reply.headers
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = None


class Load:
    """Threads that each send a request every `pause` seconds and expect one status."""

    def __init__(self, address, host, headers, expected, threads=1, pause=0.02, source=None):
        self.address, self.host, self.headers = address, host, headers
        self.expected, self.pause, self.source = expected, pause, source
        self.lock, self.sent, self.failures = threading.Lock(), 0, []
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def run(self):
        client = Client(self.address, self.host, self.source)
        while not self.is_over.wait(self.pause):
            fault = self.fault_of(client)
            with self.lock:
                self.sent += 1
                if fault:
                    self.failures.append(fault)
        client.close()

    def ask(self, client):
        """The status and the headers of one request."""
        return client.get(self.headers)

    def fault_of(self, client):
        """What was wrong with the answer to a request."""
        try:
            status, _ = self.ask(client)
            return None if status == self.expected else str(status)
        except (OSError, http.client.HTTPException) as error:
            return repr(error)

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


class Backend(http.server.ThreadingHTTPServer):
    """What the Gateways lead to."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address):
        super().__init__(address, Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        # A service whose answers say what they cost.
        if USAGE in self.headers:
            self.send_header(USAGE, self.headers[USAGE])
        self.end_headers()

    do_POST = do_DELETE = do_GET

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    Backend((sys.argv[1], int(sys.argv[2])))
    threading.Event().wait()
