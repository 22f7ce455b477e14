"""Timepix3 streams: the index of their times, and hits as events."""
