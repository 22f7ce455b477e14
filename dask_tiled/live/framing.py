"""How ZeroMQ sends messages: parts behind their flags and length. RFC 23 of rfc.zeromq.org."""

MORE, LONG, COMMAND = 1, 2, 4
"""Flags of a part: another one follows, its length has 8 bytes, it is a command."""
