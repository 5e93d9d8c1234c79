// A communicator over NCCL, which is loaded at run time. Ranks meet in the communicator's store; NCCL moves the data, also
// between hosts. This class adds what NCCL does not do: it bounds the time of every operation, tells the ranks why one
// failed, and names ranks that disagree or do not come.
//
// Ranks talk through the store only about operations that are late (kLateNs), so that the store is idle otherwise.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/nccl/nccl_api.h"
#include "collectives/streams/stream_backend.h"

namespace towline::collectives::nccl {

class NcclBackend final : public StreamBackend {
 public:
  // Collective. Throws Error.
  NcclBackend(const towline_collective_open_args& args, cuda::KernelDevice& device);
  ~NcclBackend() override;

  void issue(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, void* stream) override;
  Status perform(const towline_collective_t& call, uint64_t number, Deadline deadline) override;
  void start(const towline_collective_t& call, StreamMessage& message) override;
  void together(bool begin) override;
  std::unique_ptr<StreamMessage> issue_beside(const towline_collective_t& call, uint64_t number,
                                              uint64_t timeout_ns, void* stream) override;
  void abort(Status status, const std::string& text) override;
  [[nodiscard]] std::string describe() const override;

 private:
  // Ranks compare this when an operation is late.
  struct Mark {
    Header header;
    uint64_t message = 0;  // not 0: a send or receive, of which ranks compare nothing
  };
  // An operation that the GPU may not have ended. Kept for the next one afterwards.
  struct Running {
    std::unique_ptr<cuda::Moment> ended;
    Mark mark;
    std::string text;  // of a message
    uint64_t begun_ns = 0;
    Deadline deadline;
    bool told = false;  // the others know that this rank is at it
  };
  struct Waiting {
    const towline_collective_t* call;
    StreamMessage* message;
  };

  void introduce(Deadline deadline);
  void form(Deadline deadline);
  // Enqueues with NCCL, and follows the operation to its end.
  void launch(const towline_collective_t& call, const Mark& mark, Deadline deadline, void* stream,
              uint64_t graph, cuda::Moment* ended);
  // A result of NCCL's for an operation. Throws Error, and breaks the communicator unless nothing was enqueued.
  void check(Result result, const char* what);
  Mark prepare(const towline_collective_t& call, uint64_t number);
  void* room(uint64_t bytes);
  void follow(const towline_collective_t& call, const Mark& mark, Deadline deadline, void* stream);
  [[nodiscard]] std::string text_of(const Mark& mark, const std::string& message) const;

  void look() noexcept override;
  void watch();
  void watch_once();
  void late(Running& running, uint64_t now);
  bool compare_with_others(const Running& running);
  bool hear_of_break();
  [[nodiscard]] bool store_has(const std::string& key, std::vector<uint8_t>& value, uint64_t wait_ns);
  void tell_break(Status status, const std::string& text) noexcept;
  void break_with(Status status, const std::string& text, bool tell);
  void stop_nccl() noexcept;
  bool others_leave();

  const Api& api_;
  Comm comm_ = nullptr;
  Call parts_;  // of the operation that is being issued
  Channel channel_;
  std::shared_ptr<cuda::SharedPiece> room_;
  std::vector<std::shared_ptr<cuda::SharedPiece>> old_rooms_;  // operations may use them still
  bool grouping_ = false;
  std::vector<Waiting> group_;
  std::atomic<bool> stopped_{false};
  std::mutex running_mutex_;
  std::deque<std::unique_ptr<Running>> running_;
  std::vector<std::unique_ptr<Running>> idle_;
  uint64_t looked_ns_ = 0;  // at the store
  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace towline::collectives::nccl
