"""The one exception that is meant for the person at the terminal."""


class OrqaError(Exception):
    """Something the user can put right.

    The message is one clear sentence that names the thing and the way out. The command line prints
    it without a traceback and exits with status 2.
    """
