# set_to_none of something else
from configuration import Field


class Options:
    learning_rate = Field(default=1e-3, set_to_none=False)

    def reset(self):
        self.learning_rate.clear(set_to_none=False)
