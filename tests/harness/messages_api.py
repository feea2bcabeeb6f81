#!/usr/bin/python3 -IS
"""A model that does what the prompt says: a scripted stand-in of the Messages API, on loopback.

A typed prompt may hold steps between double angle brackets, played in their order:

    <<say TEXT>>             say something, go on
    <<new SUBJECT>>          TaskCreate
    <<mark ID STATUS>>       TaskUpdate: pending, in_progress, completed, deleted
    <<tasks>>                TaskList
    <<sh COMMAND>>           Bash
    <<use TOOL {JSON}>>      any tool with any input
    <<hold SECONDS>>         answer only after that time
    <<fail STATUS [TIMES]>>  answer with an HTTP error, TIMES in a row (else always)

Words outside the brackets are a remark.  The turn ends with `HEARD <the remark or prompt>`, then
`EARLIER <typed prompts this request remembers, or nothing>`, then what the tools returned.  A tool
that is not offered is asked for by ToolSearch first, as the real model has to with deferred tools.
Where a turn stands is read off the request, so a resumed conversation needs no memory here.

    messages_api.py --port N [--log FILE] [--ready FILE] [--loopback]

--loopback brings `lo` up first, for a fresh network namespace.  FILE of --ready appears, with the
port in it, when connections are accepted.  The log has one JSON object a request: at, path, status,
prompt, earlier (typed prompts before it), offered (tool names), answer, body.
"""
from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

STEP = re.compile(r"<<(say|new|mark|tasks|sh|use|hold|fail)\b\s*(.*?)>>", re.S)
NOT_TYPED = re.compile(r"<(system-reminder|local-command-\w+|command-\w+)>.*?</\1>", re.S)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

Json = dict[str, Any]


class Turn(NamedTuple):
    """Where a request stands: the last prompt, and what was done about it since."""

    prompt: str
    earlier: tuple[str, ...]
    used: tuple[Json, ...]  # tool_use blocks since the prompt, in order
    results: tuple[str, ...]


class Reply(NamedTuple):
    """What to send for one request."""

    content: list[Json]
    hold: float = 0.0
    failure: int = 0
    failures: int = 0  # how often; 0 means always


# ---- Reading a request ----------------------------------------------------


def parts_of(message: Json, kind: str) -> list[Json]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return [part for part in content or [] if part.get("type") == kind]


def plain(content: Any) -> str:
    """Return the text of a tool's result."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or json.dumps(part) for part in content or [])


def parse_turn(body: Json) -> Turn:
    typed: list[str] = []
    used: list[Json] = []
    results: list[str] = []
    for message in body.get("messages") or []:
        if message.get("role") == "assistant":
            used += parts_of(message, "tool_use")
        elif message.get("role") == "user":
            returned = parts_of(message, "tool_result")
            results += [plain(part.get("content")) for part in returned]
            text = "\n".join(part.get("text", "") for part in parts_of(message, "text"))
            text = NOT_TYPED.sub("", text).strip()
            if text and not returned:
                typed.append(text)
                used, results = [], []
    *earlier, prompt = typed or [""]
    return Turn(prompt, tuple(earlier), tuple(used), tuple(results))


def parse_call(verb: str, rest: str) -> tuple[str, Json] | None:
    """Return the tool and the input a step stands for; None for a step that is no tool."""
    if verb == "new":
        return "TaskCreate", {"subject": rest, "description": "about " + rest}
    if verb == "mark":
        number, _, status = rest.partition(" ")
        return "TaskUpdate", {"taskId": number, "status": status.strip()}
    if verb == "tasks":
        return "TaskList", {}
    if verb == "sh":
        return "Bash", {"command": rest, "description": "as the test asks"}
    if verb == "use":
        tool, _, given = rest.partition(" ")
        return tool, json.loads(given or "{}")
    return None


# ---- Deciding on the answer -----------------------------------------------


def tool_part(turn: Turn, tool: str, given: Json) -> Json:
    number = len(turn.earlier), len(turn.used)
    return {"type": "tool_use", "id": "toolu_%d_%d" % number, "name": tool, "input": given}


def closing_words(turn: Turn, said: list[str]) -> str:
    remark = STEP.sub("", turn.prompt).strip() or turn.prompt
    lines = [*said, "HEARD " + remark, "EARLIER " + (" | ".join(turn.earlier) or "nothing")]
    return "\n\n".join([*lines, *turn.results])


def decide(turn: Turn, offered: set[str]) -> Reply:
    """Play the first step that has not been played yet."""
    waiting = list(turn.used)  # what was done, still to be matched with the steps that asked
    said: list[str] = []
    hold = 0.0
    for verb, rest in STEP.findall(turn.prompt):
        call = parse_call(verb, rest.strip())
        if call is None:
            if waiting:
                continue  # a word from before the last tool: it was spoken
            if verb == "fail":
                status, _, times = rest.strip().partition(" ")
                return Reply([], hold, int(status), int(times or 0))
            if verb == "hold":
                hold += float(rest)
            else:
                said.append(rest)
            continue
        tool, given = call
        searched = bool(waiting) and waiting[0]["name"] == "ToolSearch" and tool != "ToolSearch"
        if searched:
            waiting.pop(0)
        if waiting:
            waiting.pop(0)
            said = []
            continue
        if tool not in offered and not searched:
            if "ToolSearch" not in offered:
                said.append("NOT OFFERED " + tool)
                continue
            tool, given = "ToolSearch", {"query": "select:" + tool, "max_results": 1}
        texts = [{"type": "text", "text": text} for text in said]
        return Reply([*texts, tool_part(turn, tool, given)], hold)
    return Reply([{"type": "text", "text": closing_words(turn, said)}], hold)


def answer_to(body: Json) -> tuple[Turn, Reply]:
    turn = parse_turn(body)
    offered = {tool.get("name") for tool in body.get("tools") or []}
    if not offered:  # the command line's own questions: a title, a quota
        return turn, Reply([{"type": "text", "text": "a title"}])
    try:
        return turn, decide(turn, offered)
    except ValueError as error:
        return turn, Reply([{"type": "text", "text": f"BAD SCRIPT {error}"}])


# ---- The wire -------------------------------------------------------------


def events_of(message: Json, content: list[Json]) -> list[Json]:
    """Return the server-sent events of one streamed message."""
    events: list[Json] = [{"type": "message_start", "message": message}]
    for index, part in enumerate(content):
        at = {"index": index}
        if part["type"] == "text":
            empty, delta = {**part, "text": ""}, {"type": "text_delta", "text": part["text"]}
        else:
            empty = {**part, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(part["input"])}
        events.append({"type": "content_block_start", **at, "content_block": empty})
        events.append({"type": "content_block_delta", **at, "delta": delta})
        events.append({"type": "content_block_stop", **at})
    stop = "tool_use" if content[-1]["type"] == "tool_use" else "end_turn"
    end = {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 9}}
    return [*events, {"type": "message_delta", **end}, {"type": "message_stop"}]


class Server(ThreadingHTTPServer):
    """The server and its log."""

    daemon_threads = True
    log = ""
    write_lock = threading.Lock()
    failed: Counter[str] = Counter()

    def note(self, **entry: Any) -> None:
        if self.log:
            line = json.dumps({"at": time.time(), **entry}) + "\n"
            with self.write_lock, open(self.log, "a", encoding="utf-8") as f:
                f.write(line)


class Handler(BaseHTTPRequestHandler):
    """One connection; it may carry many requests."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().partition(b";")[0] or b"0", 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def reply(self, status: int, value: Json) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def stream(self, events: list[Json]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")  # the end of the stream is the end of the answer
        self.end_headers()
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True

    def do_GET(self) -> None:
        self.server.note(path=self.path, status=404 if self.path.startswith("/v1/") else 200)
        self.reply(404 if self.path.startswith("/v1/") else 200, {})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = json.loads(self.read_body() or b"{}")
        if self.path.partition("?")[0] != "/v1/messages":
            self.server.note(path=self.path, status=200, body=body)
            self.reply(200, {"input_tokens": 9})
            return
        turn, reply = answer_to(body)
        time.sleep(reply.hold)
        failing = reply.failure and (
            not reply.failures or self.server.failed[turn.prompt] < reply.failures
        )
        if failing:
            self.server.failed[turn.prompt] += 1
        elif reply.failure:
            reply = Reply([{"type": "text", "text": closing_words(turn, [])}])
        status = reply.failure if failing else 200
        self.server.note(
            path=self.path,
            status=status,
            prompt=turn.prompt,
            earlier=turn.earlier,
            offered=[tool.get("name") for tool in body.get("tools") or []],
            answer=reply.content,
            body=body,
        )
        if failing:
            error = {"type": "api_error", "message": "the test asked for this failure"}
            self.reply(status, {"type": "error", "error": error})
            return
        message = {
            "id": "msg_" + os.urandom(8).hex(),
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 9, "output_tokens": 1},
        }
        if body.get("stream"):
            self.stream(events_of(message, reply.content))
        else:
            self.reply(200, {**message, "content": reply.content, "stop_reason": "end_turn"})


def raise_loopback() -> None:
    """Bring `lo` up in this network namespace, as `ip link set lo up` would."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        known = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", known)[1] | IFF_UP
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))


def main() -> None:
    parser = argparse.ArgumentParser(description="a scripted Messages API on loopback")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", default="")
    parser.add_argument("--ready", default="")
    parser.add_argument("--loopback", action="store_true")
    options = parser.parse_args()
    if options.loopback:
        raise_loopback()
    with Server(("127.0.0.1", options.port), Handler) as server:
        server.log = options.log
        if options.ready:
            with open(options.ready + ".new", "w", encoding="utf-8") as f:
                f.write(str(server.server_address[1]))
            os.rename(options.ready + ".new", options.ready)
        server.serve_forever()


if __name__ == "__main__":
    main()
