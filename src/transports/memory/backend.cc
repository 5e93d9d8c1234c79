#include "transports/memory/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "base/config/config.h"
#include "base/error.h"
#include "base/sync/wake_path.h"
#include "base/wire.h"
#include "towline/towline.h"
#include "transports/memory/network.h"

namespace towline::memory {

namespace {

constexpr uint8_t kAddressVersion = 1;
constexpr uint64_t kMinRingBytes = 16u << 10;
constexpr uint64_t kMaxRingBytes = 64u << 20;

struct Address {
  uint64_t incarnation[2];
};

std::optional<Address> decode_address(const void* data, size_t bytes) noexcept {
  WireReader reader{{static_cast<const uint8_t*>(data), bytes}};
  const uint8_t version = reader.u8();
  Address address{};
  for (uint64_t& word : address.incarnation) word = reader.u64();
  if (version == 0 || (version > kAddressVersion ? !reader.ok() : !reader.finished())) return std::nullopt;
  return address;
}

uint64_t read_bytes(const plugin::Host& host, const char* key, const char* fallback) {
  const std::string value = host.config(key, fallback);
  const std::optional<uint64_t> bytes = parse_bytes(value);
  if (!bytes)
    throw plugin::Failure(Status::kInvalidArgument,
                          fmt::format("{} = \"{}\": expected a size such as 256KiB", key, value));
  return *bytes;
}

}  // namespace

Backend::Backend(const plugin::Host& host)
    : BackendBase(host), workers_(host.worker_count()), mailbox_(std::make_shared<Mailbox>(host)) {
  inline_bytes_ = read_bytes(host, "tuning.memory.inline_bytes", "256KiB");
  const uint64_t ring_bytes = read_bytes(host, "tuning.memory.ring_bytes", "256KiB");
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kMinRingBytes || ring_bytes > kMaxRingBytes)
    throw plugin::Failure(Status::kInvalidArgument,
                          fmt::format("tuning.memory.ring_bytes = {}: expected a power of two from {} to {}",
                                      ring_bytes, kMinRingBytes, kMaxRingBytes));
  ring_bytes_ = static_cast<uint32_t>(ring_bytes);
  const std::string framed = host.config("tuning.memory.framed", "false");
  if (framed != "true" && framed != "false")
    throw plugin::Failure(Status::kInvalidArgument,
                          fmt::format("tuning.memory.framed = \"{}\": expected true or false", framed));
  framed_only_ = framed == "true";
  try {
    faults_ = framing::parse_fault_options(host.config("tuning.memory.faults", ""));
  } catch (const Error& error) {
    throw plugin::Failure(error.code(), error.message());
  }
  enter_directory(host.self().incarnation, mailbox_);
}

Backend::~Backend() {
  leave_directory(host().self().incarnation);
  for (const Call& call : mailbox_->close()) call.ends->answer(Ends::Answer::kRefused, Status::kClosed);
}

framing::FaultOptions Backend::next_faults() noexcept {
  framing::FaultOptions faults = faults_;
  faults.seed += fault_seeds_.fetch_add(1, std::memory_order_relaxed);
  return faults;
}

int32_t Backend::add(const towline_region_args& args, towline_registration** registration, void*,
                     size_t* token_bytes) {
  if (args.region.kind != TOWLINE_MEMORY_DRAM)
    return host().refuse(Status::kUnsupported, "memory: only dram is reached");
  *token_bytes = 0;
  *registration =
      reinterpret_cast<towline_registration*>(this);  // nothing to keep: peers ask the host for pins
  return TOWLINE_OK;
}

int32_t Backend::address(void* address, size_t* bytes) {
  WireWriter writer{std::span<uint8_t>{static_cast<uint8_t*>(address), *bytes}};
  writer.u8(kAddressVersion);
  for (const uint64_t word : host().self().incarnation) writer.u64(word);
  if (!writer.ok()) return host().refuse(Status::kNoSpace, "memory: no room for the address");
  *bytes = writer.size();
  return TOWLINE_OK;
}

int32_t Backend::probe(const towline_identity&, const void* address, size_t bytes) {
  const auto decoded = decode_address(address, bytes);
  if (!decoded) return host().refuse(Status::kProtocol, "memory: the peer's address makes no sense");
  if (find_in_directory(decoded->incarnation) == nullptr)
    return host().refuse(Status::kUnreachable, "memory: the peer is not an agent of this process");
  return TOWLINE_OK;
}

int32_t Backend::connect(uint32_t worker, const towline_identity&, const void* address, size_t bytes,
                         uint64_t deadline_ns, void* peer, Connection** out) {
  const auto decoded = decode_address(address, bytes);
  if (!decoded) return host().refuse(Status::kProtocol, "memory: the peer's address makes no sense");
  const std::shared_ptr<Mailbox> mailbox = find_in_directory(decoded->incarnation);
  if (mailbox == nullptr)
    return host().refuse(Status::kUnreachable, "memory: the peer is not an agent of this process");
  auto ends = std::make_shared<Ends>(ring_bytes_, host().self().incarnation, decoded->incarnation);
  auto connection = std::make_unique<Connection>(*this, worker, ends, 0, peer);
  connection->call(deadline_ns);
  const Network* const network = current_network();
  const bool arrives = network == nullptr || network->passes(host().self().incarnation, decoded->incarnation);
  const Status status =
      arrives ? mailbox->post(worker % mailbox->workers(), {ends, host().self(), host().self().name})
              : Status::kOk;  // the call is lost
  if (status != Status::kOk) return host().refuse(status, "memory: the peer has closed");
  *out = workers_[worker].connections.add(std::move(connection));
  return TOWLINE_OK;
}

uint32_t Backend::answer_calls(uint32_t worker) noexcept {
  uint32_t count = 0;
  for (const Call& call : mailbox_->take(worker)) {
    ++count;
    Connection* connection = nullptr;
    try {
      connection = workers_[worker].connections.add(
          std::make_unique<Connection>(*this, worker, call.ends, 1, nullptr));
      if (connection->accept(call)) continue;
    } catch (const std::exception&) {
      call.ends->answer(Ends::Answer::kRefused, Status::kOutOfMemory);
    }
    if (connection != nullptr) release(connection);
  }
  return count;
}

TOWLINE_WAKE_PATH uint32_t Backend::progress(uint32_t worker, uint64_t now_ns) noexcept {
  const Scope scope{*this, worker};
  Worker& mine = workers_[worker];
  uint32_t done = mailbox_->has_calls(worker) ? answer_calls(worker) : 0;
  done += mine.connections.each([now_ns](Connection& connection) { return connection.progress(now_ns); });
  return done;
}

bool Backend::arm(uint32_t worker) noexcept {
  Worker& mine = workers_[worker];
  bool work = mailbox_->has_calls(worker);
  work = work || mine.connections.any([](Connection& connection) { return connection.arm(); });
  if (work) disarm(worker);
  return work;
}

void Backend::disarm(uint32_t worker) noexcept {
  workers_[worker].connections.each([](Connection& connection) { return connection.disarm(), 0u; });
}

}  // namespace towline::memory
