"""A stand-in for Istio's injector: a webhook that puts a native sidecar `istio-proxy`, and the init
container `istio-init`, in front of the init containers of a pod, once."""

import base64
import http.server
import json
import ssl
import threading

from pods import run

PROXY = {"name": "istio-proxy", "image": "istio/proxyv2", "restartPolicy": "Always"}
INIT = {"name": "istio-init", "image": "istio/proxyv2"}


class Istio(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address, directory):
        super().__init__(address, Answer)
        self.calls = 0
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
            "-subj", "/CN=istio", "-addext", f"subjectAltName=IP:{address[0]}",
            "-keyout", directory / "istio.key", "-out", directory / "istio.crt")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(directory / "istio.crt", directory / "istio.key")
        self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.authority = (directory / "istio.crt").read_bytes()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def configuration(self, name):
        """API servers call webhooks in the order of the names of their configurations."""
        host, port = self.server_address
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration", "metadata": {"name": name},
            "webhooks": [{
                "name": "sidecar.istio.test", "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": f"https://{host}:{port}/",
                                 "caBundle": base64.b64encode(self.authority).decode()},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                           "resources": ["pods"]}],
                "objectSelector": {"matchLabels": {"mesh": name}},
                "sideEffects": "None", "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            }],
        }


class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        self.server.calls += 1
        init = request["object"]["spec"].get("initContainers", [])
        patch = [{"op": "add", "path": "/spec/initContainers", "value": [PROXY, INIT, *init]}]
        response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch",
                    "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"],
                           "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
