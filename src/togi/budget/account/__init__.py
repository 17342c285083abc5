"""Where the memory of a run went: the peak, its moment, who owns it, and what could be let go earlier."""

from togi.budget.account.make import account_of, close_account
from togi.budget.account.record import Account, Category, HeldName, Holding, Kept, Moment

__all__ = ["Account", "Category", "HeldName", "Holding", "Kept", "Moment", "account_of", "close_account"]
