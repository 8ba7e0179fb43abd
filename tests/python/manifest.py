"""Reads a manifest as a cluster would: is it valid, and what would run in a pod of its job?

Usage: manifest.py check FILE VERSION
       manifest.py pod FILE INDEX UID SECRETS [NAMESPACE]

`check` validates each document against the schemas of that Kubernetes version, in which unknown
fields are errors, and then against rules that no schema holds; it prints what is wrong and exits
with 1. `pod` prints, as JSON, the containers of the Job's pod with that completion index in the
order in which a kubelet starts them: command, environment, start-up probe, and what is mounted.
UID is the Job's, SECRETS a folder with one folder for each secret, and NAMESPACE where the Job is
created: in `default` if it is not given.
"""
import json
import os
import pathlib
import re
import sys

import yaml

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
# What the Job controller writes on the pods of an indexed Job (Kubernetes 1.28 and newer).
JOB_NAME, JOB_UID = "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"
INDEX = "batch.kubernetes.io/job-completion-index"
FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]$")
# A variable that stands before it.
REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
NAMESPACE = "metadata.namespace"


def read(path: str) -> list[dict]:
    return list(yaml.safe_load_all(pathlib.Path(path).read_text()))


def of_kind(documents: list[dict], kind: str) -> dict:
    return next(document for document in documents if document["kind"] == kind)


def containers(pod: dict) -> list[dict]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def written_on_pod(job: dict, index: str, uid: str) -> dict[str, dict[str, str]]:
    name = job["metadata"]["name"]
    own = job["spec"]["template"]["metadata"]
    labels = {JOB_NAME: name, JOB_UID: uid, INDEX: index}
    return {"labels": own.get("labels", {}) | labels, "annotations": own.get("annotations", {}) | {INDEX: index}}


def against_schemas(documents: list[dict], version: str) -> list[str]:
    import kubernetes_validate

    found = []
    for document in documents:
        try:
            used = kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{document.get('kind')}: {'.'.join(map(str, error.path))}: {error.message}")
            continue
        if used != version:
            found.append(f"{document['kind']}: checked against {used}, not {version}")
    return found


def against_rules(documents: list[dict]) -> list[str]:
    """What the API server and the controllers refuse or ignore beyond the schemas."""
    of_set = any(document["kind"] == "StatefulSet" for document in documents)
    return rules_of_set(documents) if of_set else rules_of_job(documents)


def rules_of_set(documents: list[dict]) -> list[str]:
    the_set, service = of_kind(documents, "StatefulSet"), of_kind(documents, "Service")
    spec, template = the_set["spec"], the_set["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    budget = of_kind(documents, "PodDisruptionBudget")["spec"]
    node = pod["containers"][0]
    names = [f"{the_set['metadata']['name']}-{n}.{spec['serviceName']}:21001" for n in range(spec["replicas"])]
    variables = {one["name"]: one.get("value") for one in node["env"]}
    volumes = [volume["name"] for volume in [*pod["volumes"], *(one["metadata"] for one in spec["volumeClaimTemplates"])]]
    rules = {
        "the service is headless": service["spec"].get("clusterIP") == "None",
        "nodes are found before they are ready": service["spec"].get("publishNotReadyAddresses") is True,
        "the service is the set's": spec["serviceName"] == service["metadata"]["name"],
        "the set selects its pods": spec["selector"]["matchLabels"].items() <= labels.items(),
        "the service selects the pods": service["spec"]["selector"].items() <= labels.items(),
        "the budget selects the pods": budget["selector"]["matchLabels"].items() <= labels.items(),
        "all pods start at once": spec.get("podManagementPolicy") == "Parallel",
        "the list of nodes is the set's":
            variables["HOLDFAST_INITIAL_CLUSTER"] == ",".join(f"{n}={name}" for n, name in enumerate(names, 1))
            and variables["HOLDFAST_STORE"] == ",".join(names),
        "mounts have volumes": all(mount["name"] in volumes for mount in node["volumeMounts"]),
        "probes have a port": {node.get(probe, {}).get("httpGet", {}).get("port") for probe in ("livenessProbe", "readinessProbe")}
            <= {port["name"] for port in node["ports"]},
    }
    return [rule for rule, kept in rules.items() if not kept]


def rules_of_job(documents: list[dict]) -> list[str]:
    job, service = of_kind(documents, "Job"), of_kind(documents, "Service")
    spec, template = job["spec"], job["spec"]["template"]
    pod, labels = template["spec"], template["metadata"].get("labels", {})
    rules = {
        "names are DNS labels": all(NAME.match(one["metadata"]["name"]) for one in documents),
        "an indexed Job has completions": spec.get("completionMode") == "Indexed" and spec.get("completions", 0) > 0,
        "all pods of the Job run at once": spec.get("parallelism") == spec.get("completions"),
        "a Job's pods restart Never or OnFailure": pod.get("restartPolicy") in ("Never", "OnFailure"),
        "the service is headless": service["spec"].get("clusterIP") == "None",
        "the service is the pods' subdomain": pod.get("subdomain") == service["metadata"]["name"],
        "the service selects the pods": service["spec"]["selector"].items() <= labels.items(),
        "only init containers are sidecars": not any("restartPolicy" in one for one in pod["containers"]),
        "some init container is a sidecar":
            any(one.get("restartPolicy") == "Always" for one in pod.get("initContainers", [])),
    }
    found = [rule for rule, kept in rules.items() if not kept]
    names = [one["name"] for one in containers(pod)]
    if len(set(names)) < len(names) or not all(NAME.match(name) for name in names):
        found.append(f"container names: {names}")
    volumes = [volume["name"] for volume in pod.get("volumes", [])]
    known = written_on_pod(job, "0", "uid")
    for container in containers(pod):
        mounts = container.get("volumeMounts", [])
        found += [f"{container['name']}: no volume {mount['name']}" for mount in mounts if mount["name"] not in volumes]
        variables = [variable["name"] for variable in container.get("env", [])]
        if len(set(variables)) < len(variables) or not all(VARIABLE.match(name) for name in variables):
            found.append(f"{container['name']}: variables {variables}")
        # Only a sidecar among the init containers may have a probe.
        if "startupProbe" in container and container in pod.get("initContainers", []) \
                and container.get("restartPolicy") != "Always":
            found.append(f"{container['name']}: a probe of an init container that is no sidecar")
        for place, variable in enumerate(container.get("env", [])):
            # What is not there yet is left as it stands.
            if not set(REFERENCE.findall(variable.get("value", ""))) <= set(variables[:place]):
                found.append(f"{container['name']}: {variable['name']}: a reference to no variable before it")
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            match = FIELD.match(field) if field else None
            if field and field != NAMESPACE and (not match or match[2] not in known[match[1]]):
                found.append(f"{container['name']}: {variable['name']}: nobody writes {field}")
    return found


def environment(variables: list[dict], pod: dict[str, dict[str, str]], namespace: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for variable in variables:
        found[variable["name"]] = value_of(variable, pod, namespace, found)
    return found


def value_of(variable: dict, pod: dict[str, dict[str, str]], namespace: str, before: dict[str, str]) -> str:
    if "value" in variable:
        return REFERENCE.sub(lambda one: before.get(one[1], one[0]), variable["value"])
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    if path == NAMESPACE:
        return namespace
    match = FIELD.match(path)
    return pod[match[1]][match[2]]


def mounted(mount: dict, volumes: dict[str, dict], secrets: str) -> dict:
    volume = volumes[mount["name"]]
    source = None
    if "secret" in volume:
        source = os.path.join(secrets, volume["secret"]["secretName"])
    shared = mount["name"] if "emptyDir" in volume else None
    mode = volume.get("secret", {}).get("defaultMode")
    return {"path": mount["mountPath"], "secret": source, "shared": shared, "mode": mode}


def plan(documents: list[dict], index: str, uid: str, secrets: str, namespace: str = "default") -> dict:
    job, service = of_kind(documents, "Job"), of_kind(documents, "Service")
    template = job["spec"]["template"]
    written = written_on_pod(job, index, uid)
    volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", [])}
    host = f"{job['metadata']['name']}-{index}"
    return {
        "host": host,
        "fully_named": f"{host}.{service['metadata']['name']}",
        "containers": [{
            "name": container["name"],
            "sidecar": container.get("restartPolicy") == "Always",
            "command": [*container["command"], *container.get("args", [])],
            "environment": environment(container.get("env", []), written, namespace),
            "read_only": container.get("securityContext", {}).get("readOnlyRootFilesystem", False),
            "probe": container.get("startupProbe", {}).get("exec", {}).get("command"),
            "mounts": [mounted(mount, volumes, secrets) for mount in container.get("volumeMounts", [])],
        } for container in containers(template["spec"])],
    }


def main() -> int:
    match sys.argv[1:]:
        case ["check", path, version]:
            documents = read(path)
            found = against_schemas(documents, version) + against_rules(documents)
            print("\n".join(found) or f"valid for Kubernetes {version}")
            return 1 if found else 0
        case ["pod", path, index, uid, secrets, *namespace] if len(namespace) <= 1:
            print(json.dumps(plan(read(path), index, uid, secrets, *namespace)))
            return 0
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
