#include "transports/tcp/sources.h"

#include <sys/resource.h>

#include <algorithm>

namespace towline::tcp {

Sources::Limits Sources::default_limits() noexcept {
  constexpr rlim_t kMost = 65536;  // each connection costs memory as well
  rlimit descriptors = {};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) descriptors.rlim_cur = 1024;
  const auto limit = static_cast<uint32_t>(std::min(descriptors.rlim_cur, kMost));
  return {std::max(limit / 2, 1u), std::max(limit / 4, 1u)};
}

Sources::Source& Sources::find(const SocketAddress& from) {
  const SourceKey key = source_of(from);
  if (sources_.size() >= kMostKept && !sources_.contains(key))
    std::erase_if(sources_, [](const auto& entry) { return entry.second.sockets == 0; });
  return sources_[key];
}

Sources::Slot Sources::take(const SocketAddress& from) {
  const std::lock_guard lock(mutex_);
  Source& source = find(from);
  if (sockets_ >= limits_.sockets || source.sockets >= limits_.sockets_per_source) return {};
  ++sockets_;
  ++source.sockets;
  return {*this, source};
}

bool Sources::note_refusal(const SocketAddress& from, uint64_t now_ns) {
  const std::lock_guard lock(mutex_);
  return find(from).hellos.take(now_ns);
}

void Sources::give_back(Source& source) noexcept {
  const std::lock_guard lock(mutex_);
  --sockets_;
  --source.sockets;
}

}  // namespace towline::tcp
