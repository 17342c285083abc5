"""``togi run``: an unchanged script as the main program, with the modules that it calls watched, or served by artifacts."""
