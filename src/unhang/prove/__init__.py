"""The proofs: each hang shown on the untouched source, and gone on the patched source, on a plain CPU.

``host``, ``sides``, ``installed``, ``topology``, ``answers``, ``line`` and ``table`` run in unhang's own interpreter:
they plan the rewrites, start the target's interpreter, and report its answers. Every other module runs in the target's
interpreter, which has torch but perhaps no unhang and no LibCST. These modules import the standard library, torch and
the upstreams (the last two inside functions, so that the cases of a proof can be read without them), and each other by
relative imports.

To add a proof, add one module named after the fix to ``fixes``: a scene (see ``scene``), with the proof's own ``CASES``
(see ``cases``). ``reduce_noncontiguous`` is a short example. No other file changes. It may also have:

* ``CASES_BY_UPSTREAM``: the cases of each upstream, where these differ.
* ``WARM``: modules to import once, before a process is forked for each variant of the source.

And for ``unhang prove``, which runs on a user's own installation:

* ``YOURS``: the ``Case`` of a user's topology, with how the untouched source ends there. Without a topology of its own
  it gets the user's; or with real ranks, where only their number matters, a smaller job, so that it always runs.
* ``case_for(topology, upstream, shapes)`` in its place, where more depends on the topology: ``passed`` where the defect
  cannot occur; None for a job that the proof cannot lay out.
* ``CHUNKS``: true where ``case_for`` knows virtual pipeline chunks (``Topology.vpp``), which it otherwise does not get.
* ``RULED_OUT``: the size that must be above 1 for the defect to occur, and why; else nothing is run.
* ``cases_for(upstream, shapes)``: the proof's own cases, where these depend on the shapes of the installed targets.
* ``caveat(case)``: what a case leaves open, which the answer then says; empty where that is nothing.
* ``BESIDE``: for each upstream, the other upstreams that its proof imports.
* ``DISTRIBUTIONS`` and ``about(versions)``: distributions whose versions matter, and what to say of the versions that
  the target has (a mapping with only the installed ones).
"""
