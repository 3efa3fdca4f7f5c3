"""Builds the objects that start servers in a Kubernetes cluster with TPUs.

one host a copy      a Deployment, whose pods are copies, and a Service
several hosts        a JobSet for each copy, and a Service for the first pods, which listen
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspec.core import validate
from jaxspec.core.typed import check_fields
from jaxspec.serving.slices import Slice

_PORT = 8000
# Of JAX's coordinator on TPUs; the leader's own is any free one.
_COORDINATOR = 8482
# Seconds between looks at a server, and the number of failures until it counts as gone.
_PERIOD, _FAILURES = 10, 3
# The number of times that the pods of a JobSet are started again, all of them together.
_RESTARTS = 100
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_API_KEY = "JAXSPEC_API_KEY"
# Only the first of several processes listens.
_LISTENS = 'test "$JOB_COMPLETION_INDEX" != 0 || '
_LOOK = "python -c \"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}{path}', timeout=5)\""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """Describes a server of which copies are to run.

    Attributes:
      name: that of the objects.
      image: the container image, in which `jaxspec` is installed with the extras `tpu` and `serve`.
      topology: the slice of a copy, such as `v6e:2x2`.
      copies: the number of copies.
      arguments: options of `jaxspec serve`, such as `("--model", "MODEL")`.
      longest: seconds that a copy which is to stop waits for running requests.
      start: seconds within which a copy loads the model and compiles.

    Example:
        >>> from jaxspec.serving.manifests import Server
        >>> server = Server(image="registry/jaxspec:1", topology="tpu7x:2x2x2")
        >>> [one["kind"] for one in server.objects()]
        ['JobSet', 'Service']
    """

    name: str = "jaxspec"
    image: str
    topology: str
    copies: int = 1
    arguments: tuple[str, ...] = ()
    longest: int = 600
    start: int = 1800

    def __post_init__(self) -> None:
        check_fields(self, "arguments", copies=(1, 1000), longest=(1, 86400), start=(1, 86400))
        if not _NAME.fullmatch(validate.text("name", self.name)):
            raise ValueError(f"name must be up to 40 of a-z, 0-9 and '-', beginning with a letter, got {self.name!r}")
        if not re.fullmatch(r"\S+", validate.text("image", self.image)):
            raise ValueError(f"image must be that of a container, such as REGISTRY/jaxspec:1, got {self.image!r}")
        Slice.of(self.topology)

    def objects(self) -> list[dict[str, Any]]:
        """Returns the objects, as they are written in YAML or JSON."""
        part = Slice.of(self.topology)
        if part.hosts == 1:
            return [self._deployment(part), self._service({"app": self.name})]
        names = [self.name] if self.copies == 1 else [f"{self.name}-{copy}" for copy in range(self.copies)]
        leaders = {"app": self.name, "batch.kubernetes.io/job-completion-index": "0"}
        return [*(self._job_set(name, part) for name in names), self._service(leaders)]

    def _service(self, selector: Mapping[str, str]) -> dict[str, Any]:
        port = {"name": "http", "port": 80, "targetPort": "http"}
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(self.name),
            "spec": {"selector": dict(selector), "ports": [port]},
        }

    def _deployment(self, part: Slice) -> dict[str, Any]:
        looks = {
            "startupProbe": _look("/health", math.ceil(self.start / _PERIOD)),
            "readinessProbe": _look("/health"),
            "livenessProbe": _look("/live"),
        }
        # A pod that goes waits until a new one is ready; a slice may not be free before, so one more is not required.
        rolling = {"maxUnavailable": 0, "maxSurge": 1}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self._metadata(self.name),
            "spec": {
                "replicas": self.copies,
                "selector": {"matchLabels": {"app": self.name}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
                "progressDeadlineSeconds": self.start + 600,
                "template": {
                    "metadata": {"labels": {"app": self.name}},
                    "spec": self._pod(part, self._container(part, (), looks)),
                },
            },
        }

    def _job_set(self, name: str, part: Slice) -> dict[str, Any]:
        """Returns one program over the hosts of a slice: a pod that is lost ends all, and all start again."""
        looks = {
            "startupProbe": _look_of_first("/health", math.ceil(self.start / _PERIOD)),
            "readinessProbe": _look_of_first("/health"),
            "livenessProbe": _look_of_first("/live"),
        }
        pod = self._pod(part, self._container(part, ("--distributed",), looks))
        job = {
            "completionMode": "Indexed",
            "completions": part.hosts,
            "parallelism": part.hosts,
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": {"app": self.name}},
                "spec": {**pod, "restartPolicy": "Never"},
            },
        }
        metadata = self._metadata(name)
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
        return {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata,
            "spec": {
                "network": {"enableDNSHostnames": True},
                "failurePolicy": {"maxRestarts": _RESTARTS},
                "replicatedJobs": [{"name": "hosts", "replicas": 1, "template": {"spec": job}}],
            },
        }

    def _metadata(self, name: str) -> dict[str, Any]:
        return {"name": name, "labels": {"app": self.name}}

    def _pod(self, part: Slice, container: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "terminationGracePeriodSeconds": self.longest + 30,
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": part.accelerator,
                "cloud.google.com/gke-tpu-topology": part.topology,
            },
            "containers": [dict(container)],
        }

    def _container(self, part: Slice, more: Sequence[str], looks: Mapping[str, Any]) -> dict[str, Any]:
        if part.chips > 1 and part.hosts == 1:
            more = (*more, "--mesh", f"model={part.devices}")
        words = ("jaxspec", "serve", "--host", "0.0.0.0", "--port", str(_PORT), "--timeout", str(self.longest))
        ports = [{"name": "http", "containerPort": _PORT}]
        if part.hosts > 1:
            ports.append({"name": "coordinator", "containerPort": _COORDINATOR})
        chips = {"google.com/tpu": part.chips_per_host}
        key = {"secretKeyRef": {"name": self.name, "key": "api-key", "optional": True}}
        return {
            "name": "jaxspec",
            "image": self.image,
            # Without a shell, so that SIGTERM reaches the server.
            "command": [*words, *more, *self.arguments],
            "env": [{"name": _API_KEY, "valueFrom": key}],
            "ports": ports,
            "resources": {"requests": chips, "limits": dict(chips)},
            **looks,
        }


def _look(path: str, failures: int = _FAILURES) -> dict[str, Any]:
    return _repeated({"httpGet": {"path": path, "port": "http"}}, failures)


def _look_of_first(path: str, failures: int = _FAILURES) -> dict[str, Any]:
    """Returns a look that succeeds in pods that do not listen."""
    command = ["/bin/sh", "-c", _LISTENS + _LOOK.format(port=_PORT, path=path)]
    return _repeated({"exec": {"command": command}}, failures)


def _repeated(look: Mapping[str, Any], failures: int) -> dict[str, Any]:
    return {**look, "periodSeconds": _PERIOD, "timeoutSeconds": 5, "failureThreshold": failures}
