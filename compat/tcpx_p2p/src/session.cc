#include "session.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "settings.h"

namespace towline_tcpx {

using std::chrono::nanoseconds;
using towline::Error;
using towline::Status;

namespace {

constexpr auto kTurn = std::chrono::milliseconds(20);  // peers' health is looked at so often
constexpr uint64_t kDefaultTimeoutNs = 30'000'000'000;
constexpr uint64_t kCloseNs = 5'000'000'000;

nanoseconds in(uint64_t ns) noexcept {
  return nanoseconds(static_cast<int64_t>(std::min<uint64_t>(ns, INT64_MAX)));
}

towline::Kind kind_of(int64_t gpu) noexcept { return gpu < 0 ? towline::Kind::kDram : towline::Kind::kVram; }

towline::Blocks block(uint64_t address, uint64_t bytes, int64_t gpu) noexcept {
  towline::Blocks blocks = towline::Blocks::at(reinterpret_cast<const void*>(address), bytes, kind_of(gpu));
  blocks.device = gpu < 0 ? 0 : static_cast<uint64_t>(gpu);
  return blocks;
}

}  // namespace

Session::Session(const tcpx_session_options_t& options) : options_(options) {
  const Settings settings = read_settings(options);
  if (options_.timeout_ns == 0) options_.timeout_ns = kDefaultTimeoutNs;
  const std::string name = options.name != nullptr && *options.name != '\0' ? options.name : "tcpx";
  for (std::size_t i = 0; i < settings.listen.size(); ++i) {
    try {
      agent_.emplace(name, towline::AgentOptions{.listen = settings.listen[i],
                                                 .backends = settings.backends,
                                                 .config = settings.config,
                                                 .default_timeout = in(options_.timeout_ns)});
      break;
    } catch (const Error& error) {
      if (error.code() != Status::kAddressInUse || i + 1 == settings.listen.size()) throw;
    }
  }
  log(TCPX_LOG_INFO, "listening at " + address());
  thread_ = std::thread([this] { run(); });
}

void Session::shut() noexcept {
  {
    const Lock lock(mutex_);
    if (ending_) return;
    ending_ = true;
    for (auto& [incarnation, link] : links_) {
      if (link->status == TOWLINE_OK) tell(*link, {.type = MessageType::kGoodbye});
      fail(*link, TOWLINE_CLOSED, "this session ends");
    }
  }
  changed_.notify_all();
  thread_.join();
  const Lock lock(mutex_);
  for (auto& [incarnation, link] : links_) {
    for (const OperationPtr& write : link->writing) {
      (void)write->write->destroy(in(kCloseNs));
      end(*write, TOWLINE_CLOSED);
    }
    link->writing.clear();
  }
}

void Session::log(tcpx_log_level_t level, const std::string& text) const {
  if (options_.log != nullptr) options_.log(options_.log_argument, level, text.c_str());
}

// ---- connections

LinkPtr Session::connect(const std::string& address, uint64_t timeout_ns) {
  const auto until =
      std::chrono::steady_clock::now() + in(std::min<uint64_t>(timeout_ns, kDefaultTimeoutNs * 120));
  auto link = std::make_shared<Link>(agent_->connect(address, in(timeout_ns)));
  link->incarnation = link->peer.incarnation();
  const auto metadata = agent_->metadata();
  Lock lock(mutex_);
  if (!links_.emplace(link->incarnation, link).second)
    throw Error{Status::kAlreadyExists, "the session at " + address + " is connected with this one"};
  tell(*link, {.type = MessageType::kHello, .payload = metadata});
  while (link->status == TOWLINE_IN_PROGRESS && !ending_)
    if (changed_.wait_until(lock, until) == std::cv_status::timeout) break;
  if (link->status == TOWLINE_OK) {
    log(TCPX_LOG_INFO, "connected to " + address);
    return link;
  }
  const int32_t status = link->status == TOWLINE_IN_PROGRESS ? TOWLINE_TIMED_OUT : link->status;
  if (link->status == TOWLINE_IN_PROGRESS) tell(*link, {.type = MessageType::kGoodbye});
  fail(*link, status, "it was not accepted");
  link->wanted = false;
  throw Error{Status{status}, "the session at " + address + " did not accept"};
}

LinkPtr Session::accept(uint64_t timeout_ns) {
  Lock lock(mutex_);
  const auto waiting = [&] {
    while (!arrived_.empty() && arrived_.front()->status != TOWLINE_IN_PROGRESS) arrived_.pop_front();
    return !arrived_.empty();
  };
  if (!wait_until(lock, timeout_ns, waiting)) throw Error{Status::kTimedOut, "nobody connected in that time"};
  LinkPtr link = arrived_.front();
  arrived_.pop_front();
  link->status = TOWLINE_OK;
  tell(*link, {.type = MessageType::kWelcome});
  log(TCPX_LOG_INFO, "accepted " + std::string(link->peer.name()));
  return link;
}

void Session::close(const LinkPtr& link) {
  const Lock lock(mutex_);
  if (link->status == TOWLINE_OK) tell(*link, {.type = MessageType::kGoodbye});
  fail(*link, TOWLINE_CLOSED, "it was closed");
  link->wanted = false;  // forgotten when its writes have ended
}

bool Session::wait_until(Lock& lock, uint64_t timeout_ns, const std::function<bool()>& done) {
  const auto ready = [&] { return ending_ || done(); };
  if (timeout_ns >= INT64_MAX / 2)
    changed_.wait(lock, ready);
  else
    changed_.wait_for(lock, in(timeout_ns), ready);
  return done();
}

void Session::fail(Link& link, int32_t status, const std::string& why) {
  if (link.status < 0) return;
  const bool was_open = link.status == TOWLINE_OK;
  link.status = status;
  for (const OperationPtr& send : link.sends) end(*send, status);
  link.sends.clear();
  for (auto& [id, receive] : link.receives) end(*receive, status);
  link.receives.clear();
  for (const OperationPtr& write : link.writing)
    if (write->write) (void)write->write->cancel();  // its outcome ends it
  link.offers.clear();
  if (was_open && status != TOWLINE_CLOSED)
    log(TCPX_LOG_WARNING, "the connection with " + std::string(link.peer.name()) + " ended: " + why);
  changed_.notify_all();
}

// ---- memory

uint64_t Session::register_memory(void* address, uint64_t bytes, int32_t gpu) {
  Memory memory = {reinterpret_cast<uint64_t>(address), bytes, gpu, {}, 0};
  memory.region = agent_->register_memory({.address = address,
                                           .bytes = bytes,
                                           .kind = kind_of(gpu),
                                           .device = gpu < 0 ? 0 : static_cast<uint64_t>(gpu)},
                                          {.access = towline::Access::kAll});
  const Lock lock(mutex_);
  if (memories_.size() >= kMostMemories)
    throw Error{Status::kLimitExceeded, "65536 memories are registered, as many as can be"};
  memories_.emplace(next_memory_, std::move(memory));
  return next_memory_++;
}

void Session::deregister_memory(uint64_t number) {
  Lock lock(mutex_);
  const auto found = memories_.find(number);
  if (found == memories_.end())
    throw Error{Status::kNotFound, "no memory has the number " + std::to_string(number)};
  if (found->second.users != 0)
    throw Error{Status::kBusy, "transfers use the memory " + std::to_string(number)};
  Memory memory = std::move(found->second);
  memories_.erase(found);
  for (auto& [incarnation, link] : links_) link->told.erase(number);
  lock.unlock();
  const Status status = memory.region->deregister(in(options_.timeout_ns));
  if (status != Status::kOk) throw Error{status, std::string(towline::last_error())};
}

// ---- transfers

OperationPtr Session::post(const LinkPtr& link, bool sends, uint64_t number, uint64_t offset, uint64_t bytes,
                           uint64_t tag) {
  const Lock lock(mutex_);
  const auto memory = memories_.find(number);
  if (memory == memories_.end())
    throw Error{Status::kNotFound, "no memory has the number " + std::to_string(number)};
  if (offset > memory->second.bytes || bytes > memory->second.bytes - offset)
    throw Error{Status::kOutOfRange, std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                                         " are not in memory " + std::to_string(number) + ", which has " +
                                         std::to_string(memory->second.bytes)};
  if (link->status != TOWLINE_OK) throw Error{Status{link->status}, "the connection has ended"};
  if ((sends ? link->sends.size() + link->writing.size() : link->receives.size()) >= kMostPending)
    throw Error{Status::kAgain, "4096 transfers are under way, as many as can be"};
  auto operation = std::make_shared<Operation>();
  operation->sends = sends;
  operation->id = link->next_id++;
  operation->memory = number;
  operation->offset = offset;
  operation->bytes = bytes;
  operation->tag = tag;
  if (sends) {
    link->sends.push_back(operation);
    ++memory->second.users;
    match(*link);
    return operation;
  }
  if (link->told.insert(number).second) {
    const towline::Region* const region = &*memory->second.region;
    const auto metadata = agent_->metadata({&region, 1});
    tell(*link, {.type = MessageType::kMemory,
                 .memory = number,
                 .offset = memory->second.address,
                 .bytes = memory->second.bytes,
                 .gpu = memory->second.gpu,
                 .payload = metadata});
  }
  ++memory->second.users;
  link->receives.emplace(operation->id, operation);
  tell(*link, {.type = MessageType::kReceive,
               .id = operation->id,
               .memory = number,
               .offset = offset,
               .bytes = bytes,
               .tag = tag});
  return operation;
}

void Session::end(Operation& operation, int32_t status, uint64_t moved) {
  if (operation.status != TOWLINE_IN_PROGRESS) return;
  operation.status = status;
  operation.moved = moved;
  const auto memory = memories_.find(operation.memory);
  if (memory != memories_.end()) --memory->second.users;
  changed_.notify_all();
}

// Each send meets the first receive of its tag.
void Session::match(Link& link) {
  for (auto send = link.sends.begin(); send != link.sends.end();) {
    const auto offer = std::find_if(link.offers.begin(), link.offers.end(),
                                    [&](const Offer& each) { return each.tag == (*send)->tag; });
    if (offer == link.offers.end()) {
      ++send;
      continue;
    }
    const OperationPtr operation = *send;
    const Offer met = *offer;
    send = link.sends.erase(send);
    link.offers.erase(offer);
    begin_write(link, operation, met);
  }
}

void Session::begin_write(Link& link, const OperationPtr& operation, const Offer& offer) {
  operation->meets = offer.id;
  int32_t refused = TOWLINE_OK;
  const auto theirs = link.memories.find(offer.memory);
  if (operation->bytes > offer.bytes)
    refused = TOWLINE_MISMATCH;
  else if (theirs == link.memories.end())
    refused = TOWLINE_STALE;
  else if (offer.offset > theirs->second.bytes || offer.bytes > theirs->second.bytes - offer.offset)
    refused = TOWLINE_OUT_OF_RANGE;
  if (refused != TOWLINE_OK || operation->bytes == 0) {
    tell(link, {.type = MessageType::kEnded, .status = refused, .id = offer.id});
    end(*operation, refused);
    return;
  }
  try {
    const Memory& mine = memories_.at(operation->memory);
    const auto from = agent_->block_list(block(mine.address + operation->offset, operation->bytes, mine.gpu));
    const auto to = link.peer.block_list(
        block(theirs->second.address + offer.offset, operation->bytes, theirs->second.gpu));
    operation->notice = encode({.type = MessageType::kEnded, .id = offer.id, .bytes = operation->bytes});
    operation->write = agent_->transfer(from, to, {.notice = operation->notice, .queue_completion = true});
    link.writing.push_back(operation);
    poll_writes(link);
  } catch (const Error& error) {
    log(TCPX_LOG_ERROR, std::string("a send failed: ") + error.what());
    const auto status = static_cast<int32_t>(error.code());
    tell(link, {.type = MessageType::kEnded, .status = status, .id = offer.id});
    end(*operation, status);
  }
}

void Session::poll_writes(Link& link) {
  for (std::size_t i = 0; i < link.writing.size();) {
    const OperationPtr operation = link.writing[i];
    Status status = Status::kInProgress;
    if (!operation->posted) {
      status = link.status == TOWLINE_OK ? operation->write->post() : Status{link.status};
      if (status == Status::kInProgress) operation->posted = true;
      if (status == Status::kAgain) status = Status::kInProgress;  // no credit: at the next turn
    } else {
      status = operation->write->poll();
    }
    if (status == Status::kInProgress) {
      ++i;
      continue;
    }
    link.writing.erase(link.writing.begin() + static_cast<std::ptrdiff_t>(i));
    if (status != Status::kOk && link.status == TOWLINE_OK)
      tell(link,
           {.type = MessageType::kEnded, .status = static_cast<int32_t>(status), .id = operation->meets});
    end(*operation, static_cast<int32_t>(status), status == Status::kOk ? operation->bytes : 0);
  }
}

int32_t Session::status(const Operation& operation) {
  const Lock lock(mutex_);
  return operation.status;
}

uint64_t Session::moved(const Operation& operation) {
  const Lock lock(mutex_);
  return operation.moved;
}

int32_t Session::wait(const Operation& operation, uint64_t timeout_ns) {
  Lock lock(mutex_);
  (void)wait_until(lock, timeout_ns, [&] { return operation.status != TOWLINE_IN_PROGRESS; });
  return operation.status;
}

bool Session::release(const LinkPtr& link, const OperationPtr& operation, uint64_t timeout_ns) {
  Lock lock(mutex_);
  if (operation->status == TOWLINE_IN_PROGRESS) {
    if (!operation->sends && operation->wanted) {
      operation->wanted = false;
      tell(*link, {.type = MessageType::kWithdraw, .id = operation->id});
    } else if (operation->write) {
      (void)operation->write->cancel();
    } else if (operation->sends) {
      std::erase(link->sends, operation);
      end(*operation, TOWLINE_CANCELLED);
    }
    if (!wait_until(lock, timeout_ns, [&] { return operation->status != TOWLINE_IN_PROGRESS; })) return false;
  }
  if (!operation->write) return true;
  lock.unlock();
  return operation->write->destroy(in(std::min(timeout_ns, kCloseNs * 1000))) == Status::kOk;
}

// ---- the thread

void Session::run() {
  for (;;) {
    (void)agent_->wait(kTurn);
    const Lock lock(mutex_);
    if (ending_) break;
    take_notices();
    std::vector<LinkPtr> all;
    for (auto& [incarnation, link] : links_) all.push_back(link);
    for (const LinkPtr& link : all) {
      advance(link);
      if (!link->wanted && link->writing.empty() && link->outbox.empty()) links_.erase(link->incarnation);
    }
  }
}

void Session::advance(const LinkPtr& link) {
  towline::Completion ended[64];
  while (agent_->pull(ended) > 0) {  // each is asked for its outcome by itself
  }
  if (link->status >= 0 && link->peer.health() == towline::Health::kLost)
    fail(*link, TOWLINE_PEER_LOST, "the other side is gone");
  poll_writes(*link);
  flush(*link);
}

void Session::tell(Link& link, const Message& message) {
  link.outbox.push_back(encode(message));
  flush(link);
}

void Session::flush(Link& link) {
  while (!link.outbox.empty()) {
    const std::string& next = link.outbox.front();
    const Status status = link.peer.send(std::string_view(next));
    if (status == Status::kAgain) return;
    link.outbox.pop_front();
    if (status != Status::kOk) {
      link.outbox.clear();
      return fail(link, static_cast<int32_t>(status), "a message could not be sent");
    }
  }
}

void Session::take_notices() {
  towline::Notice notice;
  while (agent_->receive(notice) == Status::kOk) {
    const auto message = decode(notice.bytes());
    if (!message) continue;
    if (message->type == MessageType::kHello) {
      take_hello(notice, *message);
      continue;
    }
    const auto found = links_.find(std::string(notice.peer_incarnation()));
    if (found == links_.end()) continue;
    const LinkPtr link = found->second;
    take(link, *message);
  }
}

void Session::take_hello(const towline::Notice& notice, const Message& message) {
  const std::string incarnation(notice.peer_incarnation());
  if (links_.count(incarnation) != 0 || arrived_.size() >= kMostArrivals) return;
  try {
    auto link = std::make_shared<Link>(agent_->add_peer(message.payload));
    if (link->peer.incarnation() != incarnation) return;  // another's metadata
    link->incarnation = incarnation;
    links_.emplace(incarnation, link);
    arrived_.push_back(link);
    changed_.notify_all();
  } catch (const Error& error) {
    log(TCPX_LOG_WARNING, std::string("a hello was refused: ") + error.what());
  }
}

void Session::take_memory(Link& link, const Message& message) {
  if (link.memories.size() >= kMostMemories)
    return fail(link, TOWLINE_PROTOCOL, "it names too many memories");
  try {
    const towline::Peer known = agent_->add_peer(message.payload);
    if (known.incarnation() != link.incarnation)
      return fail(link, TOWLINE_PROTOCOL, "it names another's memory");
    link.memories.insert_or_assign(message.memory, Memory{message.offset, message.bytes, message.gpu, {}, 0});
  } catch (const Error& error) {
    fail(link, TOWLINE_PROTOCOL, error.what());
  }
}

void Session::take(const LinkPtr& link, const Message& message) {
  if (link->status < 0) return;
  switch (message.type) {
    case MessageType::kHello:
      return;
    case MessageType::kWelcome:
      if (link->status == TOWLINE_IN_PROGRESS &&
          std::find(arrived_.begin(), arrived_.end(), link) == arrived_.end())
        link->status = TOWLINE_OK;
      changed_.notify_all();
      return;
    case MessageType::kMemory:
      return take_memory(*link, message);
    case MessageType::kReceive:
      if (link->offers.size() >= 2 * kMostPending)
        return fail(*link, TOWLINE_PROTOCOL, "it posts too many receives");
      link->offers.push_back({message.id, message.memory, message.offset, message.bytes, message.tag});
      return match(*link);
    case MessageType::kEnded: {
      const auto found = link->receives.find(message.id);
      if (found == link->receives.end()) return;
      const OperationPtr receive = found->second;
      link->receives.erase(found);
      const int32_t status = message.status <= 0 ? message.status : TOWLINE_PROTOCOL;
      return end(*receive, status, std::min(message.bytes, receive->bytes));
    }
    case MessageType::kWithdraw:
      // If it was met, its end is told when its write ends; else nothing will come.
      if (std::erase_if(link->offers, [&](const Offer& offer) { return offer.id == message.id; }) != 0)
        tell(*link, {.type = MessageType::kWithdrawn, .id = message.id});
      return;
    case MessageType::kWithdrawn: {
      const auto found = link->receives.find(message.id);
      if (found == link->receives.end()) return;
      const OperationPtr receive = found->second;
      link->receives.erase(found);
      return end(*receive, TOWLINE_CANCELLED);
    }
    case MessageType::kGoodbye:
      return fail(*link, TOWLINE_CLOSED, "the other side closed it");
  }
}

}  // namespace towline_tcpx
