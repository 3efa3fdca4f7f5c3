"""What starts servers in Kubernetes: valid by the schemas of its objects, and right for each slice."""

import copy
import shlex

import jsonschema
import pytest
import typer.testing
import yaml

from jaxspec.cli import app as application
from jaxspec.cli.options import build, parameters
from jaxspec.cli.processes import Processes
from jaxspec.serving.manifests import Server
from jaxspec.serving.slices import GENERATIONS, Slice

SLICES = [f"{name}:{one}" for name, generation in GENERATIONS.items() for one in generation.topologies]


def fields(required=(), **types):
    """A schema of an object that has no other fields."""
    return {"type": "object", "properties": types, "required": [*required], "additionalProperties": False}


def one_of(*values):
    return {"enum": [*values]}


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TEXTS, OBJECT = {"type": "array", "items": TEXT}, {"type": "object"}
# The fields of jobset.x-k8s.io/v1alpha2, without those of the jobs and volumes inside, which Kubernetes defines.
RULE = fields(
    ["action"],
    action=one_of(
        *("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
        *("RestartJob", "RestartJobAndIgnoreMaxRestarts"),
    ),
    name=TEXT,
    onJobFailureMessagePatterns=TEXTS,
    onJobFailureReasons=TEXTS,
    targetReplicatedJobs=TEXTS,
)
REPLICATED_JOB = fields(
    ["name", "template"],
    dependsOn={"type": "array", "items": fields(["name", "status"], name=TEXT, status=one_of("Ready", "Complete"))},
    groupName=TEXT,
    name=TEXT,
    replicas=NUMBER,
    template=OBJECT,
)
JOB_SET = fields(
    coordinator=fields(["replicatedJob"], jobIndex=NUMBER, podIndex=NUMBER, replicatedJob=TEXT),
    failurePolicy=fields(
        maxRestarts=NUMBER,
        restartStrategy=one_of("Recreate", "BlockingRecreate", "InPlaceRestart"),
        rules={"type": "array", "items": RULE},
    ),
    managedBy=TEXT,
    network=fields(enableDNSHostnames=FLAG, publishNotReadyAddresses=FLAG, subdomain=TEXT),
    replicatedJobs={"type": "array", "items": REPLICATED_JOB},
    startupPolicy=fields(["startupPolicyOrder"], startupPolicyOrder=one_of("AnyOrder", "InOrder")),
    successPolicy=fields(["operator"], operator=one_of("All", "Any"), targetReplicatedJobs=TEXTS),
    suspend=FLAG,
    ttlSecondsAfterFinished=NUMBER,
    volumeClaimPolicies={"type": "array", "items": OBJECT},
)


def server(topology, **given):
    return Server(image="registry/jaxspec:1", topology=topology, arguments=("--model", "M"), **given)


def pod_of(found):
    spec = found["spec"]
    if found["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec["template"]["spec"]


@pytest.mark.parametrize("topology", SLICES)
def test_pods_fit_their_slice(topology):
    part, (*starts, service) = Slice.of(topology), server(topology).objects()
    (found,) = starts
    assert (found["kind"], service["kind"]) == ("Deployment" if part.hosts == 1 else "JobSet", "Service")
    pod = pod_of(found)
    (container,) = pod["containers"]
    assert container["resources"] == dict.fromkeys(("requests", "limits"), {"google.com/tpu": part.chips_per_host})
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": part.accelerator,
        "cloud.google.com/gke-tpu-topology": part.topology,
    }
    # The server itself hears SIGTERM, and has more time than its longest request.
    assert container["command"][:2] == ["jaxspec", "serve"] and container["command"][-2:] == ["--model", "M"]
    assert pod["terminationGracePeriodSeconds"] > int(container["command"][container["command"].index("--timeout") + 1])
    if part.hosts > 1:
        job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
        assert (job["completions"], job["parallelism"], job["backoffLimit"]) == (part.hosts, part.hosts, 0)
        assert pod["restartPolicy"] == "Never" and found["spec"]["failurePolicy"]["maxRestarts"] > 0
        assert service["spec"]["selector"]["batch.kubernetes.io/job-completion-index"] == "0"


@pytest.mark.parametrize("topology", ["v5e:1x1", "v5e:2x4", "tpu7x:1x1x1", "tpu7x:2x2x1", "tpu7x:2x2x2"])
def test_commands_are_those_of_serve(topology):
    """Several hosts are found by JAX, and all of their devices are one mesh; one host says how many it has."""
    (found, _), part = server(topology).objects(), Slice.of(topology)
    words = pod_of(found)["containers"][0]["command"]
    flags = {one.name for one in parameters(application._COMMANDS["serve"].Options)}
    assert {word[2:].replace("-", "_") for word in words if word.startswith("--")} <= flags
    given = {"distributed": "--distributed" in words, "mesh": None, "coordinator": None}
    if "--mesh" in words:
        given["mesh"] = words[words.index("--mesh") + 1]
    build(Processes, {"num_processes": None, "process_id": None, **given})
    assert given["distributed"] == (part.hosts > 1)
    assert given["mesh"] == (f"model={part.devices}" if part.hosts == 1 < part.devices else None)


def test_only_the_first_of_several_hosts_listens():
    container = pod_of(server("v5p:2x2x2").objects()[0])["containers"][0]
    for name, path in (("startupProbe", "/health"), ("readinessProbe", "/health"), ("livenessProbe", "/live")):
        shell, option, command = container[name]["exec"]["command"]
        assert (shell, option) == ("/bin/sh", "-c") and path in command
        words = shlex.split(command)
        assert words[:5] == ["test", "$JOB_COMPLETION_INDEX", "!=", "0", "||"] and words[5:7] == ["python", "-c"]
        compile(words[7], "probe", "exec")


def test_copies():
    """Copies of one host are pods of a Deployment; each copy of several hosts is started again alone."""
    deployment, service = server("v6e:2x2", copies=3).objects()
    assert deployment["spec"]["replicas"] == 3 and service["spec"]["selector"] == {"app": "jaxspec"}
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    *sets, service = server("v6e:4x4", copies=3, name="chat").objects()
    assert [one["metadata"]["name"] for one in sets] == ["chat-0", "chat-1", "chat-2"]
    assert service["metadata"]["name"] == service["spec"]["selector"]["app"] == "chat"


@pytest.mark.parametrize("copies", [1, 2])
def test_names_differ(copies):
    """Of the clients' Service and of what the controller of JobSets creates."""
    *sets, service = server("v6e:4x4", copies=copies).objects()
    names = [one["metadata"]["name"] for one in sets]
    names += [one["spec"]["network"]["subdomain"] for one in sets]
    assert len({*names}) == 2 * copies and service["metadata"]["name"] not in names[copies:]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "A"}, "name must be up to 40"),
        ({"image": "a b"}, "image must be that of a container"),
        ({"copies": 0}, "copies of Server must be between 1 and 1000, got 0"),
        ({"topology": "v5e:3x3"}, "v5e has slices of 1x1, 2x2"),
        ({"arguments": ("--timeout", "5")}, "must not have --timeout, which is set already; pass longest"),
        ({"arguments": ("--port=5",)}, "must not have --port, which is set already; leave it out"),
        ({"arguments": ("--distributed",)}, "must not have --distributed, .* follows from topology"),
    ],
)
def test_wrong_servers_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Server(**{"image": "a", "topology": "v5e:1x1", **given})


def test_the_command_writes_them(tmp_path):
    def run(*words):
        return typer.testing.CliRunner().invoke(application.app, ["manifests", "--image", "registry/jaxspec:1", *words])

    shown = run("--topology", "tpu7x:2x2x2", "--", "--model", "M")
    assert shown.exit_code == 0, shown.stderr
    assert list(yaml.safe_load_all(shown.stdout)) == server("tpu7x:2x2x2").objects()
    written = run("--topology", "tpu7x:2x2x2", "--out", str(tmp_path / "a.yaml"), "--", "--model", "M")
    assert written.exit_code == 0 and (tmp_path / "a.yaml").read_text() == shown.stdout
    refused = run("--topology", "tpu7x:2x2")
    for word, said in (("--modle", "No such option: --modle"), ("--mesh=a", "--mesh takes sizes"), ("M", "argument")):
        wrong = run("--topology", "v5e:1x1", "--", word)
        assert wrong.exit_code == 2 and said in wrong.stderr
    assert refused.exit_code == 2 and "tpu7x has slices of 1x1x1, 2x2x1" in refused.stderr


def valid(objects):
    """Checks objects by the schemas of Kubernetes, and JobSets by that of their own fields and as jobs."""
    schemas = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate; `bash .ci/run ray` has it")
    for one in objects:
        if one["kind"] == "JobSet":
            assert set(one) == {"apiVersion", "kind", "metadata", "spec"}
            jsonschema.validate(one["spec"], JOB_SET)
            for job in one["spec"]["replicatedJobs"]:
                template = {"apiVersion": "batch/v1", "kind": "Job", "metadata": one["metadata"], **job["template"]}
                schemas.validate(template, "1.37", strict=True)
        else:
            schemas.validate(one, "1.37", strict=True)


@pytest.mark.parametrize("topology", SLICES)
def test_they_are_valid(topology):
    valid(server(topology, copies=2).objects())


def test_an_unknown_field_is_seen():
    """The check would see a wrong name anywhere."""
    for topology in ("v5e:1x1", "v5e:4x4"):
        objects = copy.deepcopy(server(topology).objects())
        valid(objects)
        pod_of(objects[0])["containers"][0]["resource"] = {}
        with pytest.raises(Exception, match="resource"):
            valid(objects)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ((), "failurePolcy"),
        (("failurePolicy",), "maxRestart"),
        (("network",), "subDomain"),
        (("replicatedJobs", 0), "x"),
    ],
)
def test_an_unknown_field_of_a_job_set_is_seen(path, name):
    spec = copy.deepcopy(server("v5e:4x4").objects()[0]["spec"])
    jsonschema.validate(spec, JOB_SET)
    inner = spec
    for key in path:
        inner = inner[key]
    inner[name] = 1
    with pytest.raises(jsonschema.ValidationError, match=name):
        jsonschema.validate(spec, JOB_SET)
