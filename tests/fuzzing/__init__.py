"""Damaged files by the thousand: each has to open or to raise a typed error, within bounds.

``seeds`` are whole files, ``mutators`` damage them, ``structures`` replaces their headers by
headers drawn with hypothesis, ``bounds`` checks the arguments of kernels, a ``trial`` opens and
computes one damaged file, ``campaign`` runs trials in child processes, ``planted`` holds faults
that a campaign must find. ``python -m fuzzing --help`` lists the options.
"""
