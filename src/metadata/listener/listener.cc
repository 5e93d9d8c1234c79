#include "metadata/listener/listener.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "metadata/listener/wire.h"

namespace towline::metadata {

namespace {
constexpr std::size_t kRequestReadBytes = 256u << 10;
constexpr uint32_t kAcceptsPerTurn = 4;  // what else the worker does must not wait for more,
constexpr uint64_t kMostAcceptingNs = 25 * kMicrosecondNs;  // or longer
}  // namespace

// A listening socket with its way back to the listener.
struct Listener::Door {
  Door(Listener& listener, ListeningSocket&& taken) : owner(listener), socket(std::move(taken)) {}
  static void ready(void* argument, uint32_t) {
    auto& door = *static_cast<Door*>(argument);
    door.owner.accept_from(door.socket);
  }

  Listener& owner;
  ListeningSocket socket;
};

// One client, by turns: receiving its header and blob, sending ours, then draining until it closes. Draining
// keeps the answer from being lost: closing with bytes unread would reset the connection.
struct Listener::Client {
  enum class Phase { kReceiving, kSending, kDraining };

  Client(Listener& listener, Stream accepted, const SocketAddress& from, uint64_t deadline) noexcept
      : owner(listener), stream(std::move(accepted)), source(source_of(from)), deadline_ns(deadline) {}
  static void ready(void* argument, uint32_t events) {
    auto& client = *static_cast<Client*>(argument);
    client.owner.serve(client, events);
  }

  Listener& owner;
  Stream stream;
  const SourceKey source;
  uint64_t deadline_ns;
  Clients::iterator self;
  Phase phase = Phase::kReceiving;
  bool asks_to_write = false;                                   // while it is received from
  std::array<uint8_t, wire::kExchangeHeaderBytes> header = {};  // theirs, then ours
  std::size_t header_bytes = 0;
  wire::ExchangeHeader request;
  Blob body;
  std::shared_ptr<const Blob> reply;
  std::size_t sent = 0;  // of header and reply
};

Listener::Listener(ListenerHost& host, const Clock& clock, const ListenerOptions& options)
    : host_(host), clock_(clock), options_(options) {
  for (const Endpoint& endpoint : parse_endpoints(options.listen))
    doors_.push_back(std::make_unique<Door>(*this, ListeningSocket(endpoint, options.ports)));
  (void)addresses();  // fails now, where it would later
  std::vector<const ListeningSocket*> sockets;
  for (const auto& door : doors_) sockets.push_back(&door->socket);
  if (options.keys == nullptr) warn_of_open_ports("the metadata listener", sockets);
  for (std::size_t watched = 0; watched < doors_.size(); ++watched) {
    try {
      host_.watch(doors_[watched]->socket.fd(), EPOLLIN, Door::ready, doors_[watched].get());
    } catch (...) {
      while (watched > 0) host_.unwatch(doors_[--watched]->socket.fd());
      throw;
    }
  }
}

Listener::~Listener() {
  for (const auto& door : doors_) host_.unwatch(door->socket.fd());
  for (const Client& client : clients_) host_.unwatch(client.stream.fd());
}

std::vector<std::string> Listener::addresses() const {
  std::vector<const ListeningSocket*> sockets;
  for (const auto& door : doors_) sockets.push_back(&door->socket);
  std::vector<std::string> addresses;
  for (const Endpoint& endpoint : advertised(options_.advertise, sockets))
    addresses.push_back(endpoint.text());
  return addresses;
}

uint64_t Listener::next_deadline_ns() const noexcept {
  return clients_.empty() ? kNoDeadline : clients_.front().deadline_ns;
}

uint32_t Listener::expire(uint64_t now_ns) {
  uint32_t cut = 0;
  for (; !clients_.empty() && clients_.front().deadline_ns <= now_ns; ++cut) {
    Client& client = clients_.front();
    drop(client, client.phase == Client::Phase::kDraining ? Status::kOk : Status::kTimedOut);
  }
  return cut;
}

void Listener::accept_from(ListeningSocket& socket) {
  const uint64_t began_ns = monotonic_now_ns();
  for (uint32_t i = 0; i < kAcceptsPerTurn; ++i) {
    if (i != 0 && monotonic_now_ns() - began_ns > kMostAcceptingNs) return;
    int error = 0;
    SocketAddress from;
    Stream stream = Stream::accepted(socket.accept(&from, &error));
    if (error != 0) {
      note_refusal(status_from_errno(error));
      TOWLINE_LOG_EVERY(kWarning, 10 * kSecondNs, "metadata listener: accepting: {}", strerrordesc_np(error));
    }
    if (!stream.valid()) return;
    try {
      admit(std::move(stream), from);
    } catch (const std::exception& failure) {
      note_refusal(Status::kOutOfMemory);
      TOWLINE_LOG_EVERY(kWarning, 10 * kSecondNs, "metadata listener: taking a client: {}", failure.what());
    }
  }
}

void Listener::admit(Stream stream, const SocketAddress& from) {
  if (const UserRefusal why = options_.any_user ? UserRefusal() : users_.refusal(stream.fd());
      why.text != nullptr) {
    note_refusal(why.status);
    TOWLINE_LOG_EVERY(kWarning, 10 * kSecondNs, "metadata listener: {} {}", from.text(), why.text);
    return;
  }
  secure::secure(options_.keys, stream, secure::Side::kCalled);
  make_room(from);
  const uint64_t deadline = Deadline::after(clock_, options_.client_timeout_ns).ns();
  Client& client = clients_.emplace_back(*this, std::move(stream), from, deadline);
  client.self = std::prev(clients_.end());
  try {
    host_.watch(client.stream.fd(), EPOLLIN, Client::ready, &client);
  } catch (...) {
    clients_.pop_back();
    throw;
  }
}

// The client that came first is the likeliest to be stuck: an exchange takes milliseconds.
void Listener::make_room(const SocketAddress& from) {
  Client* const oldest = gives_way(clients_, source_of(from), std::max(options_.max_clients, 2u),
                                   [](const Client& client) { return client.source; });
  if (oldest != nullptr) drop(*oldest, Status::kLimitExceeded);
}

void Listener::note_refusal(Status why) noexcept {
  ++refused_;
  host_.refused(why);
}

void Listener::serve(Client& client, uint32_t events) {
  bool keep = true;
  try {
    if (client.phase == Client::Phase::kReceiving) {
      keep = receive(client);
      if (keep && client.phase == Client::Phase::kReceiving) ask_again(client);
    } else if (client.phase == Client::Phase::kSending) {
      keep = (events & (EPOLLERR | EPOLLHUP)) == 0 && send(client);
    } else {
      char waste[4096];
      if (client.stream.read(waste, sizeof waste).over()) return drop(client, Status::kOk);
    }
  } catch (const std::exception& failure) {
    TOWLINE_LOG_EVERY(kWarning, 10 * kSecondNs, "metadata listener: serving a client: {}", failure.what());
    keep = false;
  }
  if (keep) return;
  const char* const why = client.stream.why();
  if (why == nullptr) return drop(client, Status::kProtocol);
  TOWLINE_LOG_EVERY(kWarning, 10 * kSecondNs, "metadata listener: refused a client: {}", why);
  drop(client, Status::kPermissionDenied);
}

// No poll() tells of what lies in a session: that it can be written to, which is always so, brings the next turn. A
// handshake that the socket had no room for waits for it.
void Listener::ask_again(Client& client) {
  const bool asks = client.stream.unread() || client.stream.unsent();
  if (std::exchange(client.asks_to_write, asks) == asks) return;
  host_.rewatch(client.stream.fd(), asks ? EPOLLIN | EPOLLOUT : EPOLLIN, Client::ready, &client);
}

// Reads one piece per turn, so that clients take turns. False: close it.
bool Listener::receive(Client& client) {
  if (client.header_bytes < client.header.size()) {
    const StreamResult got = client.stream.read(client.header.data() + client.header_bytes,
                                                client.header.size() - client.header_bytes);
    if (!got.moved()) return got.blocked();
    client.header_bytes += got.bytes;
    if (client.header_bytes < client.header.size()) return true;
    if (!wire::unpack(client.header, client.request)) return false;  // no agent: it gets no answer
    const bool acceptable =
        client.request.major == wire::kExchangeMajor && client.request.bytes <= options_.max_blob_bytes;
    return client.request.bytes == 0 || !acceptable ? answer(client) : true;
  }
  const std::size_t have = client.body.size();
  const std::size_t want = std::min<std::size_t>(client.request.bytes - have, kRequestReadBytes);
  if (held_bytes_ + want > options_.max_total_bytes) return answer(client);
  client.body.resize(have + want);
  const StreamResult got = client.stream.read(client.body.data() + have, want);
  client.body.resize(have + got.bytes);
  held_bytes_ += got.bytes;
  if (!got.moved()) return got.blocked();
  return client.body.size() < client.request.bytes || answer(client);
}

// The request is here, or is not going to be taken: hands the blob over, and starts the answer. False: cut
// it.
bool Listener::answer(Client& client) {
  wire::ExchangeHeader header;
  try {
    if (client.request.major != wire::kExchangeMajor) {
      fail(Status::kUnsupported, "metadata exchange of version {}: this Towline speaks version {}",
           client.request.major, wire::kExchangeMajor);
    }
    if (client.request.bytes > options_.max_blob_bytes) {
      fail(Status::kLimitExceeded, "metadata of {} bytes: at most {} are taken", client.request.bytes,
           options_.max_blob_bytes);
    }
    if (client.body.size() < client.request.bytes) {
      fail(Status::kAgain, "too much metadata of others under way, try again");
    }
    if (!client.body.empty()) host_.peer_blob(client.body);
    client.reply = host_.local_blob();
    if (client.reply == nullptr) fail(Status::kClosed, "this agent is closing");
  } catch (const Error& refusal) {
    const std::string& text = refusal.message();
    const auto end =
        text.begin() + static_cast<std::ptrdiff_t>(std::min(text.size(), wire::kMaxRefusalBytes));
    client.reply = std::make_shared<const Blob>(text.begin(), end);
    header.status = static_cast<int32_t>(refusal.code());
    note_refusal(refusal.code());
  }
  held_bytes_ -= client.body.size();
  client.body = {};
  header.bytes = static_cast<uint32_t>(client.reply->size());
  client.header = wire::pack(header);
  client.phase = Client::Phase::kSending;
  return send(client);
}

// Sends what fits. False: cut it.
bool Listener::send(Client& client) {
  const std::size_t all = client.header.size() + client.reply->size();
  while (client.sent < all) {
    iovec pieces[2];
    std::size_t count = 0;
    const std::size_t body_sent = client.sent - std::min(client.sent, client.header.size());
    if (client.sent < client.header.size()) {
      pieces[count++] = {client.header.data() + client.sent, client.header.size() - client.sent};
    }
    if (body_sent < client.reply->size()) {
      pieces[count++] = {const_cast<uint8_t*>(client.reply->data()) + body_sent,
                         client.reply->size() - body_sent};
    }
    const StreamResult sent = client.stream.write({pieces, count});
    if (sent.blocked()) {
      host_.rewatch(client.stream.fd(), EPOLLOUT, Client::ready, &client);
      return true;
    }
    if (sent.over()) return false;
    client.sent += sent.bytes;
  }
  wire::ExchangeHeader answered;
  if (wire::unpack(client.header, answered) && answered.status == 0) ++served_;
  client.reply.reset();
  client.phase = Client::Phase::kDraining;
  client.stream.end_writing();
  host_.rewatch(client.stream.fd(), EPOLLIN, Client::ready, &client);
  return true;
}

void Listener::drop(Client& client, Status why) noexcept {
  if (why != Status::kOk) note_refusal(why);
  held_bytes_ -= client.body.size();
  host_.unwatch(client.stream.fd());
  clients_.erase(client.self);
}

}  // namespace towline::metadata
