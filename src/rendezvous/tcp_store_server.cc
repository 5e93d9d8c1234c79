// The store's server: one thread does everything except stopping.
//
// Every client that reaches the port is served, so the cost of each is bounded: requests have limits
// (store_requests.h), the server does not read from a client that leaves its answers unread, it drops a
// client that is silent in the middle of a request or does not read its answers, and an exception ends only
// the client that caused it.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "base/os/descriptor_limit.h"
#include "base/os/stream.h"
#include "base/sync/wake.h"
#include "rendezvous/store_requests.h"
#include "rendezvous/tcp_store.h"

namespace towline::rendezvous {
namespace {

using Result = StoreRequestReader::Result;

constexpr size_t kMostClients = 8192;           // and three quarters of the process's descriptors
constexpr size_t kMostClientsOfAddress = 2048;  // and half of them
constexpr uint64_t kMostStoreBytes = 256u << 20;
// Incomplete requests and lists of keys above this size count against one limit for all clients.
constexpr uint64_t kSmallBytes = 16u << 10;
constexpr uint64_t kMostHeldBytes = 128u << 20;
constexpr uint64_t kMostUnsentBytes = 64u << 10;  // answers without values; more: it has to read
constexpr uint64_t kMostReadAtOnce = 1u << 20;    // of one client, so that others get their turn
constexpr uint64_t kLogNs = 10 * kSecondNs;

struct ClientLimits {
  size_t all;
  size_t of_address;
};

ClientLimits client_limits() noexcept {
  const size_t descriptors = descriptor_limit();
  return {std::min(descriptors / 4 * 3, kMostClients), std::min(descriptors / 2, kMostClientsOfAddress)};
}

struct Client {
  Stream stream;
  std::string host;
  StoreRequestReader reader;
  uint64_t counted_bytes = 0;  // its share of the bytes kept for all clients
  std::deque<StoreValue> out;  // answers; the first is sent up to sent_bytes
  uint64_t sent_bytes = 0;
  uint64_t out_bytes = 0;
  Bytes later;  // bytes after requests whose answers it has to read first
  std::vector<std::string> waits;
  uint64_t waits_bytes = 0;
  size_t waits_at = 0;  // keys before this index exist
  bool validated = false;
  bool gone = false;
  // Deadlines for the first request or the rest of a request, and for reading answers. 0: no deadline.
  uint64_t request_due_ns = 0;
  uint64_t answer_due_ns = 0;

  bool waiting() const noexcept { return !waits.empty(); }
  bool full() const noexcept { return out_bytes > kMostUnsentBytes; }
  bool reads() const noexcept { return !full() && later.empty(); }
  uint64_t due_ns() const noexcept {
    if (request_due_ns == 0 || answer_due_ns == 0) return std::max(request_due_ns, answer_due_ns);
    return std::min(request_due_ns, answer_due_ns);
  }
};

}  // namespace

struct TcpStoreServer::State {
  State(const std::string& endpoint, uint64_t patience, secure::MaybeKeys given)
      : patience_ns(patience), keys(std::move(given)), socket(parse_endpoint(endpoint)) {
    thread = std::thread([this] { run(); });
  }
  ~State() {
    stop = true;
    wake.signal();
    thread.join();
  }

  void run() noexcept {
    while (!stop) {
      try {
        turn();
      } catch (const std::exception& error) {
        // Out of memory for the list of clients itself: drop the newest one.
        TOWLINE_LOG_EVERY(kWarning, kLogNs, "store at {}: {}", socket.address().port(), error.what());
        if (!clients.empty()) drop(std::prev(clients.end()));
      }
    }
  }

  void turn() {
    polled.assign({{wake.fd(), POLLIN, 0}, {socket.fd(), POLLIN, 0}});
    uint64_t due_ns = ~uint64_t{0};
    bool unread = false;  // bytes of which no poll() tells
    for (const Client& client : clients) {
      const bool writes = !client.out.empty() || client.stream.unsent();
      const int events = (client.reads() ? POLLIN : 0) | (writes ? POLLOUT : 0);
      polled.push_back({client.stream.fd(), static_cast<short>(events), 0});
      unread = unread || (client.reads() && client.stream.unread());
      if (client.due_ns() != 0) due_ns = std::min(due_ns, client.due_ns());
    }
    const int timeout_ms = unread                   ? 0
                           : due_ns == ~uint64_t{0} ? -1
                                                    : poll_timeout_ms(Deadline::at(due_ns), 60'000);
    ::poll(polled.data(), polled.size(), timeout_ms);
    const uint64_t now = monotonic_now_ns();
    size_t at = 2;
    for (auto client = clients.begin(); client != clients.end(); ++at) {
      const auto next = std::next(client);
      const bool shakes_hands = (polled[at].revents & POLLOUT) != 0 && client->stream.unsent();
      if (client->reads() && (client->stream.unread() || shakes_hands)) polled[at].revents |= POLLIN;
      if (polled[at].revents != 0) serve(*client, polled[at].revents);
      if (!client->gone && client->due_ns() != 0 && client->due_ns() <= now)
        refuse(*client, "it is silent in the middle of a request, or reads no answers");
      if (client->gone) drop(client);
      client = next;
    }
    // Answers to waits of this turn have been sent as far as possible; drop the clients that failed.
    for (auto client = clients.begin(); client != clients.end();) {
      const auto next = std::next(client);
      if (client->gone) drop(client);
      client = next;
    }
    if (polled[1].revents != 0) accept(now);
  }

  void accept(uint64_t now) {
    int error = 0;
    SocketAddress from;
    while (UniqueFd fd = socket.accept(&from, &error)) {
      try {
        admit(Stream::accepted(std::move(fd)), from.endpoint().host, now);
      } catch (const std::exception& failure) {
        TOWLINE_LOG_EVERY(kWarning, kLogNs, "store: taking a client: {}", failure.what());
      }
    }
    if (error == EMFILE || error == ENFILE)
      TOWLINE_LOG_EVERY(kWarning, kLogNs, "store: no descriptor is left for a client");
  }

  void admit(Stream stream, const std::string& host, uint64_t now) {
    std::list<Client> arrived(1);
    Client& client = arrived.front();
    client.stream = std::move(stream);
    secure::secure(keys, client.stream, secure::Side::kCalled);
    client.host = host;
    client.request_due_ns = now + patience_ns;
    size_t& of_host = clients_of[host];  // nothing fails after this
    if (clients.size() >= limits.all || of_host >= limits.of_address) {
      TOWLINE_LOG_EVERY(kWarning, kLogNs,
                        "store: too many clients ({}, {} of them at {}); one more is refused", clients.size(),
                        of_host, host);
      if (of_host == 0) clients_of.erase(host);
      return;
    }
    client.stream.tune({});
    clients.splice(clients.end(), arrived);
    ++of_host;
  }

  void drop(std::list<Client>::iterator client) noexcept {
    held_bytes -= client->counted_bytes;
    forget_wait(*client);
    const auto of_host = clients_of.find(client->host);
    if (of_host != clients_of.end() && --of_host->second == 0) clients_of.erase(of_host);
    clients.erase(client);
  }

  void serve(Client& client, short events) noexcept {
    try {
      if ((events & POLLNVAL) != 0) client.gone = true;
      if ((events & POLLOUT) != 0) flush(client);
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) receive(client);
    } catch (const std::exception& error) {
      TOWLINE_LOG_EVERY(kWarning, kLogNs, "store: dropping a client at {}: {}", client.host, error.what());
      client.gone = true;
    }
  }

  void receive(Client& client) {
    for (uint64_t total = 0; total < kMostReadAtOnce && !client.gone && client.reads();) {
      uint8_t buffer[65536];
      const StreamResult got = client.stream.read(buffer, sizeof buffer);
      if (got.over()) client.gone = true;
      if (got.refused())
        TOWLINE_LOG_EVERY(kWarning, kLogNs, "store: refused a client at {}: {}", client.host,
                          client.stream.failure(got));
      if (!got.moved()) return;
      total += got.bytes;
      handle_all(client, {buffer, got.bytes});
    }
  }

  // Answers complete requests, until the client has to read first; keeps the rest.
  void handle_all(Client& client, std::span<const uint8_t> bytes) {
    while (!client.gone && !client.full() && !bytes.empty()) {
      const Result result = client.reader.take(bytes);
      if (result == Result::kBroken) refuse(client, "it uses another protocol, or exceeds a limit");
      if (result == Result::kMore && client.request_due_ns == 0)
        client.request_due_ns = monotonic_now_ns() + patience_ns;
      if (result == Result::kWhole) answer(client);
      if (!count_held(client)) refuse(client, "all clients hold too much of requests that are not whole");
    }
    client.later.assign(bytes.begin(), bytes.end());
  }

  // False: all clients together exceed the limit.
  bool count_held(Client& client) noexcept {
    const uint64_t held = client.waits_bytes + (client.reader.under_way() ? client.reader.held_bytes() : 0);
    const uint64_t counted = held > kSmallBytes ? held : 0;
    if (counted > client.counted_bytes && held_bytes + counted - client.counted_bytes > kMostHeldBytes)
      return false;
    held_bytes += counted - client.counted_bytes;
    client.counted_bytes = counted;
    return true;
  }

  void answer(Client& client) {
    StoreRequest& request = client.reader.request();
    client.request_due_ns = 0;
    if (!client.validated && request.query != StoreQuery::kValidate)
      return refuse(client, "it sent no request");
    switch (request.query) {
      case StoreQuery::kValidate:
        client.validated = request.number == kStoreMagic;
        if (!client.validated) refuse(client, "it uses another protocol");
        return;
      case StoreQuery::kSet: {
        bool made = false;
        const std::string& key = request.keys.front();
        if (!values.set(key, std::move(request.value), made)) return refuse(client, "the store is full");
        if (made) came(key);
        return;
      }
      case StoreQuery::kGet: {
        StoreValue value = values.get(request.keys.front());
        reply<uint64_t>(client, value == nullptr ? 0 : value->size());
        if (value != nullptr && !value->empty()) push(client, std::move(value));
        return flush(client);
      }
      case StoreQuery::kAdd: {
        bool made = false;
        int64_t sum = 0;
        const std::string& key = request.keys.front();
        if (!values.add(key, request.number, sum, made))
          return refuse(client, "it adds to what is no number, or the store is full");
        reply(client, sum);
        if (made) came(key);
        return flush(client);
      }
      case StoreQuery::kCheck: {
        const bool there =
            std::ranges::all_of(request.keys, [&](const auto& key) { return values.contains(key); });
        reply<uint8_t>(client, there ? 0 : 1);
        return flush(client);
      }
      case StoreQuery::kWait:
        if (client.waiting()) return refuse(client, "it waits twice");
        client.waits_bytes = client.reader.held_bytes();
        client.waits = std::move(request.keys);
        client.waits_at = 0;
        wait_on(client);
        return;
      case StoreQuery::kKeys:
        reply<int64_t>(client, static_cast<int64_t>(values.size()));
        return flush(client);
      case StoreQuery::kDelete:
        reply<int64_t>(client, values.erase(request.keys.front()) ? 1 : 0);
        return flush(client);
      case StoreQuery::kCancelWait:
        forget_wait(client);
        reply<uint8_t>(client, 1);
        return flush(client);
      case StoreQuery::kPing:
        reply<uint32_t>(client, static_cast<uint32_t>(request.number));
        return flush(client);
    }
  }

  void refuse(Client& client, const char* why) noexcept {
    if (client.gone) return;
    TOWLINE_LOG_EVERY(kWarning, kLogNs, "store: dropping a client at {}: {}", client.host, why);
    client.gone = true;
  }

  // Waits for the first missing key, if any.
  void wait_on(Client& client) {
    while (client.waits_at < client.waits.size() && values.contains(client.waits[client.waits_at]))
      ++client.waits_at;
    if (client.waits_at < client.waits.size()) {
      waiting[client.waits[client.waits_at]].push_back(&client);
      return;
    }
    forget_wait(client);
    reply<uint8_t>(client, 0);
    flush(client);
  }

  void forget_wait(Client& client) noexcept {
    if (client.waits_at < client.waits.size()) {
      const auto found = waiting.find(client.waits[client.waits_at]);
      if (found != waiting.end() && std::erase(found->second, &client) != 0 && found->second.empty())
        waiting.erase(found);
    }
    client.waits = {};
    client.waits_at = 0;
    client.waits_bytes = 0;
  }

  void came(const std::string& key) {
    const auto found = waiting.find(key);
    if (found == waiting.end()) return;
    const std::vector<Client*> woken = std::move(found->second);
    waiting.erase(found);
    for (Client* client : woken) {
      try {
        wait_on(*client);
      } catch (const std::exception&) {
        client->gone = true;
      }
    }
  }

  template <class Integer>
  void reply(Client& client, Integer value) {
    Bytes bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    push(client, std::make_shared<const Bytes>(std::move(bytes)));
  }
  void push(Client& client, StoreValue bytes) {
    client.out_bytes += bytes->size();
    client.out.push_back(std::move(bytes));
  }

  void flush(Client& client) {
    while (!client.out.empty()) {
      const Bytes& bytes = *client.out.front();
      const StreamResult sent =
          client.stream.write(bytes.data() + client.sent_bytes, bytes.size() - client.sent_bytes);
      if (sent.over()) client.gone = true;
      if (!sent.moved()) break;
      client.answer_due_ns = 0;  // it reads its answers
      client.sent_bytes += sent.bytes;
      client.out_bytes -= sent.bytes;
      if (client.sent_bytes < bytes.size()) continue;
      client.out.pop_front();
      client.sent_bytes = 0;
    }
    if (!client.out.empty() && client.answer_due_ns == 0)
      client.answer_due_ns = monotonic_now_ns() + patience_ns;
    if (!client.full() && !client.later.empty()) {
      const Bytes later = std::exchange(client.later, {});
      handle_all(client, later);
    }
  }

  const uint64_t patience_ns;
  const secure::MaybeKeys keys;
  ListeningSocket socket;
  EventFd wake;
  std::atomic<bool> stop{false};
  std::list<Client> clients;
  const ClientLimits limits = client_limits();
  std::unordered_map<std::string, size_t> clients_of;             // by address
  std::unordered_map<std::string, std::vector<Client*>> waiting;  // by the first key that each waits for
  uint64_t held_bytes = 0;
  StoreValues values{kMostStoreBytes};
  std::vector<pollfd> polled;
  std::thread thread;
};

TcpStoreServer::TcpStoreServer(const std::string& endpoint, uint64_t patience_ns, secure::MaybeKeys keys)
    : state_(std::make_unique<State>(endpoint, patience_ns, std::move(keys))) {}
TcpStoreServer::~TcpStoreServer() = default;
uint16_t TcpStoreServer::port() const noexcept { return state_->socket.address().port(); }

}  // namespace towline::rendezvous
