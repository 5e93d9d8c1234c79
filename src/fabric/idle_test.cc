// Engines that have nothing to do take no processor: they poll for a bounded time, then wait for completions.
#include <gtest/gtest.h>

#include <sys/eventfd.h>

#include "base/os/unique_fd.h"
#include "fabric/rails.h"
#include "fabric/test_support.h"
#include "fabric/transfer_engine_fixture.h"
#include "support/quiet.h"

namespace towline::fabric::idle_test {
namespace {

using towline::testing::processor_ms_while_quiet;

class FabricIdle : public ::testing::TestWithParam<const char*> {
 protected:
  struct End {
    explicit End(const char* rail) : engine(fabric::make_rails(rail), {}) {
      memory = engine.register_memory({bytes.data(), bytes.size(), true, true});
    }
    std::vector<uint8_t> bytes = std::vector<uint8_t>(1 << 20);
    TransferEngine engine;
    const LocalMemory* memory = nullptr;
  };
};

TEST_P(FabricIdle, EnginesThatAreConnectedAndQuietTakeNoProcessor) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "UCX and libfabric have threads of their own, which ThreadSanitizer can't follow";
#endif
  End one{GetParam()};
  End two{GetParam()};
  const Handle peer = one.engine.connect(two.engine.address());
  const RemoteMemory remote = TransferEngine::import(TransferEngine::descriptor(*two.memory));
  std::fill(one.bytes.begin(), one.bytes.end(), uint8_t{9});
  for (int i = 0; i < 3; ++i) {
    Handle number;
    ASSERT_EQ(
        one.engine.single(TransferOp::kWrite, peer, *one.memory, 0, remote, 0, one.bytes.size(), {}, &number),
        Status::kInProgress);
    ASSERT_EQ(one.engine.wait(number, testing::kLimitNs), Status::kOk);
    one.engine.release(number);
  }
  ASSERT_EQ(two.bytes, one.bytes);
  EXPECT_LT(processor_ms_while_quiet(), 20);
}

// A port that fails and does not come back. Its descriptor stays readable, as that of a device that is gone.
class DeadPort final : public testing::PortAround {
 public:
  using PortAround::PortAround;
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    if (told_ || capacity == 0) return 0;
    told_ = true;
    completions[0] = {0, 0, 0, 0, Status::kUnreachable, CompletionKind::kDomainDown};
    return 1;
  }
  int event_fd() const noexcept override { return readable_.get(); }

 private:
  const UniqueFd readable_{eventfd(1, EFD_CLOEXEC)};
  bool told_ = false;
};

TEST(FabricIdle, AnEngineWithARailThatIsDownTakesNoProcessor) {
  for (const char* other : {"", "loopback:idle-beside", "ofi:tcp;ofi_rxm@127.0.0.1"}) {
    SCOPED_TRACE(other);
    std::vector<std::unique_ptr<Domain>> rails;
    rails.push_back(std::make_unique<DeadPort>(make_rail("loopback:idle-dead")));
    if (*other != 0) rails.push_back(make_rail(other));
    const TransferEngine engine{std::move(rails), {}};
    ASSERT_TRUE(testing::eventually([&] { return engine.rails().front().counters.down; }));
    EXPECT_LT(processor_ms_while_quiet(), 20);
  }
}

constexpr const char* kNames[] = {"ofi_tcp", "loopback", "ucx_tcp"};

INSTANTIATE_TEST_SUITE_P(Rails, FabricIdle,
                         ::testing::Values("ofi:tcp;ofi_rxm@127.0.0.1", "loopback:idle", "ucx:tcp"),
                         [](const auto& tested) { return kNames[tested.index]; });

}  // namespace
}  // namespace towline::fabric::idle_test
