"""Checks objects of Kubernetes against the API's own schema, as the official client's models have it."""

import datetime
import re

from kubernetes import client

# The kinds that are no part of Kubernetes itself: fields as the definition of JobSet v1alpha2 has them.
_JOBSET = {
    "JobSet": {
        "apiVersion": "str",
        "kind": "str",
        "metadata": "V1ObjectMeta",
        "spec": "JobSetSpec",
    },
    "JobSetSpec": {
        "replicatedJobs": "list[ReplicatedJob]",
        "network": "JobSetNetwork",
        "failurePolicy": "JobSetFailurePolicy",
        "ttlSecondsAfterFinished": "int",
    },
    "ReplicatedJob": {"name": "str", "replicas": "int", "template": "V1JobTemplateSpec"},
    "JobSetNetwork": {
        "enableDNSHostnames": "bool",
        "subdomain": "str",
        "publishNotReadyAddresses": "bool",
    },
    "JobSetFailurePolicy": {"maxRestarts": "int"},
}
_PLAIN = {"str": str, "int": int, "bool": bool, "float": float, "datetime": datetime.datetime}
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def problems(value, model, path=""):
    """Yields what is wrong with an object that should be of a model."""
    if found := re.fullmatch(r"[Ll]ist\[(.*)\]", model):
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for number, item in enumerate(value):
            yield from problems(item, found[1], f"{path}[{number}]")
    elif found := re.fullmatch(r"[Dd]ict[(\[](.*), (.*)[)\]]", model):
        for key, item in value.items():
            yield from problems(item, found[2], f"{path}.{key}")
    elif model in _PLAIN:
        if not isinstance(value, _PLAIN[model]) or isinstance(value, bool) != (model == "bool"):
            yield f"{path}: {value!r} is no {model}"
    elif model == "object":
        return  # a number or a text, such as a port
    else:
        yield from _problems_of_fields(value, model, path)


def _problems_of_fields(value, model, path):
    fields = _fields(model)
    for name, item in value.items():
        if name not in fields:
            yield f"{path}: {model} has no field {name!r}"
        else:
            yield from problems(item, fields[name], f"{path}.{name}")
    if model not in _JOBSET:
        known = getattr(client, model)
        try:
            known.from_dict(value)
        except ValueError as error:  # a field that is required, or a value that is not allowed
            yield f"{path}: {error}"
    if model == "V1ObjectMeta" and "name" in value and not _NAME.fullmatch(value["name"]):
        yield f"{path}.name: {value['name']!r} is no name"


def _fields(model):
    if model in _JOBSET:
        return _JOBSET[model]
    known = getattr(client, model)
    return {known.attribute_map[name]: kind for name, kind in known.openapi_types.items()}


def check(manifest):
    """Raises ``ValueError`` with what is wrong with a manifest, if something is."""
    kind = manifest["kind"]
    found = list(problems(manifest, kind if kind in _JOBSET else f"V1{kind}", kind))
    if found:
        raise ValueError("; ".join(found))
