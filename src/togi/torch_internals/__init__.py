"""Every private torch API that togi relies on. What changes from one torch release to the next is known here alone."""
