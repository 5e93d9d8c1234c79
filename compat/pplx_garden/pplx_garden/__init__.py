"""pplx-garden's names, on Towline: `pplx_garden.fabric_lib`."""
