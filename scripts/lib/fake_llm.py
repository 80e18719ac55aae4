"""A stand-in for a provider of language models, for the recipes' tests, `scripts/demo --llm` and docs/llm.md.

    python3 scripts/lib/fake_llm.py [PORT] [--seed N] [--delay SECONDS]

It answers `POST /v1/chat/completions` in OpenAI's form and `POST /v1/messages` in Anthropic's, whole or as
server-sent events (`"stream": true`). What an answer costs is drawn from the seed and the number of the call,
at most the request's `max_tokens`. It counts each token at the moment at which it reads or makes it, whether
anybody takes the answer or not: `GET /used` is what a provider would put on the bill.

Headers of a request that make it behave in one way:
    x-llm-tokens: N     the answer costs N output tokens, whatever `max_tokens` says
    x-llm-delay: S      an answer takes S seconds
    x-llm-fault: WHAT   `503` answers so and costs nothing; `503-once` does so for the first request with
                        this x-request-id; `break` closes the connection after half of the answer;
                        `redirect` answers 302 with /v1/messages as its location
"""

import argparse
import asyncio
import json
import random
from collections import Counter

BYTES_OF_TOKEN = 5  # of a request: its prompt's cost
MAX_TOKENS = 1000  # of an answer, and of a request that does not say
PIECES = 10  # of an answer that is streamed
STATUSES = {200: "OK", 302: "Found", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


class Provider:
    def __init__(self, seed, delay):
        self.seed, self.delay = seed, delay
        self.calls, self.running, self.most_running = 0, 0, 0
        self.used, self.seen = Counter(), set()

    async def serve(self, reader, writer):
        """Requests of one connection, until its end."""
        try:
            while await self.exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def exchange(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        lines = [line.partition(":") for line in head[1:] if line]
        headers = {name.lower(): value.strip() for name, _, value in lines}
        body = await read_body(reader, headers)
        if method == "GET" and path == "/used":
            respond(writer, 200, self.bill())
        elif path not in FORMS:
            respond(writer, 404, {"error": {"message": f"no {path}"}})
        else:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                return await self.complete(writer, path, headers, body)
            finally:
                self.running -= 1
        await writer.drain()
        return True

    def bill(self):
        users = dict(self.used)
        return {"calls": self.calls, "tokens": sum(users.values()), "by_user": users,
                "most_running": self.most_running}

    async def complete(self, writer, path, headers, body):
        self.calls += 1
        request, prompt = json.loads(body or b"{}"), len(body) // BYTES_OF_TOKEN
        drawn = random.Random(f"{self.seed} {self.calls}")
        fault, user = headers.get("x-llm-fault"), headers.get("x-user-id", "")
        first = headers.get("x-request-id") not in self.seen
        self.seen.add(headers.get("x-request-id"))
        if fault == "503" or (fault == "503-once" and first):
            return respond(writer, 503, {"error": {"message": "overloaded", "type": "overloaded_error"}})
        if fault == "redirect":
            return respond(writer, 302, {}, f"location: http://{headers['host']}/v1/messages\r\n")
        most = request.get("max_tokens") or request.get("max_completion_tokens") or MAX_TOKENS
        if not isinstance(most, int) or not 1 <= most <= MAX_TOKENS:
            return respond(writer, 400, {"error": {"message": f"max_tokens: from 1 to {MAX_TOKENS}"}})
        tokens = int(headers.get("x-llm-tokens") or drawn.randint(1, most))
        form, broken = FORMS[path](request.get("model", ""), prompt, tokens), fault == "break"
        delay = float(headers.get("x-llm-delay") or self.delay)
        self.used[user] += prompt
        if request.get("stream"):
            with_usage = (request.get("stream_options") or {}).get("include_usage")
            return await self.stream(writer, form.events(with_usage), tokens, user, delay, broken)
        half = 2 if broken else 1
        await self.generate(user, tokens // half, delay / half)
        whole = form.whole()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                     b"content-length: %d\r\n\r\n" % len(whole) + whole[:len(whole) // half])
        await writer.drain()
        return not broken

    async def stream(self, writer, events, tokens, user, delay, broken):
        events = list(events)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                     b"transfer-encoding: chunked\r\n\r\n")
        for number, event in enumerate(events):
            if broken and number > len(events) // 2:
                return False
            made = tokens * number // len(events)
            await self.generate(user, tokens * (number + 1) // len(events) - made, delay / len(events))
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def generate(self, user, tokens, delay):
        await asyncio.sleep(delay)
        self.used[user] += tokens


class OpenAi:
    def __init__(self, model, prompt, tokens):
        self.model, self.tokens = model, tokens
        self.usage = {"prompt_tokens": prompt, "completion_tokens": tokens,
                      "total_tokens": prompt + tokens}

    def whole(self):
        message = {"role": "assistant", "content": "word " * min(self.tokens, 100)}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        return json.dumps({"object": "chat.completion", "model": self.model, "choices": choices,
                           "usage": self.usage}).encode()

    def events(self, with_usage):
        chunk = {"object": "chat.completion.chunk", "model": self.model, "usage": None}
        for _ in range(PIECES):
            yield event({**chunk, "choices": [{"index": 0, "delta": {"content": "word "}}]})
        if with_usage:
            yield event({**chunk, "choices": [], "usage": self.usage})
        yield b"data: [DONE]\n\n"


class Anthropic:
    def __init__(self, model, prompt, tokens):
        self.model, self.prompt, self.tokens = model, prompt, tokens

    def whole(self):
        content = [{"type": "text", "text": "word " * min(self.tokens, 100)}]
        usage = {"input_tokens": self.prompt, "output_tokens": self.tokens}
        return json.dumps({"type": "message", "role": "assistant", "model": self.model,
                           "content": content, "stop_reason": "end_turn", "usage": usage}).encode()

    def events(self, _):
        usage = {"input_tokens": self.prompt, "output_tokens": 1}
        yield event({"type": "message_start",
                     "message": {"type": "message", "model": self.model, "usage": usage}})
        for _ in range(PIECES):
            yield event({"type": "content_block_delta", "index": 0,
                         "delta": {"type": "text_delta", "text": "word "}})
        yield event({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                     "usage": {"output_tokens": self.tokens}})
        yield event({"type": "message_stop"})


FORMS = {"/v1/chat/completions": OpenAi, "/v1/messages": Anthropic}


def event(data):
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


def respond(writer, status, body, headers=""):
    body = json.dumps(body).encode() + b"\n"
    head = f"HTTP/1.1 {status} {STATUSES[status]}\r\ncontent-type: application/json\r\n{headers}"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return True


async def read_body(reader, headers):
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


async def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("port", type=int, nargs="?", default=8000)
    arguments.add_argument("--seed", default="1")
    arguments.add_argument("--delay", type=float, default=0.05)
    arguments = arguments.parse_args()
    provider = Provider(arguments.seed, arguments.delay)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", arguments.port)
    print(f"a fake LLM on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


asyncio.run(main())
