"""The options of a command's help in sections, those that are used most first."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

OWN, SAMPLING, MODEL, SERVER = "Options", "Sampling", "Model and engine", "Server"
KEYS, MORE_SAMPLING = "Keys and limits", "More sampling"
SECTIONS = (OWN, SAMPLING, SERVER, MODEL, KEYS, MORE_SAMPLING)


class SectionedCommand(TyperCommand):
    """A command whose options stand in the section that their `rich_help_panel` names; without one, in the
    first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by section."""
        arguments: list[tuple[str, str]] = []
        options: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append(record)
            else:
                options[getattr(parameter, "rich_help_panel", None) or OWN].append(record)
        for title, records in {"Arguments": arguments, **options}.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
