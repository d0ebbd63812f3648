"""`python -m liftednet`: the command where its script is not on the path."""

from liftednet.command import main

if __name__ == "__main__":
    main()
