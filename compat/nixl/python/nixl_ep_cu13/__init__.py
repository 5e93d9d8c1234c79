"""The name under which NIXL's wheel for CUDA 13 has nixl_ep: another name of that package and its modules."""

import sys

import nixl_ep
import nixl_ep.buffer
import nixl_ep.utils

for _name in ("buffer", "utils"):
    sys.modules[f"{__name__}.{_name}"] = getattr(nixl_ep, _name)
sys.modules[__name__] = nixl_ep
