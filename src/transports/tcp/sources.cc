#include "transports/tcp/sources.h"

#include <algorithm>

#include "base/os/descriptor_limit.h"

namespace towline::tcp {

Sources::Limits Sources::default_limits() noexcept {
  constexpr size_t kMost = 65536;  // each connection costs memory as well
  const auto limit = static_cast<uint32_t>(std::min(descriptor_limit(), kMost));
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
