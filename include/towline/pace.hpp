// Limits of bandwidth for C++20; pace.h says what they promise.
#pragma once

#include <towline/pace.h>

#include <towline/towline.hpp>

namespace towline {
inline namespace v0 {

// GCC's -Wshadow takes a scoped enumerator for one that hides towline::all.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
enum class Limit : uint32_t {
  all = TOWLINE_LIMIT_ALL,
  bulk = TOWLINE_LIMIT_BULK,
  latency = TOWLINE_LIMIT_LATENCY
};
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

// Bytes per second; 0: no limit.
inline void set_limit(const Agent& agent, uint64_t bytes_per_s, Limit which = Limit::all) {
  detail::check(towline_agent_set_limit(agent.native(), static_cast<uint32_t>(which), bytes_per_s));
}
inline void set_limit(const Peer& peer, uint64_t bytes_per_s) {
  detail::check(towline_peer_set_limit(peer.native(), bytes_per_s));
}
inline void set_limit(const Group& group, uint64_t bytes_per_s) {
  detail::check(towline_group_set_limit(group.native(), bytes_per_s));
}

}  // namespace v0
}  // namespace towline
