"""An extension of griffe for docs/api: a class is shown with a table of its fields.

A field is described by its docstring or its comment, and so is a constant in `__all__`.
"""

import griffe


class Fields(griffe.Extension):
    """Adds a section "Attributes" to the docstrings of classes with annotated fields."""

    def on_package(self, *, pkg, **_):
        """Describes constants and classes, once all modules are known."""
        for module in modules(pkg):
            for name in {*(module.exports or ())} & {*module.members}:
                describe(module[name])
        ours = [x for module in modules(pkg) for x in module.classes.values()]
        tables = {cls: table(cls) for cls in ours if not cls.is_alias and cls.docstring}
        for cls, rows in tables.items():
            for field in fields(cls):
                field.docstring = None
            if rows:
                cls.docstring.value += "\n\nAttributes:\n" + "\n".join(rows)


def describe(thing):
    """Makes the comment of a constant or field its docstring, if it has none."""
    if thing.is_alias:
        thing = thing.final_target
    if thing.is_attribute and thing.docstring is None and (text := comment(thing)):
        thing.docstring = griffe.Docstring(text, parent=thing)


def comment(attribute):
    """What follows "# " in an attribute's last or first line or in the lines above it."""
    lines = attribute.lines_collection[attribute.filepath]
    first, last = attribute.lineno - 1, attribute.endlineno - 1
    for line in (lines[last], lines[first]):
        if "  # " in line:
            return line.partition("  # ")[2]
    above = first
    while lines[above - 1].lstrip().startswith("# "):
        above -= 1
    return " ".join(line.strip().removeprefix("# ") for line in lines[above:first])


def modules(module):
    """A module and those inside it."""
    yield module
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from modules(inner)


def fields(cls):
    """The annotated attributes of a class, described."""
    public = [x for name, x in cls.attributes.items() if not name.startswith("_")]
    found = [x for x in public if x.annotation is not None]
    for field in found:
        describe(field)
    return found


def table(cls):
    """A line for each field of a class and of our classes that it inherits from."""
    family = (*reversed(cls.mro()), cls)
    found = {field.name: field for each in family for field in fields(each)}
    return [f"    {name} ({x.annotation}): {described(x)}" for name, x in found.items()]


def described(field):
    """A field's description in one line, and its default."""
    text = " ".join(field.docstring.value.split()) if field.docstring else ""
    return text if field.value is None else f"{text} (default: `{field.value}`)"
