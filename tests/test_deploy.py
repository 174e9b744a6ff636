"""deploy/: its manifests agree with each other and with the program, and what they run does run.

The manifests are parsed, and their commands are run here as processes. No cluster of Kubernetes, no
systemd and no Prometheus is asked.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kit import DEADLINE_S, start_process, until
from tests.test_pages import keygen, not_understood

import mirrorq
from mirrorq.cli.node_file import NodeFile
from mirrorq.demo.ports import free_ports
from mirrorq.metrics import Collector
from mirrorq.monitoring.alarms import ADVICE
from mirrorq.node.node import CLOSE_S

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCS = ROOT / "docs"
RULES = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text("utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PREFIX = "app.kubernetes.io/name"


def kubernetes() -> dict[str, Any]:
    """The documents, by their kinds."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents) == 4
    return by_kind


def pod() -> Any:
    return kubernetes()["StatefulSet"]["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def pods() -> list[str]:
    """Names of the pods, which are those of the nodes."""
    count = kubernetes()["StatefulSet"]["spec"]["replicas"]
    return [f"mirrorq-{number}" for number in range(count)]


def node_toml() -> str:
    text = kubernetes()["ConfigMap"]["data"]["node.toml"]
    assert isinstance(text, str)
    return text


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "mirrorq.service").read_text("utf-8"))
    return parser


def closing_s() -> float:
    """How long a node takes at most to end after SIGTERM."""
    return mirrorq.Config().exit_flush_ms / 1000 + CLOSE_S


def read_node_file(text: str, path: Path) -> NodeFile:
    file = path / "node.toml"
    file.write_text(text, encoding="utf-8")
    return NodeFile.read(file)


# --- Kubernetes --------------------------------------------------------------------------


def test_the_nodes_are_the_pods(tmp_path: Path) -> None:
    """The peers are the replicas, by the names that the headless service gives them."""
    parts = kubernetes()
    settings = read_node_file(node_toml(), tmp_path)
    service = parts["Service"]["metadata"]["name"]
    assert parts["Service"]["spec"]["clusterIP"] == "None"
    assert parts["Service"]["spec"]["publishNotReadyAddresses"] is True
    assert parts["StatefulSet"]["spec"]["serviceName"] == service
    assert parts["StatefulSet"]["metadata"]["name"] == "mirrorq"
    assert parts["StatefulSet"]["spec"]["podManagementPolicy"] == "Parallel"
    assert settings.peers == {name: f"tcp://{name}.{service}:7400" for name in pods()}
    assert len(pods()) == 3


def test_ports_and_probes_agree(tmp_path: Path) -> None:
    """What the node listens on is what the container, the service, the probes and the image say."""
    settings = read_node_file(node_toml(), tmp_path)
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert settings.listen == f"tcp://0.0.0.0:{ports['node']}"
    assert settings.metrics == f"0.0.0.0:{ports['metrics']}"
    assert settings.insecure is True  # or the metrics would be refused
    for port in kubernetes()["Service"]["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container()[probe]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    ready = container()["readinessProbe"]["exec"]["command"]
    assert ready[ready.index("--connect") + 1] == f"tcp://127.0.0.1:{ports['node']}"
    assert ready[ready.index("--keys") + 1] == str(settings.keys)
    assert float(ready[ready.index("--wait") + 1]) < container()["readinessProbe"]["timeoutSeconds"]
    annotations = kubernetes()["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["metrics"])
    exposed = re.search(r"^EXPOSE (.*)$", containerfile(), re.MULTILINE)
    assert exposed
    assert {int(port) for port in exposed[1].split()} == set(ports.values())


def test_selectors_volumes_and_times_fit(tmp_path: Path) -> None:
    parts = kubernetes()
    label = {PREFIX: "mirrorq"}
    stateful = parts["StatefulSet"]["spec"]
    assert stateful["template"]["metadata"]["labels"] == label
    assert stateful["selector"]["matchLabels"] == label
    assert parts["Service"]["spec"]["selector"] == label
    assert parts["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == label
    assert parts["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    assert pod()["terminationGracePeriodSeconds"] > closing_s() + 5
    claims = {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in pod()["volumes"]}
    assert not claims & volumes
    for one in (*pod()["initContainers"], *pod()["containers"]):
        assert {mount["name"] for mount in one["volumeMounts"]} <= claims | volumes
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    settings = read_node_file(node_toml(), tmp_path)
    assert str(settings.keys) == mounts["own-key"]
    # A directory below the volume: its root has lost+found on ext4.
    assert settings.path is not None
    assert str(settings.path.parent) == mounts["data"]
    (claim,) = stateful["volumeClaimTemplates"]
    size = claim["spec"]["resources"]["requests"]["storage"]
    assert size.endswith("Gi")
    assert settings.config is not None
    assert settings.config.store_bytes_max < (int(size.removesuffix("Gi")) - 2) << 30
    # The others' secrets are in the container that takes this node's, and nowhere else.
    assert "secrets" not in mounts


def test_the_keys_that_the_manifest_wants_are_made_above_it() -> None:
    """Names in the comment, in the page and in the volumes are the same."""
    text = (DEPLOY / "kubernetes.yaml").read_text("utf-8")
    page = (DOCS / "kubernetes.md").read_text("utf-8")
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    secret = volumes["secrets"]["secret"]["secretName"]
    public = volumes["public"]["configMap"]["name"]
    for where in (text, page):
        assert f"kubectl create secret generic {secret} " in where
        assert f"kubectl create configmap {public} --from-file=keys/keys.toml" in where
        for name in pods():
            assert f"mirrorq key new {name} --role peer --keys keys" in where
            assert f"--from-file=keys/{name}.secret" in where
    assert volumes["config"]["configMap"]["name"] == kubernetes()["ConfigMap"]["metadata"]["name"]


# --- Commands ----------------------------------------------------------------------------


def containerfile() -> str:
    return (DEPLOY / "Containerfile").read_text("utf-8")


def manifest_commands() -> list[list[str]]:
    """Every command line of the program in deploy/, comments included."""
    ready = container()["readinessProbe"]["exec"]["command"]
    in_image = re.search(r"^CMD (\[.*\])$", containerfile(), re.MULTILINE)
    assert in_image
    program, *words = unit()["Service"]["ExecStart"].split()
    assert program.endswith("/mirrorq")
    found = [container()["command"], ready, json.loads(in_image[1]), ["mirrorq", *words]]
    for file in DEPLOY.iterdir():
        for line in re.findall(r"^#\s+(mirrorq .*)$", file.read_text("utf-8"), re.MULTILINE):
            found.append(line.split())
    return found


def test_every_command_line_is_understood() -> None:
    lines = manifest_commands()
    assert len(lines) == 8
    for program, *words in lines:
        assert program == "mirrorq"
        assert not_understood(words) == [], words


def test_systemd_waits_for_the_end_of_a_node() -> None:
    service = unit()["Service"]
    assert float(service["TimeoutStopSec"]) > closing_s() + 5
    assert service["StateDirectory"] == "mirrorq"
    assert service["StateDirectoryMode"] == "0700"
    page = (DOCS / "operations.md").read_text("utf-8")
    named = re.findall(r"`([A-Z]\w+)=([^`]+)`", page)
    assert len(named) == 4
    for name, value in named:
        assert service[name] == value


def test_the_image_has_what_the_build_reads() -> None:
    """Everything that it copies is there, and the extra brings the metrics."""
    for names in re.findall(r"^COPY (?!--)(.*) \S+$", containerfile(), re.MULTILINE):
        for name in names.split():
            assert (ROOT / name).exists(), name
    assert "/source[metrics]" in containerfile()


# --- Prometheus --------------------------------------------------------------------------


def exported() -> set[str]:
    """Names of all series, as a scrape shows them."""
    names = set()
    for family in Collector.describe(object.__new__(Collector)):
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        names |= {family.name + end for end in ends.get(family.type, [""])}
    return names


def test_every_metric_in_a_rule_is_exported() -> None:
    named: set[str] = set()
    for alert in ALERTS:
        found = set(re.findall(r"\bmirrorq_\w+", alert["expr"]))
        assert found, alert["alert"]
        named |= found
    assert sorted(named - exported()) == []


def test_every_alarm_has_an_alert() -> None:
    """And no rule asks for an alarm that there is not."""
    text = " ".join(alert["expr"] for alert in ALERTS)
    assert set(re.findall(r'mirrorq_alarm\{name="(\w+)"\}', text)) == set(ADVICE)
    assert text.count("mirrorq_alarm") == len(ADVICE)


def test_every_alert_has_what_an_alert_needs_and_a_place_in_the_runbook() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(names)) == len(names) > 20
    for alert in ALERTS:
        assert re.fullmatch(r"\d+[smh]", alert["for"])
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert alert["annotations"]["summary"]
        url = alert["annotations"]["runbook_url"]
        assert url == f"https://mirrorq.example/docs/runbook.html#{alert['alert'].lower()}"
    page = (DOCS / "runbook.md").read_text("utf-8")
    sections = re.findall(r"^### (Mirrorq\w+)\n\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in sections] == names
    severities = {alert["alert"]: alert["labels"]["severity"] for alert in ALERTS}
    for name, text in sections:
        assert text.startswith(f"*{severities[name].capitalize()}.* "), name
        assert "**Do:**" in text, name


# --- The pods, as processes --------------------------------------------------------------


class Pods:
    """The manifest's containers as processes of this machine: other paths and ports, no more."""

    def __init__(self, ending: ExitStack, path: Path) -> None:
        self._ending = ending
        self._path = path
        self._ports = {name: free_ports(2) for name in pods()}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        script = path / "bin" / "mirrorq"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mirrorq "$@"\n')
        script.chmod(0o755)

    def here(self, name: str, text: str) -> str:
        """A text of a pod with this machine's paths and ports."""
        for peer, (node, _) in self._ports.items():
            text = text.replace(f"{peer}.mirrorq:7400", f"127.0.0.1:{node}")
        node, metrics = self._ports[name]
        text = text.replace("0.0.0.0:7400", f"127.0.0.1:{node}")
        text = text.replace("127.0.0.1:7400", f"127.0.0.1:{node}")
        text = text.replace("0.0.0.0:9464", f"0.0.0.0:{metrics}")
        text = text.replace("$(POD_NAME)", name)
        for root in ("/etc/mirrorq", "/run/mirrorq", "/var/lib/mirrorq"):
            text = text.replace(root, f"{self._path / name}{root}")
        return text

    def _env(self, name: str) -> dict[str, str]:
        found = f"{self._path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "POD_NAME": name, "PATH": found}

    def start(self, name: str) -> None:
        """Mount, run the init container, then the container."""
        root = self._path / name
        for place in ("etc/mirrorq/config", "run/mirrorq/keys", "var/lib/mirrorq/lost+found"):
            (root / place).mkdir(parents=True, exist_ok=True)
        (root / "etc/mirrorq/config/node.toml").write_text(self.here(name, node_toml()))
        for link, target in {"public": "keys", "secrets": "keys"}.items():
            if not (root / "etc/mirrorq" / link).exists():
                (root / "etc/mirrorq" / link).symlink_to(self._path / target)
        (init,) = pod()["initContainers"]
        command = [self.here(name, word) for word in init["command"]]
        for _ in range(2):  # A pod whose sandbox starts again runs it again, and finds the files.
            subprocess.run(command, env=self._env(name), check=True, timeout=DEADLINE_S)
        secret = root / "run/mirrorq/keys" / f"{name}.secret"
        assert secret.stat().st_mode & 0o777 == 0o600
        self.run_container(name)

    def run_container(self, name: str) -> None:
        with (self._path / f"{name}.log").open("a") as log:
            self.processes[name] = start_process(
                self._ending,
                [self.here(name, word) for word in container()["command"]],
                env=self._env(name),
                stderr=log,
            )

    def is_alive(self, name: str) -> bool:
        """The probe over HTTP, which must show the node's metrics."""
        port = self._ports[name][1]
        probe = container()["livenessProbe"]["httpGet"]
        url = f"http://127.0.0.1:{port}{probe['path']}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return f'mirrorq_node_up{{node="{name}"}} 1.0'.encode() in answer.read()
        except OSError:
            return False

    def ready(self, name: str) -> subprocess.CompletedProcess[str]:
        """The probe that is a command."""
        probe = container()["readinessProbe"]
        return subprocess.run(
            [self.here(name, word) for word in probe["exec"]["command"]],
            env=self._env(name),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def is_ready(self, name: str) -> bool:
        return self.ready(name).returncode == 0


@pytest.mark.real
def test_the_pods_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone a pod is alive and not ready. All of them are ready; without one none is; it comes back
    with its volume, and then with an empty one. SIGTERM ends one within its time."""
    monkeypatch.chdir(tmp_path)
    for name in pods():
        keygen(name, "--role", "peer")
    first, *others, last = pods()
    with ExitStack() as ending:
        running = Pods(ending, tmp_path)
        running.start(first)
        until(lambda: running.is_alive(first))
        assert "is not founded yet" in running.ready(first).stderr
        for name in (*others, last):
            running.start(name)
        for name in pods():
            until(lambda name=name: running.is_ready(name), lambda n=name: running.ready(n))
            keys = tmp_path / name / "run/mirrorq/keys"
            assert sorted(os.listdir(keys)) == ["keys.toml", f"{name}.secret"]
        # Metrics without a key are allowed, and queues are not.
        endpoint = running.here(first, "tcp://127.0.0.1:7400")
        with pytest.raises(mirrorq.AuthenticationError):
            mirrorq.connect(endpoint, timeout=DEADLINE_S)
        security = mirrorq.Security.load("keys", first)
        with mirrorq.connect(endpoint, security=security, timeout=DEADLINE_S) as client:
            client.queue("jobs").put(b"one").result(DEADLINE_S)
        running.processes[last].send_signal(signal.SIGTERM)
        grace = pod()["terminationGracePeriodSeconds"]
        assert running.processes[last].wait(grace) == 0
        assert not running.is_ready(first)
        running.run_container(last)
        until(lambda: running.is_ready(last), lambda: running.ready(last))
        # Another volume: the pod joins again by its peers, and nobody is asked to forget it.
        running.processes[last].kill()
        running.processes[last].wait(DEADLINE_S)
        (tmp_path / last / "var/lib/mirrorq/store").rename(tmp_path / "lost")
        running.run_container(last)
        until(lambda: running.is_ready(last), lambda: running.ready(last))
        # A new key counts without a restart: keys.toml is a link to the mounted one.
        keygen("web", "--write", "jobs")
        web = mirrorq.Security.load("keys", "web")

        def is_let_in() -> bool:
            try:
                mirrorq.connect(endpoint, security=web, timeout=2).close()
            except (mirrorq.AuthenticationError, mirrorq.NoQuorum):
                return False
            return True

        until(is_let_in)
