#ifdef TOWLINE_HAVE_UCX

#include "fabric/ucx/ucx_connection.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/wire.h"

namespace towline::fabric {
namespace {

constexpr unsigned kDataMessage = 1;
constexpr unsigned kControlMessage = 2;
// The first byte of a control message; a number follows.
constexpr uint8_t kAcknowledge = 1;  // records taken, in all
constexpr uint8_t kAsk = 2;          // for the blob of a registration
constexpr uint8_t kBlob = 3;         // of it; empty: there is none
constexpr std::size_t kMaxKeys = 4096;
constexpr std::size_t kMaxAsked = 1024;
constexpr std::size_t kMaxBlobBytes = 4096;
constexpr uint64_t kCloseNs = 200 * kMillisecondNs;
constexpr int kTurns = 8;

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

UcxConnection::UcxConnection(UcxOwner& owner, ucp_context_h context, uint32_t number, bool tells_failures)
    : owner_(owner), ucx_(UcxLibrary::get()), number_(number), tells_failures_(tells_failures) {
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SINGLE;
  throw_if(ucx_.ucp_worker_create(context, &parameters, &worker_), "a worker can't be made");
  try {
    take_handler(kDataMessage, on_data);
    take_handler(kControlMessage, on_control);
  } catch (...) {
    stop();
    throw;
  }
  if (ucx_.ucp_worker_get_efd(worker_, &event_fd_) != UCS_OK) event_fd_ = -1;
}

void UcxConnection::take_handler(unsigned id, ucp_am_recv_callback_t function) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = id;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = function;
  handler.arg = this;
  throw_if(ucx_.ucp_worker_set_am_recv_handler(worker_, &handler), "messages can't be received");
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
  return copy;
}

void UcxConnection::connect(std::span<const uint8_t> other_end) {
  // UCX reads an address without knowing its size: what is too short to be one must not get there.
  if (other_end.size() < 16) fail(Status::kProtocol, "{} bytes are no address of UCX", other_end.size());
  std::vector<uint8_t> padded{other_end.begin(), other_end.end()};
  padded.resize(kMaxEndpointBytes + 256);
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(padded.data());
  parameters.err_mode = tells_failures_ ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  parameters.err_handler = {on_error, this};
  throw_if(ucx_.ucp_ep_create(worker_, &parameters, &endpoint_), "an endpoint can't be made");
}

// The forced close does not wait for the peer. With the worker goes everything that could still place bytes.
void UcxConnection::stop() noexcept {
  if (worker_ == nullptr) return;
  down_ = true;
  if (endpoint_ != nullptr && tells_failures_) {  // else the worker takes it along
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
  for (std::size_t i = 0; i < count; ++i) {
    if (waiting_.empty() && ready_for(requests[i]))
      issue(requests[i]);
    else
      waiting_.push_back(requests[i]);
  }
  flush();
  return count;
}

std::size_t UcxConnection::post_receives(const ReceiveRequest* requests, std::size_t count) noexcept {
  receives_.insert(receives_.end(), requests, requests + count);
  return count;
}

// Whether the key that it needs is here. Asks for it otherwise.
bool UcxConnection::ready_for(const WorkRequest& request) noexcept {
  if (request.kind == RequestKind::kSend) return true;
  if (const auto known = keys_.find(request.remote_key); known != keys_.end())
    return known->second.key != nullptr;
  if (keys_.size() >= kMaxKeys) {
    if (!issued_.empty()) return false;  // they may be in use
    forget_keys();
  }
  keys_[request.remote_key] = {};
  say_number(kAsk, request.remote_key);
  return false;
}

void UcxConnection::issue(const WorkRequest& request) noexcept {
  auto* local = reinterpret_cast<void*>(request.local);
  ucp_request_param_t parameters{};
  if (request.kind == RequestKind::kSend) {
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_AM_SEND_FLAG_EAGER;
    check(ucx_.ucp_am_send_nbx(endpoint_, kDataMessage, nullptr, 0, local, request.length, &parameters));
    ++sends_issued_;
  } else {
    const ucp_rkey_h key = keys_[request.remote_key].key;
    check(request.kind == RequestKind::kRead
              ? ucx_.ucp_get_nbx(endpoint_, local, request.length, request.remote, key, &parameters)
              : ucx_.ucp_put_nbx(endpoint_, local, request.length, request.remote, key, &parameters));
    ++moves_issued_;
  }
  issued_.push_back({request.cookie, moves_issued_, sends_issued_, request.signalled});
}

// Of an operation that a flush or an acknowledgement will complete.
void UcxConnection::check(ucs_status_ptr_t result) noexcept {
  if (result == nullptr) return;
  if (UCS_PTR_IS_ERR(result)) return down(status_of_ucx(UCS_PTR_STATUS(result)));
  ucx_.ucp_request_free(result);  // UCX goes on with it
}

void UcxConnection::issue_waiting() noexcept {
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
  while (!issued_.empty() && issued_.front().flush_mark <= moves_flushed_ &&
         issued_.front().send_mark <= sends_acknowledged_) {
    if (issued_.front().signalled)
      owner_.tell({issued_.front().cookie, 0, number_, 0, Status::kOk, CompletionKind::kRequest});
    issued_.pop_front();
  }
}

void UcxConnection::progress() noexcept {
  if (worker_ == nullptr) return;
  for (int turn = 0; turn < kTurns && ucx_.ucp_worker_progress(worker_) != 0; ++turn) {
  }
  if (endpoint_ == nullptr || down_) return;
  for (const uint64_t key : std::exchange(asked_, {})) say_number(kBlob, key, owner_.find_blob(key));
  if (acknowledged_ != received_) {
    acknowledged_ = received_;
    say_number(kAcknowledge, received_);
  }
  issue_waiting();
  flush();
  complete();
}

bool UcxConnection::arm() noexcept { return worker_ == nullptr || ucx_.ucp_worker_arm(worker_) == UCS_OK; }

void UcxConnection::down(Status status) noexcept {
  if (std::exchange(down_, true)) return;
  owner_.tell({0, 0, number_, 0, status, CompletionKind::kConnectionDown});
}

void UcxConnection::on_error(void* self, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxConnection*>(self)->down(status_of_ucx(status));
}

// --- Messages ------------------------------------------------------------------------------------------

void UcxConnection::say_number(uint8_t kind, uint64_t number, const std::vector<uint8_t>* blob) noexcept {
  std::vector<uint8_t> message;
  WireWriter out{message};
  out.u8(kind);
  out.u64(number);
  if (blob != nullptr) out.raw(*blob);
  say(std::move(message));
}

void UcxConnection::say(std::vector<uint8_t> message) noexcept {
  auto control = std::make_unique<Control>(Control{this, std::move(message)});
  ucp_request_param_t parameters = with_callback(on_control_sent, control.get());
  parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_AM_SEND_FLAG_EAGER;
  const ucs_status_ptr_t result = ucx_.ucp_am_send_nbx(
      endpoint_, kControlMessage, nullptr, 0, control->bytes.data(), control->bytes.size(), &parameters);
  if (result == nullptr) return;
  if (UCS_PTR_IS_ERR(result)) return down(status_of_ucx(UCS_PTR_STATUS(result)));
  (void)control.release();  // its callback owns it
}

void UcxConnection::on_control_sent(void* request, ucs_status_t status, void* given) {
  const std::unique_ptr<Control> control{static_cast<Control*>(given)};
  UcxConnection& connection = *control->connection;
  connection.ucx_.ucp_request_free(request);
  if (status != UCS_OK) connection.down(status_of_ucx(status));
}

ucs_status_t UcxConnection::on_data(void* self, const void*, size_t, void* data, size_t bytes,
                                    const ucp_am_recv_param_t* parameters) {
  auto& connection = *static_cast<UcxConnection*>(self);
  if (connection.down_) return UCS_OK;
  if ((parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 || connection.receives_.empty() ||
      bytes > connection.receives_.front().length) {
    connection.down(Status::kProtocol);
    return UCS_OK;
  }
  const ReceiveRequest receive = connection.receives_.front();
  connection.receives_.pop_front();
  if (bytes != 0) std::memcpy(reinterpret_cast<void*>(receive.address), data, bytes);
  ++connection.received_;
  connection.owner_.tell({receive.cookie, 0, connection.number_, static_cast<uint32_t>(bytes), Status::kOk,
                          CompletionKind::kReceive});
  return UCS_OK;
}

ucs_status_t UcxConnection::on_control(void* self, const void*, size_t, void* data, size_t bytes,
                                       const ucp_am_recv_param_t* parameters) {
  auto& connection = *static_cast<UcxConnection*>(self);
  if (connection.down_) return UCS_OK;
  WireReader in{{static_cast<const uint8_t*>(data), bytes}};
  const uint8_t kind = in.u8();
  const uint64_t number = in.u64();
  bool good = in.ok() && (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  if (good && kind == kAcknowledge) {
    good = number >= connection.sends_acknowledged_ && number <= connection.sends_issued_;
    if (good) connection.sends_acknowledged_ = number;
  } else if (good && kind == kAsk) {
    good = connection.asked_.size() < kMaxAsked;
    if (good) connection.asked_.push_back(number);
  } else if (good && kind == kBlob) {
    connection.take_key(number,
                        {static_cast<const uint8_t*>(data) + (bytes - in.remaining()), in.remaining()});
  } else {
    good = false;
  }
  if (!good) connection.down(Status::kProtocol);
  return UCS_OK;
}

void UcxConnection::take_key(uint64_t key, std::span<const uint8_t> blob) noexcept {
  const auto known = keys_.find(key);
  if (known == keys_.end() || known->second.key != nullptr) return;
  if (blob.empty()) return down(Status::kStale);  // it is not registered any more
  if (blob.size() < 8 || blob.size() > kMaxBlobBytes) return down(Status::kProtocol);
  std::vector<uint8_t> padded{blob.begin(), blob.end()};
  padded.resize(blob.size() + 1024);  // UCX does not know the size
  if (ucx_.ucp_ep_rkey_unpack(endpoint_, padded.data(), &known->second.key) != UCS_OK) {
    known->second.key = nullptr;
    down(Status::kProtocol);
  }
}

}  // namespace towline::fabric

#endif  // TOWLINE_HAVE_UCX
