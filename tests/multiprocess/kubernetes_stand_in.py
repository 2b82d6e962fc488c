"""A stand-in for a Kubernetes cluster: an API that keeps state, a job controller and a kubelet.

The API answers as the real one does, with the same paths, codes and messages; it refuses what does not
fit the schema. Pods are real processes of this machine: names of pods are looked up as the cluster's DNS
would, and become loopback; the image is this interpreter; the secret is a file.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kubernetes_schema import check
from stratagem._src.cluster.reserved_ports import ReservedPorts

GROUPS = ["batch", "apps"]
JOBSET_GROUP = "jobset.x-k8s.io"


class StandIn:
    """The cluster. ``config`` is the path of a configuration for its clients."""

    def __init__(self, folder, jobsets=False):
        self.folder = folder
        self.groups = [*GROUPS, *[JOBSET_GROUP] * jobsets]
        self.lock = threading.RLock()
        self.objects = {}  # by kind, namespace and name
        self.processes = {}  # by name of the pod
        self.is_over = threading.Event()
        self.ports = ReservedPorts(1)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.config = folder / "kubeconfig"
        place = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "it",
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
                    "clusters": [{"name": "it", "cluster": {"server": place}}],
                    "users": [{"name": "me", "user": {"token": "t"}}],
                }
            )
        )
        self.has_room = True
        self.held = set()
        self.threads = [
            threading.Thread(target=self.server.serve_forever, args=(0.05,)),
            threading.Thread(target=self._control),
        ]
        for thread in self.threads:
            thread.start()

    def close(self):
        self.is_over.set()
        self.server.shutdown()
        self.server.server_close()
        for name in list(self.processes):
            self.kill(name)
        for thread in self.threads:
            thread.join()
        self.ports.close()

    # --- what tests ask and do ----------------------------------------------------------------------

    def of_kind(self, kind):
        with self.lock:
            return [item for (of, _, _), item in self.objects.items() if of == kind]

    def kill(self, pod):
        """Ends the processes of a pod, as the loss of its machine does."""
        process = self.processes.pop(pod, None)
        if process is not None:
            with_suppressed(os.killpg, process.pid, signal.SIGKILL)
            process.wait()

    def evict(self, pod):
        """Takes a pod away, as draining its machine does."""
        with self.lock:
            found = self.objects[("pods", "default", pod)]
            found["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
        self.kill(pod)

    # --- the API ------------------------------------------------------------------------------------

    def create(self, kind, namespace, item):
        name = item["metadata"]["name"]
        try:
            check(item)
        except ValueError as error:
            return 422, status(422, "Invalid", f'{kind} "{name}" is invalid: {error}')
        while kind in self.held:
            time.sleep(0.02)
        with self.lock:
            if (kind, namespace, name) in self.objects:
                return 409, status(409, "AlreadyExists", f'{kind} "{name}" already exists')
            item["metadata"]["uid"] = str(uuid.uuid4())
            self.objects[(kind, namespace, name)] = item
        return 201, item

    def delete(self, kind, namespace, name):
        with self.lock:
            if (kind, namespace, name) not in self.objects:
                return 404, status(404, "NotFound", f'{kind} "{name}" not found')
            gone = self.objects.pop((kind, namespace, name))
            uid = gone["metadata"]["uid"]
            owned = [
                key
                for key, item in self.objects.items()
                if any(r["uid"] == uid for r in item["metadata"].get("ownerReferences", []))
            ]
        for key in owned:
            self.delete(*key)
        self.kill(name)
        return 200, status(200, "", "", "Success")

    def list(self, kind, namespace, query):
        selector = dict(
            part.split("=") for part in query.get("labelSelector", "").split(",") if part
        )
        with self.lock:
            items = [
                item
                for (of, where, _), item in self.objects.items()
                if (of, where) == (kind, namespace)
                and selector.items() <= item["metadata"].get("labels", {}).items()
            ]
        if query.get("fieldSelector") == "type=Warning":
            items = [item for item in items if item["type"] == "Warning"]
        names = {"pods": "PodList", "events": "EventList"}
        found = {"kind": names[kind], "apiVersion": "v1", "metadata": {}, "items": items}
        return 200, found

    def _handler(self):
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(url.query))
                if url.path.rstrip("/") == "/apis":
                    groups = [
                        {
                            "name": name,
                            "versions": [{"groupVersion": f"{name}/v1", "version": "v1"}],
                        }
                        for name in cluster.groups
                    ]
                    self.answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
                    return
                kind, namespace, name, more = parts(url.path)
                if more == "log":
                    self.send_log(name)
                else:
                    self.answer(*cluster.list(kind, namespace, query))

            def do_POST(self):
                kind, namespace, _, _ = parts(self.path)
                self.answer(*cluster.create(kind, namespace, self.body()))

            def do_DELETE(self):
                kind, namespace, name, _ = parts(urllib.parse.urlsplit(self.path).path)
                self.body()
                self.answer(*cluster.delete(kind, namespace, name))

            def body(self):
                length = int(self.headers.get("Content-Length") or 0)
                return json.loads(self.rfile.read(length) or "{}")

            def answer(self, code, found):
                text = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def send_log(self, pod):
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                position, path = 0, cluster.folder / f"{pod}.log"
                while True:
                    is_over = pod not in cluster.processes or cluster.is_over.is_set()
                    if path.exists():
                        text = path.read_bytes()[position:]
                        position += len(text)
                        self.wfile.write(text)
                    if is_over:
                        self.close_connection = True
                        return
                    time.sleep(0.05)

        return Handler

    # --- controllers and kubelet --------------------------------------------------------------------

    def _control(self):
        while not self.is_over.wait(0.05):
            with self.lock:
                for jobset in self.of_kind("jobsets"):
                    self._control_jobset(jobset)
                for job in self.of_kind("jobs"):
                    self._control_job(job)
                for pod in self.of_kind("pods"):
                    self._run_pod(pod)

    def _control_jobset(self, jobset):
        name = jobset["metadata"]["name"]
        if ("services", "default", jobset["spec"]["network"]["subdomain"]) in self.objects:
            return
        owner = owner_of(jobset)
        service = {"clusterIP": "None", "selector": {"jobset": name}}
        made = {"kind": "Service", "apiVersion": "v1", "spec": service}
        made["metadata"] = {"name": name, "ownerReferences": [owner]}
        assert self.create("services", "default", made)[0] == 201
        for replicated in jobset["spec"]["replicatedJobs"]:
            template = json.loads(json.dumps(replicated["template"]))
            template["spec"]["template"]["metadata"]["labels"]["jobset"] = name
            job = {"kind": "Job", "apiVersion": "batch/v1", "spec": template["spec"]}
            job["metadata"] = {"name": f"{name}-{replicated['name']}-0", "ownerReferences": [owner]}
            assert self.create("jobs", "default", job)[0] == 201

    def _control_job(self, job):
        """Makes a pod for every index that has none, or whose pod was taken away."""
        spec, name = job["spec"], job["metadata"]["name"]
        state = job.setdefault("status", {})
        mine = [pod for pod in self.of_kind("pods") if pod["owner"] == name]
        for pod in mine:
            code = exit_code(pod)
            if code not in (None, 0) and not pod["status"].get("conditions"):
                state["failed"] = True  # action FailJob
        for index in range(spec["completions"]):
            pods = [pod for pod in mine if pod["index"] == index]
            gone = all(pod["status"].get("conditions") and exit_code(pod) for pod in pods)
            if gone and not state.get("failed"):
                pod = {"kind": "Pod", "apiVersion": "v1", "owner": name, "index": index}
                pod["metadata"] = {
                    "name": f"{name}-{index}-{uuid.uuid4().hex[:5]}",
                    "namespace": "default",
                    "labels": dict(spec["template"]["metadata"]["labels"]),
                    "ownerReferences": [owner_of(job)],
                    "uid": str(uuid.uuid4()),
                }
                pod["spec"] = spec["template"]["spec"]
                pod["status"] = {"phase": "Pending"}
                self.objects[("pods", "default", pod["metadata"]["name"])] = pod

    def _run_pod(self, pod):
        name, phase = pod["metadata"]["name"], pod["status"]["phase"]
        if phase == "Pending" and self.has_room:
            self._start_pod(pod)
        elif phase == "Running":
            process = self.processes.get(name)
            code = -9 if process is None else process.poll()
            if code is not None:
                self.processes.pop(name, None)
                ended = {"exitCode": code if code >= 0 else 128 - code}
                pod["status"]["phase"] = "Failed" if code else "Succeeded"
                pod["status"]["containerStatuses"] = [container_status({"terminated": ended})]

    def _start_pod(self, pod):
        name, spec = pod["metadata"]["name"], pod["spec"]
        wanted = spec["volumes"][0]["secret"]["secretName"]
        secret = self.objects.get(("secrets", "default", wanted))
        if secret is None:
            self._warn(name, "FailedMount", f'secret "{wanted}" not found')
            return
        [container] = spec["containers"]
        file = self.folder / f"{name}.secret"
        file.write_text(secret["stringData"]["secret"])
        file.chmod(0o400)
        command = [self._expanded(word, pod["index"]) for word in container["command"]]
        assert command[0] == "python"
        with (self.folder / f"{name}.log").open("wb") as log:
            environment = {"STRATAGEM_CLUSTER_SECRET_FILE": str(file)}
            self.processes[name] = subprocess.Popen(
                [sys.executable, *command[1:]],
                env={**os.environ, **environment},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        pod["status"] = {
            "phase": "Running",
            "containerStatuses": [container_status({"running": {}})],
        }

    def _expanded(self, word, index):
        word = word.replace("$(JOB_COMPLETION_INDEX)", str(index)).replace("$$(", "$(")
        [port] = self.ports
        if found := re.fullmatch(r"--rdzv-endpoint=(.*):29400", word):
            return f"--rdzv-endpoint={self._address(found[1])}:{port}"
        if found := re.fullmatch(r"--own-host=(.*)", word):
            return f"--own-host={self._address(found[1])}"
        return word

    def _address(self, host):
        """Looks a pod up as the cluster's DNS does: by its job, its index and a headless service."""
        name, _, subdomain = host.partition(".")
        job, _, index = name.rpartition("-")
        service = self.objects[("services", "default", subdomain)]["spec"]
        template = self.objects[("jobs", "default", job)]["spec"]
        assert service["clusterIP"] == "None"
        assert template["template"]["spec"]["subdomain"] == subdomain
        labels = template["template"]["metadata"]["labels"]
        assert service["selector"].items() <= labels.items()
        assert int(index) < template["completions"]
        return "127.0.0.1"

    def _warn(self, pod, reason, message):
        about = {"kind": "Pod", "name": pod, "namespace": "default"}
        event = {"kind": "Event", "apiVersion": "v1", "type": "Warning", "reason": reason}
        event |= {"message": message, "involvedObject": about}
        event["metadata"] = {"name": f"{pod}.{reason}", "namespace": "default"}
        self.objects[("events", "default", f"{pod}.{reason}")] = event


def parts(path):
    """Returns the kind, namespace, name and what follows of a path."""
    found = re.fullmatch(r"/apis?/.*?/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?(?:/([^/]+))?", path)
    namespace, kind, name, more = found.groups()
    return kind, namespace, name, more


def status(code, reason, message, said="Failure"):
    found = {"kind": "Status", "apiVersion": "v1", "status": said, "code": code}
    return found | {"reason": reason, "message": message, "metadata": {}}


def owner_of(item):
    metadata = {key: item["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], **metadata}


def exit_code(pod):
    for found in pod["status"].get("containerStatuses", []):
        if "terminated" in found["state"]:
            return found["state"]["terminated"]["exitCode"]
    return None


def container_status(state):
    is_running = "running" in state
    found = {"name": "task", "image": "it", "imageID": "it", "ready": is_running, "restartCount": 0}
    return found | {"state": state, "started": is_running}


def with_suppressed(function, *arguments):
    try:
        function(*arguments)
    except ProcessLookupError:
        return
