#!/usr/bin/env python3
"""Writes a JSON Schema (draft 2020-12) of each document of --json, as documents.keys says; each file is whole by itself.

    make.py FOLDER"""
import json
import os
import re
import sys

TYPES = {"text": {"type": "string"}, "flag": {"type": "boolean"}, "count": {"type": "integer", "minimum": 0},
         "whole": {"type": "integer"}, "number": {"type": "number"}, "any": {}, "object": {"type": "object"}}


def type_of(word):
    """The schema of the type at the begin of a line, and the text behind it."""
    if word[0] == "[":
        values, end = json.JSONDecoder().raw_decode(word)
        schema, rest = {"enum": values}, word[end:]
    else:
        name, rest = re.match(r"([@=]?[\w-]+)(.*)", word).groups()
        schema = ({"$ref": f"#/$defs/{name[1:]}"} if name[0] == "@" else
                  {"const": json.loads(name[1:])} if name[0] == "=" else dict(TYPES[name]))
    while rest[:1] in ("[", "{", "~"):
        schema = ({"anyOf": [schema, {"type": "null"}]} if rest[0] == "~" else
                  {"type": "array", "items": schema} if rest[0] == "[" else
                  {"type": "object", "additionalProperties": schema})
        rest = rest[1 if rest[0] == "~" else 2:]
    if rest[:1] == "/":
        other, rest = type_of(rest[1:])
        schema = {"anyOf": [schema, other]}
    return schema, rest


def add(schema, key, kind):
    """Gives an object the key; KEY? may be absent."""
    schema.setdefault("properties", {})[key.rstrip("?")] = kind
    schema["additionalProperties"] = False
    if not key.endswith("?"):
        schema.setdefault("required", []).append(key)


def joined(*schemas):
    """An object with the keys of several."""
    return {"type": "object", "properties": {key: kind for schema in schemas for key, kind in schema["properties"].items()},
            "required": [key for schema in schemas for key in schema.get("required", [])], "additionalProperties": False}


def schemas(path=os.path.join(os.path.dirname(__file__), "documents.keys")):
    """The schema of each document by its name: the command, or generate-line."""
    parts, documents, bases = {}, {}, {}
    for line in open(path):
        if not line.strip() or line[0] == "#":
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        line, _, words = line.strip().partition(": ")
        if depth == 0:
            kind, name, *base = line.split()
            here = parts[name] = {"type": "object", "properties": {}}
            bases[name] = [word[1:] for word in base]
            if kind == "document":
                documents[name] = {"title": words, "sets": []}
            elif words:
                here["description"] = words
            objects = [here]
        elif line.startswith("requires "):
            documents[name]["sets"].append({"required": line.split()[1:]})
        else:
            kind, keys = type_of(line)
            if words:
                kind["description"] = words
            for key in keys.split():
                add(objects[depth - 1], key, kind)
            del objects[depth:]
            objects.append(kind.get("items", kind))

    def whole(name):
        return joined(*map(whole, bases[name]), parts[name]) | {
            word: parts[name][word] for word in ["description"] if word in parts[name]}

    defined = {name: whole(name) for name in parts}
    for name, document in documents.items():
        own, common = defined[name], defined["document"]
        defined[name] = joined(common, own) | {
            "title": document["title"], "required": common["required"], "if": {"properties": {"error": {"type": "null"}}},
            "then": {"anyOf": document["sets"]}}
        defined[name]["properties"]["command"] = {"const": name}

    def with_parts(name):
        wanted, used = [name], {}
        while wanted:
            text = json.dumps(defined[wanted.pop()])
            for part in re.findall(r'"#/\$defs/([\w-]+)"', text):
                if part not in used:
                    used[part] = defined[part]
                    wanted.append(part)
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{name}.json"} | defined[name] | {"$defs": used}

    return {name: with_parts(name) for name in [*documents, "generate-line", "document"]}


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, schema in schemas().items():
        with open(os.path.join(sys.argv[1], name + ".json"), "w") as file:
            json.dump(schema, file, indent=1)
            file.write("\n")
