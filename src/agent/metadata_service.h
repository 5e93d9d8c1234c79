// Runs the metadata listener on worker 0: answers requests with this agent's metadata, and adds the metadata
// of clients.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "metadata/listener/listener.h"

namespace towline {

class Agent;

// Made and destroyed under worker 0's lock; its callbacks run there.
class MetadataService final : public metadata::ListenerHost {
 public:
  // Throws Error, naming the address.
  MetadataService(Agent& agent, const std::string& listen, const std::string& advertise);
  ~MetadataService() override;

  [[nodiscard]] std::vector<std::string> addresses() const { return listener_->addresses(); }
  [[nodiscard]] uint64_t next_deadline_ns() const noexcept { return listener_->next_deadline_ns(); }
  uint32_t expire(uint64_t now_ns) { return listener_->expire(now_ns); }

  void watch(int fd, uint32_t epoll_events, towline_ready_fn ready, void* argument) override;
  void rewatch(int fd, uint32_t epoll_events, towline_ready_fn ready, void* argument) override;
  void unwatch(int fd) noexcept override;
  std::shared_ptr<const metadata::Blob> local_blob() override;
  void peer_blob(std::span<const uint8_t> blob) override;
  void refused(Status why) noexcept override;

 private:
  Agent& agent_;
  std::unique_ptr<metadata::Listener> listener_;
};

}  // namespace towline
