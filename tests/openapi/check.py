#!/usr/bin/env python3
"""Requests of our clients and answers of our simulators, held against the providers' OpenAPI documents.

First a whole job is done at each simulator through a proxy that writes everything down, with faults and without; each request and
answer is then held against the document. Then schemathesis makes up requests. What differs and may is in KNOWN, with the reason.
"""

import hashlib
import http.client
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
BINARY = TARGET / "debug" / "stageline"
PACKAGES = ["schemathesis==4.32.5", "jsonschema==4.26.0", "pyyaml"]

# How many requests schemathesis makes up for each operation, and the longest that it may take at one simulator.
EXAMPLES = 20
SECONDS = 240

OFFER_VAST = """where = "gpu=rtx_4090|rtx_3090, vram>=24, reliability>=0.9"
image = "stageline/agent:1\""""
OFFER_RUNPOD = """where = "gpu=rtx_4090|rtx_3090, vram>=24, cuda>=12.4"
image = "stageline/agent:1\""""
OFFER_RUNPOD_CPU = """where = "cpus>=4, memory>=8"
image = "stageline/agent:1\""""
# More memory and processors than every host has are asked of the provider.
OFFER_RUNPOD_MORE = OFFER_RUNPOD.replace("cuda>=12.4", "memory>=32, cpus>=4").replace("|rtx_3090", "")

# The agent is pushed to what begins without one, and an image is pulled by somebody's login.
PUSHED = 'agent = "ssh"'
IMAGE = 'image = "stageline/agent:1"'
LOGIN = (
    'image = "registry.example/private/agent:1"\n'
    'registry = { server = "registry.example", username = "rehearsal", password = { env = "REGISTRY_PASSWORD" } }'
)

# For each provider: its document, the variable of its key, offers of topologies, and the paths that its simulator plays.
PROVIDERS = {
    "runpod": {
        "document": "runpod-v2.json",
        "key": "RUNPOD_API_KEY",
        "offers": [OFFER_RUNPOD, OFFER_RUNPOD_MORE, OFFER_RUNPOD_CPU, OFFER_RUNPOD.replace(IMAGE, PUSHED), OFFER_RUNPOD.replace(IMAGE, LOGIN)],
        "volume": lambda offer: ("POST", "/v2/network-volumes", {"name": "data", "size": 10, "dataCenter": offer["facts"]["region"]}),
        "volume_id": lambda made: made["id"],
        "played": r"^/v2/(pods(/\{id\}(/action|/logs)?)?|account/ssh-keys|catalog/(gpus|cpus|datacenters)(/\{id\})?|billing/pods|network-volumes(/\{id\})?|registries(/\{id\})?)$",
    },
    # Of single instances the document has neither the refusal of a key nor the answer for one that is not there.
    "vastai": {
        "document": "vastai.yaml",
        "key": "VAST_API_KEY",
        "offers": [OFFER_VAST, OFFER_VAST + "\nspot = true", OFFER_VAST.replace(IMAGE, PUSHED), OFFER_VAST.replace(IMAGE, LOGIN)],
        "volume": lambda offer: ("PUT", "/api/v0/volumes/", {"id": 900000 + int(offer["facts"]["extra"]["machine_id"]), "size": 15}),
        "volume_id": lambda made: made["volume_name"].removeprefix("V."),
        "played": r"^/api/(v0/(bundles|users/current|asks/\{id\}|charges|volumes(/search)?)|v1/instances)$",
    },
}

# Where a document is wrong or old, and how that is known: provider, a pattern of what is found, the reason.
KNOWN = [
    (
        "runpod",
        r"POST /v2/pods request: .*(minRamPerGpu|minVcpuCountPerGpu|oneOf|anyOf|[Uu]nevaluated)",
        "newer than the document of August: the client of dstack 0.22.5 sends both over v2",
    ),
    (
        "vastai",
        r"POST /api/v0/bundles request: .*too short",
        "`minItems` stands at the list of orders and is meant for a pair: the official client 1.9.1 sends one pair",
    ),
    (
        "vastai",
        r"GET /api/v0/gpu_names/unique/: the document has no such operation",
        "the official client 1.9.1 asks it before each search",
    ),
    (
        "vastai",
        r"GET /api/v0/instances/pending-price-increases/: the document has no such operation",
        "the official client 1.9.1 has it",
    ),
    (
        "vastai",
        r"PUT /api/v0/asks/\{id\} request: \$\['env'\]",
        "the provider's guide says that a text is for templates only, and the official client 1.9.1 sends an object",
    ),
    (
        "vastai",
        r"GET /logs/\d+: the document has no such operation",
        "a log is at the address that the answer to its request names, which is another server's",
    ),
    (
        "vastai",
        r"PUT /api/v0/asks/\{id\} answer 400: .*'no_capacity'",
        "an answer of the table of faults, where the document has the faults of a request alone",
    ),
    (
        "vastai",
        r"GET /api/v1/instances answer 200: .*'public_ipaddr'\]: None",
        "no address is told before the container runs: the official client 1.9.1 declares it optional",
    ),
]

# What is made up for these is not held against one thing: provider, a pattern of operations, what, the reason.
SPARED = [
    (
        "runpod",
        r"GET /v2/pods/\{id\}/logs",
        "response_schema_conformance",
        "the document calls the whole stream a text, and each event of it is held against that",
    ),
    (
        "vastai",
        r"(POST /api/v0/volumes/search|(PUT|DELETE) /api/v0/volumes)/?",
        "status_code_conformance",
        "the document has neither the refusal of a key nor the answer for an ask that is not there",
    ),
]


def main():
    documents = pathlib.Path(os.environ.get("STAGELINE_OPENAPI") or ROOT / "../shared/providers/openapi")
    if not documents.is_dir():
        print(f"skipped: the providers' OpenAPI documents are not at {documents}")
        return 0
    if not BINARY.exists():
        print(f"{BINARY} is not there: cargo build first")
        return 1
    venv()
    faults = 0
    for name, provider in PROVIDERS.items():
        path = documents / provider["document"]
        if not path.exists():
            print(f"{name}: skipped, {path.name} is not there")
            continue
        began = time.monotonic()
        document = Document(path)
        seen = [one for offer in provider["offers"] for one in job(name, provider, offer)]
        seen += job(name, provider, provider["offers"][0], with_volume=True)
        faults += report(name, document, seen)
        faults += made_up(name, provider, path)
        print(f"{name}: {time.monotonic() - began:.0f} s")
    return 1 if faults else 0


def venv():
    """Runs this again inside a venv of its own, which is made once per build folder."""
    home = TARGET / "openapi-venv"
    python = home / "bin" / "python"
    if pathlib.Path(sys.prefix) == home:
        return
    mark = home / "installed"
    wanted = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()
    if not mark.exists() or mark.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        mark.write_text(wanted)
    os.execv(python, [python, *sys.argv])


class Document:
    """An OpenAPI document, and what it says of a request and its answer."""

    def __init__(self, path):
        import yaml

        text = path.read_text()
        self.tree = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        self.paths = []
        for template, item in self.tree["paths"].items():
            pattern = re.sub(r"\\\{[^}]+\\\}", "([^/]+)", re.escape(template.rstrip("/")))
            self.paths.append((re.compile(pattern + "/?$"), template, item))
        # Paths without parameters first.
        self.paths.sort(key=lambda one: one[1].count("{"))

    def resolve(self, node):
        while isinstance(node, dict) and "$ref" in node:
            target = self.tree
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part.replace("~1", "/").replace("~0", "~")]
            node = target
        return node

    def faults(self, schema, value):
        import jsonschema

        whole = {"components": self.tree.get("components", {}), "allOf": [schema]}
        validator = jsonschema.Draft202012Validator(whole)
        found = []
        for error in validator.iter_errors(value):
            place = "$" + "".join(f"[{part!r}]" for part in error.absolute_path)
            found.append(f"{place}: {error.message[:300]}")
        return found

    def operation(self, method, path):
        # It would be taken for an instance that is called so.
        if path.rstrip("/").endswith("/pending-price-increases"):
            return None
        for pattern, template, item in self.paths:
            if pattern.match(path) and method.lower() in item:
                return template, item, item[method.lower()]
        return None

    def check(self, one):
        """What is wrong with an exchange, each with its place."""
        found = self.operation(one["method"], one["path"])
        if not found:
            return [f"{one['method']} {one['path']}: the document has no such operation"]
        template, item, operation = found
        what = f"{one['method']} {template}"
        wrong = [f"{what} request: {fault}" for fault in self.request(one, item, operation)]
        # What a fault of the simulator's table hurt says nothing.
        if not one["hurt"]:
            wrong += [f"{what} answer {one['status']}: {fault}" for fault in self.answer(one, operation)]
        return wrong

    def request(self, one, item, operation):
        wrong = []
        parameters = [self.resolve(node) for node in [*item.get("parameters", []), *operation.get("parameters", [])]]
        declared = {node["name"]: node for node in parameters if node["in"] == "query"}
        for name, text in one["query"]:
            if name not in declared:
                wrong.append(f"query `{name}` is not declared")
                continue
            schema = self.resolve(declared[name].get("schema", {}))
            wrong += [f"query `{name}`: {fault}" for fault in self.faults(schema, typed(schema, text))]
        wrong += [
            f"query `{name}` is missing"
            for name, node in declared.items()
            if node.get("required") and name not in dict(one["query"])
        ]
        body = self.resolve(operation.get("requestBody") or {})
        schema = body.get("content", {}).get("application/json", {}).get("schema")
        if one["sent"] is not None and schema is None:
            wrong += [] if one["sent"] == {} else ["a body is not declared"]
        elif schema is not None and (one["sent"] is not None or body.get("required")):
            wrong += self.faults(schema, one["sent"])
        return wrong

    def answer(self, one, operation):
        responses = operation["responses"]
        response = responses.get(str(one["status"])) or responses.get("default")
        if response is None:
            return ["the document has no such status"]
        content = self.resolve(response).get("content")
        if not content:
            return ["a body is not declared"] if one["body"] else []
        kind = one["type"].split(";")[0]
        if kind not in content:
            return [f"content type `{kind}` is not declared"]
        if kind == "text/event-stream":
            return []
        return self.faults(content[kind]["schema"], json.loads(one["body"]))


def typed(schema, text):
    """A text of a query as the value that is meant."""
    kind = schema.get("type")
    if kind == "array":
        return text.split(",")
    if kind in ("integer", "number", "boolean", "object"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


class Simulator:
    """A simulator, until the block ends."""

    def __init__(self, name, clock, faults=""):
        self.folder = tempfile.TemporaryDirectory()
        command = [BINARY, "sim", name, "--clock", clock]
        if faults:
            table = pathlib.Path(self.folder.name, "faults.toml")
            table.write_text(faults)
            command += ["--faults", table]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise SystemExit(f"the simulator of {name} does not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def proxy(target, seen):
    """A server that passes everything on to another one, and writes it down."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self):
            length = int(self.headers.get("content-length") or 0)
            sent = self.rfile.read(length) if length else b""
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            to = http.client.HTTPConnection(target, timeout=20)
            parts = urllib.parse.urlsplit(self.path)
            one = {
                "method": self.command,
                "path": urllib.parse.unquote(parts.path),
                "query": urllib.parse.parse_qsl(parts.query),
                "sent": json.loads(sent) if sent else None,
                "hurt": False,
            }
            to.request(self.command, self.path, body=sent or None, headers=headers)
            answer = to.getresponse()
            endless = answer.headers.get("content-type", "").startswith("text/event-stream")
            body = answer.read1(1 << 20) if endless else answer.read()
            to.close()
            one |= {"status": answer.status, "type": answer.headers.get("content-type", ""), "body": body.decode()}
            # A fault of the table is no answer of the API.
            one["hurt"] = answer.status >= 500
            seen.append(one)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in ("transfer-encoding", "content-length", "connection", "date"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


FAULTS = """
[[fault]]
knob = "create-500-after-commit"
times = 1
[[fault]]
knob = "capacity"
times = 1
after = 2
"""


def made(address, provider, offer):
    """A volume where an offer is, made as at the provider's console; its id."""
    method, path, body = provider["volume"](offer)
    to = http.client.HTTPConnection(address, timeout=20)
    headers = {"authorization": "Bearer somebody", "content-type": "application/json"}
    to.request(method, path, body=json.dumps(body), headers=headers)
    answer = json.loads(to.getresponse().read())
    to.close()
    return provider["volume_id"](answer)


def job(name, provider, offer, with_volume=False):
    """A whole job, by the binary, through the proxy; with a volume on its machine, or with two machines."""
    seen = []
    with Simulator(name, "600", "" if with_volume else FAULTS) as simulator, tempfile.TemporaryDirectory() as folder:
        address, speed = simulator.url.removeprefix("http://").split("#")
        server = proxy(address, seen)
        topology = f"""
version = 1
name = "checked"
[limits]
max_price_per_hour = 1.00
[provider.cloud]
kind = "{name}"
url = "http://127.0.0.1:{server.server_port}#{speed}"
[offer.gpu]
provider = "cloud"
{offer}
[lease.node]
{"unguarded = true" if PUSHED in offer else ""}
offers = ["gpu"]
count = {1 if with_volume else 2}
disk = 40
[pipeline.chat]
engine = "stub"
stages = {{ on = "lease.node", split = "auto" }}
[exposure.api]
pipelines = ["chat"]
listen = "127.0.0.1:0"
"""
        pathlib.Path(folder, "topology.toml").write_text(topology)
        environment = {"PATH": os.environ["PATH"], "HOME": folder, provider["key"]: "somebody", "REGISTRY_PASSWORD": "pull-somebody"}
        if with_volume:
            where = re.search(r'where = "([^"]*)"', offer)[1].replace(" ", "")
            command = [BINARY, "offers", "--json", "--where", where]
            ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
            there = [one for one in json.loads(ran.stdout)["offers"] if one["supply"] != {"many": 0} and one["facts"].get("region")]
            volume = made(f"127.0.0.1:{server.server_port}", provider, there[0])
            topology = topology.replace("disk = 40", f'disk = 40\nmounts = [{{ volume = "{volume}", at = "/workspace" }}]')
            pathlib.Path(folder, "topology.toml").write_text(topology)
        commands = ["offers", "apply --auto-approve", "status", "logs lease.node[0]", "orphans", "destroy --auto-approve"]
        for command in commands:
            ran = subprocess.run(
                [BINARY, *command.split()], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
            )
            if ran.returncode != 0:
                raise SystemExit(f"{name}: {command}: exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
        server.shutdown()
    return seen


def report(name, document, seen):
    """Prints each thing that is wrong once; returns how many there are."""
    wrong, known = {}, {}
    for one in seen:
        for fault in document.check(one):
            reasons = [reason for who, pattern, reason in KNOWN if who == name and re.search(pattern, fault, re.S)]
            (known if reasons else wrong)[fault] = reasons[0] if reasons else None
    for reason in sorted(set(known.values())):
        print(f"{name}: differs, as known: {reason}")
    for fault in wrong:
        print(f"{name}: {fault}")
    print(f"{name}: {len(seen)} exchanges of our client, {len(wrong)} faults")
    return len(wrong) + (0 if seen else 1)


def made_up(name, provider, path):
    """Requests by schemathesis; returns how many of its runs found one that was answered as it must not be."""
    spared = [(operations, check, reason) for who, operations, check, reason in SPARED if who == name]
    faults = asked(name, provider, path, CHECKS, [f"--exclude-name-regex=^{operations}$" for operations, _, _ in spared])
    for operations, check, reason in spared:
        print(f"{name}: spared {check} of {operations}: {reason}")
        checks = [one for one in CHECKS if one != check]
        faults += asked(name, provider, path, checks, [f"--include-name-regex=^{operations}$"])
    return faults


CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]


def asked(name, provider, path, checks, which):
    """One run of schemathesis; returns 1 when it is not content."""
    with Simulator(name, "1000") as simulator, tempfile.TemporaryDirectory() as folder:
        url = simulator.url.split("#")[0]
        # One worker: the parser of Python 3.11 counts its depth for all threads together (python/cpython#106905).
        command = [
            TARGET / "openapi-venv" / "bin" / "schemathesis", "run", path, "--url", url, *which,
            "-H", "Authorization: Bearer somebody", "--checks", ",".join(checks), "--max-examples", str(EXAMPLES), "--phases",
            "examples,coverage,fuzzing", "--generation-deterministic", "--workers", "1", "--no-color",
        ]
        if not any(part.startswith("--include") for part in which):
            command += ["--include-path-regex", provider["played"]]
        try:
            ran = subprocess.run(
                [str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: schemathesis took longer than {SECONDS} s")
            return 1
    if ran.returncode == 0:
        cases = re.search(r"(\d+) generated", ran.stdout)
        print(f"{name}: schemathesis is content" + (f" ({cases.group(1)} cases)" if cases else ""))
        return 0
    print(ran.stdout[-8000:], ran.stderr[-2000:])
    return 1


if __name__ == "__main__":
    sys.exit(main())
