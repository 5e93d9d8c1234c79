// Each connection is an endpoint of its own with its own completion queue and a table of one address. So closing
// an endpoint ends exactly one connection, as it does with a queue pair, and leaves no stale completions. This serves
// providers that can't end one peer of an endpoint; shared_endpoints.cc serves the others.
#include "fabric/ofi/ofi.h"

#include "base/error.h"

#ifdef TOWLINE_HAVE_LIBFABRIC

#include <algorithm>
#include <utility>

#include "base/short_text.h"
#include "fabric/ofi/ofi_port.h"

namespace towline::fabric {
namespace {

struct OfiConnection;

// The context given to libfabric, which keeps it until the operation has completed.
struct OfiOperation {
  fi_context2 context;  // first: libfabric knows the operation by it
  uint64_t cookie;
  OfiOperation* next;  // of those that libfabric knows as one; else of the list that it is in
  uint32_t length;
  Status status;
  bool receive;
};

struct OfiConnection {
  Fid<fid_cq> queue;
  OfiEndpoint end;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  uint64_t token = 0;  // that the peer wants with records
  std::vector<OfiOperation> operations;
  OfiOperation* free = nullptr;
  OfiOperation* ended = nullptr;  // and not told yet, in order
  OfiOperation* ended_last = nullptr;
  uint32_t under_way = 0;  // requests
  bool established = false;
  bool open = false;
  bool failed = false;
  bool failure_told = false;
  Status why = Status::kIo;

  OfiOperation* take() noexcept {
    OfiOperation* operation = free;
    if (operation != nullptr) free = operation->next;
    return operation;
  }
  void give(OfiOperation* operation) noexcept {
    operation->next = free;
    free = operation;
  }
  // One for each request, the first of which libfabric gets; null: there are too few.
  OfiOperation* take(std::span<const WorkRequest> requests) noexcept {
    OfiOperation* first = nullptr;
    for (std::size_t i = requests.size(); i-- != 0;) {
      OfiOperation* operation = take();
      if (operation == nullptr) {
        give_all(first);
        return nullptr;
      }
      operation->cookie = requests[i].cookie;
      operation->receive = false;
      operation->next = first;
      first = operation;
    }
    return first;
  }
  void give_all(OfiOperation* first) noexcept {
    while (first != nullptr) give(std::exchange(first, first->next));
  }
  void end_all(OfiOperation* first, uint32_t length, Status status) noexcept {
    if (first == nullptr) return;
    (ended == nullptr ? ended : ended_last->next) = first;
    for (OfiOperation* operation = first; operation != nullptr; operation = operation->next) {
      operation->length = length;
      operation->status = status;
      ended_last = operation;
    }
  }
};

class OfiDomain final : public OfiPort {
 public:
  OfiDomain(OfiInfo info, const OfiOptions& options) : OfiPort(std::move(info), options) {
    traits_.completion_depth = 1 << 16;  // each connection has a queue of its own
    traits_.max_connections = 256;
    connections_.resize(traits_.max_connections);
    open_.reserve(traits_.max_connections);
  }

  std::vector<uint8_t> open(uint32_t number, ConnectionEnd) override {
    OfiConnection& connection = connections_.at(number);
    if (connection.open) fail(Status::kAlreadyExists, "{}: connection {} is open", traits_.name, number);
    OfiConnection made;
    made.operations.resize(std::size_t{traits_.send_depth} + traits_.receive_depth);
    for (OfiOperation& operation : made.operations) made.give(&operation);
    made.queue = open_queue(made.operations.size(), FI_CQ_FORMAT_MSG);
    made.end = open_endpoint(*made.queue, 1);
    const std::vector<uint8_t> mine = encode(OfiEnd{0, name_of(*made.end.endpoint)});
    made.open = true;
    connection = std::move(made);
    watch(*connection.queue);
    open_.push_back(number);
    return mine;
  }

  void connect(uint32_t number, std::span<const uint8_t> other_end) override {
    OfiConnection& connection = connections_.at(number);
    const OfiEnd other = decode(other_end);
    connection.peer = insert(*connection.end.table, other);
    connection.token = other.token;
  }

  void stop(uint32_t number) noexcept override {
    OfiConnection& connection = connections_[number];
    connection.end.endpoint.reset();
    connection.failed = connection.failure_told = true;
  }

  void release(uint32_t number) noexcept override {
    OfiConnection& connection = connections_[number];
    connection.end.endpoint.reset();
    connection = OfiConnection{};
    std::erase(open_, number);
  }

  std::size_t post(uint32_t number, const WorkRequest* requests, std::size_t count) noexcept override {
    OfiConnection& connection = connections_[number];
    if (!connection.open || connection.failed) return 0;
    for (std::size_t i = 0; i < count;) {
      const std::span<const WorkRequest> group = first_together({requests + i, count - i});
      OfiOperation* operation = connection.take(group);
      if (operation == nullptr) return i;
      const int64_t result =
          group.size() == 1
              ? start(connection.end.endpoint.get(), connection.peer, connection.token, group[0], operation)
              : start_together(connection.end.endpoint.get(), connection.peer, group, operation);
      if (result == 0) {
        connection.under_way += static_cast<uint32_t>(group.size());
        connection.established = true;
        i += group.size();
        continue;
      }
      connection.give_all(operation);
      // An end that shares its endpoint stays reachable when it has stopped: rxm must not connect again.
      const bool lost = connection.token != 0 && connection.established && connection.under_way == 0;
      if (result != -FI_EAGAIN) {
        fail_connection(connection, static_cast<int>(-result));
      } else if (lost) {
        fail_connection(connection, FI_ECONNABORTED);
      }
      return i;
    }
    return count;
  }

  std::size_t post_receives(uint32_t number, const ReceiveRequest* requests,
                            std::size_t count) noexcept override {
    OfiConnection& connection = connections_[number];
    if (!connection.open || connection.failed) return 0;
    for (std::size_t i = 0; i < count; ++i) {
      OfiOperation* operation = connection.take();
      if (operation == nullptr) return i;
      operation->cookie = requests[i].cookie;
      operation->next = nullptr;
      operation->receive = true;
      int64_t result = -FI_EAGAIN;
      for (int tries = 0; tries < 1000 && result == -FI_EAGAIN; ++tries)
        result = fi_recv(connection.end.endpoint.get(), reinterpret_cast<void*>(requests[i].address),
                         requests[i].length, reinterpret_cast<void*>(requests[i].local_key), FI_ADDR_UNSPEC,
                         operation);
      if (result == 0) continue;
      connection.give(operation);
      fail_connection(connection, static_cast<int>(-result));
      return i;
    }
    return count;
  }

  // Every connection gets its turn, so that a busy one does not starve the others.
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    std::size_t count = 0;
    const std::size_t connections = open_.size();
    for (std::size_t i = 0; i < connections && count < capacity; ++i) {
      const uint32_t number = open_[(turn_ + i) % connections];
      count += poll_one(number, completions + count, capacity - count);
    }
    ++turn_;
    return count;
  }

  bool arm() noexcept override {
    if (!waits_) return false;
    for (const uint32_t number : open_) {
      if (connections_[number].ended != nullptr) return false;
      if (!connections_[number].failed && !may_wait(*connections_[number].queue)) return false;
    }
    return is_quiet();
  }

 private:
  void fail_connection(OfiConnection& connection, int error) noexcept {
    if (connection.failed) return;
    connection.failed = true;
    connection.why = ofi_status_of(error);
    tell(error, "");
  }

  std::size_t poll_one(uint32_t number, Completion* completions, std::size_t capacity) noexcept {
    constexpr std::size_t kBatch = 64;
    OfiConnection& connection = connections_[number];
    fi_cq_msg_entry entries[kBatch];
    std::size_t count = 0;
    if (connection.failed && !connection.failure_told) {
      connection.failure_told = true;
      completions[count++] = {0, 0, number, 0, connection.why, CompletionKind::kConnectionDown};
      if (count == capacity) return count;
    }
    count += tell_ended(number, connection, completions + count, capacity - count);
    if (count == capacity) return count;
    const ssize_t read = fi_cq_read(connection.queue.get(), entries, std::min(kBatch, capacity - count));
    if (read == -FI_EAVAIL) {
      take_error(connection);
    } else if (read < 0 && read != -FI_EAGAIN) {
      fail_connection(connection, static_cast<int>(-read));
    }
    for (ssize_t i = 0; i < read; ++i)
      connection.end_all(static_cast<OfiOperation*>(entries[i].op_context),
                         static_cast<uint32_t>(entries[i].len), Status::kOk);
    return count + tell_ended(number, connection, completions + count, capacity - count);
  }

  static std::size_t tell_ended(uint32_t number, OfiConnection& connection, Completion* completions,
                                std::size_t capacity) noexcept {
    std::size_t count = 0;
    for (; connection.ended != nullptr && count < capacity; ++count) {
      OfiOperation* operation = std::exchange(connection.ended, connection.ended->next);
      completions[count] = {operation->cookie,
                            0,
                            number,
                            operation->length,
                            operation->status,
                            operation->receive ? CompletionKind::kReceive : CompletionKind::kRequest};
      if (!operation->receive) --connection.under_way;
      connection.give(operation);
    }
    return count;
  }

  void take_error(OfiConnection& connection) noexcept {
    fi_cq_err_entry entry{};
    if (fi_cq_readerr(connection.queue.get(), &entry, 0) != 1) return;
    tell(entry.err, ShortText("provider's error {}", entry.prov_errno));
    if (entry.op_context == nullptr) return fail_connection(connection, entry.err);
    connection.end_all(static_cast<OfiOperation*>(entry.op_context), 0, ofi_status_of(entry.err));
  }

  std::vector<OfiConnection> connections_;
  std::vector<uint32_t> open_;
  std::size_t turn_ = 0;
};

}  // namespace

std::vector<OfiDevice> ofi_devices(const std::string& provider) {
  OfiOptions options;
  options.provider = provider;
  const OfiInfo found = find_ofi_devices(options);
  std::vector<OfiDevice> devices;
  for (const fi_info* info = found.get(); info != nullptr; info = info->next) {
    const OfiDevice device{info->fabric_attr->prov_name, info->fabric_attr->name, info->domain_attr->name,
                           ofi_bandwidth(*info)};
    const bool known = std::any_of(devices.begin(), devices.end(),
                                   [&](const OfiDevice& other) { return other.domain == device.domain; });
    if (!known) devices.push_back(device);
  }
  return devices;
}

std::unique_ptr<Domain> make_ofi_domain(const OfiOptions& options) {
  OfiInfo info = find_ofi_devices(options);
  if (may_share_endpoints(*info, options)) return make_shared_ofi_domain(std::move(info), options);
  return std::make_unique<OfiDomain>(std::move(info), options);
}

}  // namespace towline::fabric

#else

namespace towline::fabric {

std::vector<OfiDevice> ofi_devices(const std::string&) {
  fail(Status::kUnsupported, "this library was built without libfabric's headers");
}

std::unique_ptr<Domain> make_ofi_domain(const OfiOptions&) {
  fail(Status::kUnsupported, "this library was built without libfabric's headers");
}

}  // namespace towline::fabric

#endif
