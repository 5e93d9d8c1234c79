#include "transports/rdma/backend.h"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "fabric/rails.h"
#include "fabric/topology.h"
#include "framing/exported_memory.h"
#include "transports/rdma/carrier.h"

namespace towline::rdma {

namespace {

constexpr uint64_t kPollForNs = 10 * kMillisecondNs;  // when a peer asks for it
// Rails that have no descriptor to wait on are looked at now and then, the less often the longer nothing happens: a peer that
// has bytes under way asks for more.
constexpr uint64_t kShortestPauseNs = 1 * kMillisecondNs;
constexpr uint64_t kLongestPauseNs = 128 * kMillisecondNs;

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& item : list) text += (text.empty() ? "" : ", ") + printable(item);
  return text;
}

// The rails that are nearest to the GPU, a bit each; all, where its place is not known.
uint32_t rails_of_gpu(std::span<const PciPlace> rails, const std::string& gpu) {
  for (const PciPlace& place : gpu.empty() ? std::vector<PciPlace>{} : read_gpus())
    if (place.address() == gpu) return fabric::nearest_rails(rails, place);
  return UINT32_MAX;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result{text};
  std::replace_if(
      result.begin(), result.end(),
      [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ' || (c & 0x80) != 0; },
      '?');
  return result;
}

Backend::Backend(const plugin::Host& host, const Flavour& flavour) try
    : BackendBase(host), flavour_(flavour), settings_(Settings::read(this->host(), flavour)) {
  open_workers();
  regions_.emplace(static_cast<RegionsOwner&>(*this), settings_.background_bytes);
  carrier_.emplace(this->host(), static_cast<carrier::CarrierOwner&>(*this),
                   tcp_carrier(this->host(), flavour));
} catch (const core::Error& error) {
  throw plugin::Failure(error.code(), error.message());
}

Backend::~Backend() {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    for (const int fd : workers_[i]->watched) host().unwatch(i, fd);
    if (workers_[i]->alarm.is_open()) host().unwatch(i, workers_[i]->alarm.fd());
  }
  carrier_.reset();
}

// Rails that can't be opened are left out, unless the settings name them.
std::vector<std::unique_ptr<fabric::Domain>> Backend::open_rails() {
  std::vector<std::unique_ptr<fabric::Domain>> rails;
  for (std::size_t i = 0; i < settings_.rails.size();) {
    try {
      rails.push_back(fabric::make_rail(settings_.rails[i]));
      ++i;
    } catch (const core::Error& error) {
      // A name that can't be meant is the setting's fault; a device that is not there is the machine's.
      if (error.code() == Status::kInvalidArgument)
        fail(error.code(), "{}: {}", flavour_.key("rails"), error.message());
      if (!settings_.automatic || settings_.rails.size() == 1)
        fail(Status::kUnsupported, "the rail {}: {}", settings_.rails[i], error.message());
      settings_.why_rails += fmt::format("; not {}: {}", settings_.rails[i], error.message());
      settings_.rails.erase(settings_.rails.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return rails;
}

// Each worker drives rails of its own, so that cores share nothing.
void Backend::open_workers() {
  fabric::EngineOptions options;
  options.max_connections = settings_.connections;
  options.slice_bytes = settings_.slice_bytes;
  for (uint32_t i = 0; i < std::max(host().worker_count(), 1u); ++i) {
    auto rails = open_rails();
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->engine = std::make_unique<WorkerEngine>(host(), options, std::move(rails));
    watch_rails(i);
  }
  const WorkerEngine& engine = *workers_.front()->engine;
  const std::vector<fabric::RdmaPort> ports = fabric::read_rdma_ports();
  rails_text_ = engine.rails() == 1 ? "1 rail: " : fmt::format("{} rails: ", engine.rails());
  for (std::size_t rail = 0; rail < engine.rails(); ++rail) {
    const std::string& device = engine.traits(rail).device;
    const auto port = std::find_if(ports.begin(), ports.end(),
                                   [&](const fabric::RdmaPort& known) { return known.device == device; });
    places_.push_back(port == ports.end() ? fabric::PciPlace{} : port->place);
    rails_text_ += (rail == 0 ? "" : ", ") + printable(engine.traits(rail).name);
    const std::string& kind = engine.traits(rail).kind;
    if (contains(kinds_, kind)) continue;
    kinds_.push_back(kind);
    if (engine.traits(rail).other_processes_only) outside_kinds_.push_back(kind);
  }
}

// Edges: a rail's descriptor may stay readable until its arm(), and a worker that sees an event does not go on to arm.
void Backend::watch_rails(uint32_t index) {
  std::vector<int> fds;
  workers_[index]->engine->event_fds(fds);
  for (const int fd : fds)
    if (host().watch(index, fd, EPOLLIN | EPOLLET, nothing_to_do, nullptr) == TOWLINE_OK)
      workers_[index]->watched.push_back(fd);
}

// ---- memory

int32_t Backend::add(const towline_region_args& args, towline_registration** registration, void*,
                     size_t* token_bytes) try {
  *token_bytes = 0;
  if (args.region.kind != TOWLINE_MEMORY_DRAM && args.region.kind != TOWLINE_MEMORY_VRAM)
    return refuse(Status::kUnsupported, "only dram and vram are registered");
  uint32_t rails = UINT32_MAX;
  fabric::MemoryToRegister memory;
  framing::ExportedMemory gpu;  // closed when all rails have it
  if (args.region.kind == TOWLINE_MEMORY_VRAM) {
    gpu = framing::export_gpu_memory(host(), args.region);
    memory.dmabuf_fd = gpu.dma_buf.get();
    memory.dmabuf_offset = gpu.offset;
    memory.device = args.region.device;
    rails = rails_of_gpu(places_, gpu.gpu);
  } else {
    rails = fabric::rails_of_node(places_,
                                  fabric::numa_node_of(reinterpret_cast<const void*>(args.region.address)));
  }
  memory.address = reinterpret_cast<void*>(args.region.address);
  memory.bytes = args.region.bytes;
  memory.remote_read = (args.region.access & TOWLINE_ACCESS_READ) != 0;
  memory.remote_write = (args.region.access & TOWLINE_ACCESS_WRITE) != 0;
  if ((args.region.flags & TOWLINE_REGION_GUARDED) != 0) memory.remote_read = memory.remote_write = false;
  *registration = reinterpret_cast<towline_registration*>(
      regions_->add(args.region, memory, rails, std::move(gpu.dma_buf)));
  return TOWLINE_OK;
} catch (const core::Error& error) {
  regions_->refuse(args.region.key, error.message());
  return refuse(error.code(), error.message());
}

// No peer reaches it any more, or the peers that did are gone.
void Backend::remove(towline_registration* registration) noexcept {
  regions_->remove(reinterpret_cast<Registered*>(registration));
}

std::vector<fabric::LocalMemory> Backend::register_memory(const fabric::MemoryToRegister& memory) {
  std::vector<fabric::LocalMemory> registered;
  registered.reserve(workers_.size());
  try {
    for (const auto& worker : workers_) registered.push_back(worker->engine->register_memory(memory));
  } catch (...) {
    deregister_memory(registered);
    throw;
  }
  return registered;
}

void Backend::deregister_memory(const std::vector<fabric::LocalMemory>& memory) noexcept {
  for (std::size_t i = 0; i < memory.size(); ++i) workers_[i]->engine->deregister_memory(memory[i]);
}

bool Backend::run(void (*work)(void* argument), void* argument) noexcept {
  return host().run(0, work, argument) == Status::kOk;
}

void Backend::settled() noexcept {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    workers_[i]->settled.store(true, std::memory_order_release);
    host().wake(i);
  }
}

Regions::State Backend::local_memory(Registered* region, uint64_t key, uint32_t worker,
                                     const fabric::LocalMemory*& memory) {
  if (region != nullptr) return regions_->look(*region, worker, memory);
  towline_region_ref ref = {};
  fabric::RemoteMemory remote;
  return {Status::kUnsupported, regions_->find(key, worker, ref, remote).reason};
}

std::optional<Answer> Backend::answer(uint64_t key, uint32_t worker) {
  Answer answer;
  answer.key = key;
  towline_region_ref region = {};
  Regions::State state = regions_->find(key, worker, region, answer.memory);
  const bool known = region.bytes != 0;
  if (state.status == Status::kNotFound || (known && !host().may_be_reached(region))) {
    answer.status = Status::kStale;
    answer.reason = "it has no such region any more, or none that its rails reach";
  } else if ((region.flags & TOWLINE_REGION_GUARDED) != 0) {
    answer.status = Status::kPermissionDenied;
    answer.reason = "the region is guarded";
  } else if (state.status == Status::kAgain) {
    return std::nullopt;
  } else if (state.status != Status::kOk) {
    answer.status = Status::kUnsupported;
    answer.reason = "its rails have not registered the memory: " + state.reason;
  }
  return answer;
}

// ---- connections

int32_t Backend::address(void* address, size_t* bytes) {
  Address mine;
  mine.kinds = kinds_;
  mine.carrier.resize(*bytes);
  std::size_t carrier_bytes = mine.carrier.size();
  const int32_t status = carrier_->address(mine.carrier.data(), &carrier_bytes);
  if (status != TOWLINE_OK) return status;
  if (carrier_bytes == 0) {
    *bytes = 0;
    return TOWLINE_OK;
  }
  mine.carrier.resize(carrier_bytes);
  const std::vector<uint8_t> packed = encode(mine);
  if (packed.size() > *bytes) return refuse(Status::kLimitExceeded, "no room for the address");
  std::memcpy(address, packed.data(), packed.size());
  *bytes = packed.size();
  return TOWLINE_OK;
}

std::vector<std::string> Backend::kinds_for(const towline_identity& peer) const {
  const towline_identity& self = host().self();
  const bool same_process = std::equal(std::begin(peer.host), std::end(peer.host), self.host) &&
                            peer.pid == self.pid && peer.pid_namespace == self.pid_namespace &&
                            peer.start_time == self.start_time;
  std::vector<std::string> kinds = kinds_;
  if (same_process)
    std::erase_if(kinds, [&](const std::string& kind) { return contains(outside_kinds_, kind); });
  return kinds;
}

int32_t Backend::probe(const towline_identity& peer, const void* address, size_t bytes) {
  const auto theirs = decode_address({static_cast<const uint8_t*>(address), bytes});
  if (!theirs) return refuse(Status::kProtocol, "the peer's address is malformed");
  const std::vector<std::string> mine = kinds_for(peer);
  if (std::none_of(theirs->kinds.begin(), theirs->kinds.end(),
                   [&](const std::string& kind) { return contains(mine, kind); }))
    return host().refuse(Status::kUnreachable,
                         mine.empty() ? fmt::format("{} reaches other processes only", joined(kinds_))
                                      : fmt::format("the peer has other rails: {}", joined(theirs->kinds)));
  return carrier_->probe(peer, theirs->carrier.data(), theirs->carrier.size());
}

int32_t Backend::connect(uint32_t index, const towline_identity& identity, const void* address, size_t bytes,
                         uint64_t deadline_ns, void* peer, Connection** out) {
  const int32_t reachable = probe(identity, address, bytes);
  if (reachable != TOWLINE_OK) return reachable;
  const auto theirs = decode_address({static_cast<const uint8_t*>(address), bytes});
  const Scope scope{*this, index};
  auto* const connection =
      workers_[index]->connections.add(std::make_unique<Connection>(*this, index, identity, peer));
  const int32_t status = connection->connect(identity, theirs->carrier, deadline_ns);
  if (status != TOWLINE_OK)
    release(connection);
  else
    *out = connection;
  return status;
}

int32_t Backend::on_accepted(uint32_t index, towline_connection* carried, const towline_identity& identity,
                             carrier::CarrierEvents** events) {
  const Scope scope{*this, index};
  auto* const connection =
      workers_[index]->connections.add(std::make_unique<Connection>(*this, index, identity, nullptr));
  const int32_t status = connection->accept(carried, identity);
  if (status < 0)
    release(connection);
  else
    *events = connection->events();  // the core's until disconnect()
  return status;
}

void Backend::release(Connection* connection) noexcept {
  Worker& worker = *workers_[connection->worker()];
  std::erase(worker.eager, connection);
  worker.connections.release(connection);
}

void Backend::add_eager(Connection& connection) {
  std::vector<Connection*>& eager = workers_[connection.worker()]->eager;
  if (std::find(eager.begin(), eager.end(), &connection) == eager.end()) eager.push_back(&connection);
}

// ---- progress

uint32_t Backend::progress(uint32_t index, uint64_t now_ns) noexcept {
  const Scope scope{*this, index};
  Worker& worker = *workers_[index];
  uint32_t done = carrier_->progress(index, now_ns);
  done += worker.engine->progress(now_ns);
  if (done != 0) worker.pause_ns = kShortestPauseNs;
  if (worker.engine->needs_polling_peers())
    done +=
        worker.connections.each([now_ns](Connection& connection) { return connection.ask_to_poll(now_ns); });
  for (std::size_t i = worker.eager.size(); i-- > 0;) {
    if (!worker.eager[i]->flush()) continue;
    worker.eager[i] = worker.eager.back();
    worker.eager.pop_back();
    ++done;
  }
  if (worker.settled.load(std::memory_order_relaxed) &&
      worker.settled.exchange(false, std::memory_order_acquire))
    done += worker.connections.each([](Connection& connection) { return connection.answer_asks(); });
  // Both sides have to run for such rails: where there are fewer processors, in turn.
  if (done == 0 && (worker.engine->needs_polling_peers() || now_ns < worker.poll_until_ns)) sched_yield();
  return done;
}

bool Backend::arm(uint32_t index) noexcept {
  Worker& worker = *workers_[index];
  const bool unsent = std::any_of(worker.eager.begin(), worker.eager.end(),
                                  [](const Connection* connection) { return connection->has_unsent(); });
  if (unsent || worker.settled.load(std::memory_order_acquire) || carrier_->arm(index)) return true;
  const uint64_t now_ns = host().now_ns();
  uint64_t next_ns = worker.engine->next_timer_ns();
  const WorkerEngine::Sleep sleep = worker.engine->arm();
  const bool asked_to_poll = sleep == WorkerEngine::Sleep::kPoll && now_ns < worker.poll_until_ns;
  if (sleep == WorkerEngine::Sleep::kNo || asked_to_poll || next_ns <= now_ns) {
    carrier_->disarm(index);
    return true;
  }
  const bool anybody = worker.connections.any([](const Connection&) { return true; });
  if (sleep == WorkerEngine::Sleep::kPoll && anybody) {
    next_ns = std::min(next_ns, now_ns + worker.pause_ns);
    worker.pause_ns = std::min(2 * worker.pause_ns, kLongestPauseNs);
  }
  set_timer(index, next_ns, now_ns);
  worker.armed = true;
  return false;
}

void Backend::disarm(uint32_t index) noexcept {
  workers_[index]->armed = false;
  carrier_->disarm(index);
}

void Backend::poll_for_a_while(uint32_t index) noexcept {
  workers_[index]->poll_until_ns = host().now_ns() + kPollForNs;
}

void Backend::set_timer(uint32_t index, uint64_t next_ns, uint64_t now_ns) noexcept {
  workers_[index]->alarm.ring_at(next_ns, now_ns, [&](int fd, auto rung, Alarm* alarm) {
    return host().watch(index, fd, EPOLLIN, rung, alarm) == TOWLINE_OK;
  });
}

}  // namespace towline::rdma
