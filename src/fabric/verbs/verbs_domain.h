// The domain over one port. Every connection is a queue pair of a reliable connection; all share a completion queue
// and a queue of receives.
//
// Receives. The engine posts receives of one connection, and the NIC takes any buffer of the shared queue. So those
// buffers are the domain's own, and a record is copied into the connection's next receive: records are few and small.
//
// Stopping. A queue pair that is put into its error state flushes what it has. Completions from before are polled
// into a list first: destroying a queue pair makes libraries drop its completions. A marker behind the last
// request, and the event that tells that no receive of the shared queue is in use any more, say when that is done.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "base/os/unique_fd.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/endpoint.h"

namespace towline::fabric {

class VerbsDomain final : public Domain {
 public:
  VerbsDomain(const VerbsLibrary& library, const VerbsOptions& options);
  ~VerbsDomain() override;

  const DomainTraits& traits() const noexcept override { return traits_; }
  std::vector<uint8_t> address() const override { return {}; }  // connections tell all there is
  Registration register_memory(const MemoryToRegister& memory) override;
  void deregister_memory(const Registration& registration) noexcept override;
  std::vector<uint8_t> open(uint32_t connection, ConnectionEnd end) override;
  void connect(uint32_t connection, std::span<const uint8_t> other_end) override;
  void stop(uint32_t connection) noexcept override;
  void release(uint32_t connection) noexcept override;
  std::size_t post(uint32_t connection, const WorkRequest* requests, std::size_t count) noexcept override;
  std::size_t post_receives(uint32_t connection, const ReceiveRequest* requests,
                            std::size_t count) noexcept override;
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override;
  int event_fd() const noexcept override { return events_.get(); }
  bool arm() noexcept override;
  bool recover() noexcept override;

 private:
  struct Pair {
    VerbsObject<ibv_qp> queue;
    uint32_t number = 0;  // of the queue pair
    uint32_t first_psn = 0;
    uint32_t generation = 0;  // of the connection's number, so that late completions find nobody
    uint32_t max_inline = 0;
    bool connected = false;
    bool failed = false;
    bool stopped = false;
    bool marker_seen = false;
    bool receives_ended = false;
    std::vector<ReceiveRequest> receives;  // a ring
    uint64_t receives_head = 0;
    uint64_t receives_tail = 0;
  };

  void open_queues();
  void let_go() noexcept;
  [[nodiscard]] VerbsEndpoint end_of(const Pair& pair) const noexcept;
  VerbsObject<ibv_qp> create_pair(Pair& pair);
  void to_init(Pair& pair);
  void to_ready(Pair& pair, const VerbsEndpoint& other);
  void check_end(const VerbsEndpoint& other) const;
  void give_buffer(uint32_t buffer) noexcept;
  std::size_t poll_queue(Completion* completions, std::size_t capacity) noexcept;
  bool convert(const ibv_wc& from, Completion& to) noexcept;
  bool convert_receive(const ibv_wc& from, Completion& to) noexcept;
  void drain(Pair& pair) noexcept;
  void keep(const Completion& completion) noexcept;
  void check_events() noexcept;
  void on_event(const ibv_async_event& event) noexcept;
  void fail_pair(uint32_t connection, Status status) noexcept;
  void clear_queue_events() noexcept;
  void tell(const char* what, const char* why) const noexcept;

  const VerbsLibrary& library_;
  VerbsDevice device_;
  DomainTraits traits_;
  VerbsObject<ibv_comp_channel> channel_;
  VerbsObject<ibv_cq> queue_;
  std::unique_ptr<uint8_t[]> buffers_;  // of the shared receives
  Registration buffers_key_;
  VerbsObject<ibv_srq> shared_;
  UniqueFd events_;  // readable when the channel or the context has something
  std::vector<Pair> pairs_;
  std::unordered_map<uint32_t, uint32_t> by_number_;  // queue pair's number to connection
  std::deque<Completion> waiting_;                    // taken off the queue, not yet given
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
  uint32_t shared_depth_ = 0;
  uint32_t polls_ = 0;
  bool slept_ = false;
  bool down_ = false;
  bool dead_ = false;  // for good
  bool lost_ = false;  // a completion, for want of memory
};

}  // namespace towline::fabric
