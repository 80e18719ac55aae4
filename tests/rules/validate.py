"""Validates rule files against a JSON Schema: validate.py SCHEMA FILE...

Prints a line of JSON: for each file null if it is valid, else what is wrong. Needs jsonschema and
PyYAML, which editors' YAML support resembles; tests/it/cli/schema.rs compares the result with what
ratelease loads.
"""

import datetime
import json
import sys

import jsonschema
import yaml


class Loader(yaml.SafeLoader):
    """Reads dates as text, as rule files do."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def fault(validator, path):
    """What is wrong with a file; None if nothing is."""
    try:
        with open(path, "rb") as file:
            # Only the first document of a rule file counts.
            document = next(yaml.load_all(file, Loader), None)
        error = jsonschema.exceptions.best_match(validator.iter_errors(document))
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return error and f"{error.json_path}: {error.message}"


def main():
    schema_path, *paths = sys.argv[1:]
    with open(schema_path, encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    json.dump({path: fault(validator, path) for path in paths}, sys.stdout)
    print()


main()
