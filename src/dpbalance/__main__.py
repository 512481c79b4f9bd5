"""How is the command line started as a module? `python -m dpbalance`."""

from dpbalance.cli import main

if __name__ == "__main__":
    main()
