"""``python -m tests.rooms``: count the library's rooms, the arrows between the rooms, and the circles of arrows.

A room is a folder with code (an ``__init__.py`` that holds a docstring alone is no code) or a file that stands directly
in the package. An arrow is a room that imports another one; lazy imports and imports for type checkers count.
"""

import argparse
import ast
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import grimp


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """The rooms of a package, by name without the package; the package's own ``__init__.py`` is the room ``__init__``."""

    imports: Mapping[str, frozenset[str]]
    """Every room, and the rooms that it imports."""

    @property
    def arrows(self) -> int:
        """The number of pairs of rooms of which one imports the other."""
        return sum(len(imported) for imported in self.imports.values())

    @property
    def circles(self) -> tuple[frozenset[str], ...]:
        """The groups of rooms that reach each other, directly or through other rooms."""
        reached = {room: self._reached_from(room) for room in self.imports}
        groups = {frozenset(other for other in reached[room] if room in reached[other]) for room in self.imports}
        return tuple(sorted(filter(None, groups), key=sorted))

    def __str__(self) -> str:
        return f"{len(self.imports)} rooms, {self.arrows} arrows, {len(self.circles)} circles"

    def _reached_from(self, start: str) -> frozenset[str]:
        reached: set[str] = set()
        following = set(self.imports[start])
        while following:
            room = following.pop()
            reached.add(room)
            following |= self.imports[room] - reached
        return frozenset(reached)


def rooms_of(package: str) -> Rooms:
    """Count the rooms of a package that is on the path."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    folder = Path(spec.origin).parent
    graph = grimp.build_graph(package, cache_dir=None)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        room = _room(module, folder)
        if _has_code(module, folder):
            found[room] |= {_room(imported, folder) for imported in graph.find_modules_directly_imported_by(module)}
    return Rooms(imports={room: frozenset(found[room] - {room}) for room in sorted(found)})


def _room(module: str, folder: Path) -> str:
    _, *parts = module.split(".")
    if not parts:
        return "__init__"
    if len(parts) > 1 and not folder.joinpath(*parts).is_dir():
        parts.pop()
    return ".".join(parts)


def _has_code(module: str, folder: Path) -> bool:
    _, *parts = module.split(".")
    init = folder.joinpath(*parts, "__init__.py")
    if not init.exists():
        return True
    parsed = ast.parse(init.read_text())
    return len(parsed.body) > (ast.get_docstring(parsed) is not None)


def main() -> None:
    """Print the counts and the circles; ``-v`` prints what each room imports."""
    parser = argparse.ArgumentParser(prog="python -m tests.rooms", description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="print what each room imports")
    options = parser.parse_args()
    rooms = rooms_of("epochline")
    if options.verbose:
        for room, imported in rooms.imports.items():
            print(f"{room:20}{len(imported):3}  {' '.join(sorted(imported))}")
    print(rooms)
    for circle in rooms.circles:
        print("circle:", *sorted(circle))


if __name__ == "__main__":
    main()
