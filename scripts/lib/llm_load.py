"""The load of `scripts/demo --llm`: streams of one user, each until the limit has refused it three times.

    python3 scripts/lib/llm_load.py NAME LIMIT ESTIMATES LLM_PORT ENVOY_PORT...

Prints a row of the demo's table. ESTIMATES is `yes` if Envoy sends what a request may use at its start: then
it is a fault if the provider has made more than the limit.
"""

import http.client
import json
import sys
import threading
import time
from collections import Counter

STREAMS, REFUSALS, MAX_TOKENS = 16, 3, 500
ROW = "{:<22}{:>6}{:>8}{:>10}{:>11}{:>8}{:>12}{:>7}{:>7}".format
HEAD = ROW("", "asked", "refused", "estimated", "given back", "settled", "at the LLM", "limit", "over")

FORMS = [
    ("/v1/chat/completions", {}),
    ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/messages", {}),
    ("/v1/messages", {"stream": True}),
]


def usage(body):
    """What an answer of either form says that it has used."""
    events = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")] or [body]
    said = {}
    for data in map(json.loads, events):
        said.update(data.get("message", {}).get("usage", {}))
        said.update(data.get("usage") or {})
    names = [("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")]
    return next((said[i] + said[o] for i, o in names if o in said), 0)


def stream(number, name, ports, seen, lock):
    path, more = FORMS[number % len(FORMS)]
    body = json.dumps({"model": "large", "max_tokens": MAX_TOKENS, **more})
    envoy = http.client.HTTPConnection("127.0.0.1", int(ports[number % len(ports)]), timeout=30)
    headers = {"content-type": "application/json", "x-user-id": name}
    refusals = 0
    while refusals < REFUSALS:
        envoy.request("POST", path, body, headers)
        answer = envoy.getresponse()
        data = answer.read()
        with lock:
            seen["asked"] += 1
            if answer.status == 200:
                seen["estimated"] += MAX_TOKENS + len(body) // 4
                seen["settled"] += usage(data)
            elif answer.status == 429:
                seen["refused"] += 1
            else:
                seen[answer.status] += 1
        if answer.status == 429:
            refusals += 1
            time.sleep(0.2)  # what others hold may come back
        elif answer.status != 200:
            return


def main(name, limit, estimates, llm, *ports):
    seen, lock = Counter(), threading.Lock()
    streams = [threading.Thread(target=stream, args=(number, name, ports, seen, lock))
               for number in range(STREAMS)]
    for each in streams:
        each.start()
    for each in streams:
        each.join()
    bill = http.client.HTTPConnection("127.0.0.1", int(llm), timeout=10)
    bill.request("GET", "/used")
    used = json.loads(bill.getresponse().read())["by_user"].get(name, 0)
    over = f"{used * 100 // int(limit) - 100} %" if used > int(limit) else "-"
    estimated, back = "-", "-"
    if estimates == "yes":
        estimated, back = seen["estimated"], seen["estimated"] - seen["settled"]
    print(ROW(name, seen["asked"], seen["refused"], estimated, back, seen["settled"], used, limit, over))
    faults = {status: count for status, count in seen.items() if isinstance(status, int)}
    if faults:
        return f"answers that are neither 200 nor 429: {faults}"
    return f"{used} of {limit}, though held" if estimates == "yes" and used > int(limit) else None


if __name__ == "__main__":
    if sys.argv[1:] == ["--head"]:
        print(HEAD)
    else:
        sys.exit(main(*sys.argv[1:]))
