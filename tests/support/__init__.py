"""Real parts for tests: an sshd, Debian programs, processes and their ends."""
