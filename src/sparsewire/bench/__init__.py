"""The benchmark: every algorithm and its peers, interleaved in one run, each result checked.

cases       what to run: sizes, distributions, inputs whose sums are exact, the oracle
draws       positions at random
blocks      distributions whose non-zeros come in whole blocks
trace       rows of a table that a real text touches, recorded
touched     what has to be moved where non-zeros come in blocks, and how long that takes
contenders  our algorithms, as things that can be timed
variants    OmniReduce, which can be called in several ways
peers       torch.distributed's gloo and MPI, beside them
bounds      how far a rounded sum may be from the exact one
overlap     calls in flight beside computing, as things that can be timed
step        whole training steps, sparse and dense, as things that can be timed
timing      the clock: runs inside the ranks, prints nothing
memory      the peak of one call: runs inside the ranks, too
worker      the process that is one rank
session     starts the ranks and collects their records
frames      what an input takes as a frame, and how long coding takes
rows        records -> the numbers that are reported
grid        every size, density, number of ranks and environment, and how `auto` did
tasks       models and data to train
train_methods   ways to a mean gradient under DDP, ours and torch's
train       the process that is one rank of a training; train_session starts them, train_rows has the numbers
linear      the process that is one rank of linear models: linear_plan is what it is told, linear_rows has the
            numbers, linear_session starts it and then linear_alone (scikit-learn) and linear_spark
report      rows -> table and JSON; measures nothing
coding      what index coding and low precision cost and save, without ranks
plot        the grid, coding, steps, training, linear models and sweeps over densities as pictures
progress    how far it is
kernels, simulate, demo, doctor    what the other commands do
"""
