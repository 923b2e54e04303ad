"""The benchmark: every algorithm and its peers, interleaved in one run, each result checked.

cases    what to run: sizes, distributions, inputs whose sums are exact, the oracle
timing   runs inside the ranks and measures; prints nothing
peers    torch.distributed's gloo, as contenders beside ours
worker   the process that is one rank
session  starts the ranks and collects their records
rows     records -> the numbers that are reported
report   rows -> table and JSON; measures nothing
"""
