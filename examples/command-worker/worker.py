#!/usr/bin/env python3
"""A worker without a model that speaks stage/1, as a start for your own.

Its tokens are the bytes of the text. A hidden state is four numbers: the token, its position, the layers passed so far, 0.
The last stage picks a letter from them, so that a pipeline split in any way gives the same answer.
"""
import base64
import json
import os
import struct
import sys

STAGE, STAGES = int(os.environ["STAGE"]), int(os.environ["NUM_STAGES"])
A, B = (int(bound) for bound in os.environ["STAGELINE_LAYERS"].split(".."))
DTYPE = os.environ.get("STAGELINE_DTYPE", "bf16")
CONTEXT = int(os.environ.get("STAGELINE_CONTEXT") or 4096)
FIRST, LAST, HIDDEN, SIZE = STAGE == 0, STAGE == STAGES - 1, 4, {"bf16": 2, "f32": 4}
requests = {}  # What a real worker keeps here is the KV cache.


def say(message, payload=b""):
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n" + payload)
    sys.stdout.buffer.flush()


def pack(states, dtype):  # The upper half of a little-endian f32 is a bf16; our numbers are small enough to be exact.
    return b"".join(struct.pack("<f", number)[4 - SIZE[dtype]:] for state in states for number in state)


def unpack(payload, dtype):
    pieces = (payload[at:at + SIZE[dtype]] for at in range(0, len(payload), SIZE[dtype]))
    numbers = [struct.unpack("<f", piece.rjust(4, b"\0"))[0] for piece in pieces]
    return [numbers[at:at + HIDDEN] for at in range(0, len(numbers), HIDDEN)]


def forward(id, states, position, prefill, more=False, told={}):
    """This stage's layers, and what comes out of them: hidden states, or in the last stage a token."""
    states = [[token, at, layers + B - A, rest] for token, at, layers, rest in states]
    if not LAST:
        payload = pack(states, DTYPE)
        answer = {"op": "hidden", "position": position, "len": len(states), "prefill": prefill, "more": more}
        return say({"id": id, **answer, **told, "dtype": DTYPE, "bytes": len(payload)}, payload)
    if more:
        return say({"id": id, "op": "continue"})
    request, (token, at, layers, _) = requests[id], states[-1]
    request["made"] += 1
    token = ord("a") + int(token + at + layers) % 26
    done = request["made"] >= request["sampling"].get("max_tokens", 256) or position + len(states) >= CONTEXT
    finish = "length" if done else None
    say({"id": id, "op": "token", "token": token, "text": chr(token), "done": done, "finish": finish, **told})


def handle(message, payload):
    id, op = message["id"], message["op"]
    if op == "end":
        return requests.pop(id, None)
    if op == "start":
        text = message.get("prompt") or "".join(turn["content"] + "\n" for turn in message["messages"])
        tokens = list(text.encode())
        if not 0 < len(tokens) < CONTEXT:
            raise OverflowError(f"the prompt has {len(tokens)} tokens, the context {CONTEXT}")
        requests[id] = {"sampling": message, "made": 0}
        states = [[token, at % 26, 0, 0] for at, token in enumerate(tokens)]
        return forward(id, states, 0, True, told={"prompt_tokens": len(tokens)})
    if op == "forward" and message["position"] == 0:
        requests[id] = {"sampling": message.get("sampling", {}), "made": 0}
    if id not in requests:
        return say({"id": id, "error": {"code": "unknown-request", "message": f"request {id} is unknown here"}})
    if op == "token":
        return forward(id, [[message["token"], message["position"] % 26, 0, 0]], message["position"], False)
    payload = payload or base64.b64decode(message["hidden"])
    forward(id, unpack(payload, message["dtype"]), message["position"], message["prefill"], message.get("more", False))


shape = {"hidden_size": HIDDEN, "layers": [A, B], "vocab": 256, "context": CONTEXT, "dtype": DTYPE}
say({"status": "ready", "pid": os.getpid(), "protocol": "stage/1", **shape})
for line in sys.stdin.buffer:
    message = {}
    try:
        message = json.loads(line)
        handle(message, sys.stdin.buffer.read(message.get("bytes", 0)))
    except OverflowError as error:
        say({"id": message["id"], "error": {"code": "context-overflow", "message": str(error)}})
    except (ValueError, KeyError) as error:  # An answer, not an exit: the other requests go on.
        say({"id": message.get("id"), "error": {"code": "bad-request", "message": repr(error)}})
