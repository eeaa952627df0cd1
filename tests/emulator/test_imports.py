# SPDX-License-Identifier: Apache-2.0
"""The emulator knows nothing of the package beside it, and none of its imports go round."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.imported import SOURCES, files, imports

EMULATOR = SOURCES[1]
MACHINE = (
    ("arithmetic", "lanes"),
    ("access", "clusters"),
    ("storage",),
    ("launch",),
    ("checks",),
    ("memory",),
    ("barriers",),
    ("async_copies",),
    ("tensor_cores", "warp", "printing"),
    ("machine",),
    ("spinning",),
    ("scheduler",),
)
"""Rooms of the machine, the lowest first: a module imports from its own and from lower ones."""
LEVELS = {room: level for level, rooms in enumerate(MACHINE) for room in rooms}
TOP = (
    *("user_kernel", "report", "command", "running", "testing", "pytest_plugin"),
    *("__init__", "__main__"),
)
"""Rooms that nothing below them imports: ptx, emit, program and machine stay free of them."""


def modules() -> dict[str, set[str]]:
    """The modules by name, with those of the package that each imports, also for type checkers."""
    named = {file.relative_to(EMULATOR).as_posix(): set[str]() for file in files(EMULATOR)}
    for each in imports(EMULATOR):
        path = each.module.replace(".", "/")
        found = (f"{path}.py", f"{path}/__init__.py".removeprefix("/"))
        named[each.path].update(name for name in found if name in named)
    return named


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules of which each imports the next and the last imports the first; none if none do."""
    done: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for after in sorted(graph[path[-1]] - done):
            if after in path:
                return path[path.index(after) :]
            if found := search([*path, after]):
                return found
        done.add(path[-1])
        return []

    return next(filter(None, (search([start]) for start in graph if start not in done)), [])


def test_the_emulator_imports_itself_alone() -> None:
    found = imports(EMULATOR)
    assert len(found) > 300
    assert [str(each) for each in found if each.package != EMULATOR.name] == []


def test_no_import_goes_round() -> None:
    graph = modules()
    assert len(graph) > 100
    assert sum(map(len, graph.values())) > 300
    assert circle(graph) == []


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c"]),
        ({"a": set(), "b": {"b"}}, ["b"]),
    ],
)
def test_circles_are_found(graph: dict[str, set[str]], found: list[str]) -> None:
    assert circle(graph) == found


def room(path: str) -> str:
    """The room of the machine that a module is in."""
    return path.split("/")[1].removesuffix(".py")


def test_rooms_of_the_machine_are_layers() -> None:
    inside = {path: found for path, found in modules().items() if path.startswith("machine/")}
    rooms = {room(path) for path in inside} - {"__init__"}
    assert rooms == LEVELS.keys()
    upwards = [
        f"{path} imports {other}"
        for path, found in inside.items()
        for other in found & inside.keys()
        if room(path) != room(other) and LEVELS[room(path)] <= LEVELS[room(other)]
    ]
    assert upwards == []


def test_what_runs_a_kernel_knows_nothing_of_who_asks() -> None:
    below = [each for each in imports(EMULATOR) if each.importer not in TOP]
    assert [str(each) for each in below if each.imported in TOP] == []
