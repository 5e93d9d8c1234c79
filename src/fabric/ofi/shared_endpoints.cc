// A rail's connections over two endpoints: one for all that it initiates, and one for all that peers initiate. A poll
// reads one completion queue however many connections there are, and a connection costs an address.
//
// Stopping. rxm keeps a connection of its own for each pair of endpoints. Removing the peer's address ends it
// (FI_AV_REMOVE_CLEANUP): what this side has under way completes with an error, and what the peer has sent and rxm has not
// yet read is dropped. There are two endpoints because then a pair of them has one connection of ours, so that the end of
// one ends no other. An address serves one connection at a time for the same reason.
//
// Reconnecting. rxm makes a connection that was lost anew when something is posted, and tells nobody. But the other end may
// be stopped by then, and must not get anything any more. While rxm connects it refuses requests with EAGAIN; over a
// connection that has nothing under way nothing else is refused so. So this means that the connection was lost, once it
// has taken a request.
//
// Receives. Any peer's record may fill any buffer of its endpoint. So the buffers are the domain's own, and a record is
// copied into its connection's next receive. A record names its connection by the token that this end gave to that peer
// alone. One without a valid token is dropped; more records than there are receives end their connection.
#ifdef TOWLINE_HAVE_LIBFABRIC

#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <utility>

#include "base/copy/copy.h"
#include "base/error.h"
#include "base/id.h"
#include "base/short_text.h"
#include "fabric/ofi/ofi_port.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kMaxConnections = 2048;
constexpr uint64_t kNumberMask = 0xffff;  // of a token: the connection's number
constexpr uint32_t kRecordBytes = kLongestRecord;
// Of an endpoint. rxm keeps what comes beyond them until they are free.
constexpr std::size_t kReceives = 256;
constexpr std::size_t kQueueEntries = 4096;  // libfabric's queues of software grow where more complete
constexpr std::size_t kBatch = 64;

struct Operations;

// The context given to libfabric, which keeps it until the operation has completed.
struct Operation {
  fi_context2 context;  // first: libfabric knows the operation by it
  Operations* of;       // null: a receive
  Operation* next;      // in a list of free ones
  uint64_t cookie;      // of a request
  uint8_t* buffer;      // of a receive
  fid_ep* endpoint;     // of a receive
};

// The requests of one connection. They stay until libfabric has let go of all.
struct Operations {
  explicit Operations(uint32_t most) : all(std::make_unique_for_overwrite<Operation[]>(most)), count(most) {}

  Operation* take() noexcept {
    Operation* operation = free;
    if (operation != nullptr) {
      free = operation->next;
    } else if (used < count) {  // the others' memory is not touched before it is needed
      operation = &all[used++];
      operation->of = this;
    } else {
      return nullptr;
    }
    ++under_way;
    return operation;
  }
  void give(Operation* operation) noexcept {
    operation->next = free;
    free = operation;
    --under_way;
  }

  std::unique_ptr<Operation[]> all;
  uint32_t count;
  uint32_t used = 0;
  uint32_t under_way = 0;
  Operation* free = nullptr;
  uint32_t connection = UINT32_MAX;  // its number, while it has not been released
};

struct Side {
  OfiEndpoint end;
  std::vector<uint8_t> name;
  std::set<std::vector<uint8_t>> peers;  // names of their endpoints
  std::unique_ptr<uint8_t[]> buffers;
  Registration buffers_key;
  std::array<Operation, kReceives> receives;
};

struct SharedConnection {
  Side* side = nullptr;  // null: not open
  std::unique_ptr<Operations> operations;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  std::set<std::vector<uint8_t>>::iterator peer_name;  // while it has a peer
  uint64_t token = 0;                                  // that comes with its records
  uint64_t peer_token = 0;                             // that the peer wants with records
  bool established = false;
  bool failed = false;
  Status why = Status::kIo;
  std::unique_ptr<ReceiveRequest[]> receives;  // a ring of a power of two
  uint64_t receives_size = 0;
  uint64_t receives_head = 0;
  uint64_t receives_tail = 0;

  ReceiveRequest& at(uint64_t position) noexcept { return receives[position & (receives_size - 1)]; }
};

class SharedOfiDomain final : public OfiPort {
 public:
  SharedOfiDomain(OfiInfo info, const OfiOptions& options) : OfiPort(std::move(info), options) {
    traits_.completion_depth = 1 << 16;
    traits_.max_connections = kMaxConnections;
    traits_.record_bytes = kRecordBytes;
    connections_.resize(kMaxConnections);
    failed_.reserve(kMaxConnections);
    queue_ = open_queue(kQueueEntries, FI_CQ_FORMAT_DATA);
    watch(*queue_);
  }
  ~SharedOfiDomain() override {
    for (auto& side : sides_) {
      if (side == nullptr) continue;
      side->end.endpoint.reset();
      deregister_memory(side->buffers_key);
    }
  }

  std::vector<uint8_t> open(uint32_t number, ConnectionEnd end) override {
    SharedConnection& connection = connections_.at(number);
    if (connection.side != nullptr)
      fail(Status::kAlreadyExists, "{}: connection {} is open", traits_.name, number);
    Side& side = side_of(end);
    SharedConnection made;
    made.operations = fresh_operations();
    made.operations->connection = number;
    made.receives_size = std::bit_ceil(traits_.receive_depth);
    made.receives = std::make_unique_for_overwrite<ReceiveRequest[]>(made.receives_size);
    while (made.token >> 16 == 0) made.token = (random_u64() & ~kNumberMask) | number;
    made.side = &side;
    std::vector<uint8_t> mine = encode(OfiEnd{made.token, side.name});
    connection = std::move(made);
    return mine;
  }

  void connect(uint32_t number, std::span<const uint8_t> other_end) override {
    SharedConnection& connection = connections_.at(number);
    const OfiEnd other = decode(other_end);
    if (other.name.size() != connection.side->name.size())
      fail(Status::kProtocol, "{}: the peer's address has {} bytes, not {}", traits_.name, other.name.size(),
           connection.side->name.size());
    auto [name, fresh] = connection.side->peers.insert(other.name);
    if (!fresh) fail(Status::kUnreachable, "{}: the peer's endpoint has a connection already", traits_.name);
    try {
      connection.peer = insert(*connection.side->end.table, other);
    } catch (...) {
      connection.side->peers.erase(name);
      throw;
    }
    connection.peer_name = name;
    connection.peer_token = other.token;
  }

  void stop(uint32_t number) noexcept override {
    SharedConnection& connection = connections_[number];
    connection.failed = true;
    if (connection.peer == FI_ADDR_UNSPEC) return;
    fi_av_remove(connection.side->end.table.get(), &connection.peer, 1, 0);
    connection.peer = FI_ADDR_UNSPEC;
    connection.side->peers.erase(connection.peer_name);
  }

  void release(uint32_t number) noexcept override {
    stop(number);
    SharedConnection& connection = connections_[number];
    connection.operations->connection = UINT32_MAX;
    spare_.push_back(std::move(connection.operations));
    connection = SharedConnection{};
    std::erase(failed_, number);
  }

  std::size_t post(uint32_t number, const WorkRequest* requests, std::size_t count) noexcept override {
    SharedConnection& connection = connections_[number];
    if (connection.peer == FI_ADDR_UNSPEC || connection.failed) return 0;
    Operations& operations = *connection.operations;
    for (std::size_t i = 0; i < count; ++i) {
      Operation* operation = operations.take();
      if (operation == nullptr) return i;
      operation->cookie = requests[i].cookie;
      const ssize_t result = start(connection.side->end.endpoint.get(), connection.peer,
                                   connection.peer_token, requests[i], operation);
      if (result == 0) {
        connection.established = true;
        continue;
      }
      operations.give(operation);
      if (result != -FI_EAGAIN) {
        fail_connection(number, static_cast<int>(-result));
      } else if (connection.established && operations.under_way == 0) {
        fail_connection(number, FI_ECONNABORTED);
      }
      return i;
    }
    return count;
  }

  std::size_t post_receives(uint32_t number, const ReceiveRequest* requests,
                            std::size_t count) noexcept override {
    SharedConnection& connection = connections_[number];
    if (connection.side == nullptr || connection.failed) return 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (connection.receives_tail - connection.receives_head == connection.receives_size) return i;
      connection.at(connection.receives_tail++) = requests[i];
    }
    return count;
  }

  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    std::size_t count = tell_failures(completions, capacity);
    post_unposted();
    // Some entries tell nothing: late ones, and records of strangers.
    for (std::size_t rounds = 0; rounds < kBatch && count < capacity; ++rounds) {
      fi_cq_data_entry entries[kBatch];
      const ssize_t read = fi_cq_read(queue_.get(), entries, std::min(kBatch, capacity - count));
      if (read == -FI_EAVAIL) {
        count += poll_error(completions[count]) ? 1 : 0;
        continue;
      }
      for (ssize_t i = 0; i < read; ++i) count += convert(entries[i], completions[count]) ? 1 : 0;
      if (read <= 0 || count != 0) break;
    }
    return count;
  }

  bool arm() noexcept override {
    return waits_ && failed_.empty() && unposted_ == nullptr && may_wait(*queue_) && is_quiet();
  }

 private:
  // Made when a connection first needs it: it costs memory and a port.
  Side& side_of(ConnectionEnd end) {
    auto& side = sides_[static_cast<std::size_t>(end)];
    if (side != nullptr) return *side;
    auto made = std::make_unique<Side>();
    made->end = open_endpoint(*queue_, kMaxConnections / 2);
    made->name = name_of(*made->end.endpoint);
    made->buffers = std::make_unique_for_overwrite<uint8_t[]>(kReceives * kRecordBytes);
    made->buffers_key = register_memory({made->buffers.get(), kReceives * kRecordBytes});
    side = std::move(made);
    for (std::size_t i = 0; i < kReceives; ++i) {
      Operation& receive = side->receives[i];
      receive = {};
      receive.buffer = side->buffers.get() + i * kRecordBytes;
      receive.endpoint = side->end.endpoint.get();
      receive.cookie = side->buffers_key.local_key;
      post_receive(receive);
    }
    return *side;
  }

  // Those of a connection that was released serve the next one, when libfabric has let go of them.
  std::unique_ptr<Operations> fresh_operations() {
    const auto free = std::ranges::find_if(spare_, [](const auto& spare) { return spare->under_way == 0; });
    if (free == spare_.end()) {
      // release() adds to it and must not fail.
      spare_.reserve(spare_.size() + kMaxConnections);
      return std::make_unique<Operations>(traits_.send_depth);
    }
    auto operations = std::move(*free);
    spare_.erase(free);
    return operations;
  }

  void post_receive(Operation& receive) noexcept {
    const ssize_t result = fi_recv(receive.endpoint, receive.buffer, kRecordBytes,
                                   reinterpret_cast<void*>(receive.cookie), FI_ADDR_UNSPEC, &receive);
    if (result == 0) return;
    if (result != -FI_EAGAIN) tell(static_cast<int>(-result), "a receive was not taken");
    receive.next = unposted_;
    unposted_ = &receive;
  }

  void post_unposted() noexcept {
    for (Operation* receive = std::exchange(unposted_, nullptr); receive != nullptr;) {
      Operation* const next = receive->next;
      post_receive(*receive);
      receive = next;
    }
  }

  void fail_connection(uint32_t number, int error) noexcept {
    if (connections_[number].failed) return;
    fail_connection(number, ofi_status_of(error));
    tell(error, "");
  }
  void fail_connection(uint32_t number, Status status) noexcept {
    SharedConnection& connection = connections_[number];
    if (connection.failed) return;
    connection.failed = true;
    connection.why = status;
    failed_.push_back(number);
  }

  std::size_t tell_failures(Completion* completions, std::size_t capacity) noexcept {
    std::size_t count = 0;
    while (count < capacity && !failed_.empty()) {
      const uint32_t number = failed_.back();
      failed_.pop_back();
      completions[count++] = {0, 0, number, 0, connections_[number].why, CompletionKind::kConnectionDown};
    }
    return count;
  }

  // False: it tells nothing.
  bool convert(const fi_cq_data_entry& entry, Completion& to) noexcept {
    auto* operation = static_cast<Operation*>(entry.op_context);
    if (operation == nullptr) return false;
    if (operation->of == nullptr) {
      const bool told = take_record(entry, *operation, to);
      post_receive(*operation);
      return told;
    }
    const uint32_t number = operation->of->connection;
    to = {operation->cookie, 0, number, 0, Status::kOk, CompletionKind::kRequest};
    operation->of->give(operation);
    return number != UINT32_MAX;
  }

  bool take_record(const fi_cq_data_entry& entry, const Operation& receive, Completion& to) noexcept {
    const uint64_t number = entry.data & kNumberMask;
    if ((entry.flags & FI_REMOTE_CQ_DATA) == 0 || number >= connections_.size()) return false;
    SharedConnection& connection = connections_[number];
    if (connection.side == nullptr || connection.token != entry.data) return false;
    if (connection.receives_head == connection.receives_tail) {
      fail_connection(static_cast<uint32_t>(number), Status::kProtocol);
      return false;
    }
    const ReceiveRequest& request = connection.at(connection.receives_head++);
    const auto bytes = static_cast<uint32_t>(std::min<std::size_t>(entry.len, request.length));
    copy_bytes(reinterpret_cast<void*>(request.address), receive.buffer, bytes);
    to = {request.cookie, 0, static_cast<uint32_t>(number), bytes, Status::kOk, CompletionKind::kReceive};
    return true;
  }

  // A receive's error is not its connection's: nobody knows whose it was.
  bool poll_error(Completion& to) noexcept {
    fi_cq_err_entry entry{};
    if (fi_cq_readerr(queue_.get(), &entry, 0) != 1) return false;
    tell(entry.err, ShortText("provider's error {}", entry.prov_errno));
    auto* operation = static_cast<Operation*>(entry.op_context);
    if (operation == nullptr) return false;
    if (operation->of == nullptr) {
      post_receive(*operation);
      return false;
    }
    const uint32_t number = operation->of->connection;
    to = {operation->cookie, 0, number, 0, ofi_status_of(entry.err), CompletionKind::kRequest};
    operation->of->give(operation);
    return number != UINT32_MAX;
  }

  Fid<fid_cq> queue_;
  std::array<std::unique_ptr<Side>, 2> sides_;  // by ConnectionEnd
  std::vector<SharedConnection> connections_;
  std::vector<std::unique_ptr<Operations>> spare_;
  std::vector<uint32_t> failed_;  // not told yet
  Operation* unposted_ = nullptr;
};

}  // namespace

bool may_share_endpoints(const fi_info& info, const OfiOptions& options) noexcept {
  // Only rxm ends what is under way to one peer, and over verbs it refuses requests for other reasons, too.
  return options.provider == "tcp;ofi_rxm" && OfiLibrary::get().ends_removed() &&
         info.domain_attr->cq_data_size >= sizeof(uint64_t);
}

std::unique_ptr<Domain> make_shared_ofi_domain(OfiInfo info, const OfiOptions& options) {
  return std::make_unique<SharedOfiDomain>(std::move(info), options);
}

}  // namespace towline::fabric

#endif
