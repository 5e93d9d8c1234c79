#include "rendezvous/tcp_store.h"

#include <poll.h>

#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/os/stream.h"
#include "rendezvous/store_requests.h"

namespace towline::rendezvous {
namespace {

template <class Integer>
void put(Bytes& out, Integer value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}
void put_field(Bytes& out, std::span<const uint8_t> value) {
  put<uint64_t>(out, value.size());
  out.insert(out.end(), value.begin(), value.end());
}
void put_field(Bytes& out, std::string_view text) {
  put_field(out, std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}
Bytes request_of(StoreQuery query) { return {static_cast<uint8_t>(query)}; }

// ---- Client. Like torch's it puts "/" before every key. A connection serves one request at a time, and a thread that waits
// for a key has one of its own: others of this process may set what the ranks need that will set it.

class TcpStore final : public Store {
 public:
  TcpStore(std::string endpoint, std::shared_ptr<TcpStoreServer> server, Deadline deadline,
           const Stream::Meanwhile& meanwhile, secure::MaybeKeys keys)
      : endpoint_(std::move(endpoint)), server_(std::move(server)), keys_(std::move(keys)) {
    Stream stream = connect(deadline, Stream::Patience::kUntilDeadline, meanwhile);
    local_host_ = SocketAddress::local_of(stream.fd()).endpoint().host;
    idle_.push_back({std::move(stream), false});
  }

  void set(const std::string& key, std::span<const uint8_t> value) override {
    Bytes request = request_of(StoreQuery::kSet);
    put_field(request, "/" + key);
    put_field(request, value);
    const Deadline deadline = Deadline::after(monotonic_now_ns(), 60 * kSecondNs);
    Stream stream = take(deadline);
    send(stream, request, deadline);
    give_back(std::move(stream));
  }

  Bytes get(const std::string& key, Deadline deadline) override {
    Stream stream = take(deadline);
    Bytes request = request_of(StoreQuery::kWait);
    put<uint64_t>(request, 1);
    put_field(request, "/" + key);
    send(stream, request, deadline);
    uint8_t answer = 0;
    const Status status = stream.read_all(std::span(&answer, 1), deadline);
    if (status == Status::kTimedOut) cancel_wait(std::move(stream));
    if (is_error(status)) lost(status, key);
    request = request_of(StoreQuery::kGet);
    put_field(request, "/" + key);
    send(stream, request, deadline);
    uint64_t size = 0;
    receive(stream, std::span(reinterpret_cast<uint8_t*>(&size), sizeof size), deadline, key);
    if (size > kMostValueBytes)
      fail(Status::kProtocol, "the store at {} gives {} bytes for \"{}\"", endpoint_, size, key);
    Bytes value(size);
    receive(stream, value, deadline, key);
    give_back(std::move(stream));
    return value;
  }

  std::string describe() const override { return "tcp://" + endpoint_; }
  std::string local_host() const override { return local_host_; }

 private:
  static constexpr uint8_t kWaitedFor = 0;  // the answer to a wait; that to its end is another
  static constexpr size_t kMostIdle = 64;
  struct Idle {
    Stream stream;
    bool ends_wait;  // the answer to the end of a wait is still to come
  };

  Stream connect(Deadline deadline, Stream::Patience patience, const Stream::Meanwhile& meanwhile = {}) {
    Stream stream = Stream::dial(parse_endpoint(endpoint_), deadline, patience, meanwhile);
    secure::secure(keys_, stream, secure::Side::kCaller);
    if (const Status shaken = stream.shake_hands(deadline, meanwhile); is_error(shaken))
      fail(shaken, "the store at {}: {}", endpoint_,
           shaken == Status::kPermissionDenied ? stream.why() : status_text(shaken));
    Bytes hello = request_of(StoreQuery::kValidate);
    put(hello, kStoreMagic);
    send(stream, hello, deadline);
    return stream;
  }
  // A connection without an unfinished request. One with something to read while it has no request was closed by the store:
  // a set has no answer, and would be lost there.
  Stream take(Deadline deadline) {
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = idle_.size(); i != 0; --i) {
        const Use use = look(idle_[i - 1]);
        if (use == Use::kLater) continue;
        Stream stream = std::move(idle_[i - 1].stream);
        idle_.erase(idle_.begin() + static_cast<ptrdiff_t>(i - 1));
        if (use == Use::kNow) return stream;
      }
    }
    // It was there: if nobody listens now it is gone.
    return connect(deadline, Stream::Patience::kForPort);
  }
  void give_back(Stream&& stream) {
    const std::lock_guard lock(mutex_);
    idle_.push_back({std::move(stream), false});
  }
  // The connection is kept: closed on this side it would cost this host a port for a minute, and those that wait look often.
  void cancel_wait(Stream&& stream) {
    const auto query = static_cast<uint8_t>(StoreQuery::kCancelWait);
    if (!stream.write(&query, 1).moved()) return;
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMostIdle) idle_.push_back({std::move(stream), true});
  }
  enum class Use : uint8_t { kNow, kLater, kNever };
  // The wait's own answer may come before that to its end.
  static Use look(Idle& idle) noexcept {
    while (idle.ends_wait) {
      uint8_t answer = kWaitedFor;
      const StreamResult read = idle.stream.read(&answer, 1);
      if (read.blocked()) return Use::kLater;
      if (read.over()) return Use::kNever;
      idle.ends_wait = answer == kWaitedFor;
    }
    return idle.stream.ready(POLLIN) ? Use::kNever : Use::kNow;
  }
  void send(Stream& stream, std::span<const uint8_t> bytes, Deadline deadline) {
    if (const Status status = stream.write_all(bytes, deadline); is_error(status)) lost(status, "");
  }
  void receive(Stream& stream, std::span<uint8_t> bytes, Deadline deadline, const std::string& key) {
    if (const Status status = stream.read_all(bytes, deadline); is_error(status)) lost(status, key);
  }
  [[noreturn]] void lost(Status status, const std::string& key) {
    if (status == Status::kTimedOut && !key.empty())
      fail(status, "\"{}\" is not in the store at {} yet", key, endpoint_);
    const std::lock_guard lock(mutex_);
    idle_.clear();  // the store may have been begun anew
    fail(status, "the store at {} does not answer: {}", endpoint_, status_text(status));
  }

  const std::string endpoint_;
  const std::shared_ptr<TcpStoreServer> server_;  // if this rank serves
  const secure::MaybeKeys keys_;
  std::string local_host_;
  std::mutex mutex_;
  std::vector<Idle>
      idle_;  // as many as threads have asked at once, and those that the store is slow to answer
};

// The address on which rank 0 listens for the endpoint that every rank has. A number is the only address to
// listen on. A name is not: other hosts may resolve this host's name to another address than it does itself.
std::string served_address(Endpoint told) {
  if (told.host == "localhost") told.host = "127.0.0.1";
  if (!numeric_address(told)) told.host = "*";
  return told.text();
}

std::shared_ptr<TcpStoreServer> start_server(const Endpoint& told, const secure::MaybeKeys& keys) {
  try {
    return std::make_shared<TcpStoreServer>(served_address(told), TcpStoreServer::kPatienceNs, keys);
  } catch (const Error& error) {
    if (error.code() == Status::kAddressInUse) return nullptr;  // not a store: requests will fail
    if (!numeric_address(told)) throw;
    // The address leads here through another device, such as a router with address translation.
    TOWLINE_LOG(kWarning, "the store listens at every address of this host: {}", error.message());
    return start_server({false, "*", told.port}, keys);
  }
}

// The servers of this process by endpoint, so that a later communicator meets in the same one. Null: another
// process serves there.
std::shared_ptr<TcpStoreServer> server_of_process(const std::string& endpoint,
                                                  const secure::MaybeKeys& keys) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<TcpStoreServer>> servers;
  const std::lock_guard lock(mutex);
  std::weak_ptr<TcpStoreServer>& known = servers[endpoint];
  if (auto server = known.lock()) return server;
  auto server = start_server(parse_endpoint(endpoint), keys);
  known = server;
  return server;
}

}  // namespace

std::shared_ptr<Store> open_tcp_store(const std::string& endpoint, bool serve, Deadline deadline,
                                      const std::function<void()>& meanwhile, const secure::MaybeKeys& keys) {
  // Rank 0 could serve at a port of the kernel's choice, but no rank would know it.
  if (const Endpoint parsed = parse_endpoint(endpoint); !parsed.is_unix && parsed.port == 0)
    fail(Status::kInvalidArgument, "ranks can't meet at port 0 ({}): give a free port, the same to all",
         endpoint);
  return std::make_shared<TcpStore>(endpoint, serve ? server_of_process(endpoint, keys) : nullptr, deadline,
                                    meanwhile, keys);
}

}  // namespace towline::rendezvous
