"""The benchmark: every algorithm and its peers, interleaved in one run, each result checked.

cases       what to run: sizes, distributions, inputs whose sums are exact, the oracle
contenders  our algorithms, as things that can be timed
peers       torch.distributed's gloo, beside them
timing      the clock: runs inside the ranks, prints nothing
memory      the peak of one call: runs inside the ranks, too
worker      the process that is one rank
session     starts the ranks and collects their records
rows        records -> the numbers that are reported
report      rows -> table and JSON; measures nothing
progress    how far it is
kernels, simulate, demo, doctor    what the other commands do
"""
