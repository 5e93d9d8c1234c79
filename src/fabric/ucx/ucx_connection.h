// One connection over UCX: a worker of its own with one endpoint. So destroying the worker ends exactly one
// connection, as it does with a queue pair, and nothing is placed over it any more.
//
// UCX's completions say that a buffer is free, not that bytes have arrived. So writes and reads are complete when
// a flush of the endpoint is, and records when the peer has acknowledged them. Remote keys are blobs that do not
// fit into a descriptor: the first request that uses a registration asks its owner for its blob, over the
// connection, and waits.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "fabric/domain.h"
#include "fabric/ucx/ucx_library.h"

namespace towline::fabric {

// What connections need of their domain.
class UcxOwner {
 public:
  virtual ~UcxOwner() = default;
  virtual void tell(const Completion& completion) noexcept = 0;
  // The blob of a registration that peers may use; null: there is none of that number.
  virtual const std::vector<uint8_t>* find_blob(uint64_t key) const noexcept = 0;
};

class UcxConnection {
 public:
  // tells_failures: its transports notice that a peer has died. Throws Error.
  UcxConnection(UcxOwner& owner, ucp_context_h context, uint32_t number, bool tells_failures);
  ~UcxConnection() { stop(); }
  UcxConnection(const UcxConnection&) = delete;
  UcxConnection& operator=(const UcxConnection&) = delete;

  std::vector<uint8_t> address() const;  // throws Error
  void connect(std::span<const uint8_t> other_end);
  void stop() noexcept;
  bool stopped() const noexcept { return worker_ == nullptr; }
  int event_fd() const noexcept { return event_fd_; }

  std::size_t post(const WorkRequest* requests, std::size_t count) noexcept;
  std::size_t post_receives(const ReceiveRequest* requests, std::size_t count) noexcept;
  void progress() noexcept;
  // False: there is something to progress.
  bool arm() noexcept;

 private:
  struct Entry {  // a request under way
    uint64_t cookie = 0;
    uint64_t flush_mark = 0;  // complete once so many of its kind are
    uint64_t send_mark = 0;
    bool signalled = false;
  };
  struct Key {
    ucp_rkey_h key = nullptr;  // null: asked for
  };
  struct Control {
    UcxConnection* connection;
    std::vector<uint8_t> bytes;
  };

  static ucs_status_t on_data(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                              const ucp_am_recv_param_t* parameters);
  static ucs_status_t on_control(void* self, const void* header, size_t header_bytes, void* data,
                                 size_t bytes, const ucp_am_recv_param_t* parameters);
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static void on_flushed(void* request, ucs_status_t status, void* self);
  static void on_control_sent(void* request, ucs_status_t status, void* control);

  void take_handler(unsigned id, ucp_am_recv_callback_t function);
  bool ready_for(const WorkRequest& request) noexcept;
  void issue(const WorkRequest& request) noexcept;
  void issue_waiting() noexcept;
  void take_key(uint64_t key, std::span<const uint8_t> blob) noexcept;
  void say(std::vector<uint8_t> message) noexcept;
  void say_number(uint8_t kind, uint64_t number, const std::vector<uint8_t>* blob = nullptr) noexcept;
  void flush() noexcept;
  void complete() noexcept;
  void down(Status status) noexcept;
  void check(ucs_status_ptr_t result) noexcept;
  void forget_keys() noexcept;

  UcxOwner& owner_;
  UcxLibrary& ucx_;
  const uint32_t number_;
  const bool tells_failures_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  bool down_ = false;
  std::deque<WorkRequest> waiting_;  // for a key
  std::deque<Entry> issued_;
  std::deque<ReceiveRequest> receives_;
  std::unordered_map<uint64_t, Key> keys_;
  std::vector<uint64_t> asked_;  // of us, not answered yet
  uint64_t moves_issued_ = 0;    // writes and reads
  uint64_t moves_flushed_ = 0;
  uint64_t flush_mark_ = 0;
  bool flushing_ = false;
  uint64_t sends_issued_ = 0;
  uint64_t sends_acknowledged_ = 0;
  uint64_t received_ = 0;
  uint64_t acknowledged_ = 0;
};

}  // namespace towline::fabric
