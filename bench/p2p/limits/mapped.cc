// Limit: memcpy, block by block, between private memory and memory mapped from the target's memfd.
#include <unistd.h>

#include <cstring>

#include "../contender.h"
#include "../target.h"

namespace bench {
namespace {

constexpr char kName[] = "mapped";

class MappedLimit final : public PairedContender {
 public:
  explicit MappedLimit(Session& session) : PairedContender(kName, session) {}

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
  };

  void connect(const Json& target) override {
    remote_ = Memory::shared_of(target.at("pid"), target.at("descriptor"), span());
  }

  void prepare_cell() override {
    copies_.clear();
    for (std::size_t i = 0; i < cell().count; ++i) {
      std::byte* here = local() + lists().local[i] * cell().block;
      std::byte* there = remote_.data() + lists().remote[i] * cell().block;
      copies_.push_back(cell().op == Op::kWrite ? Copy{there, here} : Copy{here, there});
    }
  }

  void run_once() override {
    const std::size_t block = cell().block;
    for (const Copy& copy : copies_) std::memcpy(copy.to, copy.from, block);
  }

  Memory remote_;
  std::vector<Copy> copies_;
};

class MappedResponder final : public Responder {
 public:
  explicit MappedResponder(TargetMemory& memory) : memory_(memory) {}
  Json setup(const Json&) override {
    return {{"pid", getpid()}, {"descriptor", memory_.shared().descriptor()}};
  }
  std::byte* memory() override { return memory_.shared().data(); }

 private:
  TargetMemory& memory_;
};

}  // namespace

const Family kMappedFamily = {
    [](Session& session, Contenders& out) { out.push_back(std::make_unique<MappedLimit>(session)); },
    [](const std::string& name, TargetMemory& memory) -> std::unique_ptr<Responder> {
      if (name != kName) return nullptr;
      return std::make_unique<MappedResponder>(memory);
    }};

}  // namespace bench
