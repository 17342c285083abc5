# a field of the project's own class
from dataclasses import dataclass


@dataclass
class Spec:
    name: str
    require_grad: bool = True


def specs(names: list[str]) -> list[Spec]:
    found = [Spec(name=name) for name in names]
    return [spec for spec in found if spec.require_grad]
