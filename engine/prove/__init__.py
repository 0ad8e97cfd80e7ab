"""The proofs: each hang shown on the untouched source, and gone on the patched one, on a plain CPU.

Two sides. ``host`` is ours: it finds the installations, plans the rewrites, starts the target's interpreter and reads
what it answers. Every other module runs inside that interpreter, which has torch but perhaps no unhang and no LibCST:
they import the standard library, torch (inside functions, so that a proof's cases can be read without it) and each
other, relatively.

To add a proof: one module named after the fix (``mtp_cp_deadlock`` is a short one), with its ``CASES``, ``prepare`` and
``run``; see ``cases``. Nothing central is edited.
"""
