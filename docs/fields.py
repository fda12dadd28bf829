"""An extension of griffe for docs/api: a class is shown with a table of its fields.

A field is described by its docstring or its comment, and so is a constant of a module.
"""

import griffe


class Fields(griffe.Extension):
    """Adds a section "Attributes" to the docstrings of classes with annotated fields."""

    def on_attribute_instance(self, *, attr, **_):
        """A comment counts as a docstring."""
        if attr.docstring is None and (text := comment(attr)):
            attr.docstring = griffe.Docstring(text, parent=attr)

    def on_package(self, *, pkg, **_):
        """Moves descriptions from fields to classes, once all classes are known."""
        tables = {cls: table(cls) for cls in classes(pkg) if cls.docstring}
        for cls, rows in tables.items():
            for field in fields(cls):
                field.docstring = None
            if rows:
                cls.docstring.value += "\n\nAttributes:\n" + "\n".join(rows)


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


def classes(module):
    """The classes of a module and of those inside it."""
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_class:
            yield member
        if member.is_module:
            yield from classes(member)


def fields(cls):
    """The annotated attributes of a class."""
    return [
        field
        for field in cls.attributes.values()
        if field.annotation is not None and not field.name.startswith("_")
    ]


def table(cls):
    """A line for each field of a class and of our classes that it inherits from."""
    family = (*reversed(cls.mro()), cls)
    found = {field.name: field for each in family for field in fields(each)}
    return [f"    {name} ({x.annotation}): {described(x)}" for name, x in found.items()]


def described(field):
    """A field's description in one line, and its default."""
    text = " ".join(field.docstring.value.split()) if field.docstring else ""
    return text if field.value is None else f"{text} (default: `{field.value}`)"
