"""A stand-in for a provider of language models, for the recipes' tests, `scripts/demo --llm` and docs/llm.md.

    python3 scripts/lib/fake_llm.py [PORT] [--seed N] [--delay SECONDS]

It answers `POST /v1/chat/completions`, `/v1/responses` and `/v1/embeddings` in OpenAI's form and `/v1/messages` in
Anthropic's, whole or as server-sent events (`"stream": true`). It takes what vLLM and OpenAI take: any content type,
gzip, UTF-16, NaN, names in escapes, numbers as text. What an answer costs is drawn from the seed and the number of the
call, at most the request's `max_tokens`. It counts each token at the moment at which it reads or makes it, whether
anybody takes the answer or not: `GET /used` is what a provider would put on the bill.

Headers of a request that make it behave in one way:
    x-llm-tokens: N     the answer costs N output tokens, whatever `max_tokens` says; `most`: as many as it lets
    x-llm-parser: WHAT  `first` takes the first of members of one name, not the last; `nocase` takes names in any case; `old` prefers
                        `max_tokens` to `max_completion_tokens`
    x-llm-usage: WHAT   `none` tells no usage; `text` and `negative` tell it so; `cached` has read the prompt from a
                        cache, `filtered` has made nothing
    x-llm-delay: S      an answer takes S seconds
    x-llm-fault: WHAT   `503` answers so and costs nothing; `503-once` does so for the first request with
                        this x-request-id; `break` closes the connection after half of the answer;
                        `redirect` answers 302 with /v1/messages as its location
"""

import argparse
import asyncio
import gzip
import json
import random
from collections import Counter

BYTES_OF_TOKEN = 5  # of a request: its prompt's cost
MAX_TOKENS = 1000  # of an answer, and of a request that does not say
CONTEXT = 250000  # the most tokens of an answer
WORDS = 250000  # the most of an answer that is not streamed
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
        path = path.partition("?")[0]
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
        try:
            request, prompt = parse(body, headers), len(body) // BYTES_OF_TOKEN
            most = answers(request) * longest(request, path, headers)
        except (ValueError, TypeError, AttributeError, OSError, RecursionError) as error:
            return respond(writer, 400, {"error": {"message": str(error)[:100]}})
        drawn = random.Random(f"{self.seed} {self.calls}")
        fault, user = headers.get("x-llm-fault"), headers.get("x-user-id", "")
        first = headers.get("x-request-id") not in self.seen
        self.seen.add(headers.get("x-request-id"))
        if fault == "503" or (fault == "503-once" and first):
            return respond(writer, 503, {"error": {"message": "overloaded", "type": "overloaded_error"}})
        if fault == "redirect":
            return respond(writer, 302, {}, f"location: http://{headers['host']}/v1/messages\r\n")
        chosen = headers.get("x-llm-tokens")
        tokens = most if chosen == "most" else int(chosen or drawn.randint(1, min(most, MAX_TOKENS)))
        how = headers.get("x-llm-usage", "")
        if path == "/v1/embeddings" or how == "filtered":
            tokens = 0
        form, broken = FORMS[path](request.get("model", ""), prompt, tokens, how), fault == "break"
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


def parse(body, headers):
    """The request, as a lax server reads it."""
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    how = headers.get("x-llm-parser")
    pairs = {
        "first": lambda pairs: dict(reversed(pairs)),
        "nocase": lambda pairs: {name.casefold(): value for name, value in pairs},
    }.get(how, dict)
    request = json.loads(body or b"{}", object_pairs_hook=pairs)
    return request if isinstance(request, dict) else {}


def longest(request, path, headers):
    """The most tokens of one answer: the field of its API, of any type that stands for a whole number."""
    bounds = BOUNDS[path]
    for name in reversed(bounds) if headers.get("x-llm-parser") == "old" else bounds:
        if request.get(name) is not None:
            tokens = whole(request[name])
            if tokens > CONTEXT:
                raise ValueError(f"{name}: at most {CONTEXT}")
            return tokens if tokens > 0 else MAX_TOKENS
    return MAX_TOKENS


def answers(request):
    return max(1, *(whole(request.get(name) or 1) for name in ("n", "best_of")))


def whole(value):
    number = float(value)
    if number != number or number % 1:
        raise ValueError("a whole number is needed")
    return int(number)


def text(tokens):
    return "word " * (tokens if tokens <= WORDS else 100)


def told(usage, how):
    """The usage as an odd provider tells it."""
    odd = {"text": lambda tokens: "many", "negative": lambda tokens: -tokens - 1}.get(how, int)
    return {} if how == "none" else {"usage": {name: odd(tokens) for name, tokens in usage.items()}}


class OpenAi:
    kind = "chat.completion"
    names = "prompt_tokens", "completion_tokens"

    def __init__(self, model, prompt, tokens, how):
        self.model, self.tokens = model, tokens
        usage = dict(zip(self.names, (prompt, tokens)), total_tokens=prompt + tokens)
        self.usage = told(usage, how)

    def whole(self):
        message = {"role": "assistant", "content": text(self.tokens)}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        return json.dumps({"object": self.kind, "model": self.model, "choices": choices, **self.usage}).encode()

    def events(self, with_usage):
        chunk = {"object": "chat.completion.chunk", "model": self.model, "usage": None}
        for _ in range(PIECES):
            content = "word " * (self.tokens // PIECES)
            yield event({**chunk, "choices": [{"index": 0, "delta": {"content": content}}]})
        if with_usage:
            yield event({**chunk, "choices": [], **self.usage})
        yield b"data: [DONE]\n\n"


class Responses(OpenAi):
    kind = "response"
    names = "input_tokens", "output_tokens"

    def events(self, _):
        for _ in range(PIECES):
            yield event({"type": "response.output_text.delta", "delta": "word " * (self.tokens // PIECES)})
        yield event({"type": "response.completed", "response": json.loads(self.whole())})


class Embeddings(OpenAi):
    kind = "list"

    def __init__(self, model, prompt, tokens, how):
        super().__init__(model, prompt, tokens, how)
        self.usage = told({"prompt_tokens": prompt, "total_tokens": prompt}, how)


class Anthropic:
    def __init__(self, model, prompt, tokens, how):
        self.model, self.tokens = model, tokens
        names = "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"
        parts = (prompt - 2 * (prompt // 3), prompt // 3, prompt // 3) if how == "cached" else (prompt, 0, 0)
        self.input = told(dict(zip(names, parts)), how)
        self.output = told({"output_tokens": tokens}, how)

    def whole(self):
        content = [{"type": "text", "text": text(self.tokens)}]
        usage = {"usage": {**self.input["usage"], **self.output["usage"]}} if self.input else {}
        return json.dumps({"type": "message", "role": "assistant", "model": self.model,
                           "content": content, "stop_reason": "end_turn", **usage}).encode()

    def events(self, _):
        first = {"usage": {**self.input["usage"], "output_tokens": 1}} if self.input else {}
        yield event({"type": "message_start",
                     "message": {"type": "message", "model": self.model, **first}})
        for _ in range(PIECES):
            yield event({"type": "content_block_delta", "index": 0,
                         "delta": {"type": "text_delta", "text": "word " * (self.tokens // PIECES)}})
        yield event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, **self.output})
        yield event({"type": "message_stop"})


FORMS = {"/v1/chat/completions": OpenAi, "/v1/responses": Responses, "/v1/embeddings": Embeddings,
         "/v1/messages": Anthropic}
# As vLLM: the first that is there.
BOUNDS = {"/v1/chat/completions": ("max_completion_tokens", "max_tokens"), "/v1/messages": ("max_tokens",),
          "/v1/responses": ("max_output_tokens",), "/v1/embeddings": ()}


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
