"""The proofs: each hang shown on the untouched source, and gone on the patched one, on a plain CPU.

Two sides. ``host``, ``sides`` and ``answers`` are ours: they plan the rewrites, start the target's interpreter, and
read and tell what it answers. Every other module runs inside that interpreter, which has torch but perhaps no unhang
and no LibCST: they import the standard library, torch and the upstreams (these inside functions, so that a proof's
cases can be read without them) and each other, relatively.

To add a proof: one module named after the fix (``mtp_cp_deadlock`` is a short one), with its ``CASES``, ``prepare`` and
``run``; see ``cases``. Nothing central is edited. What else it may have:

* ``CASES_BY_UPSTREAM``: the cases for an upstream, where they are not the same for all.
* ``WARM``: what to import once, before the variants of the source part.
* For ``unhang prove``, on a user's own installation: ``case_for(topology, upstream, shapes)``, the ``Case`` of a
  user's topology, which says how the untouched source ends there (``passed``, where the defect cannot come up), or None
  for a job that the proof cannot lay out; ``ruled_out(topology)``, why nothing need be run there, empty where it must;
  ``cases_for(upstream, shapes)``, where the proof's own cases depend on the shapes of the
  installed targets; and ``BESIDE``, the other
  upstreams that a proof of an upstream imports.
"""
