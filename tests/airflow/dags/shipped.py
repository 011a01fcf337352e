"""The shipped examples as they are, each under its own profile; `epoch_dag` makes their DAGs."""

from epochline.config.discovery import EXAMPLES
from epochline.config.places import project_folder
from shipped_file import loaded

for path in sorted((project_folder() / "dags" / EXAMPLES).glob("*.py")):
    if b"epoch_dag" in path.read_bytes():
        made = vars(loaded(path))
        globals().update({f"{path.stem}_{name}": one for name, one in made.items() if name.startswith("dag")})
