#!/usr/bin/env bash
# network_plugin.sh TOWLINE [WHEEL]: NVIDIA's UCX plugin as a transport of Towline, between two processes, every byte checked.
#
# TOWLINE is the command, WHEEL the folder that `pip install --target` made of nixl-cu12 or nixl-cu13 (else TOWLINE_NIXL_WHEEL).
# Exits 77, with the reason, if there is no plugin.
set -euo pipefail
towline=$1
wheel=${2:-${TOWLINE_NIXL_WHEEL:-}}
plugin=$(compgen -G "${wheel:-/nowhere}/.nixl_cu1?.mesonpy.libs/plugins/libplugin_UCX.so" | head -1) ||
  { echo "skipped: no published wheel of NIXL at '$wheel'; give its folder, or set TOWLINE_NIXL_WHEEL"; exit 77; }
export UCX_MODULES=^ib,rdmacm # its libnl crashes when the process ends
export TOWLINE_PLUGINS=nixl_net TOWLINE_NIXL_NET_LIBRARY=$plugin
unset TOWLINE_NIXL_WHEEL
"$towline" bench --backend nixl_net --memory private --sizes 4KiB,1MiB --batches 64,16 --span 64MiB --from both --time 500ms
