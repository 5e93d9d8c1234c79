// The TransferEngine through the C API: what moves, and every call's wrong arguments.
#include "towline/fabric.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/os/unique_fd.h"
#include "towline/fabric.hpp"
#include "towline/towline.h"

namespace towline::capi_fabric_test {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

towline_fabric_t* make(towline_fabric_message_fn on_message = nullptr, void* context = nullptr) {
  const char* rails[] = {"ofi:tcp;ofi_rxm@127.0.0.1"};
  towline_fabric_options_t options{};
  options.struct_size = sizeof options;
  options.rails = rails;
  options.rail_count = 1;
  options.on_message = on_message;
  options.context = context;
  towline_fabric_t* engine = nullptr;
  EXPECT_EQ(towline_fabric_create(&options, &engine), TOWLINE_OK) << towline_last_error();
  return engine;
}

void make_pool(towline_fabric_t* engine, towline_fabric_pool_t** pool) {
  towline_fabric_pool_options_t options{};
  options.struct_size = sizeof options;
  options.buffer_bytes = 4096;
  options.buffers = 2;
  ASSERT_EQ(towline_fabric_pool_create(engine, &options, pool), TOWLINE_OK) << towline_last_error();
}

template <class Call>
std::vector<uint8_t> blob(Call&& call) {
  size_t needed = 0;
  EXPECT_EQ(call(nullptr, size_t{0}, &needed), TOWLINE_OK) << towline_last_error();
  std::vector<uint8_t> bytes(needed);
  EXPECT_EQ(call(bytes.data(), bytes.size(), &needed), TOWLINE_OK);
  return bytes;
}

TEST(CapiFabric, AForkedChildIsToldAndEndsNothing) {
  towline_fabric_t* one = make();
  towline_fabric_t* two = make();
  const auto address = [](towline_fabric_t* engine) {
    return blob(
        [&](void* out, size_t n, size_t* needed) { return towline_fabric_address(engine, out, n, needed); });
  };
  const auto theirs = address(two);
  towline_fabric_pool_t* pool = nullptr;
  ASSERT_NO_FATAL_FAILURE(make_pool(one, &pool));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // the engine's threads are not here: who waits for them waits for ever
    towline_fabric_peer_t peer = 0;
    towline_fabric_buffer_t buffer{};
    const bool told = towline_fabric_connect(one, theirs.data(), theirs.size(), &peer) == TOWLINE_FORKED &&
                      towline_fabric_pool_take(pool, &buffer) == TOWLINE_FORKED;
    towline_fabric_pool_destroy(pool);
    towline_fabric_destroy(one);
    ::_exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  towline_fabric_peer_t peer = 0;
  EXPECT_EQ(towline_fabric_connect(one, theirs.data(), theirs.size(), &peer), TOWLINE_OK)
      << towline_last_error();
  towline_fabric_pool_destroy(pool);
  towline_fabric_destroy(one);
  towline_fabric_destroy(two);
}

TEST(CapiFabric, CallbacksOfAnEngineThatIsDestroyedMayDeregisterAndReleaseAndAreRefusedMore) {
  struct Told {
    towline_fabric_t* engine = make();
    std::vector<uint8_t> bytes = std::vector<uint8_t>(4096);
    towline_fabric_memory_t* memory = nullptr;
    towline_fabric_transfer_t transfer = 0;
    towline_fabric_word_t word{};
    int calls = 0;
  } told;
  ASSERT_EQ(towline_fabric_register(told.engine, told.bytes.data(), told.bytes.size(),
                                    TOWLINE_FABRIC_WRITABLE, &told.memory),
            TOWLINE_OK)
      << towline_last_error();
  const auto ignore = [](void*, uint64_t, uint64_t) { return 1; };
  ASSERT_EQ(towline_fabric_watch(told.engine, 0, ignore, nullptr, &told.word), TOWLINE_OK)
      << towline_last_error();
  towline_fabric_receive_options_t options{};
  options.struct_size = sizeof options;
  options.context = &told;
  options.done = [](void* context, int32_t status, towline_fabric_peer_t, uint64_t) {
    Told& to = *static_cast<Told*>(context);
    ++to.calls;
    EXPECT_EQ(status, TOWLINE_CLOSED);
    EXPECT_EQ(towline_fabric_receive(to.engine, to.memory, 0, 100, nullptr, nullptr), TOWLINE_CLOSED);
    EXPECT_EQ(towline_fabric_release(to.engine, to.transfer), TOWLINE_OK);
    EXPECT_EQ(towline_fabric_deregister(to.engine, to.memory), TOWLINE_OK) << towline_last_error();
    EXPECT_EQ(*to.word.host, 0u);  // counters may still be mirrored there
    EXPECT_EQ(towline_fabric_unwatch(to.engine, to.word.index), TOWLINE_OK) << towline_last_error();
    towline_fabric_word_t other{};
    const auto never = [](void*, uint64_t, uint64_t) { return 0; };
    EXPECT_EQ(towline_fabric_watch(to.engine, 0, never, nullptr, &other), TOWLINE_CLOSED);
  };
  ASSERT_EQ(towline_fabric_receive(told.engine, told.memory, 0, 4096, &options, &told.transfer),
            TOWLINE_IN_PROGRESS)
      << towline_last_error();
  towline_fabric_destroy(told.engine);
  EXPECT_EQ(told.calls, 1);
}

TEST(CapiFabric, CallbacksOfWordsAreRefusedMoreWordsOfAnEngineThatIsDestroyed) {
  struct Told {
    towline_fabric_t* engine = make();
    std::atomic<bool> called{false};
    int32_t last = TOWLINE_OK;
  } told;
  towline_fabric_word_t word{};
  const auto watch_more = [](void* context, uint64_t, uint64_t) {
    Told& to = *static_cast<Told*>(context);
    to.called = true;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (to.last == TOWLINE_OK && std::chrono::steady_clock::now() < until) {
      towline_fabric_word_t other{};
      const auto never = [](void*, uint64_t, uint64_t) { return 0; };
      to.last = towline_fabric_watch(to.engine, 0, never, nullptr, &other);
      if (to.last == TOWLINE_OK) {
        EXPECT_EQ(towline_fabric_unwatch(to.engine, other.index), TOWLINE_OK);
      }
    }
    return 1;
  };
  ASSERT_EQ(towline_fabric_watch(told.engine, 0, watch_more, &told, &word), TOWLINE_OK)
      << towline_last_error();
  std::atomic_ref<uint64_t>{*word.host}.store(1, std::memory_order_release);
  while (!told.called) std::this_thread::yield();
  towline_fabric_destroy(told.engine);
  EXPECT_EQ(told.last, TOWLINE_CLOSED);
}

TEST(CapiFabric, TwoEnginesMovePagesCountAndSend) {
  std::atomic<size_t> heard{0};
  const auto hear = [](void* context, towline_fabric_peer_t, const void*, size_t bytes) {
    *static_cast<std::atomic<size_t>*>(context) += bytes;
  };
  towline_fabric_t* one = make();
  towline_fabric_t* two = make(hear, &heard);
  std::vector<uint8_t> source(64 * 4096);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 3 + i / 4096);
  std::vector<uint8_t> target(source.size());
  towline_fabric_memory_t* mine = nullptr;
  towline_fabric_memory_t* theirs = nullptr;
  ASSERT_EQ(towline_fabric_register(one, source.data(), source.size(), 0, &mine), TOWLINE_OK);
  ASSERT_EQ(towline_fabric_register(two, target.data(), target.size(), TOWLINE_FABRIC_WRITABLE, &theirs),
            TOWLINE_OK);
  const auto address =
      blob([&](void* out, size_t n, size_t* needed) { return towline_fabric_address(two, out, n, needed); });
  const auto descriptor = blob(
      [&](void* out, size_t n, size_t* needed) { return towline_fabric_descriptor(theirs, out, n, needed); });
  towline_fabric_peer_t peer = 0;
  ASSERT_EQ(towline_fabric_connect(one, address.data(), address.size(), &peer), TOWLINE_OK);
  towline_fabric_remote_t* remote = nullptr;
  ASSERT_EQ(towline_fabric_import(descriptor.data(), descriptor.size(), &remote), TOWLINE_OK);

  const uint32_t from[] = {3, 1, 63};
  const uint32_t to[] = {0, 62, 5};
  towline_fabric_pages_t pages{};
  pages.struct_size = sizeof pages;
  pages.local_pages = from;
  pages.remote_pages = to;
  pages.count = 3;
  pages.page_bytes = 4096;
  towline_fabric_transfer_options_t options{};
  options.struct_size = sizeof options;
  options.immediate = 7;
  options.count = 3;
  options.message = "three";
  options.message_bytes = 5;
  towline_fabric_transfer_t transfer = 0;
  ASSERT_EQ(towline_fabric_paged(one, TOWLINE_FABRIC_WRITE, peer, mine, remote, &pages, &options, &transfer),
            TOWLINE_IN_PROGRESS)
      << towline_last_error();
  EXPECT_EQ(towline_fabric_counter_wait(two, 7, 3, 20 * kSecond), TOWLINE_OK);
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(std::equal(source.begin() + from[i] * 4096, source.begin() + (from[i] + 1) * 4096,
                           target.begin() + to[i] * 4096));
  EXPECT_EQ(towline_fabric_wait(one, transfer, 20 * kSecond), TOWLINE_OK);
  EXPECT_EQ(towline_fabric_wait_fenced(one, transfer, 20 * kSecond), TOWLINE_OK);
  EXPECT_EQ(towline_fabric_release(one, transfer), TOWLINE_OK);
  EXPECT_EQ(towline_fabric_poll(one, transfer), TOWLINE_STALE);
  uint64_t value = 0;
  EXPECT_EQ(towline_fabric_counter(two, 7, &value), TOWLINE_OK);
  EXPECT_EQ(value, 3u);

  // A forbidden access is refused before anything moves.
  EXPECT_EQ(towline_fabric_single(one, TOWLINE_FABRIC_READ, peer, mine, 0, remote, 0, 10, nullptr, &transfer),
            TOWLINE_PERMISSION_DENIED);
  EXPECT_EQ(towline_fabric_single(one, TOWLINE_FABRIC_WRITE, peer, mine, 0, remote, target.size(), 1, nullptr,
                                  &transfer),
            TOWLINE_OUT_OF_RANGE);
  EXPECT_NE(std::string{towline_last_error()}.find("towline_fabric_single"), std::string::npos);
  EXPECT_EQ(towline_fabric_single(one, 9, peer, mine, 0, remote, 0, 1, nullptr, &transfer),
            TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_fabric_signal(one, peer, nullptr, &transfer), TOWLINE_INVALID_ARGUMENT);
  options.message = nullptr;
  EXPECT_EQ(
      towline_fabric_single(one, TOWLINE_FABRIC_WRITE, peer, mine, 0, remote, 0, 1, &options, &transfer),
      TOWLINE_INVALID_ARGUMENT);
  EXPECT_NE(std::string{towline_last_error()}.find("options.message is null"), std::string::npos)
      << towline_last_error();
  options.message = "three";
  EXPECT_EQ(towline_fabric_cancel(one, 12345), TOWLINE_OK);
  EXPECT_EQ(towline_fabric_disconnect(one, peer), TOWLINE_OK);
  EXPECT_EQ(towline_fabric_signal(one, peer, &options, &transfer), TOWLINE_STALE);
  EXPECT_EQ(towline_fabric_deregister(one, mine), TOWLINE_OK);
  towline_fabric_remote_release(remote);
  towline_fabric_destroy(one);
  towline_fabric_destroy(two);
  EXPECT_EQ(heard, 5u);
}

TEST(CapiFabric, WrongArgumentsAreNamed) {
  towline_fabric_t* engine = nullptr;
  EXPECT_EQ(towline_fabric_create(nullptr, &engine), TOWLINE_INVALID_ARGUMENT);
  const char* rails[] = {"nonsense:mlx5_0"};
  towline_fabric_options_t options{};
  options.struct_size = sizeof options;
  options.rails = rails;
  options.rail_count = 1;
  EXPECT_EQ(towline_fabric_create(&options, &engine), TOWLINE_INVALID_ARGUMENT);
  EXPECT_NE(std::string{towline_last_error()}.find("nonsense:mlx5_0"), std::string::npos);
  rails[0] = "ofi:no_such_provider";
  EXPECT_EQ(towline_fabric_create(&options, &engine), TOWLINE_NOT_FOUND);
  options.rail_count = 17;
  EXPECT_EQ(towline_fabric_create(&options, &engine), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_fabric_create(&options, nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_fabric_address(nullptr, nullptr, 0, nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_fabric_import("x", 1, nullptr), TOWLINE_INVALID_ARGUMENT);
  towline_fabric_remote_t* remote = nullptr;
  EXPECT_EQ(towline_fabric_import("x", 1, &remote), TOWLINE_PROTOCOL);
  towline_fabric_remote_release(nullptr);
  towline_fabric_destroy(nullptr);

  engine = make();
  towline_fabric_memory_t* memory = nullptr;
  EXPECT_EQ(towline_fabric_register(engine, nullptr, 10, 0, &memory), TOWLINE_INVALID_ARGUMENT);
  uint8_t byte = 0;
  EXPECT_EQ(towline_fabric_register(engine, &byte, 1, 8, &memory), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_fabric_deregister(engine, nullptr), TOWLINE_INVALID_ARGUMENT);
  towline_fabric_peer_t peer = 0;
  EXPECT_EQ(towline_fabric_connect(engine, "junk", 4, &peer), TOWLINE_PROTOCOL);
  EXPECT_EQ(towline_fabric_counter_wait(engine, 1, 1, 1000), TOWLINE_NOT_YET);
  EXPECT_EQ(towline_fabric_poll(engine, 0), TOWLINE_STALE);
  towline_fabric_destroy(engine);
}

TEST(CapiFabric, OnlyMemoryThatWasRegisteredHereIsDeregistered) {
  towline_fabric_t* engine = make();
  towline_fabric_t* other = make();
  towline_fabric_pool_t* pool = nullptr;
  ASSERT_NO_FATAL_FAILURE(make_pool(engine, &pool));
  towline_fabric_buffer_t buffer{};
  ASSERT_EQ(towline_fabric_pool_take(pool, &buffer), TOWLINE_OK);
  EXPECT_EQ(towline_fabric_deregister(engine, buffer.memory), TOWLINE_NOT_FOUND) << "a pool's";
  std::vector<uint8_t> bytes(4096);
  towline_fabric_memory_t* memory = nullptr;
  ASSERT_EQ(towline_fabric_register(engine, bytes.data(), bytes.size(), TOWLINE_FABRIC_READABLE, &memory),
            TOWLINE_OK)
      << towline_last_error();
  EXPECT_EQ(towline_fabric_deregister(other, memory), TOWLINE_NOT_FOUND);
  EXPECT_EQ(towline_fabric_deregister(engine, memory), TOWLINE_OK) << towline_last_error();
  EXPECT_EQ(towline_fabric_deregister(engine, memory), TOWLINE_NOT_FOUND) << "twice";
  towline_fabric_pool_destroy(pool);
  towline_fabric_destroy(other);
  towline_fabric_destroy(engine);
}

// It could be deregistered there while it is used here.
TEST(CapiFabric, MemoryOfAnotherEngineIsRefused) {
  towline_fabric_t* engine = make();
  towline_fabric_t* other = make();
  const auto address = blob(
      [&](void* out, size_t n, size_t* needed) { return towline_fabric_address(other, out, n, needed); });
  towline_fabric_peer_t peer = 0;
  ASSERT_EQ(towline_fabric_connect(engine, address.data(), address.size(), &peer), TOWLINE_OK);
  std::vector<uint8_t> bytes(8192);
  towline_fabric_memory_t* foreign = nullptr;
  ASSERT_EQ(towline_fabric_register(other, bytes.data(), bytes.size(), TOWLINE_FABRIC_WRITABLE, &foreign),
            TOWLINE_OK)
      << towline_last_error();
  const auto descriptor = blob([&](void* out, size_t n, size_t* needed) {
    return towline_fabric_descriptor(foreign, out, n, needed);
  });
  towline_fabric_remote_t* remote = nullptr;
  ASSERT_EQ(towline_fabric_import(descriptor.data(), descriptor.size(), &remote), TOWLINE_OK);
  const auto expect_refused = [](int32_t status) {
    EXPECT_EQ(status, TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(std::string{towline_last_error()}.find("memory of another engine"), std::string::npos)
        << towline_last_error();
  };
  expect_refused(towline_fabric_single(engine, TOWLINE_FABRIC_WRITE, peer, foreign, 0, remote, 4096, 4096,
                                       nullptr, nullptr));
  const uint32_t page = 0;
  towline_fabric_pages_t pages{};
  pages.struct_size = sizeof pages;
  pages.local_pages = pages.remote_pages = &page;
  pages.count = 1;
  pages.page_bytes = 4096;
  expect_refused(
      towline_fabric_paged(engine, TOWLINE_FABRIC_WRITE, peer, foreign, remote, &pages, nullptr, nullptr));
  const towline_fabric_part_t part{peer, foreign, 0, remote, 4096, 4096};
  expect_refused(towline_fabric_scatter(engine, &part, 1, nullptr, nullptr));
  expect_refused(towline_fabric_send(engine, peer, foreign, 0, 4096, nullptr, nullptr));
  expect_refused(towline_fabric_receive(engine, foreign, 0, 4096, nullptr, nullptr));
  towline_fabric_remote_release(remote);
  towline_fabric_destroy(engine);
  towline_fabric_destroy(other);
}

// Each says what was given, and what would do.
TEST(CapiFabric, TransfersThatAreRefusedSayWhy) {
  std::vector<uint8_t> bytes(8192);
  Fabric one{std::vector<std::string>{"loopback:refusals"}};
  Fabric two{std::vector<std::string>{"loopback:refusals"}};
  const FabricMemory mine = one.register_memory(bytes.data(), bytes.size());
  const FabricMemory theirs = two.register_memory(bytes.data(), 4096, {.writable = true});
  const FabricRemote remote{theirs.descriptor()};
  const FabricPeer peer = one.connect(two.address());
  const auto why = [](const auto& call) -> std::string {
    try {
      (void)call();
    } catch (const Error& error) {
      return error.what();
    }
    return "not refused";
  };
  const auto says = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  std::string text = why([&] { return one.write(peer, mine, 0, remote, 4000, 100); });
  EXPECT_TRUE(
      says(text, "100 bytes from offset 4000 on are out of range for the peer's memory of 4096 bytes"))
      << text;
  text = why([&] { return one.write(peer, mine, 8192, remote, 0, 1); });
  EXPECT_TRUE(says(text, "out of range for local memory of 8192 bytes")) << text;
  text = why([&] { return one.read(peer, mine, 0, remote, 0, 100); });
  EXPECT_TRUE(says(text, "register it there as readable")) << text;
  text = why([&] { return one.write(peer, mine, 0, remote, 0, 0); });
  EXPECT_TRUE(says(text, "0 bytes")) << text;
  text = why([&] { return one.write(12345, mine, 0, remote, 0, 1); });
  EXPECT_TRUE(says(text, "peer 12345 is not connected")) << text;
  const std::vector<uint32_t> good{0, 1};
  const std::vector<uint32_t> bad{0, 4};
  text = why([&] {
    return one.write(peer, mine, remote, {.local_pages = good, .remote_pages = bad, .page_bytes = 1024});
  });
  EXPECT_TRUE(says(text, "page 4 of 1024 bytes is out of range for the peer's memory")) << text;
  text = why([&] {
    return one.write(peer, mine, remote,
                     FabricPages{.local_pages = {}, .remote_pages = {}, .page_bytes = 1024});
  });
  EXPECT_TRUE(says(text, "no pages")) << text;
  const std::string message(993, 'x');
  text = why([&] { return one.signal(peer, {.message = message}); });
  EXPECT_TRUE(says(text, "a message of 993 bytes is too long: at most 992")) << text;
  text = why([&] { return one.signal(peer, {}); });
  EXPECT_TRUE(says(text, "nothing to do")) << text;
  towline_fabric_transfer_t transfer = 0;
  EXPECT_EQ(towline_fabric_barrier(one.get(), 77, 1, nullptr, &transfer), TOWLINE_STALE);
  EXPECT_TRUE(says(towline_last_error(), "group 77 does not exist")) << towline_last_error();
}

TEST(CapiFabric, TheWrapperWritesReadsAndCounts) {
  using std::chrono::seconds;
  const std::vector<std::string> rails{"ofi:tcp;ofi_rxm@127.0.0.1"};
  // Before the engines: a provider may still read what it has sent when the other side has it.
  std::vector<uint8_t> source(4096, 5);
  std::vector<uint8_t> target(4096);
  Fabric one{rails};
  Fabric two{rails};
  const FabricMemory mine = one.register_memory(source.data(), source.size());
  const FabricMemory theirs =
      two.register_memory(target.data(), target.size(), {.readable = true, .writable = true});
  const FabricRemote remote{theirs.descriptor()};
  const FabricPeer peer = one.connect(two.address());
  const std::vector<uint32_t> pages{1, 3};
  const FabricPages list{.local_pages = pages, .remote_pages = pages, .page_bytes = 1024};
  const FabricTransfer move = one.write(peer, mine, remote, list, {.immediate = 1, .count = 2});
  EXPECT_EQ(two.wait_counter(1, 2, seconds{20}), Status::kOk);
  EXPECT_EQ(move.wait(seconds{20}), Status::kOk);
  EXPECT_EQ(target[1024], 5);
  EXPECT_EQ(target[0], 0);
  std::fill(source.begin(), source.end(), uint8_t{0});
  EXPECT_EQ(one.read(peer, mine, remote, list).wait(seconds{20}), Status::kOk);
  EXPECT_EQ(source[4095], 5);
  EXPECT_EQ(one.signal(peer, {.message = "unheard"}).wait(seconds{20}), Status::kOk);
  EXPECT_THROW((void)one.signal(peer, {}), Error);
  EXPECT_THROW((void)Fabric{std::vector<std::string>{}}, Error);
}

// As a GPU's driver exports it: only the NICs reach it, so its address is one that nobody may touch.
TEST(CapiFabric, MemoryOfADeviceIsRegisteredByItsDmaBuf) {
  using std::chrono::seconds;
  constexpr uint64_t kOffset = 4096;
  constexpr uint64_t kBytes = 8192;
  const UniqueFd device{memfd_create("device", MFD_CLOEXEC)};
  ASSERT_EQ(ftruncate(device.get(), kOffset + kBytes), 0);
  void* const address = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(address, MAP_FAILED);
  {
    const std::vector<std::string> rails{"loopback:capi-device"};
    Fabric one{rails};
    Fabric two{rails};
    std::vector<uint8_t> source(kBytes);
    std::iota(source.begin(), source.end(), uint8_t{1});
    const FabricMemory mine = one.register_memory(source.data(), kBytes);
    const int passed = dup(device.get());
    const FabricMemory theirs =
        two.register_dma_buf(address, kBytes, passed, kOffset, {.readable = true, .writable = true});
    ::close(passed);
    const FabricRemote remote{theirs.descriptor()};
    const FabricPeer peer = one.connect(two.address());
    EXPECT_EQ(one.write(peer, mine, 0, remote, 0, kBytes).wait(seconds{20}), Status::kOk);
    std::vector<uint8_t> there(kBytes);
    ASSERT_EQ(pread(device.get(), there.data(), kBytes, kOffset), static_cast<ssize_t>(kBytes));
    EXPECT_EQ(there, source);
    std::fill(source.begin(), source.end(), uint8_t{0});
    EXPECT_EQ(one.read(peer, mine, 0, remote, 0, kBytes).wait(seconds{20}), Status::kOk);
    EXPECT_EQ(there, source);
    EXPECT_THROW((void)two.register_dma_buf(address, kBytes, -1), Error);
    EXPECT_THROW((void)two.register_dma_buf(address, 2 * kBytes, device.get(), kOffset),
                 Error);  // ends before
    Fabric unable{std::vector<std::string>{"loopback:capi-device?host_only"}};
    try {
      (void)unable.register_dma_buf(address, kBytes, device.get(), kOffset);
      ADD_FAILURE() << "the rail takes none";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kUnsupported);
    }
  }
  munmap(address, kBytes);
}

// GPU memory itself: FabricGpuMemory.*, on GPUs made of host memory.
TEST(CapiFabric, WithoutAGpuItsMemoryIsRefusedByName) {
  if (::access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "this machine has a GPU";
  Fabric engine{std::vector<std::string>{"loopback:capi-no-gpu"}};
  uint8_t byte = 0;
  try {
    (void)engine.register_gpu_memory(&byte, 1, 0);
    ADD_FAILURE() << "there is no GPU";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == Status::kUnsupported || error.code() == Status::kNotFound) << error.what();
    EXPECT_NE(std::string(error.what()).find("cuda"), std::string::npos) << error.what();
  }
}

TEST(CapiFabric, TheWrapperScattersMeetsSendsAndTells) {
  using std::chrono::seconds;
  const std::vector<std::string> rails{"ofi:tcp;ofi_rxm@127.0.0.1"};
  std::atomic<uint32_t> counted{0};
  std::atomic<size_t> heard{0};
  FabricOptions told;
  told.events.counted = [&](FabricPeer, uint32_t immediate, uint32_t count) {
    if (immediate == 1) counted += count;
  };
  told.events.message = [&](FabricPeer, std::span<const uint8_t> message) { heard += message.size(); };
  Fabric one{rails};
  Fabric two{rails, std::move(told)};
  std::vector<uint8_t> source(1 << 20, 7);
  std::vector<uint8_t> target(1 << 20);
  const FabricMemory mine = one.register_memory(source.data(), source.size(), {.writable = true});
  const FabricMemory theirs = two.register_memory(target.data(), target.size(), {.writable = true});
  const FabricRemote remote{theirs.descriptor()};
  const FabricPeer to_two = one.connect(two.address());
  const FabricPeer to_one = two.connect(one.address());

  const std::vector<FabricPart> parts{{to_two, mine.get(), 0, remote.get(), 0, 10},
                                      {to_two, mine.get(), 0, remote.get(), 100, 10}};
  FabricTransferOptions options{.immediate = 1, .count = 1, .message = "both"};
  std::future<Status> outcome = options.completion();
  const FabricTransfer scattered = one.scatter(parts, options);
  ASSERT_EQ(outcome.wait_for(seconds{20}), std::future_status::ready);
  EXPECT_EQ(outcome.get(), Status::kOk);
  EXPECT_EQ(two.wait_counter(1, 2, seconds{20}), Status::kOk);
  EXPECT_EQ(target[9] + target[100] + target[109], 21);
  EXPECT_EQ(target[10] + target[110], 0);

  // A barrier of two, and a signal to the group.
  const uint32_t group = one.add_group({&to_two, 1});
  const uint32_t other = two.add_group({&to_one, 1});
  const FabricTransfer first = one.barrier(group, 5);
  EXPECT_EQ(two.barrier(other, 5).wait(seconds{20}), Status::kOk);
  EXPECT_EQ(first.wait(seconds{20}), Status::kOk);
  EXPECT_EQ(one.signal_group(group, {.message = "all"}).wait(seconds{20}), Status::kOk);
  one.remove_group(group);
  EXPECT_THROW((void)one.barrier(group, 5), Error);

  // Into a buffer of a pool, told by a callback.
  {
    FabricPool pool{two, 4096, 1};
    const auto buffer = pool.take();
    ASSERT_TRUE(buffer);
    EXPECT_FALSE(pool.take());
    std::promise<uint64_t> got;
    const FabricTransfer received =
        two.receive(FabricMemory{buffer->memory}, buffer->offset, 4096,
                    {.done = [&](Status, FabricPeer, uint64_t bytes) { got.set_value(bytes); }});
    EXPECT_EQ(one.send(to_two, mine, 0, 3000).wait(seconds{20}), Status::kOk);
    EXPECT_EQ(received.wait(seconds{20}), Status::kOk);
    EXPECT_EQ(got.get_future().get(), 3000u);
    EXPECT_EQ(received.received().bytes, 3000u);
    EXPECT_EQ(received.received().peer, to_one);
    EXPECT_EQ(static_cast<uint8_t*>(buffer->address)[2999], 7);
    pool.give_back(*buffer);
    EXPECT_THROW(pool.give_back(*buffer), Error);
  }
  EXPECT_EQ(one.write(to_two, mine, 0, remote, 1000, 5).wait(seconds{20}), Status::kOk);
  EXPECT_EQ(target[1004], 7);

  size_t count = 0;
  towline_fabric_rail_t rail{};
  EXPECT_EQ(towline_fabric_rails(one.get(), &rail, sizeof rail, 1, &count), TOWLINE_OK);
  EXPECT_EQ(count, 1u);
  EXPECT_GE(rail.bytes, 3000u);
  EXPECT_EQ(rail.longest_pause_ns, 0u);  // nothing broke
  EXPECT_NE(std::string{rail.name}.find("tcp"), std::string::npos);
  EXPECT_EQ(counted, 2u);
}

TEST(CapiFabric, WordsAndCountersCanBeWatched) {
  using std::chrono::seconds;
  const std::vector<std::string> rails{"ofi:tcp;ofi_rxm@127.0.0.1"};
  Fabric one{rails};
  Fabric two{rails};
  std::promise<uint64_t> changed;
  towline_fabric_word_t word{};
  ASSERT_EQ(towline_fabric_watch(
                two.get(), 0,
                [](void* context, uint64_t before, uint64_t now) {
                  static_cast<std::promise<uint64_t>*>(context)->set_value(before * 100 + now);
                  return 0;
                },
                &changed, &word),
            TOWLINE_OK);
  EXPECT_EQ(word.gpu, reinterpret_cast<uint64_t>(word.host));
  // The word changes because a counter is stored in it.
  ASSERT_EQ(towline_fabric_counter_mirror(two.get(), 3, word.host), TOWLINE_OK);
  EXPECT_EQ(one.signal(one.connect(two.address()), {.immediate = 3, .count = 42}).wait(seconds{20}),
            Status::kOk);
  auto told = changed.get_future();
  ASSERT_EQ(told.wait_for(seconds{20}), std::future_status::ready);
  EXPECT_EQ(told.get(), 42u);
  EXPECT_EQ(towline_fabric_counter_mirror(two.get(), 3, nullptr), TOWLINE_OK);
  EXPECT_EQ(towline_fabric_unwatch(two.get(), word.index), TOWLINE_OK);
  EXPECT_EQ(towline_fabric_unwatch(two.get(), word.index), TOWLINE_NOT_FOUND);
  EXPECT_EQ(towline_fabric_counter_mirror(two.get(), 3, reinterpret_cast<uint64_t*>(9)),
            TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_fabric_watch(two.get(), 0, nullptr, nullptr, &word), TOWLINE_INVALID_ARGUMENT);
  towline_fabric_transfer_t transfer = 0;
  EXPECT_EQ(towline_fabric_counter_when(two.get(), 3, 42, nullptr, &transfer), TOWLINE_IN_PROGRESS);
  EXPECT_EQ(towline_fabric_wait(two.get(), transfer, 20 * kSecond), TOWLINE_OK);
  EXPECT_EQ(towline_fabric_scatter(two.get(), nullptr, 0, nullptr, nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_fabric_group_create(two.get(), nullptr, 0, nullptr), TOWLINE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace towline::capi_fabric_test
