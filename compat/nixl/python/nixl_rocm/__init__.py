"""The name under which programs for ROCm import NIXL: another name of the package nixl."""

from nixl._alias import install

install(__name__)
