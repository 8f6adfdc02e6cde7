"""The client that dstack rents pods with over RunPod's API v2, against the simulator."""

import json
import os
import time
import urllib.request

from dstack._internal.core.backends.runpod import api_client as api

URL = os.environ["RUNPOD_API_BASE_URL"]
api.API_V2_URL = f"{URL}/v2"
GPU = "NVIDIA GeForce RTX 4090"

client = api.RunpodApiClient("somebody")
assert client.validate_api_key()


def get(path):
    request = urllib.request.Request(URL + path, headers={"Authorization": "Bearer somebody"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def create(**change):
    options = {
        "name": "one", "cloud": "SECURE", "gpu_type_id": GPU, "gpu_count": 1, "min_cpu_count_per_gpu": 4,
        "min_memory_in_gb_per_gpu": 24, "container_disk_in_gb": 20, "image_name": "img:1", "entrypoint": ["/bin/sh"],
        "cmd": ["-c", "sleep 9"], "ports": ["10022/tcp"], "env": {"RUNPOD_POD_USER": "0"},
    }
    return client.create_pod(**{**options, **change})


def refused(status, **change):
    try:
        create(**change)
    except api.RunpodV2ClientError as error:
        assert error.status == status, error
        return str(error)
    raise SystemExit(f"{change} was taken")


row = get(f"/v2/catalog/gpus/{GPU.replace(' ', '%20')}?include=AVAILABILITY&product=POD")
places = [place["id"] for place in row["dataCenters"] if place["availability"] != "NONE"]
assert places, row
pod = create(data_center_ids=places)
assert pod["status"] in ("PROVISIONING", "STARTING", "RUNNING"), pod

advance = urllib.request.Request(
    f"{URL}/_sim/clock", data=json.dumps({"advance_seconds": 120}).encode(), headers={"Content-Type": "application/json"}
)
urllib.request.urlopen(advance)
deadline = time.monotonic() + 30
while True:
    shown = client.get_pod(pod["id"])
    if shown["status"] == "RUNNING" and shown["runtime"]:
        break
    assert time.monotonic() < deadline, shown
    time.sleep(0.05)
ports = {port["private"]: port for port in shown["runtime"]["ports"]}
assert ports[10022]["public"] and ports[10022]["ip"], shown

assert client.terminate_pod(pod["id"])
assert not client.terminate_pod(pod["id"]), "gone"
assert client.get_pod(pod["id"]) is None

refused(404, gpu_type_id="NVIDIA Abacus")
assert "instances available" in refused(400, min_memory_in_gb_per_gpu=4096)
assert "disk" in refused(422, container_disk_in_gb=0)
