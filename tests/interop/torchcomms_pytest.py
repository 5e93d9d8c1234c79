"""torchcomms_pytest.py CHECKOUT PYTEST ARGUMENTS..: pytest with the tests' helpers of a checkout of torchcomms, which are
looked for behind our own package's modules."""

import importlib
import sys

import pytest

for name in ("torchcomms", "torchcomms.distwrap", "torchcomms.hooks", "torchcomms.hooks.fr", "torchcomms.hooks.nan_check"):
    folder = "/".join(["torchcomms", *name.split(".")[1:]])
    importlib.import_module(name).__path__.append(f"{sys.argv[1]}/comms/{folder}")
sys.exit(pytest.main(sys.argv[2:]))
