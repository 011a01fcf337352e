"""Arguments and options that several commands take."""

from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="The pipeline's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Show again every two seconds, until Ctrl-C.")]
OwnConnection = Annotated[
    str | None, typer.Option("--connection", help="Connection id of the database; the pipeline's own if not given.")
]
