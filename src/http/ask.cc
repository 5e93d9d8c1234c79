#include "http/ask.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "base/clock.h"

namespace towline::http {

namespace {

constexpr uint64_t kLookAtStopEveryNs = 100 * kMillisecondNs;

class Collector final : public Receiver {
 public:
  explicit Collector(size_t most_bytes) : most_bytes_(most_bytes) {}
  bool on_head(long, const Headers&) noexcept override { return true; }
  bool on_bytes(std::span<const std::byte> bytes) noexcept override try {
    if (body.size() + bytes.size() > most_bytes_) return false;
    body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
  void on_end() override { over = true; }

  std::string body;
  bool over = false;

 private:
  const size_t most_bytes_;
};

}  // namespace

WholeAnswer ask(const Options& options, Request request, size_t most_bytes, const std::atomic<bool>& stop) {
  Client client(options);
  Collector collector(most_bytes);
  Exchange exchange;
  client.start(exchange, std::move(request), collector);
  while (!collector.over && !stop.load()) client.poll(kLookAtStopEveryNs, [](const char*) {});
  client.stop(exchange);
  if (!collector.over) return {0, "", "it was given up"};
  if (exchange.end == End::kRefused)
    return {0, "", fmt::format("its answer is longer than {} bytes", most_bytes)};
  if (exchange.end != End::kAnswered) return {0, "", exchange.error};
  return {exchange.status, std::move(collector.body), ""};
}

}  // namespace towline::http
