"""Small things that programs import beside fabric_lib."""
