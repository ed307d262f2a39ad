# SPDX-License-Identifier: LGPL-2.1-or-later
"""A strict reader of Prometheus' text format, version 0.0.4: what a lenient one would let pass is an error here."""
import re
import shutil
import subprocess

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|NaN")
UNITS = ("_seconds", "_bytes", "_fds", "_info")  # base units, and what has none


class FormatError(AssertionError):
    pass


def _check(condition, line, what):
    if not condition:
        raise FormatError(f"{what}: {line!r}")


def _labels(line, text):
    """The labels of `{…}`, in order, unescaped."""
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        _check(match, line, "not a label")
        key, value = match.groups()
        _check(key not in labels and not key.startswith("__"), line, f"label {key}")
        labels[key] = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)
        at = match.end()
        if at < len(text):
            _check(text[at] == "," and at + 1 < len(text), line, "no comma between labels")
            at += 1
    return labels


def _sample(line):
    name = NAME.match(line)
    _check(name, line, "no name")
    rest, labels = line[name.end():], {}
    if rest.startswith("{"):
        end = rest.rindex("}")
        labels, rest = _labels(line, rest[1:end]), rest[end + 1:]
    _check(rest.startswith(" ") and NUMBER.fullmatch(rest[1:]), line, "not a number")
    return name.group(), labels, float(rest[1:])


class Family:
    def __init__(self, name, help_text):
        self.name, self.help, self.type, self.samples = name, help_text, None, {}


class Page:
    """The families of a page. `page["name"]` or `page["name", "label=value", …]` is a sample's value, 0 if it isn't there."""

    def __init__(self, text):
        self.families = {}
        _check(text.endswith("\n") and "\r" not in text, text[-20:], "lines end in a line feed")
        family = None
        for line in text[:-1].split("\n"):
            if line.startswith("#"):
                family = self._comment(line, family)
            else:
                self._add(line, family)
        for family in self.families.values():
            _check(family.type and family.samples, family.name, "no samples")
            if family.type == "histogram":
                self._check_histogram(family)

    def _comment(self, line, family):
        words = line.split(" ", 3)
        _check(len(words) == 4 and words[1] in ("HELP", "TYPE"), line, "neither HELP nor TYPE")
        _, kind, name, rest = words
        if kind == "HELP":
            _check(NAME.fullmatch(name) and name not in self.families, line, "a family comes twice")
            _check(re.fullmatch(r"(?:[^\\]|\\\\|\\n)+", rest), line, "help")
            family = self.families[name] = Family(name, rest)
            return family
        _check(family and name == family.name and not family.samples and not family.type, line, "TYPE not behind its HELP")
        _check(rest in ("counter", "gauge", "histogram"), line, "type")
        _check((rest == "counter") == name.endswith("_total"), line, "counters, and no others, are called _total")
        bare = name.removesuffix("_total")
        _check(not re.search(r"_(ms|milliseconds|us|kb|kib|mb|percent|minutes)(_|$)", bare), line, "not a base unit")
        _check(rest != "histogram" or bare.endswith(UNITS), line, "a histogram without a unit")
        family.type = rest
        return family

    def _add(self, line, family):
        name, labels, value = _sample(line)
        _check(family and family.type, line, "a sample without a family")
        suffixes = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        _check(name in [family.name + suffix for suffix in suffixes], line, f"in family {family.name}")
        _check(family.type == "gauge" or value >= 0, line, "negative")
        _check(("le" in labels) == name.endswith("_bucket"), line, "le")
        key = (name, tuple(sorted(labels.items())))
        _check(key not in family.samples, line, "comes twice")
        family.samples[key] = value

    def _check_histogram(self, family):
        buckets = [(float(dict(labels)["le"]), value) for (name, labels), value in family.samples.items()
                   if name.endswith("_bucket")]
        bounds, counts = [bound for bound, _ in buckets], [count for _, count in buckets]
        _check(bounds == sorted(set(bounds)) and bounds[-1:] == [float("inf")], family.name, "bounds up to +Inf")
        _check(counts == sorted(counts), family.name, "buckets are cumulative")
        _check(family.samples.get((family.name + "_count", ())) == counts[-1], family.name, "_count is the last bucket")
        _check((family.name + "_sum", ()) in family.samples, family.name, "no _sum")

    def __getitem__(self, key):
        name, *labels = (key,) if isinstance(key, str) else key
        wanted = (name, tuple(sorted(tuple(label.split("=", 1)) for label in labels)))
        for family in self.families.values():
            if wanted in family.samples:
                return family.samples[wanted]
        return 0

    def counters(self):
        """All that must never decrease."""
        return {key: value for family in self.families.values() for key, value in family.samples.items()
                if family.type == "counter" or (family.type == "histogram" and not key[0].endswith("_sum"))}


def promtool(text):
    """What Prometheus' own linter says of it: a list of lines; None if it isn't installed."""
    if not shutil.which("promtool"):
        return None
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines()
