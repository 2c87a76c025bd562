"""Where numbers come from, in words: profile, seeds, machine, code."""

from collections.abc import Sequence

from eqco.runtime.records import Record

__all__ = ["provenance", "seeds_of"]


def seeds_of(records: Sequence[Record]) -> list[int]:
    """The seeds among the records, in order."""
    return sorted({record.seed for record in records})


def provenance(records: Sequence[Record]) -> str:
    """Profile, seeds, machine and code of the records."""
    seeds = ", ".join(map(str, seeds_of(records)))
    machine = records[0].hardware
    codes = ", ".join(sorted({record.code for record in records}))
    day = max(record.finished for record in records)[:10]
    return (
        f"Profile {records[0].profile}, seeds {seeds}; {machine['processor']}, "
        f"{machine['cores']} cores, torch {machine['torch']}; {day}, code {codes}."
    )
