from tests.contract.conftest import home

__all__ = ["home"]
