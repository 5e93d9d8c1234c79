"""torchcomms_pytest.py CHECKOUT PYTEST ARGUMENTS..: pytest with the tests' helpers of a checkout of torchcomms, which are
looked for behind our own package's modules."""

import sys

import pytest
import torchcomms

torchcomms.__path__.append(f"{sys.argv[1]}/comms/torchcomms")
sys.exit(pytest.main(sys.argv[2:]))
