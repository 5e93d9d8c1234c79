#include "agent/metadata_service.h"

#include <algorithm>

#include "agent/agent.h"
#include "base/error.h"

namespace towline {

MetadataService::MetadataService(Agent& agent, const std::string& listen, const std::string& advertise)
    : agent_(agent) {
  metadata::ListenerOptions options;
  options.listen = listen;
  options.advertise = advertise;
  options.keys = agent.keys();
  options.any_user = agent.config().get_bool("listen.any_user", false);
  options.max_blob_bytes = std::min(options.max_blob_bytes, agent.most_unsolicited_bytes());
  options.max_total_bytes = 4 * options.max_blob_bytes;
  if (const std::string range = agent.config().get_string("listen.port_range"); !range.empty()) {
    options.ports = parse_port_range(range);
  }
  listener_ = std::make_unique<metadata::Listener>(*this, agent.clock(), options);
}

MetadataService::~MetadataService() = default;

void MetadataService::watch(int fd, uint32_t epoll_events, towline_ready_fn ready, void* argument) {
  const int32_t status = agent_.workers()[0]->watch(fd, epoll_events, ready, argument, false);
  if (status != TOWLINE_OK) fail(static_cast<Status>(status), "watching a socket: {}", take_failure_text());
}

void MetadataService::rewatch(int fd, uint32_t epoll_events, towline_ready_fn ready, void* argument) {
  const int32_t status = agent_.workers()[0]->watch(fd, epoll_events, ready, argument, true);
  if (status != TOWLINE_OK) fail(static_cast<Status>(status), "watching a socket: {}", take_failure_text());
}

void MetadataService::unwatch(int fd) noexcept { agent_.workers()[0]->unwatch(fd); }

std::shared_ptr<const metadata::Blob> MetadataService::local_blob() {
  return std::make_shared<const metadata::Blob>(agent_.metadata_locked(nullptr));
}

void MetadataService::refused(Status why) noexcept { agent_.refused_stranger("metadata", 0, why); }

void MetadataService::peer_blob(std::span<const uint8_t> blob) { agent_.offer_peer(blob); }

}  // namespace towline
