#include "fabric/loopback/shared.h"

#include <charconv>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "fabric/loopback/loopback.h"

namespace towline::fabric {
namespace {

struct SharedNetwork {
  std::mutex mutex;
  LoopbackFabric fabric{1, [] { return monotonic_now_ns(); }};
};

// By name. Process-wide, since no smaller unit knows the other engines of this address space.
std::shared_ptr<SharedNetwork> network_of(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<SharedNetwork>> networks;
  const std::lock_guard lock(mutex);
  std::weak_ptr<SharedNetwork>& known = networks[name];
  std::shared_ptr<SharedNetwork> network = known.lock();
  if (network == nullptr) {
    network = std::make_shared<SharedNetwork>();
    known = network;
  }
  return network;
}

struct SharedOptions {
  LoopbackOptions port;
  std::chrono::milliseconds registering{0};  // pinning takes a NIC so long
};

// Passes everything on under the network's lock.
class SharedPort final : public Domain {
 public:
  SharedPort(std::shared_ptr<SharedNetwork> network, SharedOptions settings)
      : network_(std::move(network)), registering_(settings.registering) {
    LoopbackOptions& options = settings.port;
    options.traits.registers_beside = true;
    const std::lock_guard lock(network_->mutex);
    port_ = network_->fabric.make_domain(std::move(options));
    traits_ = port_->traits();
  }
  ~SharedPort() override {
    const std::lock_guard lock(network_->mutex);
    port_.reset();
  }

  const DomainTraits& traits() const noexcept override { return traits_; }
  std::vector<uint8_t> address() const override {
    const std::lock_guard lock(network_->mutex);
    return port_->address();
  }
  Registration register_memory(const MemoryToRegister& memory) override {
    if (registering_.count() != 0) std::this_thread::sleep_for(registering_);
    const std::lock_guard lock(network_->mutex);
    return port_->register_memory(memory);
  }
  void deregister_memory(const Registration& registration) noexcept override {
    const std::lock_guard lock(network_->mutex);
    port_->deregister_memory(registration);
  }
  std::vector<uint8_t> open(uint32_t connection, ConnectionEnd end) override {
    const std::lock_guard lock(network_->mutex);
    return port_->open(connection, end);
  }
  void connect(uint32_t connection, std::span<const uint8_t> other_end) override {
    const std::lock_guard lock(network_->mutex);
    port_->connect(connection, other_end);
  }
  void stop(uint32_t connection) noexcept override {
    const std::lock_guard lock(network_->mutex);
    port_->stop(connection);
  }
  void release(uint32_t connection) noexcept override {
    const std::lock_guard lock(network_->mutex);
    port_->release(connection);
  }
  std::size_t post(uint32_t connection, const WorkRequest* requests, std::size_t count) noexcept override {
    const std::lock_guard lock(network_->mutex);
    return port_->post(connection, requests, count);
  }
  std::size_t post_receives(uint32_t connection, const ReceiveRequest* requests,
                            std::size_t count) noexcept override {
    const std::lock_guard lock(network_->mutex);
    return port_->post_receives(connection, requests, count);
  }
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    const std::lock_guard lock(network_->mutex);
    return port_->poll(completions, capacity);
  }
  bool recover() noexcept override {
    const std::lock_guard lock(network_->mutex);
    return port_->recover();
  }

 private:
  const std::shared_ptr<SharedNetwork> network_;
  const std::chrono::milliseconds registering_;
  std::unique_ptr<Domain> port_;
  DomainTraits traits_;
};

std::optional<double> number_after(std::string_view key, std::string_view setting) {
  if (!setting.starts_with(key)) return std::nullopt;
  const std::string_view text = setting.substr(key.size());
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

void read_setting(std::string_view setting, SharedOptions& options) {
  if (setting == "host_only") {
    options.port.host_only = true;
    return;
  }
  if (const auto rate = number_after("rate=", setting); rate && *rate >= 1 && *rate < 1e15) {
    options.port.traits.bandwidth_bytes_per_s = options.port.bytes_per_s = static_cast<uint64_t>(*rate);
    return;
  }
  if (const auto ms = number_after("register_ms=", setting); ms && *ms >= 0 && *ms <= 600'000) {
    options.registering = std::chrono::milliseconds{static_cast<int64_t>(*ms)};
    return;
  }
  fail(Status::kInvalidArgument,
       "a loopback rail takes ?rate=BYTES_PER_SECOND, ?register_ms=MILLISECONDS or ?host_only, not \"{}\"",
       setting);
}

}  // namespace

std::unique_ptr<Domain> make_shared_loopback(const std::string& name) {
  const std::size_t mark = name.find('?');
  const std::string network = name.substr(0, mark);
  if (network.empty() || network.size() > 64)
    fail(Status::kInvalidArgument, "\"{}\" names no loopback network", name);
  SharedOptions options;
  options.port.traits.kind = "loopback:" + network;
  options.port.traits.name = "loopback " + network;
  if (mark != std::string::npos) read_setting(std::string_view{name}.substr(mark + 1), options);
  return std::make_unique<SharedPort>(network_of(network), std::move(options));
}

}  // namespace towline::fabric
