"""Signs JSON Web Tokens with a key of its own, with the openssl program."""

import base64
import json
import subprocess

from pods import run


def encoded(content):
    """base64url without padding, as tokens and their keys have it."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Signer:
    def __init__(self, directory):
        self.key = directory / "token.key"
        run("openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048",
            "-out", self.key)

    def key_set(self):
        """The public key, as a JSON Web Key Set."""
        modulus = run("openssl", "rsa", "-in", self.key, "-noout", "-modulus").split("=")[1].strip()
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "test", "e": "AQAB",
               "n": encoded(bytes.fromhex(modulus))}
        return json.dumps({"keys": [key]})

    def bearer(self, **claims):
        """The header of a request with a token."""
        parts = [{"alg": "RS256", "typ": "JWT", "kid": "test"}, claims]
        text = ".".join(encoded(json.dumps(it).encode()) for it in parts)
        signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", str(self.key)],
                                   input=text.encode(), capture_output=True, check=True).stdout
        return {"authorization": f"Bearer {text}.{encoded(signature)}"}
