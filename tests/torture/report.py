"""What a test by many drawn cases found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One kind of drawn cases, and how many of them were wrong.

    Attributes:
        what: the kind of cases, such as "state fits".
        drawn: how many.
        wrong: of them, how many broke the promise.
        promise: what was asked of every case.
        example: how the first wrong one can be drawn again; "" where none was wrong.
    """

    what: str
    drawn: int
    wrong: int
    promise: str
    example: str = ""
