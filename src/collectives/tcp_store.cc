#include "collectives/tcp_store.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/socket_address.h"
#include "base/wake.h"
#include "collectives/sockets.h"

namespace towline::collectives {
namespace {

// Requests of the protocol, by number; the ones we know.
enum Query : uint8_t {
  kValidate = 0,  // magic (u32); no answer
  kSet = 1,       // key, value; no answer
  kGet = 3,       // key; answers the value
  kAdd = 4,       // key, i64; answers the sum as i64
  kCheck = 5,     // keys; answers a byte, 0 when all are there
  kWait = 6,      // keys; answers a byte, 0, when all are there
  kDelete = 8,    // key; answers i64, how many went
};
constexpr uint32_t kStoreMagic = 0x3C85F7CE;
constexpr uint64_t kMostBytes = 64u << 20;

// One client as the server sees it: what it sent and was not yet parsed, what it waits for.
struct Client {
  UniqueFd socket;
  Bytes in;
  Bytes out;
  std::vector<std::string> waits;
};

// Takes fields from the front of a client's bytes; `whole` is false when more must come first.
class Parser {
 public:
  explicit Parser(const Bytes& bytes) : bytes_(bytes) {}
  template <class Integer>
  Integer integer() {
    Integer value = 0;
    if (take(sizeof value)) std::memcpy(&value, bytes_.data() + at_ - sizeof value, sizeof value);
    return value;
  }
  Bytes field() {
    const auto size = integer<uint64_t>();
    if (size > kMostBytes) broken = true;
    if (broken || !take(size)) return {};
    return Bytes(bytes_.begin() + static_cast<ptrdiff_t>(at_ - size),
                 bytes_.begin() + static_cast<ptrdiff_t>(at_));
  }
  std::string text() {
    const Bytes value = field();
    return {value.begin(), value.end()};
  }
  size_t at() const { return at_; }

  bool whole = true;
  bool broken = false;

 private:
  bool take(uint64_t bytes) {
    if (!whole || bytes > bytes_.size() - at_) whole = false;
    if (whole) at_ += bytes;
    return whole;
  }
  const Bytes& bytes_;
  size_t at_ = 0;
};

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

}  // namespace

// ---- Server: one thread, which everything but `stop` belongs to.

struct TcpStoreServer::State {
  explicit State(const std::string& endpoint) : socket(parse_endpoint(endpoint)) {
    thread = std::thread([this] { run(); });
  }
  ~State() {
    stop = true;
    wake.signal();
    thread.join();
  }

  void run() {
    std::vector<pollfd> polled;
    while (!stop) {
      polled.assign({{wake.fd(), POLLIN, 0}, {socket.fd(), POLLIN, 0}});
      for (const Client& client : clients)
        polled.push_back(
            {client.socket.get(), static_cast<short>(client.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      ::poll(polled.data(), polled.size(), -1);
      size_t at = 2;
      for (auto client = clients.begin(); client != clients.end(); ++at) {
        const bool keep = polled[at].revents == 0 || serve(*client, polled[at].revents);
        client = keep ? std::next(client) : clients.erase(client);
      }
      if (polled[1].revents != 0) accept();
    }
  }

  void accept() {
    int error = 0;
    while (UniqueFd fd = socket.accept(nullptr, &error)) {
      set_no_delay(fd.get());
      clients.push_back({std::move(fd), {}, {}, {}});
    }
  }

  bool serve(Client& client, short events) {
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && !receive(client)) return false;
    return flush(client);
  }

  bool receive(Client& client) {
    for (;;) {
      uint8_t buffer[65536];
      const ssize_t got = ::recv(client.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got == 0) return false;
      if (got < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return false;
        break;
      }
      client.in.insert(client.in.end(), buffer, buffer + got);
      if (client.in.size() > 2 * kMostBytes) return false;
    }
    while (!client.in.empty()) {
      Parser parser(client.in);
      if (!handle(client, parser) || parser.broken) return false;
      if (!parser.whole) return true;
      client.in.erase(client.in.begin(), client.in.begin() + static_cast<ptrdiff_t>(parser.at()));
    }
    return true;
  }

  // One request, if it is there whole. False: it is none.
  bool handle(Client& client, Parser& parser) {
    const auto query = parser.integer<uint8_t>();
    switch (query) {
      case kValidate: {
        const auto magic = parser.integer<uint32_t>();
        return !parser.whole || magic == kStoreMagic;
      }
      case kSet: {
        const std::string key = parser.text();
        Bytes value = parser.field();
        if (parser.whole && !parser.broken) set(key, std::move(value));
        return true;
      }
      case kGet: {
        const std::string key = parser.text();
        if (parser.whole && !parser.broken) put_field(client.out, values[key]);
        return true;
      }
      case kAdd: {
        const std::string key = parser.text();
        const auto amount = parser.integer<int64_t>();
        if (parser.whole && !parser.broken) put(client.out, add(key, amount));
        return true;
      }
      case kCheck:
      case kWait: {
        const auto count = parser.integer<uint64_t>();
        std::vector<std::string> keys;
        for (uint64_t i = 0; i < count && parser.whole && !parser.broken; ++i) keys.push_back(parser.text());
        if (!parser.whole || parser.broken) return true;
        const bool there = std::ranges::all_of(keys, [&](const auto& key) { return values.contains(key); });
        if (query == kCheck || there)
          put<uint8_t>(client.out, there ? 0 : 1);
        else
          client.waits = std::move(keys);
        return true;
      }
      case kDelete: {
        const std::string key = parser.text();
        if (parser.whole && !parser.broken) put<int64_t>(client.out, static_cast<int64_t>(values.erase(key)));
        return true;
      }
      default:
        return !parser.whole;
    }
  }

  void set(const std::string& key, Bytes value) {
    values[key] = std::move(value);
    for (Client& client : clients) {
      if (client.waits.empty()) continue;
      if (!std::ranges::all_of(client.waits, [&](const auto& wanted) { return values.contains(wanted); }))
        continue;
      client.waits.clear();
      put<uint8_t>(client.out, 0);
      if (!flush(client)) ::shutdown(client.socket.get(), SHUT_RDWR);  // its own turn finds it closed
    }
  }

  // Numbers are kept as text, as torch's clients read them.
  int64_t add(const std::string& key, int64_t amount) {
    int64_t value = 0;
    if (const auto found = values.find(key); found != values.end())
      value = std::strtoll(std::string(found->second.begin(), found->second.end()).c_str(), nullptr, 10);
    value += amount;
    const std::string text = std::to_string(value);
    set(key, Bytes(text.begin(), text.end()));
    return value;
  }

  static bool flush(Client& client) {
    size_t sent = 0;
    while (sent < client.out.size()) {
      const ssize_t n = ::send(client.socket.get(), client.out.data() + sent, client.out.size() - sent,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n >= 0) {
        sent += static_cast<size_t>(n);
      } else if (errno != EINTR) {
        if (errno != EAGAIN) return false;
        break;
      }
    }
    client.out.erase(client.out.begin(), client.out.begin() + static_cast<ptrdiff_t>(sent));
    return true;
  }

  ListeningSocket socket;
  EventFd wake;
  std::atomic<bool> stop{false};
  std::list<Client> clients;
  std::map<std::string, Bytes> values;
  std::thread thread;
};

TcpStoreServer::TcpStoreServer(const std::string& endpoint) : state_(std::make_unique<State>(endpoint)) {}
TcpStoreServer::~TcpStoreServer() = default;
uint16_t TcpStoreServer::port() const noexcept { return state_->socket.address().port(); }

namespace {

// ---- Client. Torch's puts "/" before every key, so ours does.

class TcpStore final : public Store {
 public:
  TcpStore(std::string endpoint, std::shared_ptr<TcpStoreServer> server, Deadline deadline)
      : endpoint_(std::move(endpoint)), server_(std::move(server)) {
    connect(deadline);
  }

  void set(const std::string& key, std::span<const uint8_t> value) override {
    const std::lock_guard lock(mutex_);
    Bytes request{kSet};
    put_field(request, "/" + key);
    put_field(request, value);
    send(request, Deadline::after(monotonic_now_ns(), 60 * kSecondNs));
  }

  Bytes get(const std::string& key, Deadline deadline) override {
    const std::lock_guard lock(mutex_);
    if (!socket_) connect(deadline);
    Bytes request{kWait};
    put<uint64_t>(request, 1);
    put_field(request, "/" + key);
    send(request, deadline);
    uint8_t answer = 0;
    receive(std::span(&answer, 1), deadline, key);
    request.assign(1, kGet);
    put_field(request, "/" + key);
    send(request, deadline);
    uint64_t size = 0;
    receive(std::span(reinterpret_cast<uint8_t*>(&size), sizeof size), deadline, key);
    if (size > kMostBytes)
      fail(Status::kProtocol, "the store at {} gives {} bytes for \"{}\"", endpoint_, size, key);
    Bytes value(size);
    receive(value, deadline, key);
    return value;
  }

  std::string describe() const override { return "tcp://" + endpoint_; }
  std::string local_host() const override { return SocketAddress::local_of(socket_.get()).endpoint().host; }

 private:
  void connect(Deadline deadline) {
    socket_ = dial(parse_endpoint(endpoint_), deadline, true);
    Bytes hello{kValidate};
    put(hello, kStoreMagic);
    send(hello, deadline);
  }
  void send(std::span<const uint8_t> bytes, Deadline deadline) {
    if (!socket_) connect(deadline);
    if (const Status status = send_all(socket_.get(), bytes, deadline); is_error(status)) lost(status, "");
  }
  void receive(std::span<uint8_t> bytes, Deadline deadline, const std::string& key) {
    if (const Status status = receive_all(socket_.get(), bytes, deadline); is_error(status))
      lost(status, key);
  }
  // The connection is in the middle of something: the next request takes a new one.
  [[noreturn]] void lost(Status status, const std::string& key) {
    socket_.reset();
    if (status == Status::kTimedOut && !key.empty())
      fail(status, "\"{}\" is not in the store at {} yet", key, endpoint_);
    fail(status, "the store at {} does not answer: {}", endpoint_, status_text(status));
  }

  const std::string endpoint_;
  const std::shared_ptr<TcpStoreServer> server_;  // where it is ours
  std::mutex mutex_;
  UniqueFd socket_;
};

// The servers of this process by endpoint, so that a communicator made after another meets in the same one.
std::shared_ptr<TcpStoreServer> server_of_process(const std::string& endpoint) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<TcpStoreServer>> servers;
  const std::lock_guard lock(mutex);
  std::weak_ptr<TcpStoreServer>& known = servers[endpoint];
  if (auto server = known.lock()) return server;
  const Endpoint parsed = parse_endpoint(endpoint);
  try {
    auto server = std::make_shared<TcpStoreServer>(fmt::format("*:{}", parsed.port));
    known = server;
    return server;
  } catch (const Error& error) {
    if (error.code() != Status::kAddressInUse) throw;
    return nullptr;  // somebody serves there; if it is no store, asking will tell
  }
}

}  // namespace

std::shared_ptr<Store> open_tcp_store(const std::string& endpoint, bool serve, Deadline deadline) {
  return std::make_shared<TcpStore>(endpoint, serve ? server_of_process(endpoint) : nullptr, deadline);
}

}  // namespace towline::collectives
