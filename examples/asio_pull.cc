// The same with Asio: its coroutines, timers and sockets wait beside Towline's operations in one io_context.
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <towline/asio.hpp>

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kPages = 64;
constexpr uint64_t kPageBytes = 16384;
constexpr uint64_t kReady = 1;  // the tag of announcements

asio::awaitable<void> prefill_worker(asio::io_context& io, const towline::Agent& prefill, std::string address,
                                     const towline::Memory& produced) {
  towline::AsioQueue waits{io.get_executor(), prefill};
  const towline::Peer decode = co_await waits.async_connect(std::move(address), 10s, asio::use_awaitable);
  asio::steady_timer model{io, 1ms};  // stands for the model's kernels
  co_await model.async_wait(asio::use_awaitable);
  std::memset(produced.data(), 9, kPages * kPageBytes);
  while (send_tagged(decode, kReady, "req-17") == towline::Status::kAgain)
    co_await waits.async_credit(decode, asio::use_awaitable);
}

asio::awaitable<void> decode_worker(towline::AsioQueue& waits, const towline::Agent& decode,
                                    const towline::BlockList& mine) {
  const towline::Event ready = co_await waits.async_notice(asio::use_awaitable);
  const towline::Peer prefill = waits.queue().peer(ready);
  const towline::Plan pull = decode.plan(prefill.region("kv").list(), mine);
  const towline::Finished done = co_await waits.async_post(pull, {.deadline = 10s}, asio::use_awaitable);
  done.check();  // in C++23 also as a value: done.expected()
  std::printf("%.*s: %d pages are there\n", static_cast<int>(ready.bytes),
              static_cast<const char*>(ready.data), static_cast<int>(kPages));
}

}  // namespace

int main() try {
  const towline::Agent prefill{"prefill-0"};
  const towline::Agent decode{"decode-0"};
  const towline::Memory produced{kPages * kPageBytes};
  const towline::Memory cache{kPages * kPageBytes};
  const towline::Region kv = prefill.register_memory(
      towline::dram(produced),
      {.access = towline::Access::kRead, .name = "kv", .layout = towline::paged(1, kPages, kPageBytes)});
  const towline::Region its_kv = decode.register_memory(towline::dram(cache));
  const towline::BlockList mine =
      decode.block_list(towline::Blocks::at(cache.data(), kPageBytes).repeat(kPages, kPageBytes));

  asio::io_context io;
  towline::AsioQueue waits{io.get_executor(), decode};
  waits.queue().subscribe(kReady);
  const auto rethrow = [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  };
  asio::co_spawn(io, decode_worker(waits, decode, mine), rethrow);
  asio::co_spawn(io, prefill_worker(io, prefill, std::string(decode.address()), produced), rethrow);
  io.run();
  const std::byte last = cache.data()[kPages * kPageBytes - 1];
  return last == std::byte{9} ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
