"""`day0 doctor`: what this machine has and lacks."""

from __future__ import annotations

from flows.output import Answer, command


@command(name="doctor")
def doctor() -> Answer:
    """What this machine has and lacks, each line with the remedy."""
    from flows.doctor import examine

    findings = examine()

    def show() -> None:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for column in ("", "what", "found", "remedy"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            mark = "[green]has[/]" if finding.present else "[yellow]lacks[/]"
            table.add_row(mark, finding.what, finding.found, finding.remedy)
        Console(highlight=False).print(table)

    lacking = any(finding.needed and not finding.present for finding in findings)
    return Answer({"findings": [finding.to_json() for finding in findings]}, show, 4 if lacking else 0)


command = doctor
