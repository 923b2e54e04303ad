"""What every benchmark is made of.

benchmark    the record of a benchmark, and its results
options      options of a command, as fields of a dataclass
problem      the vectors to add up, and their exact sum; draws, layouts and trace_file say where non-zeros are
bounds       how far a rounded sum may be from the exact one
contenders   our algorithms, as things that can be timed; peers are those of gloo and MPI
clock        measures contenders in turns, inside the ranks
worker       the process that is one rank; session starts all of them and collects what they found
records      from what every rank recorded to one number
table        rows as text; figure: rows as a picture; json_file: rows as JSON; progress: how far it is
"""
