// The peer: NIXL, driven through its Python package by two child processes (bench/peers/nixl/peer.py).
#pragma once

#include "contender.h"

namespace bench {

// Over shared memory ("nixl") and over TCP ("nixl_tcp"). `python` is the interpreter that has the wheel.
void add_nixl(const std::string& python, const std::string& script, std::size_t span, Contenders& out);

}  // namespace bench
