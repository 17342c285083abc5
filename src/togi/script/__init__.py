"""``togi run``: an unchanged script as the main program, while the modules that it calls are watched or replaced."""
