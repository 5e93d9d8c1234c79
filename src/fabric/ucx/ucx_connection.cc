#ifdef TOWLINE_HAVE_UCX

#include "fabric/ucx/ucx_connection.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace towline::fabric {
namespace {

constexpr std::size_t kMaxKeys = 4096;
constexpr uint64_t kCloseNs = 200 * kMillisecondNs;
constexpr int kTurns = 8;
// What an end takes, behind UCX's address, which knows its own length. Ends of older versions look for the last one only.
constexpr std::string_view kLargeMessages = "towline ucx large 1";  // of kUcxLargeChunkBytes
constexpr std::string_view kReadsTogether =
    "towline ucx reads 1";  // several reads, or answers, in one message

void append_if_it_fits(std::vector<uint8_t>& end, std::string_view what, std::size_t most) {
  if (end.size() + what.size() <= most) end.insert(end.end(), what.begin(), what.end());
}

// Whether `end` ends so. Removes it.
bool take_from(std::span<const uint8_t>& end, std::string_view what) noexcept {
  if (end.size() <= what.size() || !std::equal(what.begin(), what.end(), end.end() - what.size()))
    return false;
  end = end.first(end.size() - what.size());
  return true;
}

void throw_if(ucs_status_t status, const char* call) {
  if (status != UCS_OK) fail(Status::kIo, "UCX: {}: {}", call, UcxLibrary::get().error_text(status));
}

ucp_request_param_t with_callback(ucp_send_nbx_callback_t function, void* context) noexcept {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.send = function;
  parameters.user_data = context;
  return parameters;
}

}  // namespace

UcxConnection::UcxConnection(UcxOwner& owner, ucp_context_h context, uint32_t number, const Options& options)
    : owner_(owner), ucx_(UcxLibrary::get()), number_(number), options_(options) {
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SINGLE;
  throw_if(ucx_.ucp_worker_create(context, &parameters, &worker_), "a worker can't be made");
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessage;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = on_message;
  handler.arg = this;
  const ucs_status_t status = ucx_.ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) {
    stop();
    throw_if(status, "messages can't be received");
  }
  if (ucx_.ucp_worker_get_efd(worker_, &event_fd_) != UCS_OK) event_fd_ = -1;
}

std::vector<uint8_t> UcxConnection::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  throw_if(ucx_.ucp_worker_get_address(worker_, &address, &bytes), "a worker has no address");
  const auto* begin = reinterpret_cast<const uint8_t*>(address);
  std::vector<uint8_t> copy{begin, begin + bytes};
  ucx_.ucp_worker_release_address(worker_, address);
  if (copy.size() > kMaxEndpointBytes)
    fail(Status::kLimitExceeded,
         "UCX's address of a worker has {} bytes, and {} are possible: name fewer transports or devices",
         copy.size(), kMaxEndpointBytes);
  if (options_.takes_large)
    append_if_it_fits(copy, kLargeMessages, kMaxEndpointBytes - kReadsTogether.size());
  append_if_it_fits(copy, kReadsTogether, kMaxEndpointBytes);
  return copy;
}

void UcxConnection::connect(std::span<const uint8_t> other_end) {
  // UCX reads an address without knowing its size: what is too short to be one must not get there.
  if (other_end.size() < 16) fail(Status::kProtocol, "{} bytes are no address of UCX", other_end.size());
  reads_together_ = take_from(other_end, kReadsTogether);
  if (take_from(other_end, kLargeMessages) && options_.takes_large) chunk_bytes_ = kUcxLargeChunkBytes;
  std::vector<uint8_t> padded{other_end.begin(), other_end.end()};
  padded.resize(kMaxEndpointBytes + 256);
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(padded.data());
  parameters.err_mode = options_.tells_failures ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  parameters.err_handler = {on_error, this};
  throw_if(ucx_.ucp_ep_create(worker_, &parameters, &endpoint_), "an endpoint can't be made");
}

// The forced close does not wait for the peer. With the worker goes everything that could still place bytes.
void UcxConnection::stop() noexcept {
  if (worker_ == nullptr) return;
  down_ = true;
  if (endpoint_ != nullptr && options_.tells_failures) {  // else the worker takes it along
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing = ucx_.ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &parameters);
    if (closing != nullptr && !UCS_PTR_IS_ERR(closing)) {
      const uint64_t end_ns = monotonic_now_ns() + kCloseNs;
      while (ucx_.ucp_request_check_status(closing) == UCS_INPROGRESS && monotonic_now_ns() < end_ns)
        ucx_.ucp_worker_progress(worker_);
      ucx_.ucp_request_free(closing);
    }
  }
  endpoint_ = nullptr;
  forget_keys();  // after the requests that used them, and before the worker that made them
  ucx_.ucp_worker_destroy(std::exchange(worker_, nullptr));
}

void UcxConnection::forget_keys() noexcept {
  for (const auto& [number, key] : keys_)
    if (key.key != nullptr) ucx_.ucp_rkey_destroy(key.key);
  keys_.clear();
}

// --- Requests ------------------------------------------------------------------------------------------

std::size_t UcxConnection::post(const WorkRequest* requests, std::size_t count) noexcept {
  if (down_ || endpoint_ == nullptr) return 0;
  try {
    for (std::size_t i = 0; i < count; ++i) {
      if (waiting_.empty() && ready_for(requests[i]))
        issue(requests[i]);
      else
        waiting_.push_back(requests[i]);
    }
    send_reads();
  } catch (const std::bad_alloc&) {
    down(Status::kOutOfMemory);
    return 0;
  }
  flush();
  return count;
}

std::size_t UcxConnection::post_receives(const ReceiveRequest* requests, std::size_t count) noexcept try {
  receives_.insert(receives_.end(), requests, requests + count);
  return count;
} catch (const std::bad_alloc&) {
  down(Status::kOutOfMemory);
  return 0;
}

// Whether the key that it needs is here. Asks for it otherwise.
bool UcxConnection::ready_for(const WorkRequest& request) {
  if (request.kind == RequestKind::kSend || options_.by_messages) return true;
  if (const auto known = keys_.find(request.remote_key); known != keys_.end())
    return known->second.key != nullptr;
  if (keys_.size() >= kMaxKeys) {
    if (!issued_.empty()) return false;  // they may be in use
    forget_keys();
  }
  keys_[request.remote_key] = {};
  send({.number = request.remote_key, .kind = Kind::kAskBlob});
  return false;
}

void UcxConnection::issue(const WorkRequest& request) {
  Entry& entry = issued_.emplace_back();
  entry.cookie = request.cookie;
  entry.signalled = request.signalled;
  auto* local = reinterpret_cast<void*>(request.local);
  if (request.kind == RequestKind::kSend) {
    send({.number = ++numbered_, .length = request.length, .kind = Kind::kRecord}, local, request.length);
  } else if (options_.by_messages) {
    issue_by_messages(request, entry);
  } else {
    const ucp_request_param_t parameters{};
    const ucp_rkey_h key = keys_[request.remote_key].key;
    check(request.kind == RequestKind::kRead
              ? ucx_.ucp_get_nbx(endpoint_, local, request.length, request.remote, key, &parameters)
              : ucx_.ucp_put_nbx(endpoint_, local, request.length, request.remote, key, &parameters));
    ++moves_issued_;
  }
  entry.flush_mark = moves_issued_;
  entry.number = numbered_;
}

void UcxConnection::issue_by_messages(const WorkRequest& request, Entry& entry) {
  Header header{.key = request.remote_key, .place = request.remote, .length = request.length};
  if (request.kind == RequestKind::kRead) {
    if (free_read_ == 0) {
      reads_.emplace_back();
      free_read_ = static_cast<uint32_t>(reads_.size());
    }
    entry.read = free_read_;
    Read& read = reads_[entry.read - 1];
    free_read_ = read.next_free;
    read = {.local = request.local, .length = request.length, .used = true};
    header.number = entry.read;
    header.kind = Kind::kRead;
    return reads_together_ ? ask(header) : send(header);
  }
  header.kind = Kind::kWrite;
  for (uint64_t at = 0; at < request.length; at += chunk_bytes_) {
    header.number = ++numbered_;
    header.place = request.remote + at;
    header.length = static_cast<uint32_t>(std::min<uint64_t>(chunk_bytes_, request.length - at));
    send(header, reinterpret_cast<const void*>(request.local + at), header.length);
  }
}

// Takes the result of an operation that a flush will complete.
void UcxConnection::check(ucs_status_ptr_t result) noexcept {
  if (result == nullptr) return;
  if (UCS_PTR_IS_ERR(result)) return down(status_of_ucx(UCS_PTR_STATUS(result)));
  ucx_.ucp_request_free(result);  // UCX goes on with it
}

void UcxConnection::issue_waiting() {
  while (!down_ && !waiting_.empty() && ready_for(waiting_.front())) {
    issue(waiting_.front());
    waiting_.pop_front();
  }
}

// One flush at a time covers all that was issued before it.
void UcxConnection::flush() noexcept {
  if (flushing_ || down_ || moves_issued_ == moves_flushed_) return;
  const auto wanted = [&](const Entry& entry) {
    return entry.signalled && entry.flush_mark > moves_flushed_;
  };
  if (std::none_of(issued_.begin(), issued_.end(), wanted)) return;
  flush_mark_ = moves_issued_;
  const ucp_request_param_t parameters = with_callback(on_flushed, this);
  const ucs_status_ptr_t result = ucx_.ucp_ep_flush_nbx(endpoint_, &parameters);
  if (result == nullptr) {
    moves_flushed_ = flush_mark_;
  } else if (UCS_PTR_IS_ERR(result)) {
    down(status_of_ucx(UCS_PTR_STATUS(result)));
  } else {
    flushing_ = true;
  }
}

void UcxConnection::on_flushed(void* request, ucs_status_t status, void* self) {
  auto& connection = *static_cast<UcxConnection*>(self);
  connection.ucx_.ucp_request_free(request);
  connection.flushing_ = false;
  if (status == UCS_OK)
    connection.moves_flushed_ = connection.flush_mark_;
  else
    connection.down(status_of_ucx(status));
}

void UcxConnection::complete() noexcept {
  while (!issued_.empty()) {
    const Entry& first = issued_.front();
    if (first.flush_mark > moves_flushed_ || first.number > arrived_) return;
    if (first.read != 0) {
      Read& read = reads_[first.read - 1];
      if (read.arrived != read.length) return;
      read.used = false;
      read.next_free = std::exchange(free_read_, first.read);
    }
    if (first.signalled) owner_.tell({first.cookie, 0, number_, 0, Status::kOk, CompletionKind::kRequest});
    issued_.pop_front();
  }
}

void UcxConnection::progress() noexcept {
  if (worker_ == nullptr) return;
  for (int turn = 0; turn < kTurns && !down_ && ucx_.ucp_worker_progress(worker_) != 0; ++turn) {
  }
  if (endpoint_ == nullptr || down_) return;
  try {
    for (const uint64_t key : asked_) {
      const UcxRegistered* registered = owner_.find(key);
      send({.number = key, .kind = Kind::kBlob}, nullptr, 0, 0,
           registered != nullptr ? registered->blob : std::vector<uint8_t>{});
    }
    asked_.clear();
    serve();
    if (acknowledged_ != came_.base()) {
      acknowledged_ = came_.base();
      send({.number = acknowledged_ - 1, .kind = Kind::kAcknowledge});
    }
    issue_waiting();
  } catch (const std::bad_alloc&) {
    return down(Status::kOutOfMemory);  // an entry may wait for nothing, as it was not issued
  }
  flush();
  complete();
}

bool UcxConnection::arm() noexcept {
  return worker_ == nullptr || down_ || ucx_.ucp_worker_arm(worker_) == UCS_OK;
}

void UcxConnection::down(Status status) noexcept {
  if (std::exchange(down_, true)) return;
  owner_.tell({0, 0, number_, 0, status, CompletionKind::kConnectionDown});
}

void UcxConnection::on_error(void* self, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxConnection*>(self)->down(status_of_ucx(status));
}

}  // namespace towline::fabric

#endif  // TOWLINE_HAVE_UCX
