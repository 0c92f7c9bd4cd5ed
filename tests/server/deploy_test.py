#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/deploy: its files are what their readers take, and say of the program what it knows.

Usage: tests/server/deploy_test.py PROGRAM
"""
import pathlib
import re
import subprocess
import sys

from served import ROOT, skip

try:
    import yaml
except ImportError as error:
    skip(f"{error} (python3-yaml)")

FOLDER = ROOT / "examples/deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
OBJECTS = [one for one in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()) if one]
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
# Of every Debian, or left out of the image by an option of its build.
GIVEN = {"libc6", "libgcc-s1", "libstdc++6", "libopenmpi3", "libblas3", "libtinfo6"}


def check_command(program, words):
    """That the program has such a command with such flags."""
    command, flags = words[0], [word for word in words if word.startswith("--")]
    helped = subprocess.run([program, command, "--help"], capture_output=True, text=True, check=True).stdout
    for flag in flags:
        assert re.search(rf"^\s.*{flag}\b", helped, re.MULTILINE), f"{command} has no {flag}"
    for word in words:
        if word.startswith("redis://"):
            options = word.partition("?")[2]
            assert all(option.split("=")[0] in ("cache", "cache_bytes", "lease_seconds", "timeout_seconds")
                       for option in options.split(",") if option), word


def check_image(name):
    assert name.startswith(("episodic", "registry.example.com/episodic")) or re.search(r":\d", name), \
        f"{name}: of no version"


def check_compose(program):
    services = COMPOSE["services"]
    for name, service in services.items():
        check_image(service["image"])
        assert set(service.get("depends_on", [])) <= set(services), name
        for volume in service.get("volumes", []):
            source = volume.rsplit(":", 2)[0] if volume.endswith(":ro") else volume.split(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith("${") or (FOLDER / source).exists(), volume
    check_command(program, services["episodic"]["command"])
    assert (FOLDER / services["episodic"]["build"]["context"] / services["episodic"]["build"]["dockerfile"]).exists()
    proxy = (FOLDER / "nginx.conf").read_text()
    assert proxy.count("{") == proxy.count("}")
    host, port = re.search(r"server (\w+):(\d+) resolve", proxy).groups()
    command = services[host]["command"]
    assert command[command.index("--port") + 1] == port
    assert f"EXPOSE {port}" in DOCKERFILE


def containers_of(one):
    spec = one["spec"].get("jobTemplate", one)["spec"].get("template", {}).get("spec", {})
    return spec, spec.get("containers", [])


def check_kubernetes(program):
    names = {(one["kind"], one["metadata"]["name"]) for one in OBJECTS}
    assert len(names) == len(OBJECTS), "two objects of one name"
    secret = set(re.findall(r"--from-literal=([\w-]+)=", (FOLDER / "kubernetes.yaml").read_text()))
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in OBJECTS if "template" in one["spec"]]
    for one in OBJECTS:
        assert one["apiVersion"] in ("v1", "apps/v1", "batch/v1"), one
        selector = one["spec"].get("selector", {})
        if selector:
            assert selector.get("matchLabels", selector) in labels, one["metadata"]
        spec, containers = containers_of(one)
        volumes = {v["name"] for v in spec.get("volumes", [])}
        volumes |= {v["metadata"]["name"] for v in one["spec"].get("volumeClaimTemplates", [])}
        for volume in spec.get("volumes", []):
            claim = volume.get("persistentVolumeClaim")
            assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in names
        for container in containers:
            check_image(container["image"])
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, container["name"]
            for variable in container.get("env", []):
                assert variable["valueFrom"]["secretKeyRef"]["key"] in secret, variable
            if "episodic" in container["image"]:
                check_command(program, container["args"])


def check_packages(program):
    """What the program loads is in the image."""
    needed = re.findall(r"NEEDED.*\[(.*?)\]", subprocess.run(["readelf", "-d", program], capture_output=True, text=True,
                                                             check=True).stdout)
    installed = set(re.findall(r"[\w.+-]+", DOCKERFILE.split("FROM debian:12-slim")[1]))
    for library in needed:
        found = subprocess.run(["dpkg-query", "-S", f"*/{library}"], capture_output=True, text=True, check=False).stdout
        packages = {line.split(":")[0] for line in found.splitlines()}
        assert not packages or packages & (installed | GIVEN), f"{library}: of {packages}, which the image has not"


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    check_compose(program)
    check_kubernetes(program)
    check_packages(program)
    print("ok")


if __name__ == "__main__":
    main()
