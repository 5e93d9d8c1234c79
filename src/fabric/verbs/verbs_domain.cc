#ifdef TOWLINE_HAVE_IBVERBS

#include "fabric/verbs/verbs_domain.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/copy/copy.h"
#include "base/error.h"
#include "base/id.h"
#include "base/log.h"
#include "base/short_text.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kRecordBytes = kLongestRecord;  // of a shared receive
constexpr uint32_t kSharedDepth = 2048;
constexpr uint32_t kMostInline = 128;
constexpr uint32_t kMostReads = 16;
constexpr uint32_t kMaxChain = 64;
constexpr uint32_t kPollsPerEventCheck = 4096;
constexpr uint64_t kFlushNs = kSecondNs;                  // a device that does not flush is given up
constexpr uint64_t kReceivesEndNs = 20 * kMillisecondNs;  // one that does not tell of it is not waited for
constexpr uint8_t kTimeoutExponent = 14;                  // 67 ms: times 7 tries, well below a second
constexpr uint8_t kRetries = 7;
constexpr uint8_t kRnrForEver = 7;
constexpr uint8_t kRnrTimer = 12;  // 0.64 ms

// A request's number: 8 bits of the connection's generation, 16 of its number, 40 of its cookie.
constexpr uint64_t kCookieMask = (uint64_t{1} << 40) - 1;
constexpr uint64_t kMarkerCookie = kCookieMask;
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;

uint64_t request_number(uint32_t generation, uint32_t connection, uint64_t cookie) noexcept {
  return uint64_t{generation & 0x7f} << 56 | uint64_t{connection & 0xffff} << 40 | (cookie & kCookieMask);
}

Status status_of(ibv_wc_status status) noexcept {
  switch (status) {
    case IBV_WC_SUCCESS:
      return Status::kOk;
    case IBV_WC_REM_ACCESS_ERR:
      return Status::kPermissionDenied;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
      return Status::kInvalidArgument;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return Status::kUnreachable;
    default:
      return Status::kIo;
  }
}

const char* text_of(ibv_wc_status status) noexcept {
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer's NIC refused the access (IBV_WC_REM_ACCESS_ERR)";
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer's NIC does not answer (IBV_WC_RETRY_EXC_ERR)";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer has no receive (IBV_WC_RNR_RETRY_EXC_ERR)";
    case IBV_WC_LOC_PROT_ERR:
      return "this NIC refused the local memory (IBV_WC_LOC_PROT_ERR)";
    case IBV_WC_REM_OP_ERR:
      return "the peer's NIC failed (IBV_WC_REM_OP_ERR)";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer's NIC calls the request invalid (IBV_WC_REM_INV_REQ_ERR)";
    default:
      return "a work request failed";
  }
}

ibv_wr_opcode opcode_of(RequestKind kind) noexcept {
  switch (kind) {
    case RequestKind::kWrite:
      return IBV_WR_RDMA_WRITE;
    case RequestKind::kWriteImmediate:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case RequestKind::kRead:
      return IBV_WR_RDMA_READ;
    case RequestKind::kSend:
      return IBV_WR_SEND;
  }
  return IBV_WR_SEND;
}

void set_nonblocking(int fd) noexcept {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

}  // namespace

VerbsDomain::VerbsDomain(const VerbsLibrary& library, const VerbsOptions& options)
    : library_(library), device_(library, options) {
  const ibv_device_attr& limits = device_.limits();
  const Gid& gid = device_.gid().gid;
  traits_.kind = !device_.port().roce           ? "verbs:ib"
                 : gid.type == GidType::kRoceV2 ? "verbs:roce-v2"
                                                : "verbs:roce-v1";
  traits_.name = fmt::format("verbs {} {}", device_.name(), gid.text());
  traits_.device = options.device;
  traits_.send_depth = static_cast<uint32_t>(std::clamp(limits.max_qp_wr - 2, 8, 1024));
  traits_.receive_depth = 128;
  traits_.completion_depth = static_cast<uint32_t>(std::clamp(limits.max_cqe - 64, 256, 16384));
  traits_.max_connections = static_cast<uint32_t>(std::clamp(limits.max_qp / 2, 2, 8192));
  traits_.chain = 16;
  traits_.slice_bytes =
      std::min<uint64_t>(256 << 10, std::max<uint32_t>(device_.port().max_message_bytes, 4096));
  // Twice what 400 Gb/s hold in 20 us; more would lie in slow rails when a transfer ends.
  traits_.window_bytes = 2 << 20;
  traits_.bandwidth_bytes_per_s = device_.port().bandwidth_bytes_per_s;
  traits_.immediate_bits = 32;
  traits_.ordered = true;
  traits_.completes_in_order = true;
  traits_.registers_beside = true;
  traits_.record_bytes = kRecordBytes;
  traits_.numa_node = device_.numa_node();
  pairs_.resize(traits_.max_connections);
  requests_.resize(kMaxChain);
  pieces_.resize(kMaxChain);
  try {
    open_queues();
  } catch (...) {
    let_go();
    throw;
  }
  TOWLINE_LOG(kInfo, "fabric: {}: {}; path MTU {} bytes, {} queue pairs at most", traits_.name,
              device_.gid().reason, 128 << device_.port().mtu, limits.max_qp);
}

VerbsDomain::~VerbsDomain() {
  for (uint32_t connection = 0; connection < pairs_.size(); ++connection) release(connection);
  let_go();
}

// Releases everything that would keep the device from being closed.
void VerbsDomain::let_go() noexcept {
  shared_.reset();
  device_.deregister_memory(buffers_key_);
}

void VerbsDomain::open_queues() {
  ibv_context* const context = device_.context();
  channel_ = {library_.create_comp_channel(context), {library_.destroy_comp_channel}};
  if (channel_ == nullptr) fail_errno(errno, "{}: ibv_create_comp_channel", traits_.name);
  const int entries = static_cast<int>(traits_.completion_depth) + 64;
  queue_ = {library_.create_cq(context, entries, nullptr, channel_.get(), 0), {library_.destroy_cq}};
  if (queue_ == nullptr) fail_errno(errno, "{}: ibv_create_cq of {} entries", traits_.name, entries);
  shared_depth_ =
      static_cast<uint32_t>(std::clamp(device_.limits().max_srq_wr, 1, static_cast<int>(kSharedDepth)));
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = shared_depth_;
  attributes.attr.max_sge = 1;
  shared_ = {library_.create_srq(device_.domain(), &attributes), {library_.destroy_srq}};
  if (shared_ == nullptr) fail_errno(errno, "{}: ibv_create_srq of {} receives", traits_.name, shared_depth_);
  buffers_ = std::make_unique<uint8_t[]>(std::size_t{shared_depth_} * kRecordBytes);
  buffers_key_ = device_.register_memory({buffers_.get(), std::size_t{shared_depth_} * kRecordBytes}, false);
  for (uint32_t buffer = 0; buffer < shared_depth_; ++buffer) give_buffer(buffer);
  set_nonblocking(channel_->fd);
  set_nonblocking(context->async_fd);
  events_ = UniqueFd{epoll_create1(EPOLL_CLOEXEC)};
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  for (const int fd : {channel_->fd, context->async_fd})
    if (!events_.valid() || epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0)
      fail_errno(errno, "{}: its events can't be waited for", traits_.name);
}

void VerbsDomain::give_buffer(uint32_t buffer) noexcept {
  ibv_sge piece{};
  piece.addr = reinterpret_cast<uint64_t>(buffers_.get() + std::size_t{buffer} * kRecordBytes);
  piece.length = kRecordBytes;
  piece.lkey = static_cast<uint32_t>(buffers_key_.local_key);
  ibv_recv_wr request{};
  request.wr_id = kReceiveBit | buffer;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  (void)ibv_post_srq_recv(shared_.get(), &request, &bad);
}

// ---- memory

Registration VerbsDomain::register_memory(const MemoryToRegister& memory) {
  return device_.register_memory(memory, true);
}

void VerbsDomain::deregister_memory(const Registration& registration) noexcept {
  device_.deregister_memory(registration);
}

// ---- connections

std::vector<uint8_t> VerbsDomain::open(uint32_t connection, ConnectionEnd) {
  Pair& pair = pairs_.at(connection);
  if (pair.queue != nullptr)
    fail(Status::kAlreadyExists, "{}: connection {} is open", traits_.name, connection);
  if (down_) fail(Status::kUnreachable, "{}: the port is {}", traits_.name, device_.port().state);
  const uint32_t generation = pair.generation + 1;
  pair = Pair{};
  pair.generation = generation;
  pair.receives.resize(std::bit_ceil(traits_.receive_depth));
  pair.queue = create_pair(pair);
  pair.number = pair.queue->qp_num;
  pair.first_psn = static_cast<uint32_t>(random_u64()) & 0xffffff;
  try {
    to_init(pair);
    by_number_[pair.number] = connection;
    return encode(end_of(pair));
  } catch (...) {
    by_number_.erase(pair.number);
    pair.queue.reset();
    throw;
  }
}

VerbsEndpoint VerbsDomain::end_of(const Pair& pair) const noexcept {
  VerbsEndpoint end;
  end.type = device_.port().roce ? device_.gid().gid.type : GidType::kInfiniBand;
  end.mtu = static_cast<uint8_t>(device_.port().mtu);
  end.reads =
      static_cast<uint8_t>(std::clamp(device_.limits().max_qp_rd_atom, 1, static_cast<int>(kMostReads)));
  end.lid = device_.port().lid;
  end.pair = pair.number;
  end.first_psn = pair.first_psn;
  end.gid = device_.gid().gid.bytes;
  return end;
}

VerbsObject<ibv_qp> VerbsDomain::create_pair(Pair& pair) {
  ibv_qp* made = nullptr;
  for (const uint32_t inline_bytes : {kMostInline, 0u}) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = queue_.get();
    attributes.srq = shared_.get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = traits_.send_depth + 1;  // and a marker
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_inline_data = inline_bytes;
    errno = 0;
    made = library_.create_qp(device_.domain(), &attributes);
    if (made == nullptr) continue;
    pair.max_inline = std::min(attributes.cap.max_inline_data, kMostInline);
    break;
  }
  if (made == nullptr) {
    const int error = errno;
    fail(error == ENOMEM || error == ENOSPC ? Status::kLimitExceeded : Status::kIo,
         "{}: no queue pair can be made: {} ({} are open here, the device has at most {})", traits_.name,
         errno_text(error), by_number_.size(), device_.limits().max_qp);
  }
  return {made, {library_.destroy_qp}};
}

void VerbsDomain::to_init(Pair& pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = device_.port().pkey_index;
  attributes.port_num = device_.port_number();
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  const int error = library_.modify_qp(pair.queue.get(), &attributes,
                                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) fail_errno(error, "{}: the queue pair can't be initialised", traits_.name);
}

void VerbsDomain::check_end(const VerbsEndpoint& other) const {
  const GidType mine = device_.port().roce ? device_.gid().gid.type : GidType::kInfiniBand;
  Gid gid;
  gid.type = other.type;
  gid.bytes = other.gid;
  if (other.type != mine)
    fail(Status::kUnreachable, "{}: the peer's {} is of another sort; verbs:DEVICE/PORT?gid=INDEX chooses",
         traits_.name, gid.text());
  // Its LID means nothing here, and only the subnet manager knows the router's.
  constexpr std::size_t kSubnetBytes = 8;
  if (!device_.port().roce &&
      std::memcmp(other.gid.data(), device_.gid().gid.bytes.data(), kSubnetBytes) != 0)
    fail(Status::kUnreachable,
         "{}: the peer's {} is in another subnet of InfiniBand, which rails of verbs do not reach; use tcp",
         traits_.name, gid.text());
}

void VerbsDomain::connect(uint32_t connection, std::span<const uint8_t> other_end) {
  Pair& pair = pairs_.at(connection);
  const auto other = decode_verbs_endpoint(other_end);
  if (!other)
    fail(Status::kProtocol, "{}: {} bytes are no end of a connection", traits_.name, other_end.size());
  check_end(*other);
  if (other->mtu != device_.port().mtu)
    TOWLINE_LOG_EVERY(kWarning, 10 * kSecondNs,
                      "fabric: {}: path MTU {} bytes here, {} at the peer: the smaller is used", traits_.name,
                      128 << device_.port().mtu, 128 << other->mtu);
  to_ready(pair, *other);
  pair.connected = true;
}

// To receive first, then to send.
void VerbsDomain::to_ready(Pair& pair, const VerbsEndpoint& other) {
  const auto reads =
      static_cast<uint8_t>(std::clamp(device_.limits().max_qp_rd_atom, 1, static_cast<int>(kMostReads)));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min<int>(other.mtu, device_.port().mtu));
  attributes.dest_qp_num = other.pair;
  attributes.rq_psn = other.first_psn;
  attributes.max_dest_rd_atomic = reads;
  attributes.min_rnr_timer = kRnrTimer;
  attributes.ah_attr.port_num = device_.port_number();
  attributes.ah_attr.dlid = other.lid;
  if (device_.port().roce) {
    attributes.ah_attr.is_global = 1;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, other.gid.data(), other.gid.size());
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(device_.gid().gid.index);
    attributes.ah_attr.grh.hop_limit = 64;
  }
  int error = library_.modify_qp(pair.queue.get(), &attributes,
                                 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) {
    Gid gid;
    gid.type = other.type;
    gid.bytes = other.gid;
    fail_errno(error, "{}: no way to the peer's {} (is it in a network that {} reaches?)", traits_.name,
               gid.text(), device_.gid().gid.text());
  }
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = pair.first_psn;
  attributes.timeout = kTimeoutExponent;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kRnrForEver;
  attributes.max_rd_atomic = std::min(reads, std::max<uint8_t>(other.reads, 1));
  error = library_.modify_qp(pair.queue.get(), &attributes,
                             IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) fail_errno(error, "{}: the queue pair can't be made ready to send", traits_.name);
}

void VerbsDomain::stop(uint32_t connection) noexcept {
  Pair& pair = pairs_[connection];
  if (pair.queue == nullptr || pair.stopped) return;
  pair.stopped = true;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  (void)library_.modify_qp(pair.queue.get(), &attributes, IBV_QP_STATE);
  if (pair.connected) {
    ibv_send_wr marker{};
    marker.wr_id = request_number(pair.generation, connection, kMarkerCookie);
    marker.opcode = IBV_WR_RDMA_WRITE;
    marker.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(pair.queue.get(), &marker, &bad) != 0) pair.marker_seen = true;
    drain(pair);
  }
  pair.queue.reset();
  by_number_.erase(pair.number);
}

// The queue is polled once more after what says that the end was reached: a receive that is flushed comes before that event,
// and destroying the queue pair would drop it, and its buffer.
void VerbsDomain::drain(Pair& pair) noexcept {
  const uint64_t start_ns = monotonic_now_ns();
  Completion batch[32];
  for (bool ended = false;;) {
    const std::size_t count = poll_queue(batch, std::size(batch));
    for (std::size_t i = 0; i < count; ++i) keep(batch[i]);
    if (count != 0) continue;
    if (ended) return;
    check_events();
    const uint64_t waited_ns = monotonic_now_ns() - start_ns;
    const bool flushed = pair.marker_seen || dead_ || waited_ns > kFlushNs;
    ended = flushed && (pair.receives_ended || dead_ || waited_ns > kReceivesEndNs);
  }
}

// For poll(). A completion that finds no room ends all connections: what is complete would be unknown.
void VerbsDomain::keep(const Completion& completion) noexcept {
  try {
    waiting_.push_back(completion);
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
}

void VerbsDomain::release(uint32_t connection) noexcept {
  Pair& pair = pairs_[connection];
  stop(connection);
  std::erase_if(waiting_, [&](const Completion& completion) {
    return completion.connection == connection && completion.kind != CompletionKind::kDomainDown;
  });
  const uint32_t generation = pair.generation;
  pair = Pair{};
  pair.generation = generation;
}

// ---- the data path

std::size_t VerbsDomain::post(uint32_t connection, const WorkRequest* requests, std::size_t count) noexcept {
  Pair& pair = pairs_[connection];
  if (!pair.connected || pair.failed || pair.stopped) return 0;
  std::size_t done = 0;
  while (done < count) {
    const std::size_t chain = std::min<std::size_t>(count - done, kMaxChain);
    for (std::size_t i = 0; i < chain; ++i) {
      const WorkRequest& from = requests[done + i];
      ibv_sge& piece = pieces_[i];
      piece.addr = from.local;
      piece.length = from.length;
      piece.lkey = static_cast<uint32_t>(from.local_key);
      ibv_send_wr& to = requests_[i];
      to.wr_id = request_number(pair.generation, connection, from.cookie);
      to.next = i + 1 < chain ? &requests_[i + 1] : nullptr;
      to.sg_list = &piece;
      to.num_sge = from.length == 0 ? 0 : 1;
      to.opcode = opcode_of(from.kind);
      to.send_flags = from.signalled ? unsigned{IBV_SEND_SIGNALED} : 0u;
      if (from.kind != RequestKind::kRead && from.length <= pair.max_inline && from.length != 0 &&
          (from.local_key & kDeviceMemoryKey) == 0)
        to.send_flags |= IBV_SEND_INLINE;
      to.imm_data = htonl(static_cast<uint32_t>(from.immediate));
      to.wr.rdma.remote_addr = from.remote;
      to.wr.rdma.rkey = static_cast<uint32_t>(from.remote_key);
    }
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(pair.queue.get(), requests_.data(), &bad);
    if (error != 0) {
      if (bad != nullptr) done += static_cast<std::size_t>(bad - requests_.data());
      tell("a work request was not taken", ShortText("{} ({})", strerrordesc_np(error), error));
      fail_pair(connection, Status::kIo);
      return done;
    }
    done += chain;
  }
  return done;
}

std::size_t VerbsDomain::post_receives(uint32_t connection, const ReceiveRequest* requests,
                                       std::size_t count) noexcept {
  Pair& pair = pairs_[connection];
  if (pair.queue == nullptr || pair.stopped) return 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (pair.receives_tail - pair.receives_head == pair.receives.size()) return i;
    pair.receives[pair.receives_tail++ & (pair.receives.size() - 1)] = requests[i];
  }
  return count;
}

std::size_t VerbsDomain::poll(Completion* completions, std::size_t capacity) noexcept {
  if (slept_ || ++polls_ >= kPollsPerEventCheck) {
    slept_ = false;
    polls_ = 0;
    check_events();
  }
  std::size_t count = 0;
  if (lost_ && capacity != 0) {
    lost_ = false;
    waiting_.clear();
    completions[count++] = {0, 0, 0, 0, Status::kOutOfMemory, CompletionKind::kDomainDown};
  }
  for (; count < capacity && !waiting_.empty(); ++count) {
    completions[count] = waiting_.front();
    waiting_.pop_front();
  }
  return count + poll_queue(completions + count, capacity - count);
}

std::size_t VerbsDomain::poll_queue(Completion* completions, std::size_t capacity) noexcept {
  ibv_wc entries[32];
  std::size_t given = 0;
  const int wanted = static_cast<int>(std::min<std::size_t>(capacity, std::size(entries)));
  const int count = wanted == 0 ? 0 : ibv_poll_cq(queue_.get(), wanted, entries);
  for (int i = 0; i < count; ++i)
    if (convert(entries[i], completions[given])) ++given;
  // Markers and the like are taken without being given: look again rather than report an empty queue.
  return given == 0 && count > 0 ? poll_queue(completions, capacity) : given;
}

bool VerbsDomain::convert(const ibv_wc& from, Completion& to) noexcept {
  if ((from.wr_id & kReceiveBit) != 0) return convert_receive(from, to);
  const auto connection = static_cast<uint32_t>(from.wr_id >> 40 & 0xffff);
  if (connection >= pairs_.size()) return false;
  Pair& pair = pairs_[connection];
  if ((pair.generation & 0x7f) != (from.wr_id >> 56 & 0x7f) || pair.queue == nullptr) return false;
  if ((from.wr_id & kCookieMask) == kMarkerCookie) {
    pair.marker_seen = true;
    return false;
  }
  const Status status = status_of(from.status);
  if (status != Status::kOk && !pair.failed) {
    pair.failed = true;
    if (!pair.stopped) tell("a connection failed", text_of(from.status));
  }
  to = {from.wr_id & kCookieMask, 0, connection, from.byte_len, status, CompletionKind::kRequest};
  return true;
}

bool VerbsDomain::convert_receive(const ibv_wc& from, Completion& to) noexcept {
  const auto buffer = static_cast<uint32_t>(from.wr_id & ~kReceiveBit);
  if (buffer >= shared_depth_) return false;
  const auto found = by_number_.find(from.qp_num);
  bool given = false;
  if (found != by_number_.end()) {
    Pair& pair = pairs_[found->second];
    const bool has_receive = pair.receives_head != pair.receives_tail;
    if (from.status != IBV_WC_SUCCESS || !has_receive) {
      // Without a receive of its own the peer sent more than it had credit for.
      if (from.status != IBV_WC_WR_FLUSH_ERR)
        fail_pair(found->second, has_receive ? Status::kIo : Status::kProtocol);
    } else {
      const ReceiveRequest receive = pair.receives[pair.receives_head++ & (pair.receives.size() - 1)];
      const bool immediate = (from.wc_flags & IBV_WC_WITH_IMM) != 0;
      const uint32_t bytes = immediate ? 0 : std::min(from.byte_len, std::min(receive.length, kRecordBytes));
      copy_bytes(reinterpret_cast<void*>(receive.address),
                 buffers_.get() + std::size_t{buffer} * kRecordBytes, bytes);
      to = {receive.cookie, immediate ? ntohl(from.imm_data) : 0,
            found->second,  bytes,
            Status::kOk,    immediate ? CompletionKind::kReceiveImmediate : CompletionKind::kReceive};
      given = true;
    }
  }
  give_buffer(buffer);
  return given;
}

// ---- events

bool VerbsDomain::arm() noexcept {
  clear_queue_events();
  if (ibv_req_notify_cq(queue_.get(), 0) != 0) return false;
  // Completions before the request for notice cause no event: poll for them.
  Completion batch[16];
  const std::size_t count = poll_queue(batch, std::size(batch));
  for (std::size_t i = 0; i < count; ++i) keep(batch[i]);
  check_events();
  slept_ = true;
  return waiting_.empty() && !lost_;
}

void VerbsDomain::clear_queue_events() noexcept {
  ibv_cq* queue = nullptr;
  void* cookie = nullptr;
  while (library_.get_cq_event(channel_.get(), &queue, &cookie) == 0) library_.ack_cq_events(queue, 1);
}

void VerbsDomain::check_events() noexcept {
  ibv_async_event event{};
  while (library_.get_async_event(device_.context(), &event) == 0) {
    on_event(event);
    library_.ack_async_event(&event);  // destroying waits for it
  }
}

void VerbsDomain::on_event(const ibv_async_event& event) noexcept {
  const auto connection_of = [&](const ibv_qp* pair) {
    const auto found = by_number_.find(pair->qp_num);
    return found == by_number_.end() ? UINT32_MAX : found->second;
  };
  switch (event.event_type) {
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      if (const uint32_t connection = connection_of(event.element.qp); connection != UINT32_MAX)
        pairs_[connection].receives_ended = true;
      return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      if (const uint32_t connection = connection_of(event.element.qp); connection != UINT32_MAX) {
        tell("a queue pair broke", event.event_type == IBV_EVENT_QP_ACCESS_ERR
                                       ? "the peer asked for what it may not reach"
                                       : "its NIC says so");
        fail_pair(connection, Status::kIo);
      }
      return;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      dead_ = true;
      [[fallthrough]];
    case IBV_EVENT_PORT_ERR:
      if (!dead_ && event.element.port_num != device_.port_number()) return;
      if (down_) return;
      down_ = true;
      tell("it is down", dead_ ? "the device failed" : "the port lost its link");
      keep({0, 0, 0, 0, Status::kUnreachable, CompletionKind::kDomainDown});
      return;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
      (void)device_.refresh();  // for the connections to come
      return;
    default:
      return;
  }
}

bool VerbsDomain::recover() noexcept {
  if (dead_ || !device_.refresh()) return false;
  down_ = false;
  return true;
}

void VerbsDomain::fail_pair(uint32_t connection, Status status) noexcept {
  Pair& pair = pairs_[connection];
  if (pair.failed) return;
  pair.failed = true;
  keep({0, 0, connection, 0, status, CompletionKind::kConnectionDown});
}

// Connections end rarely, so this is no data path.
void VerbsDomain::tell(const char* what, const char* why) const noexcept {
  TOWLINE_LOG_EVERY(kInfo, kSecondNs, "fabric: {}: {}: {}", traits_.name, what, why);
}

std::unique_ptr<Domain> make_verbs_domain(const VerbsOptions& options) {
  return std::make_unique<VerbsDomain>(VerbsLibrary::get(), options);
}

}  // namespace towline::fabric

#else

#include "base/error.h"
#include "fabric/verbs/verbs.h"

namespace towline::fabric {

std::unique_ptr<Domain> make_verbs_domain(const VerbsOptions&) {
  fail(Status::kUnsupported, "this library was built without libibverbs' headers");
}

}  // namespace towline::fabric

#endif
