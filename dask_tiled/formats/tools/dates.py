"""Dates and times as instruments write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate
from itertools import permutations

_NUMERIC = re.compile(
    r"(\d\d?)[./-](\d\d?)[./-](\d{4})\s+(\d\d?):(\d\d)(?::(\d\d))?(?:\s*([ap])\.?m\.?)?\s*",
    re.ASCII | re.IGNORECASE,
)
_QUARTER = timedelta(minutes=15)
_SLACK = timedelta(minutes=2)


def since_1970(seconds: float | str) -> datetime:
    """Return the time after so many seconds."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=float(seconds))


def serial_date(days: float) -> datetime | None:
    """Return the time after so many days from the one on that spreadsheets count; 0 is none."""
    moment = datetime(1899, 12, 30) + timedelta(milliseconds=round(days * 86_400_000))  # noqa: DTZ001
    return moment if days > 0 else None


def local_time(text: str, utc: datetime | None = None) -> datetime | None:
    """Read a date and a time as people write them.

    Parameters
    ----------
    text : str
        As in ISO 8601, as the C library writes it, or in numbers with the year last.
    utc : datetime, optional
        The same time in UTC, which tells the time zone where the text has none.

    Returns
    -------
    datetime or None
        None where day and month cannot be told apart.
    """
    moments = set(_readings(text))
    if utc is not None and not any(moment.tzinfo for moment in moments):
        utc = utc.astimezone(UTC).replace(tzinfo=None)
        zoned = {moment: _QUARTER * round((moment - utc) / _QUARTER) for moment in moments}
        moments = {
            moment.replace(tzinfo=timezone(zone))
            for moment, zone in zoned.items()
            if abs(moment - utc - zone) < _SLACK
            and timedelta(hours=-12) <= zone <= timedelta(hours=14)
        }
    return moments.pop() if len(moments) == 1 else None


def _readings(text: str) -> Iterator[datetime]:
    numeric = _NUMERIC.fullmatch(text)
    asctime = parsedate(text)
    if numeric is None:
        yield datetime(*asctime[:6]) if asctime else datetime.fromisoformat(text)  # noqa: DTZ001
        return
    *days, year, hour, minute, second = (int(part or 0) for part in numeric.groups()[:6])
    if numeric[7]:
        hour = hour % 12 + 12 * (numeric[7] in "pP")
    for month, day in permutations(days):
        if month <= 12:
            yield datetime(year, month, day, hour, minute, second)  # noqa: DTZ001
