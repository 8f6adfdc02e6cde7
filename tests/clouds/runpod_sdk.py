"""RunPod's own SDK against the simulator: search, create, show, list, stop, resume, terminate. It speaks GraphQL for all of them."""

import runpod
from runpod.error import QueryError

GPU = "NVIDIA GeForce RTX 4090"

runpod.api_key = "somebody"

gpus = runpod.get_gpus()
assert GPU in [gpu["id"] for gpu in gpus], gpus
one = runpod.get_gpu(GPU)
assert one["memoryInGb"] == 24 and one["lowestPrice"]["uninterruptablePrice"] > 0, one
assert runpod.get_pods() == []

made = runpod.create_pod(
    "one", "img:1", GPU, cloud_type="SECURE", container_disk_in_gb=20, ports="22/tcp,8888/http", docker_args="sleep 9"
)
pod = made["id"]
listed = runpod.get_pods()
assert [one["id"] for one in listed] == [pod] and listed[0]["name"] == "one", listed
shown = runpod.get_pod(pod)
assert shown["desiredStatus"] == "RUNNING" and shown["gpuCount"] == 1 and shown["costPerHr"] > 0, shown
assert shown["machine"]["gpuDisplayName"] == "RTX 4090" and shown["ports"] == "22/tcp,8888/http", shown

assert runpod.stop_pod(pod)["desiredStatus"] == "EXITED"
assert runpod.get_pod(pod)["desiredStatus"] == "EXITED"
assert runpod.resume_pod(pod, 1)["desiredStatus"] == "RUNNING"
runpod.terminate_pod(pod)
assert runpod.get_pods() == []
try:
    runpod.terminate_pod(pod)
    raise SystemExit("a pod that is gone was terminated")
except QueryError as error:
    assert "not found" in str(error), error
