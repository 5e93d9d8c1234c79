"""The name under which programs for CUDA 13 import NIXL: another name of the package nixl."""

from nixl._alias import install

install(__name__)
