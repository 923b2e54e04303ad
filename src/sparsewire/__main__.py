"""``python -m sparsewire`` is the command line."""

from sparsewire.commands import main

if __name__ == "__main__":
    main()
