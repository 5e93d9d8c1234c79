"""For torchcomms.sh: lets every Python process, also those that a test starts, find torchcomms' tests and their helpers in the
checkout that TORCHCOMMS_CHECKOUT names. Python imports this by its name."""

import importlib.machinery
import os
import sys

# Packages of ours in which the checkout has more, its tests above all.
SHARED = ("torchcomms", "torchcomms.distwrap", "torchcomms.hooks", "torchcomms.hooks.fr", "torchcomms.hooks.nan_check")


class InCheckout:
    """Comes last: it is asked for what our packages lack."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        package = name.rpartition(".")[0]
        if package not in SHARED:
            return None
        folder = os.path.join(os.environ["TORCHCOMMS_CHECKOUT"], "comms", *package.split("."))
        return importlib.machinery.PathFinder.find_spec(name, [folder])


sys.meta_path.append(InCheckout)
