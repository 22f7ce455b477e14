"""Damaged files by the thousand: what any of them may do, and what none may.

``seeds`` are whole files, ``mutators`` damage them, ``structures`` are drawn by hypothesis in the
place of their headers, ``bounds`` watches the kernels, a ``trial``
opens and computes what is left, ``campaign`` runs trials in children of their own, ``planted`` are
faults that it has to find. ``python -m fuzzing --help`` tells how it is run by hand.
"""
